"""Couriers for the benches: local HTTP servers in processes of their own that answer in 50 ms and log every call.

Most answers change nothing: the tracker is under way. One tracker in twenty-five has moved on each
time. The log is the couriers' own, one line a call, so that their figures do not depend on what the product says.
"""

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE, Popen

import uvloop

ANSWER_S = 0.05
FLUSH_S = 0.2
MOVED_ONE_IN = 25
CALLED = b"GET /track/"
RATE = "20000/s"
"""Far above what one process can call, so that no limit of the contract decides a figure."""


@dataclass(frozen=True)
class Couriers:
    """Couriers that run.

    Attributes:
        ports: One per process.
        logs: One per process; a line is the instant of the call in milliseconds since 1970, and the tracking number.
    """

    ports: list[int]
    logs: list[Path]

    def config(self, path: Path, partners: list[str]) -> Path:
        """Write the TOML file that makes them the couriers of ``partners``, assigned in rotation; return ``path``."""
        tables = []
        for number, name in enumerate(partners):
            port = self.ports[number % len(self.ports)]
            url = f"http://127.0.0.1:{port}/track/{{external_id}}"
            tables += [
                f"[partners.{name}]",
                f'rate = "{RATE}"',
                f"[partners.{name}.http]",
                f'url = "{url}"',
                'status = "status"',
            ]
        path.write_text("\n".join(tables) + "\n")
        return path

    def calls_by_second(self, from_s: float, until_s: float) -> Counter[int]:
        """Return how many calls came in each second of a time, by whole seconds since 1970."""
        seconds: Counter[int] = Counter()
        for log in self.logs:
            with log.open("rb") as lines:
                for line in lines:
                    at_s = int(line.partition(b" ")[0]) / 1000
                    if from_s <= at_s < until_s:
                        seconds[int(at_s)] += 1
        return seconds


@contextmanager
def running_couriers(folder: Path, processes: int = 2) -> Iterator[Couriers]:
    """Start so many processes, and stop them; they end with their parent, however it ends."""
    logs = [folder / f"courier{number}.log" for number in range(processes)]
    command = [sys.executable, "-m", "tickwright.bench.couriers"]
    children: list[Popen[bytes]] = []
    try:
        children += [Popen([*command, str(log)], stdin=PIPE, stdout=PIPE) for log in logs]
        yield Couriers([_port(child) for child in children], logs)
    finally:
        for child in children:
            child.kill()
            child.communicate()


def _port(child: "Popen[bytes]") -> int:
    line = child.stdout.readline() if child.stdout is not None else b""
    if not line:
        raise RuntimeError("a courier did not start")
    return int(line)


async def _serve(log: Path) -> None:
    """Serve until standard input is closed."""
    calls: list[str] = []
    server = await asyncio.get_running_loop().create_server(lambda: _Courier(calls), "127.0.0.1", 0, backlog=1024)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    closed = asyncio.ensure_future(asyncio.to_thread(sys.stdin.buffer.read))
    with log.open("a") as file:
        while not closed.done():
            await asyncio.wait([closed], timeout=FLUSH_S)
            written, calls[:] = "".join(calls), []
            file.write(written)
            file.flush()


class _Courier(asyncio.Protocol):
    """One connection; a request has no body, and the next one comes after the answer."""

    def __init__(self, calls: list[str]) -> None:
        self._calls = calls
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head, self._buffer = self._buffer[:end], self._buffer[end + 4 :]
            number = head[len(CALLED) : head.index(b" ", len(CALLED))].decode()
            at_ms = int(time.time() * 1000)
            self._calls.append(f"{at_ms} {number}\n")
            asyncio.get_running_loop().call_later(ANSWER_S, self._answer, number, at_ms)

    def _answer(self, number: str, at_ms: int) -> None:
        moved = int(number.removeprefix("AWB")) % MOVED_ONE_IN == 0
        body = b'{"status": "at hub %d"}' % at_ms if moved else b'{"status": "in_transit"}'
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
        if not self._transport.is_closing():
            self._transport.write(head + body)  # type: ignore[attr-defined]


if __name__ == "__main__":
    uvloop.run(_serve(Path(sys.argv[1])))
