"""What tests of partners share: a running contract, couriers that log every request, the judge of windows."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from math import inf
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from aiohttp import web

from kit.courier_log import Call, most_within
from kit.waiting import eventually_async
from tickwright.domain.leases import LeaseTerms
from tickwright.engine.session import WorkerSession
from tickwright.partners.contract import PartnerContract, put_partner
from tickwright.store.pool import Pool, open_pool

TICK_S = 0.005


@dataclass
class Side:
    """One process's side of the contract."""

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
    """Return the most calls that any half-open window of ``window_s`` holds."""
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
            read before that (on a busy machine a request may have come so much earlier), id.

    Attributes:
        requests: ``(monotonic seconds, id)`` in order.
        status: HTTP status of its answers.
        headers: What it adds to them.
        delay_s: How long an answer takes.
        states: Status by id; ``in_transit`` for all others.
        running_max: The most requests that it ever had at once, also those that their callers have given up.
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
        """A template for the courier's settings."""
        return f"http://127.0.0.1:{self.port}/track/{{external_id}}"

    @property
    def times_s(self) -> list[float]:
        """When it was asked."""
        return [at for at, _ in self.requests]

    @property
    def asked(self) -> list[str]:
        """For what, in order."""
        return [name for _, name in self.requests]

    def most_within(self, window_s: float, since_s: float = 0.0) -> int:
        """Return the most calls that any window holds for certain, of those that came behind ``since_s``."""
        calls = [Call(name, came_s, at, inf) for (at, name), came_s in zip(self.requests, self._came_s, strict=True)]
        return most_within([call for call in calls if call.came_s > since_s], window_s)

    def be_silent(self) -> None:
        """Read requests and answer none of them."""
        self._talking.clear()

    def talk(self) -> None:
        """Answer all, also those that wait."""
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
