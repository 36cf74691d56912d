"""Named points in the code where a test may wait, raise or kill; nothing happens there in production."""

from typing import Protocol


class Probe(Protocol):
    """One mechanism for faults and for tests that wait without sleeping."""

    async def reached(self, name: str, /, **facts: object) -> None:
        """Say that ``name`` (``relay.published_not_marked``) was reached."""
        ...


class NoProbe:
    """What production uses."""

    async def reached(self, name: str, /, **facts: object) -> None:
        """Do nothing."""


NO_PROBE = NoProbe()
