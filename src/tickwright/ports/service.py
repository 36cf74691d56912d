"""The service protocol: started once, awaited, stopped in two steps that may be repeated."""

from typing import Protocol


class Service(Protocol):
    """A loop of a process, which the supervisor starts, restarts and stops.

    It stops in two steps. ``quiesce`` accepts no new work and waits for running work. ``stop`` cancels running work and
    releases what was not started, so a deploy costs no attempt. Both may be called any number of times, in any order.

    ``quiesce`` does nothing in a service that others use until they have stopped, such as the session.
    """

    @property
    def name(self) -> str:
        """Stable, for logs, metrics and ``/readyz``."""

    async def run(self) -> None:
        """Work until stopped. Returns after a stop; raises when it cannot continue (the supervisor restarts it)."""

    async def quiesce(self) -> None:
        """Accept no new work, and return when running work has finished."""

    async def stop(self) -> None:
        """Cancel running work and release what was not started; then ``run`` ends."""

    def last_tick_age_s(self) -> float | None:
        """Return the seconds since the last round of the loop, by the monotonic clock; ``None`` before the first."""


class Probe(Protocol):
    """Named points in the code where a test may wait, raise or kill: the one mechanism for injected faults."""

    async def reached(self, name: str, /, **facts: object) -> None:
        """Report that the point ``name`` (``relay.published_not_marked``) was reached."""


class NoProbe:
    """The probe of production."""

    async def reached(self, name: str, /, **facts: object) -> None:
        """Do nothing."""


NO_PROBE = NoProbe()
