"""The partner contract of one process: one object for all its calls to partners.

::

    async with contract.call(partner_no) as call:
        call.report(Answered())

Processes share rows in the database. An exchange with them decides (``model.decide``), a few times a second and for all
partners at once. Inside the process :class:`.permits.PartnerPermits` gives permits without waiting. While the database
is unavailable, grants end within ``valid_s`` and no calls are made.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import structlog

from tickwright.domain.dbclock import DbClock
from tickwright.domain.errors import Rejected
from tickwright.engine.service import LoopService
from tickwright.engine.tasks import is_set_within
from tickwright.observe.logs import without_secrets
from tickwright.observe.metrics import Sample, busiest
from tickwright.partners import model
from tickwright.partners.model import Grant, Report, SharedState
from tickwright.partners.outcomes import Failed, Outcome
from tickwright.partners.permits import PartnerPermits
from tickwright.partners.settings import PartnerSettings, check_settings
from tickwright.ports.ids import monotonic
from tickwright.ports.session import Session
from tickwright.store.pool import UNAVAILABLE, Connection, Exchanges, Pool
from tickwright.store.queries import load

PERIOD_S = 0.2
GAP_S = 0.02
IDLE_S = 1.0
UNAVAILABLE_S = 0.2
CALLS_BYTES_MAX = 10_000
SQL = load("tickwright.partners.sql", "partners.sql")
_log = structlog.get_logger("tickwright.partners")


class PartnerCall:
    """A call that may be made now; report its outcome with ``report``."""

    outcome: Outcome | None = None

    def report(self, outcome: Outcome) -> None:
        """Set its outcome."""
        self.outcome = outcome


class PartnerContract(LoopService):
    """The contract of one process; a :class:`tickwright.ports.service.Service`.

    Attributes:
        all_permits: Permits of every partner that this process has called, by number.

    Invariants:
        CON-1: no call begins without a grant that is younger than ``valid_s``, under a session that holds.
        CON-2: after a ``Retry-After`` this process begins no call before its end, and no other process does later than
            ``valid_s`` after the report was written; that is 0.6 s and two exchanges, 3 s at most.
    """

    name = "partners"

    def __init__(self, pool: Pool, session: Session) -> None:
        super().__init__()
        self._pool, self._session = pool, session
        self.clock = DbClock()
        self.all_permits: dict[int, PartnerPermits] = {}
        session.on_lost(self._session_lost)

    # ------------------------------------------------------------------ calling

    @asynccontextmanager
    async def call(self, partner_no: int, name: str = "") -> AsyncIterator[PartnerCall]:
        """Wait until a call may begin, and hold its permit until the body ends.

        A body that raises counts as failed; a cancelled one does not count.
        """
        permit = await self.permits_of(partner_no, name).acquire()
        call = PartnerCall()
        try:
            yield call
        except asyncio.CancelledError:
            permit.close(call.outcome)
            raise
        except BaseException as error:
            permit.close(call.outcome or Failed(without_secrets(repr(error))))
            raise
        permit.close(call.outcome or Failed("nothing was reported"))

    def permits_of(self, partner_no: int, name: str = "") -> PartnerPermits:
        """Return the permits of a partner in this process; without ``name`` they have no metrics."""
        found = self.all_permits.get(partner_no)
        if found is None:
            found = PartnerPermits(partner_no, self.clock, self._session, self.wakeup.set)
            self.all_permits[partner_no] = found
        found.name = name or found.name
        return found

    @property
    def reach_s(self) -> float:
        """Seconds that a first permit may take longer than near the database: two exchanges."""
        return 2 * min(Exchanges.usual_s(), model.EXCHANGE_MAX_S)

    def samples(self) -> Sequence[Sample]:
        """Return the figures of the partners that this process has called, for its metrics."""
        found: list[Sample] = []
        for permits in [permits for permits in self.all_permits.values() if permits.name]:
            found.append(Sample("tickwright_partner_running_calls", permits.held, (permits.name,)))
            found.append(Sample("tickwright_partner_closed", float(permits.blocked), (permits.name,)))
            found += [
                Sample("tickwright_partner_calls_total", count, (permits.name, outcome))
                for outcome, count in list(permits.outcomes.items())
            ]
        return found

    # ------------------------------------------------------------------ service

    async def _work(self) -> None:
        """Exchange with the shared state."""
        while not self.stopping.is_set():
            busy = await self._round()
            now = monotonic()
            waits = [permits.exchange_again_s - now for permits in self.all_permits.values() if permits.waiting]
            await self._rest(PERIOD_S if busy else max(GAP_S, min([IDLE_S, *waits])))

    async def _round(self) -> bool:
        self.wakeup.clear()
        now = monotonic()
        needy = sorted((no, permits) for no, permits in self.all_permits.items() if permits.needs_exchange(now))
        try:
            if needy and self._session.holds():
                await self._exchange([permits for _, permits in needy])
        except UNAVAILABLE as error:
            _log.warning("partners.exchange_failed", error=repr(error))
            await asyncio.sleep(UNAVAILABLE_S)
        self.tick()
        return bool(needy)

    async def _rest(self, longest_s: float) -> None:
        """Wait for the next exchange: a period, or less when one is urgent."""
        begun = monotonic()
        if await is_set_within(self.wakeup, longest_s):
            await asyncio.sleep(max(0.0, GAP_S - (monotonic() - begun)))

    async def _exchange(self, all_permits: Sequence[PartnerPermits]) -> None:
        exchange_s, begun_s, token = Exchanges.usual_s(), monotonic(), self._session.token
        reports = {permits.partner_no: permits.report(exchange_s) for permits in all_permits}

        def decide_one(partner: PartnerState, now_s: float) -> PartnerDecision:
            report, unreported = reports[partner.partner_no]
            return decide(partner, report, unreported.error, token, now_s)

        try:
            done = await exchange(self._pool, token, sorted(reports), decide_one)
        except BaseException:
            for permits in all_permits:
                permits.unreported.add(reports[permits.partner_no][1])
            Exchanges.note(max(exchange_s, monotonic() - begun_s))
            raise
        Exchanges.note(monotonic() - begun_s)
        if done is None or not done.decisions or token != self._session.token:
            for permits in all_permits:
                permits.unreported.add(reports[permits.partner_no][1].silence())
            return  # the session was declared lost; its own heartbeat reports that
        if self.clock.sample(done.now_s, done.received_s, done.asked_s):
            _log.warning("partners.db_clock_jump", now_s=done.now_s)
        for decision in done.decisions:
            permits, was = self.all_permits[decision.partner.partner_no], decision.partner.shared.breaker
            if decision.shared.breaker != was:
                _log.warning("partners.breaker", partner_no=permits.partner_no, was=was, now=decision.shared.breaker)
            permits.settings = decision.settings
            permits.grant(decision.grant, asked_s=done.asked_s, now_s=done.now_s, listed=decision.granted is not None)

    async def quiesce(self) -> None:
        """Do nothing: the consumers that call partners stop first."""

    async def stop(self) -> None:
        """Report the remaining counts, release shares, and end."""
        await super().quiesce()
        for permits in self.all_permits.values():
            permits.close()
        await self._round()

    def _session_lost(self) -> None:
        for permits in self.all_permits.values():
            permits.forget()


@dataclass(frozen=True, slots=True)
class PartnerState:
    """A partner as an exchange reads it."""

    partner_no: int
    settings: str
    paused: bool
    shared: SharedState
    shares: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class PartnerDecision:
    """What an exchange writes for a partner, and the grant of this process; ``granted`` is ``None`` without a share."""

    partner: PartnerState
    shared: SharedState
    granted: int | None
    error: str | None
    grant: Grant
    settings: PartnerSettings


class Exchanged(NamedTuple):
    """A written exchange: the database's clock, read between two monotonic instants, and the decisions."""

    now_s: float
    asked_s: float
    received_s: float
    decisions: Sequence[PartnerDecision]


def decide(partner: PartnerState, report: Report, last_error: str | None, token: int, now_s: float) -> PartnerDecision:
    """Decide for one partner; when that fails, only ``Retry-After`` is written, and it gets no calls."""
    try:
        settings = settings_of(partner.settings)
        context = model.ExchangeContext(token, partner.shares, partner.paused or settings is None, now_s)
        settings = settings or PartnerSettings()
        shared, grant, granted = model.decide(partner.shared, report, settings, context)
    except Exception as error:  # noqa: BLE001  the exchange is for all partners: one row must not stop the others
        _log.exception("partners.not_decided", partner_no=partner.partner_no)
        grant = Grant(now_s + model.VALID_S, share=0, why="paused")
        problem = f"not decided: {type(error).__name__}"
        blocked_until_s = max(partner.shared.blocked_until_s, report.blocked_until_s)
        shared = replace(partner.shared, blocked_until_s=blocked_until_s)
        return PartnerDecision(partner, shared, None, problem, grant, PartnerSettings())
    return PartnerDecision(partner, shared, granted, last_error, grant, settings)


@lru_cache(maxsize=1024)
def settings_of(text: str) -> PartnerSettings | None:
    """Return the settings of the table's JSON; ``None`` when they are invalid: then no calls are made."""
    try:
        return check_settings(json.loads(text), where="settings")
    except Rejected as error:
        _log.error("partners.settings_invalid", error=error.message)
        return None


Decide = Callable[[PartnerState, float], PartnerDecision]


async def exchange(pool: Pool, token: int, partner_nos: Sequence[int], decide_one: Decide) -> Exchanged | None:
    """Read, decide, write; ``None`` when it does not count, because the session was declared lost.

    Two round trips. If another process wrote in between, the exchange starts again with locked rows, so that a process
    far from the database also succeeds. Then every decision is made a second time, and the last ones are written.
    """
    async with pool.acquire() as connection:
        if (done := await _decide_and_write(connection, token, partner_nos, decide_one)) is not None:
            return done
        async with connection.transaction():
            await connection.execute(SQL["lock_states"], partner_nos)
            return await _decide_and_write(connection, token, partner_nos, decide_one)


_SHARED = tuple(SharedState.__dataclass_fields__)
"""The columns of ``read_states`` have the same names."""


async def _decide_and_write(
    connection: Connection, token: int, partner_nos: Sequence[int], decide_one: Decide
) -> Exchanged | None:
    asked_s = monotonic()
    rows = await connection.fetch(SQL["read_states"], partner_nos)
    if len(rows) < len(partner_nos):
        await connection.execute(SQL["open_states"], partner_nos)
        asked_s = monotonic()
        rows = await connection.fetch(SQL["read_states"], partner_nos)
    received_s = monotonic()
    if not rows:  # these partners were deleted
        return Exchanged(0.0, asked_s, received_s, ())
    now_s = rows[0]["now_s"]
    decided = [decide_one(_state(row), now_s) for row in rows]
    written = await connection.fetchval(
        SQL["write_exchange"],
        token,
        [row["partner_no"] for row in rows],
        [row["version"] for row in rows],
        *([getattr(decision.shared, name) for decision in decided] for name in _SHARED),
        [decision.granted for decision in decided],
        [decision.error for decision in decided],
    )
    return Exchanged(now_s, asked_s, received_s, decided) if written == len(rows) else None


def _state(row: Any) -> PartnerState:
    shared = SharedState(*(row[name] for name in _SHARED))
    return PartnerState(row["partner_no"], row["settings"], row["paused"], shared, dict(row["shares"]))


class PartnerRow(NamedTuple):
    """A row of ``tickwright.partners``."""

    partner_no: int
    name: str
    settings: str


async def list_partners(connection: Connection | Pool) -> list[PartnerRow]:
    """Return every partner by name."""
    return [PartnerRow(*row) for row in await connection.fetch(SQL["list_partners"])]


async def declare_partner(connection: Connection | Pool, name: str, settings: str) -> None:
    """Create a partner that a program declares, unless it has settings already."""
    await connection.execute(SQL["declare_partner"], name, settings)


async def put_partner(connection: Connection | Pool, name: str, settings: str) -> bool:
    """Set a partner's settings (checked JSON); return whether something changed."""
    return await connection.fetchval(SQL["put_partner"], name, settings) is not None


def counted_calls(contract: PartnerContract) -> dict[str, dict[str, int]]:
    """Return the calls of the busiest partners by outcome, for the heartbeat, as far as they fit."""
    none = {"answered": 0, "throttled": 0, "failed": 0}
    named = [permits for permits in contract.all_permits.values() if permits.name and permits.outcomes]
    called = {permits.name: {**none, **permits.outcomes} for permits in named}
    return busiest(called, lambda outcomes: sum(outcomes.values()), CALLS_BYTES_MAX)
