"""Topics of a cluster with three nodes: where their replicas are, who leads them."""

from collections.abc import Mapping

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from kit.kafka import KafkaServer
from kit.waiting import eventually


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
    """Delete a topic of one partition and make it again at once, empty, led by another node; blocks."""
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
