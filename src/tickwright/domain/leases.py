"""A lease from its holder's side: by the holder's monotonic clock, and always on the safe side."""

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True)
class LeaseTerms:
    """How long a lease lasts and when it is renewed.

    Attributes:
        ttl: Eight seconds by default, so that another process takes over from a crashed one in seconds.
        margin: The holder stops this long before the deadline when it could not renew.
        at_least: After a take, no other take succeeds for this long, even after a release (``lock_at_least_for``).
    """

    ttl: timedelta = timedelta(seconds=8)
    margin: timedelta = timedelta(seconds=1)
    at_least: timedelta = timedelta()

    @property
    def renew_every(self) -> timedelta:
        """A third of the length. A renewal that fails is repeated until the margin before the deadline."""
        return self.ttl / 3

    def holds(self, renewed_s: float, now_s: float) -> bool:
        """Return whether a lease may be relied on now; ``renewed_s`` was read before its request was sent."""
        return now_s < renewed_s + (self.ttl - self.margin).total_seconds()
