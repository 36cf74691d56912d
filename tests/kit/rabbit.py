"""A real RabbitMQ for tests: with its own node name, ports, folders and port mapper."""

import os
import secrets
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from kit.forks import Child
from kit.ports import free_port
from kit.preloads import slow_disk
from kit.processes import kill_group, missing, spawn, wait_for_port
from kit.server_process import ServerProcess
from kit.waiting import eventually

_PROGRAMS = Path("/usr/lib/rabbitmq/bin")  # not the wrappers in /usr/sbin, which change the user
_AMQP_GREETING = b"AMQP\x00\x00\x09\x01"
_START_WITHIN_S = 60


class RabbitServer(ServerProcess):
    """One node on a free loopback port; user ``guest``, virtual host ``/``.

    Args:
        configuration: Lines for ``rabbitmq.conf``, added to the kit's.
        plugins: Names of plug-ins to enable, none by default.
        slow_disk_ms: Additional time of each write to its disk.
    """

    def __init__(
        self, configuration: Mapping[str, str] | None = None, plugins: tuple[str, ...] = (), *, slow_disk_ms: int = 0
    ) -> None:
        if not (_PROGRAMS / "rabbitmq-server").exists() or shutil.which("epmd") is None:
            missing("RabbitMQ")
        super().__init__("mq", stop_s=30)
        self.node = f"tw{secrets.token_hex(4)}@localhost"
        self._distribution_port = free_port()
        self._epmd_port = free_port()
        self._configuration = {"vm_memory_high_watermark.absolute": "2GB", **(configuration or {})}
        self._plugins = plugins
        self._disk = slow_disk(self.folder, by_ms=slow_disk_ms) if slow_disk_ms else {}
        self._epmd: Child | None = None

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
        """Stop the node as an operator would, and its port mapper. A second call is harmless."""
        super().stop()
        self._stop_epmd()

    def kill9(self) -> None:
        """``kill -9`` the node with everything that it started."""
        super().kill9()
        self._stop_epmd()  # it would still name the dead node

    def control(self, *arguments: str) -> str:
        """Run ``rabbitmqctl`` with these arguments and return its output."""
        command = [str(_PROGRAMS / "rabbitmqctl"), "--node", self.node, *arguments]
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
        """Flush declarations: otherwise a ``kill -9`` soon after a declaration may lose it."""
        self.control("eval", "mnesia:sync_log().")

    def set_disk_alarm(self, *, on: bool) -> None:
        """Set or clear the alarm of a nearly full disk; publishers are blocked meanwhile.

        Returns when the node reports it: it checks its disk some time after the limit is set.
        """
        self.control("set_disk_free_limit", "999000GB" if on else "1MB")
        eventually(lambda: ("disk" in self.control("eval", "rabbit_alarm:get_alarms().")) == on, 30, what="the alarm")

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables that give the node's programs its name and its folders."""
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
            **self._disk,
        }

    def _write_configuration(self) -> None:
        lines = [f"{name} = {value}\n" for name, value in self._configuration.items()]
        (self.folder / "rabbitmq.conf").write_text("".join(lines))
        (self.folder / "plugins").write_text(f"[{','.join(self._plugins)}].\n")

    def _stop_epmd(self) -> None:
        if self._epmd is not None:
            kill_group(self._epmd)
        self._epmd = None
