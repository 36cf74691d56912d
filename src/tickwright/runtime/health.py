"""``/healthz``, ``/readyz`` and ``/metrics`` of every role, on a listener of their own.

``/healthz`` says that the process answers, and nothing else. ``/readyz`` is honest: the database
answered within a second *and* the loop of every service came round within its bound. It lists each
service, so that an operator sees which one does not; none of them can work without the database, so
none is ready while that is away. Nothing here takes input.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

import structlog
from aiohttp import web

from tickwright.ports.ids import monotonic
from tickwright.runtime.supervisor import ServiceState
from tickwright.store.pool import AWAY, Pool
from tickwright.store.queries import load

_SQL = load("tickwright.store.sql", "health.sql")
ANSWER_S = 1.0
REMEMBER_S = 0.5
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_log = structlog.get_logger("tickwright.health")


class DatabaseCheck:
    """Whether the database answers within a second; the answer is remembered for half a second."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._asking: asyncio.Task[bool] | None = None
        self._answer, self._answered_s = False, float("-inf")

    async def answers(self) -> bool:
        """Ask, unless that was done a moment ago or is being done."""
        if monotonic() - self._answered_s < REMEMBER_S:
            return self._answer
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask())
        done, _ = await asyncio.wait({self._asking}, timeout=ANSWER_S)  # a hanging connection must not hold us up
        self._answer, self._answered_s = bool(done) and self._asking.result(), monotonic()
        return self._answer

    async def _ask(self) -> bool:
        try:
            return bool(await self._pool.fetchval(_SQL["ping"], timeout=ANSWER_S))
        except AWAY:
            return False


class HealthServer:
    """Serves the three paths until stopped; a :class:`tickwright.ports.service.Service`.

    Args:
        bind: ``HOST:PORT`` or ``[IPv6]:PORT`` (TICKWRIGHT_METRICS_BIND); port 0 takes a free one.
        states: ``Supervisor.states``; this server's own state is left out of the verdict.
        database: ``DatabaseCheck.answers``.
        metrics: Returns the metrics page.
    """

    name = "health"

    def __init__(
        self,
        bind: str,
        *,
        states: Callable[[], Sequence[ServiceState]],
        database: Callable[[], Awaitable[bool]],
        metrics: Callable[[], Awaitable[bytes]],
    ) -> None:
        host, _, port = bind.rpartition(":")
        self._host, self._port = host.strip("[]") or "127.0.0.1", int(port)
        self._states, self._database, self._metrics = states, database, metrics
        self._stopping = asyncio.Event()
        self._over = asyncio.Event()
        self._over.set()
        self.port: int | None = None

    async def run(self) -> None:
        """Listen until stopped."""
        if self._stopping.is_set():
            return
        self._over.clear()
        app = web.Application()
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics_page)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
        try:
            await runner.setup()
            await web.TCPSite(runner, self._host, self._port, reuse_address=True).start()
            self.port = int(runner.addresses[0][1])
            _log.info("health.listening", host=self._host, port=self.port)
            await self._stopping.wait()
        finally:
            self.port = None
            with suppress(OSError):
                await runner.cleanup()
            self._over.set()

    async def quiesce(self) -> None:
        """Go on answering: ``/readyz`` says no while the others finish."""

    async def stop(self) -> None:
        """Close the port."""
        self._stopping.set()
        await self._over.wait()

    def last_tick_age_s(self) -> float | None:
        """Zero while it listens: it has no rounds."""
        return None if self.port is None else 0.0

    async def _healthz(self, _: web.Request) -> web.Response:
        return _json(200, {"status": "ok"})

    async def _readyz(self, _: web.Request) -> web.Response:
        database = await self._database()
        states = [state for state in self._states() if state.name != self.name]
        ready = database and all(state.ready for state in states)
        body = {
            "status": "ready" if ready else "not_ready",
            "database": "ok" if database else "no answer within a second",
            "services": [
                {
                    "name": state.name,
                    "ready": database and state.ready,
                    "tick_age_s": None if state.tick_age_s is None else round(state.tick_age_s, 3),
                    "tick_within_s": state.tick_within_s,
                    "restarts": state.restarts,
                }
                for state in states
            ],
        }
        return _json(200 if ready else 503, body)

    async def _metrics_page(self, _: web.Request) -> web.Response:
        return web.Response(body=await self._metrics(), headers={"content-type": METRICS_TYPE})


def _json(status: int, body: Any) -> web.Response:
    headers = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
    return web.Response(status=status, text=json.dumps(body), content_type="application/json", headers=headers)
