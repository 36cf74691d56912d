"""Leases on ``tickwright.job_config``: an exclusive right until a deadline, with a fence.

::

    free ──take──▶ held ──renew──▶ held ──release──▶ free
                    │                                  ▲
                    └──deadline passes, another takes──┘   (the version rises with every take)

The database is authoritative: its clock decides when a lease has expired, and its row decides the owner. The holder
stops earlier, by its own monotonic clock, when it cannot renew. That only saves work; the fence makes it safe. A
protected transaction begins with :meth:`Lease.lock`. A takeover comes before it or waits for it, so nothing is
committed under an old fence.

``Lease.lock`` takes a share of the row's *key*. A renewal changes no key and passes, so a transaction may last longer
than the lease (the pool limits a statement to one minute). A takeover first locks the whole row.

A holder that is paused *inside* a protected transaction keeps its share. PostgreSQL ends that transaction after three
idle seconds, which is less than every lease. A takeover waits for the lock one second at a time.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import timedelta
from typing import Any, Protocol

import asyncpg
import structlog

from tickwright.domain.leases import LeaseTerms
from tickwright.engine.service import LoopService
from tickwright.engine.tasks import is_set_within
from tickwright.engine.wakeup.listener import ArmedWakeup
from tickwright.observe.metrics import Sample, Source
from tickwright.ports.ids import monotonic, random_token, random_unit
from tickwright.ports.service import NO_PROBE, Probe
from tickwright.ports.session import HeldLease
from tickwright.store.pool import UNAVAILABLE, Connection, Pool
from tickwright.store.queries import load

SQL = load("tickwright.engine.sql", "leases.sql")
TAKE_WAIT_MS = 1000
UNTOLD_TIMES = 6
"""After so many thirds of a lease's length a loop tries to take it, even if no heartbeat found it free."""
STEP_S = 0.1

_log = structlog.get_logger("tickwright.leases")


class Lease:
    """One lease, as its holder sees it.

    Attributes:
        fence: The version under which it was taken. Every write of the holder is in a transaction whose first statement
            locks the lease's row under this version.
        lost: Set once, when the lease is gone for any reason, also by ``release``.

    Invariants:
        LSE-1: fences of one name rise strictly; one fence has one owner.
        LSE-2: nothing that began with ``lock`` is committed after another process has taken the lease.
        LSE-3: no process takes a held lease before its deadline by the database's clock.
    """

    def __init__(self, leases: "Leases", name: str, *, fence: int, terms: LeaseTerms, taken_s: float) -> None:
        self._leases, self._pool, self.owner = leases, leases.pool, leases.owner
        self.name, self.fence, self.terms = name, fence, terms
        self._renewed_s = taken_s
        self.lost = asyncio.Event()

    def holds(self) -> bool:
        """Return whether the lease is valid now: renewed in time by the monotonic clock, with a margin."""
        return not self.lost.is_set() and self.terms.holds(self._renewed_s, monotonic())

    def age_s(self) -> float:
        """Return the seconds since the last successful renewal was sent, by the monotonic clock."""
        return monotonic() - self._renewed_s

    def renewal_due_in_s(self) -> float:
        """Return the seconds until the next renewal should be sent; below zero when it is late."""
        return self.terms.renew_every.total_seconds() - self.age_s()

    @property
    def half_period_s(self) -> float:
        """Half of the time between two renewals."""
        return self.terms.renew_every.total_seconds() / 2

    async def lock(self, connection: Connection) -> bool:
        """Begin a protected transaction. False: the lease is lost, and the caller rolls back."""
        found = await connection.fetchrow(SQL["lock_lease"], self.name, self.fence)
        if found is None:
            self.lose("taken by another")
        return found is not None

    @asynccontextmanager
    async def transaction(self, *, brief: bool = False) -> AsyncIterator[Connection | None]:
        """Open a protected transaction; yields its connection, or ``None`` when the lease is lost.

        Also renews when that is due, so a loop with frequent transactions needs no other renewals. The renewal is
        committed before the transaction begins, because inside, its row lock would block other renewals. With
        ``brief``, for a transaction of milliseconds, the renewal is part of it and costs no transaction of its own.
        """
        async with self._pool.acquire() as connection:
            due = self.renewal_due_in_s() < (0 if self._leases.keeps(self) else self.half_period_s / 2)
            if due and not brief:
                await self.renew(connection)
            sent_s = monotonic()
            async with connection.transaction():
                ours = await (self._move_deadline(connection) if due and brief else self.lock(connection))
                yield connection if ours else None
            if due and brief and ours:
                self.note_renewal(sent_s)

    def note_renewal(self, sent_s: float) -> None:
        """Note a renewal that was sent then."""
        self._renewed_s = max(self._renewed_s, sent_s)

    async def renew(self, connection: Connection | None = None) -> bool:
        """Move the deadline. False, with ``lost`` set, when another process owns it. Not inside a transaction."""
        sent_s = monotonic()
        ours = await self._move_deadline(connection or self._pool)
        if ours:
            self.note_renewal(sent_s)
        return ours

    async def _move_deadline(self, connection: Connection | Pool) -> bool:
        """Move the deadline in the database, which takes effect with the commit. Locks the row, as ``lock`` does."""
        row = await connection.fetchrow(SQL["renew_lease"], self.name, self.owner, self.fence, self.terms.ttl)
        if row is None:
            self.lose("taken by another")
        return row is not None

    async def release(self) -> bool:
        """Release the lease; false when it was not ours any more. A second call has no effect."""
        if self.lost.is_set():
            return False
        self.lost.set()
        key = (self.name, self.owner, self.fence)
        return await self._pool.fetchrow(SQL["release_lease"], *key, self.terms.at_least) is not None

    def lose(self, why: str) -> None:
        """Mark the lease as lost."""
        if not self.lost.is_set():
            _log.warning("lease.lost", lease=self.name, fence=self.fence, why=why)
            self.lost.set()

    async def renew_until_lost(self) -> None:
        """Renew at a third of the lease's length; return when the lease is lost.

        The database may be unavailable for a while: the lease is lost only when it was not renewed in time.
        """
        with self._leases.renewed(self):
            await self._renew_until_lost()

    async def _renew_until_lost(self) -> None:
        renewing: asyncio.Task[None] | None = None
        while not self.lost.is_set():
            if renewing is None and self.renewal_due_in_s() <= 0:
                renewing = asyncio.create_task(self._renew_if_possible())
            left_s = (self.terms.ttl - self.terms.margin).total_seconds() - self.age_s()
            await is_set_within(self.lost, min(left_s, STEP_S if renewing else self.renewal_due_in_s()))
            if renewing is not None and renewing.done():
                renewing.result()
                renewing = None
            if not self.holds():
                self.lose("not renewed in time")
        if renewing is not None:
            renewing.cancel()  # not awaited: a connection that hangs must not block this loop

    async def _renew_if_possible(self) -> None:
        try:
            await self._leases.renew_due()
            if self.renewal_due_in_s() <= 0:  # not renewed with the others: it is lost, or its row is locked
                await self.renew()
        except UNAVAILABLE as error:
            _log.warning("lease.renewal_failed", lease=self.name, fence=self.fence, error=repr(error))


class Leases:
    """Takes leases for one process; a random part is added to ``owner``, so that no two processes share it."""

    def __init__(self, pool: Pool, *, owner: str, terms: LeaseTerms | None = None) -> None:
        self.pool = pool
        self.owner = f"{owner}:{random_token(6)}"
        self.terms = terms or LeaseTerms()
        self._fences: dict[str, int] = {}
        self._unsure: set[str] = set()
        self._kept: set[Lease] = set()
        self._renewing = asyncio.Lock()
        self._waiting: dict[str, asyncio.Event] = {}
        self._is_told = False

    async def take(self, name: str, terms: LeaseTerms | None = None) -> Lease | None:
        """Take the lease ``name`` by compare-and-set, or return ``None`` while another process holds it.

        If an earlier call took it and the answer was lost, this call takes it again at once: no work runs under it.
        """
        terms = terms or self.terms
        sent_s = monotonic()
        try:
            fence = await self._take(name, terms, self._fences.get(name, 0) if name in self._unsure else None)
        except asyncpg.LockNotAvailableError:
            return None  # its owner is paused inside a transaction, which PostgreSQL ends; the caller retries
        except BaseException:
            self._unsure.add(name)
            raise
        self._unsure.discard(name)
        if fence is None:
            return None
        self._fences[name] = fence
        _log.info("lease.taken", lease=name, fence=fence)
        return Lease(self, name, fence=fence, terms=terms, taken_s=sent_s)

    async def _take(self, name: str, terms: LeaseTerms, above: int | None) -> int | None:
        values = (name, self.owner, terms.ttl, above)
        async with self.pool.acquire() as connection, connection.transaction():
            await connection.execute(SQL["bound_wait"], str(TAKE_WAIT_MS))
            row = await connection.fetchrow(SQL["take_lease"], *values)
            if row is None and await connection.execute(SQL["open_lease"], name) == "INSERT 0 1":
                row = await connection.fetchrow(SQL["take_lease"], *values)
        return None if row is None else int(row["version"])

    async def break_lease(self, name: str) -> bool:
        """Take a lease away from its holder; its fence rises."""
        return await self.pool.fetchrow(SQL["break_lease"], name) is not None

    # ------------------------------------------------------------------ renewals of all leases together

    @contextmanager
    def renewed(self, lease: Lease) -> Iterator[None]:
        """Renew a lease with the others of this process during the block."""
        self._kept.add(lease)
        try:
            yield
        finally:
            self._kept.discard(lease)

    def keeps(self, lease: Lease) -> bool:
        """Return whether a lease is renewed with the others."""
        return lease in self._kept

    async def renew_due(self) -> None:
        """Renew the leases that are due for it, and with them those that will be before long.

        So an idle process with many leases makes one transaction for all of them.
        """
        async with self._renewing:
            held = [lease for lease in self._kept if not lease.lost.is_set()]
            if not any(lease.renewal_due_in_s() <= 0 for lease in held):
                return
            due = {lease.name: lease for lease in held if lease.renewal_due_in_s() <= lease.half_period_s}
            sent_s = monotonic()
            fences, lengths = [lease.fence for lease in due.values()], [lease.terms.ttl for lease in due.values()]
            rows = await self.pool.fetch(SQL["renew_leases"], [*due], fences, lengths, self.owner)
            for row in rows:
                due[row["job_name"]].note_renewal(sent_s)

    # ------------------------------------------------------------------ leases that others hold

    @property
    def wanted(self) -> list[str]:
        """The leases that loops of this process wait for."""
        return [*self._waiting]

    async def read_free(self, connection: Connection) -> Callable[[], None]:
        """Read which of the wanted leases are free: work of a heartbeat, see ``Session.on_beat``."""
        wanted = self.wanted
        rows = await connection.fetch(SQL["free_leases"], wanted) if wanted else []
        return lambda: self.note_free([row["name"] for row in rows])

    def note_free(self, names: Sequence[str]) -> None:
        """Wake the loops that wait for these leases."""
        self._is_told = True
        for name in names:
            if name in self._waiting:
                self._waiting[name].set()

    async def wait_until_free(self, name: str, terms: LeaseTerms, is_free: asyncio.Event) -> None:
        """Wait until a heartbeat finds a lease free, or ``is_free`` is set; without heartbeats, a third of its length.

        So a process that waits for many leases makes no transaction for each of them.
        """
        seconds = terms.renew_every.total_seconds()
        self._waiting[name] = is_free
        try:
            await is_set_within(is_free, UNTOLD_TIMES * seconds if self._is_told else seconds)
        finally:
            del self._waiting[name]


class LeasedService(LoopService):
    """Runs ``body`` while this process holds a lease; a :class:`tickwright.ports.service.Service`.

    Many processes may run one under the same name. One of them works; the others try to take the lease every third of
    its length.

    Args:
        body: Called with the lease; cancelled when the lease is lost; returns when ``stopping`` is set.
        kept: Renew beside the body. False for a body that calls ``Lease.transaction`` often enough, which renews too.
    """

    def __init__(
        self,
        name: str,
        leases: Leases,
        lease_name: str,
        body: Callable[[Lease], Coroutine[Any, Any, None]],
        *,
        terms: LeaseTerms | None = None,
        kept: bool = True,
        wakeup: asyncio.Event | None = None,
        probe: Probe = NO_PROBE,
    ) -> None:
        super().__init__(wakeup)
        self.name, self._leases, self._lease_name, self._body = name, leases, lease_name, body
        self.lease_terms = terms or leases.terms
        self._kept = kept
        self._probe = probe
        self.lease: Lease | None = None
        self._working: asyncio.Task[None] | None = None
        self._lease_free = asyncio.Event()

    def request_stop(self) -> None:
        """Ask the loop to end, without waiting."""
        super().request_stop()
        self._lease_free.set()

    async def _work(self) -> None:
        """Take the lease and run the body under it; repeat when the lease is lost."""
        while not self.stopping.is_set():
            lease = await self._try()
            if lease is None:
                await self._leases.wait_until_free(self._lease_name, self.lease_terms, self._lease_free)
                self._lease_free.clear()
            else:
                await self._lead(lease)

    async def _try(self) -> Lease | None:
        try:
            lease = await self._leases.take(self._lease_name, self.lease_terms)
        except UNAVAILABLE as error:
            _log.warning("lease.not_taken", lease=self._lease_name, error=repr(error))
            return None
        self.tick()
        return lease

    async def _lead(self, lease: Lease) -> None:
        self.lease = lease
        await self._probe.reached("lease.taken", lease=lease.name, fence=lease.fence)
        work = self._working = asyncio.create_task(self._body(lease))
        keeper: asyncio.Task[Any] = asyncio.create_task(lease.renew_until_lost() if self._kept else lease.lost.wait())
        try:
            await asyncio.wait({work, keeper}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await self._end(lease, work, keeper)
        for task in (work, keeper):
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error

    async def _end(self, lease: Lease, *tasks: asyncio.Task[Any]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        self.lease = None
        with suppress(*UNAVAILABLE):
            async with asyncio.timeout(2):
                await lease.release()

    async def stop(self) -> None:
        """Cancel the body, release the lease, return when ``run`` is over."""
        if self._working is not None:
            self._working.cancel()
        await self.quiesce()


class LeasePurposes(dict[str, str]):
    """What only the holder of a lease does, for operators."""

    def of(self, lease: str) -> str:
        """Return the text for a lease; empty for a lease that no plugin of this release has."""
        return self.get(lease) or self.get(lease.partition(":")[0], "")


class LeaseHolder(Protocol):
    """A service that may hold a lease."""

    name: str

    @property
    def lease(self) -> Lease | None:
        """The lease, while it is held."""


def leases_source(services: Sequence[LeaseHolder]) -> Source:
    """Return a source for the leases that services of this process may hold."""

    def read() -> Sequence[Sample]:
        samples = []
        for service in services:
            lease = service.lease
            samples.append(Sample("tickwright_lease_held", float(lease is not None and lease.holds()), (service.name,)))
            if lease is not None:
                samples += [
                    Sample("tickwright_lease_fence", lease.fence, (service.name,)),
                    Sample("tickwright_lease_age_seconds", lease.age_s(), (service.name,)),
                ]
        return samples

    return read


UNAVAILABLE_S = 1.0
UNARMED_S = 1.0
"""The longest rest of a loop that wants notifications and gets none, because an insert is in progress for example."""
APART = 0.2
"""The share by which the longest rest may be shorter: else loops that began together each need a connection at once."""
TERMS = LeaseTerms(timedelta(seconds=20), timedelta(seconds=3))
"""Terms of an ordinary loop's lease: another process takes over within 20 s."""

_rounds_log = structlog.get_logger("tickwright.rounds")


class LeasedRounds(LeasedService):
    """Calls ``round`` repeatedly while this process holds the lease: repeated work, in one process at a time.

    Args:
        name: Of the service and of its lease.
        round_: Does the work that is due, in transactions of the lease. Returns in how many seconds to call it again;
            0 for at once.
        rest_max_s: Longest pause between two calls.
        wakeup: Set when something has changed: the next call comes at once.
        armed: The same, for inserts that notify only while the loop rests.
    """

    def __init__(
        self,
        name: str,
        leases: Leases,
        round_: Callable[[HeldLease], Awaitable[float]],
        *,
        terms: LeaseTerms | None = None,
        rest_max_s: float = 10.0,
        wakeup: asyncio.Event | None = None,
        armed: ArmedWakeup | None = None,
    ) -> None:
        super().__init__(name, leases, name, self._rounds, terms=terms, wakeup=armed.woken if armed else wakeup)
        self._round, self._rest_max_s, self._armed = round_, rest_max_s, armed

    async def _rounds(self, lease: Lease) -> None:
        if self._armed is None:
            await self._rounds_until_lost(lease)
            return
        await self._armed.listen()
        try:
            await self._rounds_until_lost(lease)
        finally:
            await self._armed.unlisten()

    async def _rounds_until_lost(self, lease: Lease) -> None:
        while lease.holds() and not self.stopping.is_set():
            self.wakeup.clear()
            try:
                rest_s = await self._round(lease)
            except UNAVAILABLE as error:
                _rounds_log.warning("rounds.failed", loop=self.name, error=repr(error))
                rest_s = UNAVAILABLE_S
            self.tick()
            rest_s = min(max(rest_s, 0.0), self._rest_max_s)
            if rest_s == self._rest_max_s:
                rest_s *= 1 - APART * random_unit()
            if self._armed is not None:
                rest_s = await self._armed_rest_s(self._armed, rest_s)
            await self.wait_for_work(rest_s)

    @staticmethod
    async def _armed_rest_s(armed: ArmedWakeup, rest_s: float) -> float:
        """Return how long to rest: long only if inserts notify, and 0 where it has to look once more before."""
        if rest_s <= UNARMED_S:
            await armed.disarm()
            return rest_s
        answer = await armed.arm() if armed.works else "refused"
        return {"new": 0.0, "kept": rest_s, "refused": UNARMED_S}[answer]
