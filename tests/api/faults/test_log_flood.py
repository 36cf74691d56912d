"""A client without a key cannot fill the disk with log lines."""

import socket
import struct
import sys
import time
from pathlib import Path

from kit.cli import environment
from kit.ports import free_port
from kit.processes import kill_group, spawn
from kit.waiting import eventually
from tickwright.observe.repeats import EVERY_S

REQUESTS = 200
HEAD = b"GET /v1/jobs HTTP/1.1\r\nhost: 127.0.0.1\r\n"
SIGN_IN = b"POST /v1/session HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
KINDS = {
    "a large sign-in": SIGN_IN + b"content-length: 200000\r\n\r\n",
    "not HTTP": b"\x16\x03\x01\r\n\r\n",
    "an upgrade": HEAD + b"connection: upgrade\r\nupgrade: websocket\r\n\r\n",
    "unknown keys": HEAD + b"authorization: Bearer tw_%03d_a_key_that_nobody_has\r\n\r\n",
}


def test_refused_requests_of_one_kind_are_one_line_in_ten_seconds(database_url: str, tmp_path: Path) -> None:
    """Two hundred of each kind get their response, or disconnect before it, and the log of the process stays short."""
    port, log = free_port(), tmp_path / "api.log"
    binds = {"API_BIND": f"127.0.0.1:{port}", "METRICS_BIND": f"127.0.0.1:{free_port()}"}
    child = spawn(
        [sys.executable, "-m", "tickwright", "run", "api"], log, environment(DATABASE_URL=database_url, **binds)
    )
    try:
        eventually(
            lambda: _first_line(port, b"GET /readyz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n").endswith(b"200 OK"), 40
        )
        before, begun_s = _warnings(log), time.monotonic()
        for sent in KINDS.values():
            for number in range(REQUESTS):
                assert _first_line(port, sent.replace(b"%03d", b"%03d" % number)).startswith(b"HTTP/1.1 4")
        for _ in range(REQUESTS):
            _disconnect(port)
        windows = 2 + int((time.monotonic() - begun_s) / EVERY_S)
        assert 0 < _warnings(log) - before <= len(KINDS) * windows
        eventually(lambda: log.read_text(encoding="utf-8").count("api.client_gone") > 0, 20)
        windows = 2 + int((time.monotonic() - begun_s) / EVERY_S)
        assert log.read_text(encoding="utf-8").count("api.client_gone") <= windows
    finally:
        kill_group(child)


def _first_line(port: int, sent: bytes) -> bytes:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=10) as link, link.makefile("rb") as answer:
            link.sendall(sent)
            return answer.readline().strip()
    except ConnectionRefusedError:
        return b""


def _disconnect(port: int) -> None:
    """Begin a body, and reset the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as link:
        link.sendall(SIGN_IN + b"content-length: 50\r\n\r\n{")
        link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _warnings(log: Path) -> int:
    return sum("warning" in line for line in log.read_text(encoding="utf-8").splitlines())
