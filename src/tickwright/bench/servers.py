"""RabbitMQ and Redis for a bench: its own, on free loopback ports, unless the environment names some.

On those that the environment names the bench uses names of its own and removes them; it touches nothing else there.
"""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import redis

from tickwright.domain.errors import Rejected

INSTALL = "apt-get install rabbitmq-server redis-server"
READY_WITHIN_S = 60.0
STOP_WITHIN_S = 10.0
CHECK_S = 0.05
_RABBIT_PROGRAMS = Path("/usr/lib/rabbitmq/bin")  # where Debian has them; those on the path change the user
_AMQP_GREETING = b"AMQP\x00\x00\x09\x01"


@dataclass(frozen=True)
class Servers:
    """What fan-out publishes through.

    Attributes:
        prefix: Of every name that the bench uses on either of them.
        redis_pid: Of our own Redis, and so with ``rabbit_pid``; ``None`` for one that the environment named.
    """

    amqp_url: str
    redis_url: str
    prefix: str
    rabbit_pid: int | None
    redis_pid: int | None

    def environment(self) -> dict[str, str]:
        """Return the settings of a process that uses them."""
        return {
            "TICKWRIGHT_AMQP_URL": self.amqp_url,
            "TICKWRIGHT_AMQP_PREFIX": self.prefix,
            "TICKWRIGHT_REDIS_URL": self.redis_url,
            "TICKWRIGHT_REDIS_PREFIX": self.prefix,
        }


@contextmanager
def fanout_servers(folder: Path) -> Iterator[Servers]:
    """Lend both, and stop what was started.

    Args:
        folder: Theirs are made in it.

    Raises:
        Rejected: ``server_missing``, a program is not installed. Permanent until it is.
        RuntimeError: A server ended while it started.
    """
    amqp_url, redis_url = os.environ.get("TICKWRIGHT_AMQP_URL"), os.environ.get("TICKWRIGHT_REDIS_URL")
    prefix = f"tickwright-bench-{os.getpid()}"
    with ExitStack() as stack:
        rabbit_pid = redis_pid = None
        if amqp_url is None:
            amqp_url, rabbit_pid = stack.enter_context(_rabbit(folder / "rabbit"))
        if redis_url is None:
            redis_url, redis_pid = stack.enter_context(_redis(folder / "redis"))
        else:
            stack.callback(_forget_keys, redis_url, prefix)
        yield Servers(amqp_url, redis_url, prefix, rabbit_pid, redis_pid)


@contextmanager
def _rabbit(folder: Path) -> Iterator[tuple[str, int]]:
    program = _program("rabbitmq-server", _RABBIT_PROGRAMS / "rabbitmq-server")
    epmd = _program("epmd")
    folder.mkdir()
    port, mapper_port = _free_port(), _free_port()
    (folder / "rabbitmq.conf").write_text("vm_memory_high_watermark.absolute = 2GB\n")
    (folder / "plugins").write_text("[].\n")
    environment = {
        "HOME": str(folder),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "ERL_EPMD_PORT": str(mapper_port),
        "NOTIFY_SOCKET": "",
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq"),
        "RABBITMQ_CONF_ENV_FILE": str(folder / "none"),
        "RABBITMQ_DIST_PORT": str(_free_port()),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
        "RABBITMQ_LOG_BASE": str(folder),
        "RABBITMQ_LOGS": "-",
        "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
        "RABBITMQ_NODENAME": f"twb{secrets.token_hex(4)}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_PID_FILE": str(folder / "pid"),
    }
    mapper = [epmd, "-port", str(mapper_port), "-address", "127.0.0.1"]
    with _running(mapper, folder / "epmd.log"), _running([program], folder / "log", environment) as child:
        _wait_for(port, _AMQP_GREETING, child, folder / "log")
        yield f"amqp://guest:guest@127.0.0.1:{port}/%2F", int((folder / "pid").read_text())


@contextmanager
def _redis(folder: Path) -> Iterator[tuple[str, int]]:
    program = _program("redis-server")
    folder.mkdir()
    port = _free_port()
    settings = {
        "port": str(port), "bind": "127.0.0.1", "dir": str(folder), "save": "",
        "appendonly": "yes", "appendfsync": "everysec", "maxmemory-policy": "noeviction",
    }  # fmt: skip
    words = [word for name, value in settings.items() for word in (f"--{name}", value)]
    with _running([program, *words], folder / "log") as child:
        _wait_for(port, b"PING\r\n", child, folder / "log")
        yield f"redis://127.0.0.1:{port}/0", child.pid


def _program(name: str, *places: Path) -> str:
    found = next((str(place) for place in places if place.exists()), None) or shutil.which(name)
    if found is None:
        raise Rejected(
            "server_missing", f"{name} is not installed: {INSTALL}; or set TICKWRIGHT_AMQP_URL and _REDIS_URL"
        )
    return found


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def _running(
    command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a server in a process group of its own, and end the whole group."""
    with log.open("wb") as out:
        child = subprocess.Popen(
            list(command), stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True, cwd="/",
            env={**os.environ, **(environment or {})},
        )  # fmt: skip
    try:
        yield child
    finally:
        with suppress(subprocess.TimeoutExpired):
            child.terminate()
            child.wait(STOP_WITHIN_S)
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _wait_for(port: int, greeting: bytes, child: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline_s = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < deadline_s and child.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=2) as link:
            link.sendall(greeting)
            if link.recv(1):
                return
        time.sleep(CHECK_S)
    raise RuntimeError(f"a server did not start: {log.read_text(errors='replace')[-2000:]}")


def _forget_keys(url: str, prefix: str) -> None:
    with redis.Redis.from_url(url) as client:
        for key in client.scan_iter(match=f"{prefix}*", count=1000):
            client.delete(key)
