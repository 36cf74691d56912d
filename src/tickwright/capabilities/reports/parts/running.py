"""What one process has in its hands of the ledger of parts."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import structlog

from tickwright.capabilities.reports.parts.store import Claim
from tickwright.engine.claimed_work import Held
from tickwright.ports.ids import monotonic

STUCK_AFTER_S = 2.0
_log = structlog.get_logger("tickwright.reports")


@dataclass(slots=True, eq=False)
class HeldPart(Held[Claim]):
    """One part under way.

    Attributes:
        rows: Grows while it is brought.
        until_s: When its call has to be over, by the monotonic clock; ``None`` while none runs.
        told: The log names it as stuck.
    """

    rows: int = 0
    until_s: float | None = None
    told: bool = False

    def cancel(self) -> None:
        """End its task, now."""
        if self.until_s is not None:
            self.until_s = min(self.until_s, monotonic())
        Held.cancel(self)  # a dataclass with slots is made anew: super() would not find itself in it

    @contextmanager
    def calling(self, allowed_s: float) -> Iterator[None]:
        """Call its listener in the block."""
        self.until_s = monotonic() + allowed_s
        try:
            yield
        finally:
            self.until_s = None

    def is_stuck(self) -> bool:
        """Whether its call did not return within two seconds of its end; the log names it once.

        A function may do as if it were not cancelled. It keeps its place then, which only a restart frees.
        """
        if self.until_s is None or monotonic() <= self.until_s + STUCK_AFTER_S:
            return False
        if not self.told:
            _log.warning("reports.call_still_running", key=self.claim.key, served_by=self.claim.served_by)
        self.told = True
        return True

    def progress(self, rows: int) -> None:
        """Note how far it is."""
        self.rows = rows
