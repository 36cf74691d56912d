"""How many jobs a second come in through ``POST /v1/jobs``, one job a request: part of ``tickwright bench jobs``.

The client is another process that costs as little as Python can: what it takes, the API does not have.
"""

import asyncio
import json
import multiprocessing
import socket
import time
from datetime import UTC, datetime, timedelta
from multiprocessing.connection import Connection

import uvloop

from tickwright.bench.ground import Ground, wait_until

CONNECTIONS = 64
REQUESTS = 19_200


def enqueue_rest(ground: Ground) -> float:
    """Return jobs a second of 64 connections, each of which waits for its answer before it asks again."""
    ground.clear()
    ground.run("INSERT INTO tickwright.task_types (name, target) VALUES ('noop', 'python:noop')")
    port = free_port()
    key = json.loads(ground.command("keys", "create", "bench", "--json"))["key"]
    api = ground.launch("api", environment={"TICKWRIGHT_API_BIND": f"127.0.0.1:{port}"})
    wait_until(lambda: api.poll() is not None or _answers(port), 30, "the API to listen")
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    client = multiprocessing.get_context("spawn").Process(target=_ask, args=(theirs, port, key), daemon=True)
    client.start()
    theirs.close()  # so that its end ends our waiting
    try:
        seconds: float = ours.recv()
    finally:
        client.join()
        ground.stop()
    if (found := ground.left("noop")) != REQUESTS:
        raise RuntimeError(f"{REQUESTS} jobs were answered with 201, {found} are there")
    return REQUESTS / seconds


def free_port() -> int:
    """Return a free port of this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _ask(pipe: Connection, port: int, key: str) -> None:
    uvloop.run(_measure(pipe, port, key))


async def _measure(pipe: Connection, port: int, key: str) -> None:
    due = (datetime.now(UTC) + timedelta(hours=1)).isoformat().replace("+00:00", "Z")
    body = json.dumps({"task_type": "noop", "execute_at": due, "payload": {"shipment_id": 42, "carrier": "dhl"}})
    request = (
        f"POST /v1/jobs HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {key}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n{body}"
    ).encode()
    each = REQUESTS // CONNECTIONS
    loop = asyncio.get_running_loop()
    started = time.perf_counter()
    callers = [
        (await loop.create_connection(lambda: _Caller(request, each, loop.create_future()), "127.0.0.1", port))[1]
        for _ in range(CONNECTIONS)
    ]
    await asyncio.gather(*(caller.done for caller in callers))
    pipe.send(time.perf_counter() - started)


class _Caller(asyncio.Protocol):
    """Sends the same request again as soon as the answer is there."""

    def __init__(self, request: bytes, times: int, done: "asyncio.Future[None]") -> None:
        self._request, self._left, self.done = request, times, done
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        transport.write(self._request)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head = self._buffer.find(b"\r\n\r\n")
        if head < 0:
            return
        length = self._buffer.lower().find(b"content-length: ", 0, head)
        size = int(self._buffer[length + 16 : self._buffer.find(b"\r\n", length)])
        if len(self._buffer) < head + 4 + size:
            return
        if not self._buffer.startswith(b"HTTP/1.1 201"):
            self.done.set_exception(RuntimeError(self._buffer.decode(errors="replace")))
            return
        self._buffer = b""
        self._left -= 1
        if self._left:
            self._transport.write(self._request)  # type: ignore[attr-defined]
        else:
            self._transport.close()
            self.done.set_result(None)
