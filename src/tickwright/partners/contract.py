"""The partner contract of one process: one object for all its calls to partners.

::

    async with contract.call(partner_no) as permit:
        permit.report(Answered())

Processes share rows in the database. An exchange with them decides (``model.decide``), a few times a second and for all
partners at once. Inside the process :class:`.permits.PartnerPermits` gives permits without waiting. While the database
is unavailable, grants end within ``valid_s`` and no calls are made.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import lru_cache
from types import MappingProxyType

import structlog

from tickwright.domain.dbclock import DbClock
from tickwright.domain.errors import Rejected
from tickwright.engine.service import LoopService
from tickwright.observe.logs import without_secrets
from tickwright.observe.metrics import Sample, Source
from tickwright.partners import model, store
from tickwright.partners.model import Report
from tickwright.partners.outcomes import Failed, Outcome
from tickwright.partners.permits import PartnerPermits, Permit
from tickwright.partners.settings import PartnerSettings, check_settings
from tickwright.ports.ids import monotonic
from tickwright.ports.service import NO_PROBE, Probe
from tickwright.ports.session import Session
from tickwright.store.pool import UNAVAILABLE, Exchanges, Pool

PERIOD_S = 0.2
GAP_S = 0.02
IDLE_S = 1.0
AWAY_S = 0.2

_log = structlog.get_logger("tickwright.partners")


class PartnerCall:
    """A call that may be made now; report its outcome with ``report``."""

    __slots__ = ("_permit", "outcome")

    def __init__(self, permit: Permit) -> None:
        self._permit = permit
        self.outcome: Outcome | None = None

    def report(self, outcome: Outcome) -> None:
        """Set its outcome."""
        self.outcome = outcome


class PartnerContract(LoopService):
    """The contract of one process; a :class:`tickwright.ports.service.Service`.

    Invariants:
        CON-1: no call begins without a grant that is younger than ``valid_s``, under a session that holds.
        CON-2: after a ``Retry-After`` this process begins no call before its end, and no other process does later than
            ``valid_s`` after the report was written; that is 0.6 s and two exchanges, 3 s at most.
    """

    name = "partners"

    def __init__(self, pool: Pool, session: Session, *, probe: Probe = NO_PROBE) -> None:
        super().__init__()
        self._pool, self._session, self._probe = pool, session, probe
        self.clock = DbClock()
        self._all_permits: dict[int, PartnerPermits] = {}
        session.on_lost(self._session_lost)

    # ------------------------------------------------------------------ calling

    @asynccontextmanager
    async def call(self, partner_no: int, name: str = "") -> AsyncIterator[PartnerCall]:
        """Wait until a call may begin, and hold its permit until the body ends.

        A body that raises counts as failed; a cancelled one does not count.
        """
        permit = await self.acquire(partner_no, name)
        call = PartnerCall(permit)
        try:
            yield call
        except asyncio.CancelledError:
            permit.close(call.outcome)
            raise
        except BaseException as error:
            permit.close(call.outcome or Failed(without_secrets(repr(error))))
            raise
        permit.close(call.outcome or Failed("nothing was reported"))

    async def acquire(self, partner_no: int, name: str = "") -> Permit:
        """Wait for a permit, which the caller must close."""
        return await self.permits_of(partner_no, name).acquire()

    def permits_of(self, partner_no: int, name: str = "") -> PartnerPermits:
        """Return the permits of a partner in this process; without ``name`` they have no metrics."""
        found = self._all_permits.get(partner_no)
        if found is None:
            found = self._all_permits[partner_no] = PartnerPermits(
                partner_no, self.clock, self._session, self.wakeup.set
            )
        found.name = name or found.name
        return found

    @property
    def reach_s(self) -> float:
        """Seconds that a first permit may take longer than near the database: two exchanges."""
        return 2 * min(Exchanges.usual_s(), model.EXCHANGE_MAX_S)

    @property
    def all_permits(self) -> Mapping[int, PartnerPermits]:
        """Permits of every partner that this process has called, by number."""
        return MappingProxyType(self._all_permits)

    # ------------------------------------------------------------------ service

    async def _work(self) -> None:
        """Exchange with the shared state."""
        while not self.stopping.is_set():
            busy = await self._round()
            await self._rest(PERIOD_S if busy else self._until_next_look())

    async def _round(self) -> bool:
        self.wakeup.clear()
        now = monotonic()
        needy = sorted((no, permits) for no, permits in self._all_permits.items() if permits.needs_exchange(now))
        try:
            if needy and self._session.holds():
                await self._exchange([permits for _, permits in needy])
        except UNAVAILABLE as error:
            _log.warning("partners.exchange_failed", error=repr(error))
            await asyncio.sleep(AWAY_S)
        self.tick()
        return bool(needy)

    def _until_next_look(self) -> float:
        now = monotonic()
        looks = [permits.look_again_s - now for permits in self._all_permits.values() if permits.waiting]
        return max(GAP_S, min([IDLE_S, *looks]))

    async def _rest(self, longest_s: float) -> None:
        """Wait for the next exchange: a period, or less when one is urgent."""
        begun = monotonic()
        try:
            async with asyncio.timeout(longest_s):
                await self.wakeup.wait()
        except TimeoutError:
            return
        await asyncio.sleep(max(0.0, GAP_S - (monotonic() - begun)))

    async def _exchange(self, all_permits: Sequence[PartnerPermits]) -> None:
        exchange_s, begun_s = Exchanges.usual_s(), monotonic()
        reports = {permits.partner_no: permits.report(exchange_s) for permits in all_permits}
        exchange = _Exchange(
            self._session.token, {no: report for no, (report, _) in reports.items()}, reports_errors(reports)
        )
        try:
            await self._probe.reached("partners.before_exchange")
            counts = await store.exchange(self._pool, exchange.token, sorted(reports), exchange.decide)
        except BaseException:
            for permits in all_permits:
                permits.seen.add(reports[permits.partner_no][1])
            Exchanges.note(max(exchange_s, monotonic() - begun_s))
            raise
        Exchanges.note(monotonic() - begun_s)
        read = exchange.read
        if read is None or not counts or exchange.token != self._session.token:
            return  # the session was declared lost; its own heartbeat reports that
        if self.clock.sample(read.now_s, read.received_s, read.asked_s):
            _log.warning("partners.db_clock_jump", now_s=read.now_s)
        for partner_no, (was, now) in exchange.breakers.items():
            _log.warning("partners.breaker", partner_no=partner_no, was=was, now=now)
        for permits in all_permits:
            if (found := exchange.found.get(permits.partner_no)) is not None:
                permits.settings = found.settings
                permits.grant(found.grant, asked_s=read.asked_s, now_s=read.now_s, listed=found.granted is not None)

    async def quiesce(self) -> None:
        """Do nothing: the consumers that call partners stop first."""

    async def stop(self) -> None:
        """Report the remaining counts, release shares, and end."""
        await super().quiesce()
        for permits in self._all_permits.values():
            permits.close()
        await self._round()

    def _session_lost(self) -> None:
        for permits in self._all_permits.values():
            permits.forget()


def reports_errors(reports: Mapping[int, tuple[Report, object]]) -> dict[int, str | None]:
    """Return the last error of each report."""
    return {no: getattr(seen, "error", None) for no, (_, seen) in reports.items()}


class _Found:
    """The decision of an exchange for one partner."""

    __slots__ = ("grant", "granted", "settings")

    def __init__(self, settings: PartnerSettings, grant: model.Grant, granted: int | None) -> None:
        self.settings, self.grant, self.granted = settings, grant, granted


class _Exchange:
    """One exchange: reports in, decisions out."""

    def __init__(self, token: int, reports: Mapping[int, Report], errors: Mapping[int, str | None]) -> None:
        self.token, self._reports, self._errors = token, reports, errors
        self.read: store.ClockReading | None = None
        self.found: dict[int, _Found] = {}
        self.breakers: dict[int, tuple[str, str]] = {}

    def decide(self, read: store.ClockReading, known: Sequence[store.PartnerState]) -> list[store.PartnerDecision]:
        """Decide for every partner; one whose decision fails is unchanged and makes no calls."""
        self.read = read
        self.breakers.clear()
        return [self._one_or_nothing(read.now_s, partner) for partner in known]

    def _one_or_nothing(self, now_s: float, partner: store.PartnerState) -> store.PartnerDecision:
        try:
            return self._one(now_s, partner)
        except Exception as error:  # noqa: BLE001  the exchange is for all partners: one row must not stop the others
            _log.exception("partners.not_decided", partner_no=partner.partner_no)
            nothing = model.Grant(now_s + model.VALID_S, share=0, why="paused")
            self.found[partner.partner_no] = _Found(PartnerSettings(), nothing, None)
            return store.PartnerDecision(
                partner.partner_no, partner.shared, None, f"not decided: {type(error).__name__}"
            )

    def _one(self, now_s: float, partner: store.PartnerState) -> store.PartnerDecision:
        settings = settings_of(partner.settings)
        context = model.ExchangeContext(self.token, partner.shares, partner.paused or settings is None, now_s)
        settings = settings or PartnerSettings()
        shared, grant, granted = model.decide(partner.shared, self._reports[partner.partner_no], settings, context)
        self.found[partner.partner_no] = _Found(settings, grant, granted)
        if shared.breaker != partner.shared.breaker:
            self.breakers[partner.partner_no] = (partner.shared.breaker, shared.breaker)
        return store.PartnerDecision(partner.partner_no, shared, granted, self._errors.get(partner.partner_no))


@lru_cache(maxsize=1024)
def settings_of(text: str) -> PartnerSettings | None:
    """Return the settings of the table's JSON; ``None`` when they are invalid: then no calls are made."""
    try:
        return check_settings(json.loads(text), where="settings")
    except Rejected as error:
        _log.error("partners.settings_invalid", error=error.message)
        return None


def contract_source(contract: PartnerContract) -> Source:
    """Return a metrics source for the partners that this process has called."""

    def read() -> Sequence[Sample]:
        samples: list[Sample] = []
        for permits in [one for one in contract.all_permits.values() if one.name]:
            samples += [
                Sample("tickwright_partner_running_calls", permits.held, (permits.name,)),
                Sample("tickwright_partner_closed", float(permits.closed), (permits.name,)),
            ]
            samples += [
                Sample("tickwright_partner_calls_total", count, (permits.name, outcome))
                for outcome, count in list(permits.outcomes.items())
            ]
        return samples

    return read
