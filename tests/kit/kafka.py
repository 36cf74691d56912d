"""A real Apache Kafka for tests: one node or three, with own ports and folders, killed and restarted by number.

The jars are Apache's own, from Maven; ``scripts/test-servers.sh`` puts them into ``.kafka/libs`` of the checkout. Each
node is broker and controller. Beside its ordinary listener it has one that it advertises with another port:
a :class:`kit.kafka_proxy.KafkaProxy` at that port sees all requests of a client.
"""

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from pathlib import Path

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from kit.forks import Child
from kit.ports import free_port
from kit.processes import kill_group, make_folder, missing, spawn, wait_for_port
from kit.waiting import eventually

HOME = Path(__file__).parents[2] / ".kafka"
JARS = HOME / "libs"
CLASSES = HOME / "kafka.jsa"
"""A class-data archive: a node starts in one second instead of three."""

_HEAP = "384m"
NO_OPTIONS = {"JAVA_TOOL_OPTIONS": ""}  # options of the environment, such as a debugger's, are left out
_START_WITHIN_S = 90
_API_VERSIONS = (
    b"\x00\x00\x00\x0a\x00\x12\x00\x00\x00\x00\x00\x01\xff\xff"  # length, key 18, version 0, id 1, no client
)


class KafkaServer:
    """A cluster on loopback, of one node by default.

    Args:
        nodes: 1 or 3; three have replication 3 and at least two replicas in sync.
        configuration: Lines for ``server.properties``, added to the kit's.
    """

    def __init__(self, nodes: int = 1, configuration: dict[str, str] | None = None) -> None:
        if shutil.which("java") is None or not any(JARS.glob("kafka_2.13-*.jar")):
            missing("Kafka")
        self.folder = make_folder("kafka")
        self.nodes = nodes
        self._configuration = configuration or {}
        self._children: dict[int, Child] = {}
        numbers = range(1, nodes + 1)
        self.ports = {number: free_port() for number in numbers}
        self.direct_port, self.proxy_port = free_port(), free_port()
        self._control_ports = {number: free_port() for number in numbers}
        self._formatted = False

    @property
    def url(self) -> str:
        """Bootstrap addresses of all nodes."""
        return ",".join(f"127.0.0.1:{port}" for port in self.ports.values())

    @property
    def proxied_url(self) -> str:
        """Bootstrap address for clients that go through a proxy at ``proxy_port`` to ``direct_port``."""
        return f"127.0.0.1:{self.proxy_port}"

    def start(self) -> None:
        """Return when every node answers."""
        _train()
        self._format()
        for number in self.ports:
            self._spawn(number)
        for number in self.ports:
            self._await(number)

    def start_node(self, number: int) -> None:
        """Start one node again, with its data; return when it answers."""
        self._spawn(number)
        self._await(number)

    def kill_node(self, number: int) -> None:
        """``kill -9`` one node."""
        kill_group(self._children.pop(number))

    def stop(self) -> None:
        """Stop as an operator would. A second call is harmless."""
        children, self._children = self._children, {}
        for child in children.values():
            child.send_signal(signal.SIGTERM)
        for child in children.values():
            try:
                child.wait(timeout=30)
            except subprocess.TimeoutExpired:
                kill_group(child)

    def kill9(self) -> None:
        """``kill -9`` every node."""
        for number in list(self._children):
            self.kill_node(number)

    def restart(self) -> None:
        """Stop and start on the same ports with the same data."""
        self.stop()
        self.start()

    def destroy(self) -> None:
        """Kill the nodes and remove their folders."""
        self.kill9()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _log(self, number: int) -> Path:
        return self.folder / f"node-{number}.log"

    def _file(self, number: int) -> Path:
        return self.folder / f"node-{number}.properties"

    def _spawn(self, number: int) -> None:
        shared = [f"-XX:SharedArchiveFile={CLASSES}", "-Xshare:auto"] if CLASSES.exists() else []
        command = [*_java(_HEAP, *shared), "kafka.Kafka", str(self._file(number))]
        self._children[number] = spawn(command, self._log(number), NO_OPTIONS)

    def _await(self, number: int) -> None:
        log = self._log(number)
        wait_for_port(self.ports[number], self._children[number], log, _API_VERSIONS, _START_WITHIN_S)

    def _format(self) -> None:
        if self._formatted:
            return
        cluster_id = urlsafe_b64encode(b"\x01" + secrets.token_bytes(15)).decode().rstrip("=")
        for number in self.ports:
            self._file(number).write_text(self._properties(number))
            command = [*_java("128m"), "kafka.tools.StorageTool", "format", "-t", cluster_id, "-c"]
            subprocess.run([*command, str(self._file(number))], check=True, stdout=subprocess.DEVNULL)
        self._formatted = True

    def _properties(self, number: int) -> str:
        replicas, in_sync = (3, 2) if self.nodes >= 3 else (1, 1)
        voters = ",".join(f"{one}@127.0.0.1:{port}" for one, port in self._control_ports.items())
        proxied = number == 1
        listeners = [f"PLAINTEXT://127.0.0.1:{self.ports[number]}"]
        advertised = listeners[0] + (f",PROXIED://127.0.0.1:{self.proxy_port}" if proxied else "")
        listeners += [f"PROXIED://127.0.0.1:{self.direct_port}"] if proxied else []
        listeners += [f"CONTROLLER://127.0.0.1:{self._control_ports[number]}"]
        lines = {
            "process.roles": "broker,controller",
            "node.id": number,
            "controller.quorum.voters": voters,
            "listeners": ",".join(listeners),
            "advertised.listeners": advertised,
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,PROXIED:PLAINTEXT",
            "log.dirs": self.folder / f"node-{number}",
            "num.partitions": 4,
            "default.replication.factor": replicas,
            "min.insync.replicas": in_sync,
            "offsets.topic.replication.factor": replicas,
            "offsets.topic.num.partitions": 4,
            "transaction.state.log.replication.factor": replicas,
            "transaction.state.log.min.isr": in_sync,
            "transaction.state.log.num.partitions": 4,
            "share.coordinator.state.topic.replication.factor": replicas,
            "share.coordinator.state.topic.min.isr": in_sync,
            "group.initial.rebalance.delay.ms": 0,
            "broker.heartbeat.interval.ms": 500,
            "broker.session.timeout.ms": 3000,  # a killed node returns only after its session
            "auto.create.topics.enable": "false",
            **self._configuration,
        }
        return "".join(f"{name}={value}\n" for name, value in lines.items())


def _java(heap: str, *options: str) -> list[str]:
    quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
    bounds = (f"-Xmx{heap}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
    return ["java", *bounds, *options, quiet, "-cp", f"{JARS}/*"]


def _train() -> None:
    """Make the class-data archive, once per checkout: a node is started and stopped for it."""
    if CLASSES.exists():
        return
    mine = HOME / f"training-{os.getpid()}.jsa"
    server = KafkaServer()
    try:
        server._format()
        command = [*_java(_HEAP, f"-XX:ArchiveClassesAtExit={mine}"), "kafka.Kafka", str(server._file(1))]
        server._children[1] = spawn(command, server._log(1), NO_OPTIONS)
        server._await(1)
        server.stop()
        with contextlib.suppress(FileNotFoundError):  # a Java without archives: nodes start slower
            mine.replace(CLASSES)
    finally:
        server.destroy()


# Topics of a cluster with three nodes: where their replicas are, and which nodes lead them.


def make_topics(bootstrap: str, layout: Mapping[str, list[list[int]]]) -> None:
    """Make topics; the layout has the nodes of each partition, the first leads. Returns when all nodes lead; blocks."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for made in admin.create_topics(
        [
            NewTopic(name, len(nodes), replica_assignment=nodes, config={"compression.type": "uncompressed"})
            for name, nodes in layout.items()
        ]
    ).values():
        made.result(20)
    for name, nodes in layout.items():
        led = lambda name=name, nodes=nodes: leaders_of(bootstrap, name) == [some[0] for some in nodes]  # noqa: E731
        eventually(led, 20, what=f"{name} has its leaders")


def leaders_of(bootstrap: str, topic: str) -> list[int]:
    """Return the leading node of each partition; -1 where there is none; blocks."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    partitions = admin.list_topics(topic, timeout=10).topics[topic].partitions
    return [partitions[number].leader for number in sorted(partitions)]


def raise_epoch(server: KafkaServer, topic: str) -> None:
    """Restart the node that leads a topic of one partition, so that another one leads it, under a higher epoch."""
    (former,) = leaders_of(server.url, topic)
    server.kill_node(former)
    eventually(lambda: leaders_of(server.url, topic)[0] not in {former, -1}, 30, what="another node leads")
    server.start_node(former)
    eventually(lambda: former in _in_sync(server.url, topic), 60, what="the node is in sync again")


def make_again_elsewhere(server: KafkaServer, topic: str) -> None:
    """Delete a topic of one partition and create it again at once, empty, led by another node; blocks."""
    (former,) = leaders_of(server.url, topic)
    admin = AdminClient({"bootstrap.servers": server.url, "log_level": 0})
    admin.delete_topics([topic])[topic].result(20)
    nodes = [number for number in server.ports if number != former]

    def made() -> bool:
        try:
            make_topics(server.url, {topic: [nodes]})
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
            return False
        return True

    eventually(made, 20, what=f"{topic} is made again")


def _in_sync(bootstrap: str, topic: str) -> list[int]:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    found: list[int] = admin.list_topics(topic, timeout=10).topics[topic].partitions[0].isrs
    return found
