"""The leased identity of a worker: registered, renewed at a third of its length, fenced when lost.

::

    open ──renew──▶ open ──lease expires, another session declares it lost──▶ lost ──a day──▶ gone
      └──close, what it owns is released──▶ gone

The database is authoritative: a session is lost when its row says so. Only another session that found the lease expired
may write that, in the transaction that releases the session's jobs. The holder stops earlier, by its own monotonic
clock, when it cannot renew. After a loss it takes a new token, so late writes under the old token find no row.

A renewal is one statement, and so one round trip, because a far database leaves time for no more. It uses the direct
connection of the process, so it waits neither for other work nor for the six round trips of a new connection; where
there is none, it uses one that only the session uses. Work of
several round trips runs beside the renewals: the heartbeat's work, the reclaim of lost sessions, the release of unknown
claims, the search for table locks. Where the database is near, the heartbeat's work shares the renewal's transaction,
unless something blocks it.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import structlog

from tickwright.domain.errors import Unavailable
from tickwright.domain.leases import LeaseTerms
from tickwright.engine.facts import Facts
from tickwright.engine.service import LoopService
from tickwright.engine.table_locks import TableLocks
from tickwright.engine.wakeup.connection import DirectConnection
from tickwright.engine.wakeup.turns import ROUND_S
from tickwright.ports.ids import monotonic, record_database_time
from tickwright.ports.service import NO_PROBE, Probe
from tickwright.ports.session import Beat, Gate, Place, Reclaim
from tickwright.store.pool import UNAVAILABLE, Connection, Pool, RoundTrips, enter_timeline, slowness
from tickwright.store.queries import filled, load

_SQL = filled(load("tickwright.engine.sql", "workers.sql"), "places")
_CALLS = load("tickwright.engine.sql", "remote_calls.sql")
_CHECK_S = 0.1
_CHECK_AGAIN_S = 1.0
_SETTLE_S = 10.0
_NEAR_MS = 10
_TOGETHER_S = 0.5
_log = structlog.get_logger("tickwright.session")


class WorkerSession(LoopService):
    """Implements :class:`tickwright.ports.session.Session`; also a service."""

    name = "session"

    def __init__(
        self,
        pool: Pool,
        *,
        name: str,
        roles: Sequence[str],
        version: str,
        terms: LeaseTerms | None = None,
        direct: DirectConnection | None = None,
        probe: Probe = NO_PROBE,
    ) -> None:
        super().__init__()
        self._pool, self._direct = pool, direct or DirectConnection(None)
        self._connection: Connection | None = None
        self._runs = False
        self._name, self._roles, self._version = name, list(roles), version
        self.terms = terms or LeaseTerms()
        self._probe = probe
        self._token = 0
        self._renewed_s = 0.0
        self._expiry_s: float | None = None
        self._beats: list[Beat] = []
        self._reclaims: list[Reclaim] = []
        self._losses: list[Callable[[], None]] = []
        self._gates: list[Gate] = []
        self._groups: dict[str, Callable[[], bool]] = {}
        self._places: dict[str, Place] = {}
        self._beside: dict[str, asyncio.Task[None]] = {}
        self._table_locks = TableLocks(pool)
        self._is_far = False
        self.claim_number = 0
        self.drain_requested = asyncio.Event()
        self._readable = Facts("session.fact_failed")
        self.facts: dict[str, Any | Callable[[], Any]] = {"round_trip_ms": RoundTrips.shortest_ms}

    # ------------------------------------------------------------------ Session

    @property
    def token(self) -> int:
        """The fencing token; 0 before the first registration."""
        return self._token

    def holds(self) -> bool:
        """Return whether the lease is valid now."""
        return self._token != 0 and self.terms.holds(self._renewed_s, monotonic())

    def on_beat(self, beat: Beat) -> None:
        """Register work to do after every renewal, in one transaction that locks the session's row."""
        self._beats.append(beat)

    def on_reclaim(self, reclaim: Reclaim) -> None:
        """Register work for the transaction that declares sessions lost."""
        self._reclaims.append(reclaim)

    def on_lost(self, lost: Callable[[], None]) -> None:
        """Register a callback for the loss of this session."""
        self._losses.append(lost)

    def next_claim_number(self) -> int:
        """Raise the number that claims carry; never the same twice, even when the database did not answer."""
        self.claim_number += 1
        return self.claim_number

    def add_gate(self, gate: Gate) -> None:
        """Register a gate that is settled with the heartbeat and before the session leaves."""
        self._gates.append(gate)

    def join(self, group: str, joins: Callable[[], bool]) -> Callable[[], Place | None]:
        """Take turns in ``group`` while ``joins()`` is true at the heartbeat; return a function for the place."""
        self._groups[group] = joins
        return lambda: self._places.get(group)

    # ------------------------------------------------------------------ Service

    async def open(self) -> None:
        """Register under a new token."""
        sent_s = monotonic()
        values = self._name, self._roles, self._version, self.terms.ttl, self._facts_json(), self._joined(), ROUND_S
        row = await self._fetchrow(_SQL["open_session"], *values)
        record_database_time(row["now_s"])
        self._note_places(row)
        self._token, self._renewed_s, self._expiry_s = row["id"], sent_s, sent_s
        _log.info("session.opened", token=self._token, name=self._name, roles=self._roles)

    def _joined(self) -> list[str]:
        return [group for group, joins in self._groups.items() if joins()]

    def _note_places(self, row: Any) -> None:
        places: dict[str, tuple[int, int, int, int]] = json.loads(row["places"] or "{}")
        self._places = {group: Place(*place, row["round"]) for group, place in places.items()}

    async def _fetchrow(self, sql: str, *args: Any) -> Any:
        """Query on the session's own connection while it runs; a broken connection is replaced."""
        if not self._runs:
            return await self._pool.fetchrow(sql, *args)
        async with self._own_connection() as own:
            return await own.fetchrow(sql, *args)

    @asynccontextmanager
    async def _own_connection(self) -> AsyncIterator[Connection]:
        """Yield the process's direct connection; while there is none, one of the pool that only the session uses."""
        async with self._direct.lent() as direct:
            if direct is not None:
                yield direct
                return
        if self._connection is not None and _is_gone(self._connection):
            await self._drop_connection()
        if self._connection is None:
            self._connection = await self._pool.acquire()
        try:
            yield self._connection
        except BaseException:
            await self._drop_connection()
            raise

    async def _drop_connection(self) -> None:
        own, self._connection = self._connection, None
        if own is not None:
            await self._pool.release(own)

    def _facts_json(self) -> str:
        """Return the facts as JSON; a fact that changes is a function, called at each renewal."""
        return json.dumps(self._readable.read(self.facts))

    async def run(self) -> None:
        """Renew until stopped; register again after a loss."""
        self._runs = True
        try:
            await super().run()
        finally:
            self._runs = False
            await self._drop_connection()

    async def _work(self) -> None:
        if not self._token:
            await self.open()
        while not self.stopping.is_set():
            await self._sleep()
            if self.stopping.is_set():
                return
            try:
                await self._tick()
            except UNAVAILABLE as error:
                _log.warning("session.renewal_failed", token=self._token, error=repr(error))
            if self._token and not self.holds():
                self._lose("not renewed in time")

    async def _sleep(self) -> None:
        next_s = self._next_renewal_s() if self._expiry_s is None else min(self._next_renewal_s(), self._expiry_s)
        await self.rest(max(next_s - monotonic(), 0.0 if self.last_tick_age_s() is None else _CHECK_S))

    def _next_renewal_s(self) -> float:
        return self._renewed_s + self.terms.renew_every.total_seconds()

    async def _tick(self) -> None:
        if self._direct.works:
            await self._drop_connection()  # it was for the time before
        self._search_table_locks()
        if not self._token:
            await self.open()
            return
        if monotonic() >= self._next_renewal_s() - _CHECK_S:
            if not await self._renew_and_beat():
                self._search_table_locks()  # while the renewal waits, maybe for such a lock
                await self.renew()
                self._run_beside("heartbeat", self._beat)
            if any(gate.unsure for gate in self._gates):  # a full process makes no claim that would settle it
                self._run_beside("settling", self._settle)
        if self._expiry_s is not None and monotonic() >= self._expiry_s:
            self._expiry_s = None
            self._run_beside("reclaim", self._reclaim_expired)
        self.tick()
        complaint = slowness()
        if complaint and not self._is_far:
            _log.warning("database.slow", reason=complaint)
        self._is_far = complaint is not None

    def _search_table_locks(self) -> None:
        if self._table_locks.is_due():
            self._run_beside("table locks", self._table_locks.search)

    def _run_beside(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start ``work`` unless it runs already; renewals do not wait for it. The next call raises its bug."""
        if self._has_ended(name):
            self._beside[name] = asyncio.create_task(self._attempt(name, work))

    def _has_ended(self, name: str) -> bool:
        """Return whether such work has ended; raise the bug that ended it."""
        before = self._beside.get(name)
        if before is None or not before.done():
            return before is None
        del self._beside[name]
        before.result()
        return True

    async def _attempt(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await work()
        except UNAVAILABLE as error:
            _log.warning("session.work_failed", token=self._token, work=name, error=repr(error))
            if name == "reclaim":
                self._expiry_s = monotonic() + _CHECK_AGAIN_S

    async def renew(self) -> None:
        """Extend the lease."""
        await self._probe.reached("session.before_renewal", token=self._token)
        sent_s = monotonic()
        await self._note_renewal(await self._fetchrow(*self._renewal()), sent_s)

    async def _renew_and_beat(self) -> bool:
        """Extend the lease and do the heartbeat's work in one transaction, which halves an idle process's transactions.

        Returns:
            False: nothing was done. The database is not near, or something blocked the transaction.
        """
        if not self._beats or RoundTrips.shortest_ms() > _NEAR_MS or not self._has_ended("heartbeat"):
            return False
        await self._probe.reached("session.before_renewal", token=self._token)
        sent_s = monotonic()
        try:
            async with asyncio.timeout(_TOGETHER_S), self._pool.acquire() as own, own.transaction():
                row = await own.fetchrow(*self._renewal())
                committed = [await beat(own) for beat in self._beats] if row is not None else []
        except (*UNAVAILABLE, asyncpg.PostgresError):  # no bug of a heartbeat prevents the renewal
            return False
        for after_commit in committed:
            after_commit()
        await self._note_renewal(row, sent_s)
        return True

    def _renewal(self) -> tuple[Any, ...]:
        values = self._token, self.terms.ttl, self._facts_json(), self._name, self._joined(), ROUND_S
        return _SQL["renew_session"], *values

    async def _note_renewal(self, row: Any, sent_s: float) -> None:
        """Apply the answer to a renewal that was sent at ``sent_s``."""
        if row is None:
            self._lose("declared lost by another worker")
            return
        self._renewed_s = sent_s
        record_database_time(row["now_s"])
        self._note_places(row)
        if row["drain"]:
            self.drain_requested.set()
        if not row["timeline_known"]:
            await enter_timeline(self._pool)
        expiry_s = row["next_expiry_s"]
        self._expiry_s = None if expiry_s is None else sent_s + max(0.0, expiry_s - row["now_s"]) + _CHECK_S

    async def _beat(self) -> None:
        """Do the heartbeat's work, unless this session is lost."""
        if not self._beats or not (token := self._token):
            return
        async with self._pool.acquire() as connection, connection.transaction():
            if await connection.fetchval(_SQL["hold_session"], token) is None:
                return
            committed = [await beat(connection) for beat in self._beats]
        if token == self._token:
            for after_commit in committed:
                after_commit()

    async def _settle(self) -> None:
        for gate in self._gates:
            try:
                async with asyncio.timeout(_SETTLE_S):
                    await gate.settle()
            except (*UNAVAILABLE, Unavailable) as error:
                _log.warning("session.claims_not_settled", token=self._token, error=repr(error))

    async def _reclaim_expired(self) -> None:
        """Declare expired sessions lost and release what they held, in one transaction.

        A process that cannot release the jobs of a lost session declares none lost: no process would release them.
        """
        if not self._reclaims:
            return
        async with self._pool.acquire() as connection, connection.transaction():
            rows = await connection.fetch(_SQL["declare_lost"])
            tokens = [row["id"] for row in rows]
            if tokens:
                _log.warning("session.others_lost", sessions={row["id"]: row["name"] for row in rows})
                await self._release(connection, tokens)
        if not tokens:
            self._expiry_s = monotonic() + _CHECK_AGAIN_S

    async def _release(self, connection: Connection, tokens: list[int]) -> None:
        for reclaim in self._reclaims:
            await reclaim(connection, tokens)
        await connection.execute(_SQL["forget_grants"], tokens)
        await connection.execute(_CALLS["lose"], tokens)

    def _lose(self, why: str) -> None:
        if not self._token:
            return
        _log.error("session.lost", token=self._token, why=why)
        self._token = 0
        self._expiry_s = 0.0
        for lost in self._losses:
            lost()

    async def quiesce(self) -> None:
        """Do nothing: other services still work under the session."""

    async def stop(self) -> None:
        """Leave. Work under this session has been released before, unless it ignored its cancellation.

        A session that cannot release what it still owns does not leave: its lease expires, and other sessions release
        that.
        """
        self.stopping.set()
        if self._beside:
            await asyncio.wait(self._beside.values(), timeout=_SETTLE_S)
        if self._token:
            await self._settle()
            token, self._token = self._token, 0
            try:
                await self._leave(token)
            except UNAVAILABLE as error:
                _log.warning("session.not_closed", token=token, error=repr(error))

    async def _leave(self, token: int) -> None:
        """Delete the row, and release what the session still owns in the same transaction, as after a loss.

        No process searches for owners whose session has no row. Where nothing is owned there is no transaction: its
        round trips need more time than a far database leaves.
        """
        if not await self._owns_claims(token):
            await self._pool.execute(_SQL["close_session"], token)
            return
        async with self._pool.acquire() as connection, connection.transaction():
            if await connection.fetchval(_SQL["close_session"], token) is not None:
                await self._release(connection, [token])

    async def _owns_claims(self, token: int) -> bool:
        """Ask the database what the session owns, after refusing all later claims."""
        if not self._gates:  # without claims it owns nothing
            return False
        await self._pool.execute(_SQL["refuse_claims"], token, self.next_claim_number())
        queries = {gate.owns_any_sql for gate in self._gates}
        return None in queries or any([await self._pool.fetchval(sql, token) for sql in queries])


def _is_gone(connection: Connection) -> bool:
    try:
        return bool(connection.is_closed())
    except asyncpg.InterfaceError:  # the pool took back a connection that broke while it was lent
        return True
