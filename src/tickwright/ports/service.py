"""Every loop is a service: started once, waited for, stopped twice without harm."""

from typing import Protocol


class Service(Protocol):
    """A loop of a process, which the supervisor starts, restarts and stops.

    Stopping has two steps. ``quiesce`` stops taking new work and lets what runs finish;
    ``stop`` cancels what still runs and releases what was not started, so that a deploy
    costs no attempt. Both may be called any number of times, in any order.
    """

    @property
    def name(self) -> str:
        """Stable, for logs, metrics and ``/readyz``."""
        ...

    async def run(self) -> None:
        """Work until stopped. Returns after a stop; raises when it cannot go on (the supervisor restarts it)."""
        ...

    async def quiesce(self) -> None:
        """Take no new work and return when what runs has finished."""
        ...

    async def stop(self) -> None:
        """Cancel what runs, release what was not started, return when ``run`` is over."""
        ...

    def last_tick_age_s(self) -> float | None:
        """Seconds since the last turn of the loop, by the monotonic clock; ``None`` before the first time."""
        ...
