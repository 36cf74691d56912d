"""Stores of fan-out: which scheduler publishes a window, and which consumer runs a task.

*Publish marks* record which scheduler publishes the window of an entity, and that it is published. *Run claims* record
which consumer runs a task, so that no two run at once and none runs twice. Redis and PostgreSQL implement both.
"""

from collections.abc import Sequence
from datetime import timedelta
from enum import Enum
from typing import NamedTuple, Protocol

TIMED_OUT = "timeout"  # the error of a run that exceeded its timeout


class EntityWindow(NamedTuple):
    """One window of one entity and task type, which is published once."""

    entity_code: str
    task_type: str
    window_s: int


class Mark(Enum):
    """The result of a claim."""

    MINE = "mine"
    TAKEN = "taken"
    SEALED = "sealed"


class MarkClaim(NamedTuple):
    """A claim's result, and the last success in seconds since 1970, if the store knows it."""

    mark: Mark
    last_success_s: float | None = None


class Marks(Protocol):
    """Which scheduler publishes which window. Every method raises ``Unavailable`` when the store does not answer."""

    async def claim(self, windows: Sequence[EntityWindow], token: str, lease: timedelta) -> list[MarkClaim]:
        """Claim free windows; one answer per window, in order.

        A repeated claim with the same ``token`` is ``MINE`` again, so a claim without an answer can be repeated. A
        claim that is older than ``lease`` and not sealed is free.
        """

    async def seal(self, windows: Sequence[EntityWindow], token: str, *, keep: timedelta) -> int:
        """Mark windows as published, not to be claimed for ``keep``. Other tokens' claims stay; return their number."""

    async def release(self, windows: Sequence[EntityWindow], token: str) -> None:
        """Release windows that ``token`` has claimed and not sealed: they were not published."""


class Run(NamedTuple):
    """A task to run. ``at_once`` limits the concurrent runs of one entity over all task types."""

    entity_code: str
    task_type: str
    window_s: int
    at_once: int


class RunStart(Enum):
    """The result of a run's claim."""

    BEGUN = "begun"
    BUSY = "busy"
    DONE = "done"


class RunClaim(NamedTuple):
    """A claim of a run, or the reason why there is none.

    Attributes:
        start: ``BUSY``: it runs elsewhere, or the entity has its maximum of runs. ``DONE``: this window or a newer one
            ran with success.
        fence: Of the claim, if it has begun.
        begun_s: By the store's clock, in seconds since 1970.
        last_success_s: When the last successful run began; ``None`` if none is known.
        since_timeout_s: Seconds since the last error of this entity and task type, if that was a timeout. 0 while no
            run has succeeded since; ``None`` if the store does not report it.
    """

    start: RunStart
    fence: int
    begun_s: float
    last_success_s: float | None
    since_timeout_s: float | None = None


class HeldRun(NamedTuple):
    """A run under its claim, and how it ended: it failed (``error``), is ``released`` as if not begun, or succeeded.

    ``error`` and ``released`` have no meaning while it is under way.
    """

    run: Run
    claim: RunClaim
    error: str | None = None
    released: bool = False


class RunClaims(Protocol):
    """Which consumer runs which task. Every method raises ``Unavailable`` when the store does not answer."""

    async def begin(self, runs: Sequence[Run], owner: int) -> list[RunClaim]:
        """Claim each run for ``owner``, the token of a session; one answer per run, in order."""

    async def end(self, ended: Sequence[HeldRun], owner: int) -> list[bool]:
        """Write how runs ended; false where the run was no longer ours: then nothing is written."""

    async def renew(self, held: Sequence[HeldRun], owner: int) -> list[bool]:
        """Extend the claims of runs under way; false where one is no longer ours."""


class Success(NamedTuple):
    """A run that succeeded while the ledger was unavailable; it began at ``success_s``."""

    entity_code: str
    task_type: str
    window_s: int
    success_s: float


class CarryingRunClaims(RunClaims, Protocol):
    """Run claims that replace the ledger while it is unavailable, and keep successes for it."""

    async def end(self, ended: Sequence[HeldRun], owner: int, *, carry: bool = False) -> list[bool]:
        """Write how runs ended; with ``carry`` a success is also kept for the ledger until ``forget``."""

    async def carried(self, limit: int) -> list[Success]:
        """Return at most ``limit`` successes that the ledger does not have, in no order."""

    async def forget(self, successes: Sequence[Success]) -> None:
        """Drop successes that the ledger has; later changes stay."""
