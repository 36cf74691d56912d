"""A real RabbitMQ for tests: its own node name, ports, folders and port mapper."""

import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

from kit.processes import free_port, kill_group, make_folder, missing, spawn, wait_for_port

_PROGRAMS = Path("/usr/lib/rabbitmq/bin")  # not the wrappers in /usr/sbin, which change the user
_AMQP_GREETING = b"AMQP\x00\x00\x09\x01"
_START_WITHIN_S = 60


class RabbitServer:
    """One node on a free loopback port; user ``guest``, virtual host ``/``.

    Args:
        configuration: Lines for ``rabbitmq.conf``, on top of ours.
        plugins: Names of plug-ins to enable, none by default.
    """

    def __init__(self, configuration: Mapping[str, str] | None = None, plugins: tuple[str, ...] = ()) -> None:
        if not (_PROGRAMS / "rabbitmq-server").exists() or shutil.which("epmd") is None:
            missing("RabbitMQ")
        self.folder = make_folder("mq")
        self.log = self.folder / "log"
        self.port = free_port()
        self.node = f"tw{secrets.token_hex(4)}@localhost"
        self._distribution_port = free_port()
        self._epmd_port = free_port()
        self._configuration = {"vm_memory_high_watermark.absolute": "2GB", **(configuration or {})}
        self._plugins = plugins
        self._child: subprocess.Popen[bytes] | None = None
        self._epmd: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """AMQP URL of the node."""
        return f"amqp://guest:guest@127.0.0.1:{self.port}/%2F"

    def start(self) -> None:
        """Return when the node answers the AMQP greeting."""
        self._write_configuration()
        if self._epmd is None:
            epmd = ["epmd", "-port", str(self._epmd_port), "-address", "127.0.0.1"]
            self._epmd = spawn(epmd, self.folder / "epmd.log")
        self._child = spawn([str(_PROGRAMS / "rabbitmq-server")], self.log, self.environment)
        wait_for_port(self.port, self._child, self.log, _AMQP_GREETING, _START_WITHIN_S)

    def stop(self) -> None:
        """Stop the node as an operator would, and its port mapper. Twice is harmless."""
        if self._child is not None and self._child.poll() is None:
            self._child.send_signal(signal.SIGTERM)
            try:
                self._child.wait(timeout=30)
            except subprocess.TimeoutExpired:
                kill_group(self._child)
        self._child = None
        self._stop_epmd()

    def kill9(self) -> None:
        """``kill -9`` the node with everything that it started."""
        if self._child is not None:
            kill_group(self._child)
        self._child = None
        self._stop_epmd()  # it would go on naming the dead node

    def restart(self) -> None:
        """Stop and start on the same port with the same data."""
        self.stop()
        self.start()

    def destroy(self) -> None:
        """Kill the node and remove its folder."""
        self.kill9()
        shutil.rmtree(self.folder, ignore_errors=True)

    def control(self, *words: str) -> str:
        """Run ``rabbitmqctl`` with these words and return what it said."""
        command = [str(_PROGRAMS / "rabbitmqctl"), "--node", self.node, *words]
        done = subprocess.run(
            command,
            check=False,
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            cwd="/",
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def sync_definitions(self) -> None:
        """Flush what was declared: without this a ``kill -9`` soon after a declaration may lose it."""
        self.control("eval", "mnesia:sync_log().")

    def set_disk_alarm(self, *, on: bool) -> None:
        """Make the node believe that its disk is (not) nearly full; publishers are blocked meanwhile."""
        self.control("set_disk_free_limit", "999000GB" if on else "1MB")

    @property
    def environment(self) -> Mapping[str, str]:
        """What tells the node's programs which node it is and where it lives."""
        return {
            "HOME": str(self.folder),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(self._epmd_port),
            "NOTIFY_SOCKET": "",
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq"),
            "RABBITMQ_CONF_ENV_FILE": str(self.folder / "none"),
            "RABBITMQ_DIST_PORT": str(self._distribution_port),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "plugins"),
            "RABBITMQ_LOG_BASE": str(self.folder / "logs"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_MNESIA_BASE": str(self.folder / "mnesia"),
            "RABBITMQ_NODENAME": self.node,
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_PID_FILE": str(self.folder / "pid"),
        }

    def _write_configuration(self) -> None:
        lines = [f"{name} = {value}\n" for name, value in self._configuration.items()]
        (self.folder / "rabbitmq.conf").write_text("".join(lines))
        (self.folder / "plugins").write_text(f"[{','.join(self._plugins)}].\n")

    def _stop_epmd(self) -> None:
        if self._epmd is not None:
            kill_group(self._epmd)
        self._epmd = None
