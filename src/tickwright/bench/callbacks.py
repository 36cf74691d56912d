"""``tickwright bench callbacks``: signed HTTP callbacks from one worker to a receiver in another process.

They are compared with a bare loop of aiohttp in a process of its own: the same receiver, body and connections, the same
event loop, and nothing else: no database, no signature, no guards.
"""

import argparse
import asyncio
import multiprocessing
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection

import aiohttp
import uvloop

from tickwright.bench.ground import Ground
from tickwright.bench.jobs import SQL, let_drain
from tickwright.bench.report import Figures, median, run_bench

BARS = {"callbacks_per_s": "≥ 5,000", "share_of_bare": "≥ 0.5"}
BARE_CALLERS = 100
BODY = b'{"carrier": "dhl", "shipment_id": 12345}'
HEADERS = {
    "user-agent": "Tickwright",
    "accept-encoding": "identity",
    "content-type": "application/json",
    "webhook-id": "12345",
    "webhook-timestamp": "1700000000",
}
SECRET = "whsec_" + "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
ANSWER = b"HTTP/1.1 204 No Content\r\n\r\n"


def main(arguments: Sequence[str]) -> int:
    """Run the bench."""

    def options(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--jobs", type=int, default=20_000, help="callbacks per run")
        parser.add_argument("--runs", type=int, default=5, help="runs; the median counts")

    return run_bench("callbacks", arguments, _measure, options=options, bars=BARS)


def _measure(ground: Ground, options: argparse.Namespace, say: Callable[[str], None]) -> Figures:
    ours, theirs = multiprocessing.Pipe()
    receiver = multiprocessing.get_context("spawn").Process(target=_receive, args=(theirs,), daemon=True)
    receiver.start()
    port = ours.recv()
    try:
        bare, rates = [], []
        for _ in range(options.runs):
            bare.append(_bare(options.jobs, port))
            rates.append(_one_run(ground, options.jobs, port))
        say(f"a bare loop's requests a second: {[round(rate) for rate in bare]}")
        say(f"callbacks a second: {[round(rate) for rate in rates]}")
        ours.send("count")
        return {
            "bare_per_s": median(bare),
            "callbacks_per_s": median(rates),
            "share_of_bare": median([rate / limit for rate, limit in zip(rates, bare, strict=True)]),
            "received": ours.recv(),
            "sent": 2 * options.jobs * options.runs,
        }
    finally:
        receiver.kill()
        receiver.join()


def _bare(requests: int, port: int) -> float:
    """Return requests a second of a bare loop, in a process of its own as the worker is."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=_send_bare, args=(theirs, requests, port), daemon=True
    )
    process.start()
    try:
        return float(ours.recv())
    finally:
        process.kill()
        process.join()


def _send_bare(pipe: Connection, requests: int, port: int) -> None:
    pipe.send(uvloop.run(_requests_per_s(requests, f"http://127.0.0.1:{port}/hook")))


async def _requests_per_s(requests: int, url: str) -> float:
    left = iter(range(requests))
    connector = aiohttp.TCPConnector(limit=BARE_CALLERS)
    async with aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as session:

        async def caller() -> None:
            for _ in left:
                async with session.post(url, data=BODY, headers=HEADERS) as response:
                    await response.read()

        started = time.perf_counter()
        await asyncio.gather(*(caller() for _ in range(BARE_CALLERS)))
        return requests / (time.perf_counter() - started)


def _one_run(ground: Ground, jobs: int, port: int) -> float:
    ground.clear()
    ground.run(
        "INSERT INTO tickwright.task_types (name, target, paused_at) VALUES ('callback', %s, now())",
        f"http://127.0.0.1:{port}/hook",
    )
    ground.run("INSERT INTO tickwright.task_type_secrets (task_type, secret) VALUES ('callback', %s)", SECRET)
    ground.start(environment={"TICKWRIGHT_ALLOW_TARGETS": "127.0.0.1/32"})
    ground.run(SQL["fill_due"], "callback", jobs)
    ground.run(SQL["settle"])
    rate = let_drain(ground, jobs, "callback")
    ground.stop()
    return rate


def _receive(pipe: Connection) -> None:
    """Answer every request with 204 as cheaply as Python can, and count."""
    uvloop.run(_serve(pipe))


class _Receiver(asyncio.Protocol):
    count = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._buffer = b""

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (head := self._buffer.find(b"\r\n\r\n")) >= 0:
            length = self._buffer.lower().find(b"content-length: ", 0, head)
            end = self._buffer.find(b"\r\n", length)
            size = int(self._buffer[length + 16 : end]) if length >= 0 else 0
            if len(self._buffer) < head + 4 + size:
                return
            self._buffer = self._buffer[head + 4 + size :]
            _Receiver.count += 1
            self._transport.write(ANSWER)  # type: ignore[attr-defined]


async def _serve(pipe: Connection) -> None:
    server = await asyncio.get_running_loop().create_server(_Receiver, "127.0.0.1", 0)
    pipe.send(server.sockets[0].getsockname()[1])
    await asyncio.to_thread(pipe.recv)
    pipe.send(_Receiver.count)
    await asyncio.Event().wait()
