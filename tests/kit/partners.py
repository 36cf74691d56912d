"""Shared by tests of partners: a running contract, couriers that log every request, the checker of windows."""

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from math import inf
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from aiohttp import web

from kit.processes import kill_group, spawn
from kit.waiting import eventually_async
from tickwright.domain.leases import LeaseTerms
from tickwright.engine.session import WorkerSession
from tickwright.partners.contract import PartnerContract, put_partner
from tickwright.store.pool import Pool, open_pool

# A courier as a separate process, and its log: the independent witness of calls.

_PROGRAM = Path(__file__).with_name("courier_process.py")


@dataclass(frozen=True, slots=True)
class Call:
    """One request, by the system's monotonic clock.

    Attributes:
        came_s: It did not arrive before: the courier checked then.
        began_s: When the courier read it.
        ended_s: Infinite, if it never ended.
    """

    name: str
    came_s: float
    began_s: float
    ended_s: float


class CourierLog:
    """A courier that runs in another process."""

    def __init__(self, url: str, log: Path) -> None:
        self.url, self._log = url, log

    def calls(self) -> list[Call]:
        """Return every request that has begun, in order."""
        begun: list[tuple[str, float, float]] = []
        ends: dict[str, list[float]] = {}
        for line in self._log.read_text(encoding="utf-8").splitlines():
            what, at, unread_s, name = line.split(" ", 3)
            if what == "b":
                begun.append((name, float(at) - float(unread_s), float(at)))
            else:
                ends.setdefault(name, []).append(float(at))
        return [Call(*one, ends[one[0]].pop(0) if ends.get(one[0]) else float("inf")) for one in begun]


@asynccontextmanager
async def courier_process(folder: Path, delay_s: float) -> AsyncIterator[CourierLog]:
    """Run a courier for the length of the block."""
    log, url = folder / "courier.calls", folder / "courier.url"
    log.touch()
    command = [sys.executable, str(_PROGRAM), str(log), str(url), str(delay_s)]
    child = spawn(command, folder / "courier.log")
    try:
        await eventually_async(url.exists, 20, what="the courier answers")
        yield CourierLog(url.read_text(encoding="utf-8"), log)
    finally:
        kill_group(child)


def check_contract(calls: Sequence[Call], *, per_s: int, concurrency: int) -> None:
    """P4: in every second at most so many calls arrive, and at no instant more of them are under way.

    Calls that a busy courier found with one check may have arrived at any instant since the check before: only calls
    that certainly arrived within a second count.
    """
    most = most_within(calls, 1.0)
    assert most <= per_s, f"P4 broken: {most} calls in one second, {per_s} are allowed"
    steps = sorted([(call.began_s, 1) for call in calls] + [(call.ended_s, -1) for call in calls])
    running = most_running = 0
    for _, step in steps:
        running += step
        most_running = max(most_running, running)
    assert most_running <= concurrency, f"P4 broken: {most_running} calls at once, {concurrency} are allowed"


def most_within(calls: Sequence[Call], window_s: float) -> int:
    """Return the most calls that certainly arrived within any window of ``window_s``."""
    most = 0
    by_end = sorted(calls, key=lambda call: call.began_s)
    for first in by_end:
        inside = [c for c in by_end if c.came_s >= first.came_s and c.began_s < first.came_s + window_s]
        most = max(most, len(inside))
    return most


def repeated(calls: Sequence[Call]) -> int:
    """Return how many calls requested an id that was requested before."""
    return sum(times - 1 for times in Counter(call.name for call in calls).values())


TICK_S = 0.005


@dataclass
class Side:
    """The contract within one process."""

    pool: Pool
    session: WorkerSession
    contract: PartnerContract
    tasks: list["asyncio.Task[None]"]


@asynccontextmanager
async def running_contract(url: str, *, terms: LeaseTerms | None = None) -> AsyncIterator[Side]:
    """Run a session and a contract in this process; stop them in their order at the end."""
    pool = await open_pool(url, max_size=4)
    session = WorkerSession(pool, name="test", roles=["poll-consumer"], version="0", terms=terms)
    await session.open()
    contract = PartnerContract(pool, session)
    side = Side(pool, session, contract, [asyncio.create_task(session.run()), asyncio.create_task(contract.run())])
    try:
        await eventually_async(lambda: contract.last_tick_age_s() is not None)
        yield side
    finally:
        await contract.stop()
        await session.stop()
        await asyncio.gather(*side.tasks, return_exceptions=True)
        await asyncio.wait_for(pool.close(), 10)


async def set_partner(pool: Pool, name: str = "acme", **settings: Any) -> int:
    """Set a partner up and return its number."""
    await put_partner(pool, name, json.dumps(settings))
    number: int = await pool.fetchval("SELECT partner_no FROM tickwright.partners WHERE name = $1", name)
    return number


def most_in_window(times_s: Sequence[float], window_s: float) -> int:
    """Return the most calls in any half-open window of ``window_s``."""
    ordered, most, begin = sorted(times_s), 0, 0
    for end, at in enumerate(ordered):
        while at - ordered[begin] >= window_s:
            begin += 1
        most = max(most, end - begin + 1)
    return most


class Courier:
    """A courier that answers ``GET /track/ID``; it logs every request with its time, also to a file.

    Args:
        log: Gets a line as a request begins and as it ends: ``b`` or ``e``, monotonic seconds, for how long nothing was
            read before that (on a busy machine a request may have arrived so much earlier), id.

    Attributes:
        requests: ``(monotonic seconds, id)`` in order.
        status: HTTP status of its answers.
        headers: Headers that it adds to them.
        delay_s: How long an answer takes.
        states: Status by id; ``in_transit`` for all others.
        running_max: The most requests that it had at once, also those that their callers have cancelled.
        open_max: The most of them whose connection was open at one moment.
    """

    def __init__(self, log: Path | None = None) -> None:
        self.requests: list[tuple[float, str]] = []
        self.status = 200
        self.headers: dict[str, str] = {}
        self.delay_s = 0.0
        self.states: dict[str, Any] = {}
        self.running = self.running_max = self.open_max = 0
        self._open: set[asyncio.Transport] = set()
        self.port = 0
        self._log = None if log is None else log.open("a", buffering=1, encoding="utf-8")
        self._runner: web.AppRunner | None = None
        self._talking = asyncio.Event()
        self._talking.set()
        self._came_s: list[float] = []
        self._ticks_s = [time.monotonic()] * 2
        self._ticking: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """A template of the URL for the courier's settings."""
        return f"http://127.0.0.1:{self.port}/track/{{external_id}}"

    @property
    def times_s(self) -> list[float]:
        """When requests arrived."""
        return [at for at, _ in self.requests]

    @property
    def asked(self) -> list[str]:
        """Requested ids, in order."""
        return [name for _, name in self.requests]

    def most_within(self, window_s: float, since_s: float = 0.0) -> int:
        """Return the most calls that certainly arrived within any window, of those after ``since_s``."""
        calls = [Call(name, came_s, at, inf) for (at, name), came_s in zip(self.requests, self._came_s, strict=True)]
        return most_within([call for call in calls if call.came_s > since_s], window_s)

    def be_silent(self) -> None:
        """Read requests and answer none of them."""
        self._talking.clear()

    def talk(self) -> None:
        """Answer all requests, also waiting ones."""
        self._talking.set()

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_get("/track/{id}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port = self._runner.addresses[0][1]
        self._ticking = asyncio.create_task(self._tick())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._talking.set()
        if self._runner is not None:
            await self._runner.cleanup()
        if self._ticking is not None:
            self._ticking.cancel()
        if self._log is not None:
            self._log.close()

    async def _answer(self, request: web.Request) -> web.Response:
        name = request.match_info["id"]
        self.requests.append((time.monotonic(), name))
        self._came_s.append(self._ticks_s[0])
        self._note("b", name)
        self.running += 1
        self.running_max = max(self.running_max, self.running)
        self._note_open(request)
        try:
            await asyncio.sleep(self.delay_s)
            await self._talking.wait()
        finally:
            self.running -= 1
            self._open -= {request.transport}
            self._note("e", name)
        state = self.states.get(name, "in_transit")
        body = state if isinstance(state, dict) else {"shipment": {"status": state}}
        return web.json_response(body, status=self.status, headers=self.headers)

    def _note_open(self, request: web.Request) -> None:
        self._open = {one for one in self._open if not one.is_closing()}
        if request.transport is not None:
            self._open.add(request.transport)
        self.open_max = max(self.open_max, len(self._open))

    def _note(self, what: str, name: str) -> None:
        if self._log is not None:
            now_s = time.monotonic()
            self._log.write(f"{what} {now_s} {now_s - self._ticks_s[0]} {name}\n")

    async def _tick(self) -> None:
        while True:
            self._ticks_s = [self._ticks_s[1], time.monotonic()]
            await asyncio.sleep(TICK_S)
