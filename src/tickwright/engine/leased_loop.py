"""A loop of short rounds under a lease: repeated work of a capability, in one process at a time."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import structlog

from tickwright.domain.leases import LeaseTerms
from tickwright.engine.leases import Lease, LeasedService, Leases
from tickwright.ports.service import NO_PROBE, Probe
from tickwright.ports.session import HeldLease
from tickwright.store.pool import UNAVAILABLE

AWAY_S = 1.0
TERMS = LeaseTerms(timedelta(seconds=20), timedelta(seconds=3))
"""Terms of an ordinary loop's lease: another process takes over within 20 s."""

_log = structlog.get_logger("tickwright.rounds")


class LeasedRounds(LeasedService):
    """Calls ``round`` repeatedly while this process holds the lease; a :class:`tickwright.ports.service.Service`.

    Args:
        name: Of the service and of its lease.
        round_: Does the work that is due, in transactions of the lease. Returns in how many seconds to call it again;
            0 for at once.
        rest_max_s: Longest pause between two calls.
        wakeup: Set when something has changed: the next call comes at once.
    """

    def __init__(
        self,
        name: str,
        leases: Leases,
        round_: Callable[[HeldLease], Awaitable[float]],
        *,
        terms: LeaseTerms | None = None,
        rest_max_s: float = 5.0,
        wakeup: asyncio.Event | None = None,
        probe: Probe = NO_PROBE,
    ) -> None:
        super().__init__(name, leases, name, self._rounds, terms=terms, wakeup=wakeup, probe=probe)
        self._round, self._rest_max_s = round_, rest_max_s

    async def _rounds(self, lease: Lease) -> None:
        while lease.holds() and not self.stopping.is_set():
            self.wakeup.clear()
            try:
                rest_s = await self._round(lease)
            except UNAVAILABLE as error:
                _log.warning("rounds.failed", loop=self.name, error=repr(error))
                rest_s = AWAY_S
            self.tick()
            await self.wait_for_work(min(max(rest_s, 0.0), self._rest_max_s))
