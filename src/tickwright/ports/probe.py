"""Named points in the code where a test may wait, raise or kill; without effect in production."""

from typing import Protocol


class Probe(Protocol):
    """The one mechanism for injected faults, and for tests that wait without sleeping."""

    async def reached(self, name: str, /, **facts: object) -> None:
        """Report that the point ``name`` (``relay.published_not_marked``) was reached."""
        ...


class NoProbe:
    """The probe of production."""

    async def reached(self, name: str, /, **facts: object) -> None:
        """Do nothing."""


NO_PROBE = NoProbe()
