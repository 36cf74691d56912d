"""``/healthz``, ``/readyz`` and ``/metrics`` of every role, on a separate listener.

``/healthz`` only shows that the process answers. ``/readyz`` is ready when the database answered within a second and
has room on its disk, *and* the loop of every service ticked within its limit. It lists each service with its state. No
service can work without the database, so none is ready while it does not answer. These paths take no input.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import structlog

from tickwright.api.context import Readiness
from tickwright.engine.service import LoopService
from tickwright.engine.table_locks import TableLocks
from tickwright.observe.metrics import METRICS_TYPE
from tickwright.ports.ids import monotonic
from tickwright.process.supervisor import ServiceState
from tickwright.rest.admission import PROBES_LIMITS, ListenerLimits
from tickwright.rest.listener import Listener, bind
from tickwright.rest.problems import SAFE_HEADERS
from tickwright.store.pool import NO_ROOM, UNAVAILABLE, DiskFull, Pool, RoundTrips, slowness
from tickwright.store.queries import load

_SQL = load("tickwright.process.sql", "health.sql")
ANSWER_S = 1.0
SLOW_ANSWER_S = 10.0
REMEMBER_S = 0.5

_log = structlog.get_logger("tickwright.health")


class DatabaseCheck:
    """Checks whether the database answers within a second; the answer is cached for half a second.

    A database that is known to be far has ten seconds, during which the previous answer counts.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._checking: asyncio.Task[bool] | None = None
        self._answer, self._answered_s, self._well_s = False, float("-inf"), float("-inf")

    async def answers(self) -> bool:
        """Query the database, unless that is recent or in progress."""
        if monotonic() - self._answered_s < REMEMBER_S:
            return self._answer
        checking = self._checking
        if checking is None or checking.done():
            checking = self._checking = asyncio.create_task(self._query())
        done, _ = await asyncio.wait({checking}, timeout=ANSWER_S)  # a hanging connection must not block the probe
        self._answer = checking.result() if done else self._is_slow_only()
        self._answered_s = monotonic()
        return self._answer

    def _is_slow_only(self) -> bool:
        return RoundTrips.complaint() is not None and monotonic() - self._well_s < SLOW_ANSWER_S

    async def _query(self) -> bool:
        within_s = SLOW_ANSWER_S if RoundTrips.complaint() else ANSWER_S
        try:
            answered = bool(await self._pool.fetchval(_SQL["ping"], timeout=within_s))
        except UNAVAILABLE:
            return False
        self._well_s = monotonic()
        return answered


def readiness(states: Sequence[ServiceState], *, database: bool, needs_room: bool = True) -> Readiness:
    """Return whether a process can work: the database answers and has room, and every loop has ticked in time.

    Without the database no service can work, except the server of the probes. The API needs no room: it still answers
    reads, and a load balancer must not take it out.
    """
    waits = "waits for the database"
    checks = {
        state.name: "not ready" if not state.ready else "ok" if database or state.name == HealthServer.name else waits
        for state in states
    }
    full = DiskFull.is_recent()
    says = NO_ROOM if full else TableLocks.operator_message() or slowness()
    checks["database"] = says or ("ok" if database else "no answer within a second")
    return Readiness(database and not (full and needs_room) and all(state.ready for state in states), checks)


class HealthServer(LoopService):
    """Serves the three paths until stopped; a :class:`tickwright.ports.service.Service`.

    ``bind`` is ``HOST:PORT`` or ``[IPv6]:PORT`` (TICKWRIGHT_METRICS_BIND); port 0 takes a free one. The server's own
    state in ``states`` is ignored.
    """

    name = "health"

    def __init__(
        self,
        bind: str,
        *,
        states: Callable[[], Sequence[ServiceState]],
        database: Callable[[], Awaitable[bool]],
        metrics: Callable[[], Awaitable[bytes]],
        limits: ListenerLimits = PROBES_LIMITS,
    ) -> None:
        super().__init__()
        host, _, port = bind.rpartition(":")
        self._host, self._port = host.strip("[]") or "127.0.0.1", int(port)
        self._states, self._database, self._metrics, self._limits = states, database, metrics, limits
        self._server: Listener | None = None
        self.port: int | None = None

    async def _work(self) -> None:
        if self.stopping.is_set():
            return
        listening = bind(self._host, self._port)
        self._server = Listener(self._answer, limits=self._limits, drain_s=1)
        self.port = int(listening.getsockname()[1])
        _log.info("health.listening", host=self._host, port=self.port)
        try:
            await self._server.serve(sockets=[listening])
        finally:
            self.port = None

    async def quiesce(self) -> None:
        """Continue to answer: ``/readyz`` is not ready while the others finish."""

    async def stop(self) -> None:
        """Close the port."""
        if self._server is not None:
            self._server.should_exit = True
        await super().quiesce()

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return 0 if self._server is None else len(self._server.server_state.connections)

    def last_tick_age_s(self) -> float | None:
        """Return zero while it listens: it has no loop."""
        return None if self.port is None else 0.0

    async def _answer(self, scope: Any, _: Any, send: Any) -> None:
        give = {"/healthz": self._healthz, "/readyz": self._readyz, "/metrics": self._metrics_page}.get(scope["path"])
        if give is None:
            status, body = _json(404, {"status": "not_found"})
        elif scope["method"] not in {"GET", "HEAD"}:
            status, body = _json(405, {"status": "method_not_allowed"})
        else:
            status, body = await give()
        kind = METRICS_TYPE if status == 200 and give == self._metrics_page else "application/json; charset=utf-8"
        headers = [*SAFE_HEADERS, (b"content-type", kind.encode()), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _healthz(self) -> tuple[int, bytes]:
        return _json(200, {"status": "ok"})

    async def _readyz(self) -> tuple[int, bytes]:
        database = await self._database()
        states = [state for state in self._states() if state.name != self.name]
        process = readiness(states, database=database)
        body = {
            "status": "ready" if process.ready else "not_ready",
            "database": process.checks["database"],
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
        return _json(200 if process.ready else 503, body)

    async def _metrics_page(self) -> tuple[int, bytes]:
        return 200, await self._metrics()


def _json(status: int, body: Any) -> tuple[int, bytes]:
    return status, json.dumps(body).encode()
