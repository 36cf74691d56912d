"""What fan-out needs of its stores: which scheduler publishes a window, and which consumer runs a task.

*Publish marks* say which scheduler publishes the window of an entity, and that it is published. *Run claims* say which
consumer runs a task, so that no two run at once and none runs twice. Redis and PostgreSQL both implement them.
"""

from collections.abc import Sequence
from datetime import timedelta
from enum import Enum
from typing import NamedTuple, Protocol

TIMED_OUT = "timeout"  # the error of a run that its timeout ended


class EntityWindow(NamedTuple):
    """One window of one entity and task type; it is published once."""

    entity_code: str
    task_type: str
    window_s: int


class Mark(Enum):
    """What a claim found."""

    MINE = "mine"
    TAKEN = "taken"
    SEALED = "sealed"


class MarkClaim(NamedTuple):
    """The answer to a claim; the last success, in seconds since 1970, where the store knows it."""

    mark: Mark
    last_success_s: float | None = None


class Marks(Protocol):
    """Which scheduler publishes what. Every method raises ``Unavailable`` when the store does not answer."""

    async def claim(self, windows: Sequence[EntityWindow], token: str, lease: timedelta) -> list[MarkClaim]:
        """Claim what is free, one answer per window, in order.

        A window under the same ``token`` is ``MINE`` again, so that a claim whose answer was lost can be repeated.
        A claim that is older than ``lease`` and not sealed is free.
        """
        ...

    async def seal(self, windows: Sequence[EntityWindow], token: str, *, keep: timedelta) -> int:
        """Mark these as published: they cannot be claimed for ``keep``. What another token has claimed stays its own.

        Returns:
            How many belong to another token by now.
        """
        ...

    async def release(self, windows: Sequence[EntityWindow], token: str) -> None:
        """Let others claim what ``token`` has claimed and not sealed: it was not published."""
        ...


class Run(NamedTuple):
    """A task to run. ``at_once`` bounds the runs of one entity, all task types together."""

    entity_code: str
    task_type: str
    window_s: int
    at_once: int


class RunStart(Enum):
    """The answer to a claim of a run."""

    BEGUN = "begun"
    BUSY = "busy"
    DONE = "done"


class Begun(NamedTuple):
    """A claim of a run, or why there is none.

    Attributes:
        start: ``BUSY``: it runs elsewhere, or the entity has as many runs as it may. ``DONE``: this window or a newer
            one ran with success.
        fence: Of the claim, where it is begun.
        begun_s: By the store's clock, in seconds since 1970.
        last_success_s: When the last run that succeeded began; ``None`` where none is known.
        since_timeout_s: Since the last error of this entity and task type where that was its timeout; 0 while none has
            succeeded since, ``None`` where the store does not say.
    """

    start: RunStart
    fence: int
    begun_s: float
    last_success_s: float | None
    since_timeout_s: float | None = None


class Ended(NamedTuple):
    """How a run ended. ``error`` says why it failed; without one it succeeded, unless ``released``: as if not begun."""

    run: Run
    begun: Begun
    error: str | None = None
    released: bool = False


class RunClaims(Protocol):
    """Which consumer runs what. Every method raises ``Unavailable`` when the store does not answer."""

    async def begin(self, runs: Sequence[Run], owner: int) -> list[Begun]:
        """Claim each run for ``owner``, the token of a session; one answer per run, in order."""
        ...

    async def end(self, ended: Sequence[Ended], owner: int) -> list[bool]:
        """Write how runs ended; false where the run was not ours any more: then nothing is written."""
        ...

    async def renew(self, held: Sequence[Ended], owner: int) -> list[bool]:
        """Keep what is under way (``error`` and ``released`` say nothing); false where it is not ours any more."""
        ...


class Success(NamedTuple):
    """A run that succeeded while the ledger was unavailable: ``success_s`` is when it began."""

    entity_code: str
    task_type: str
    window_s: int
    success_s: float


class CarryingRunClaims(RunClaims, Protocol):
    """Run claims that replace the ledger while it is unavailable, and keep successes for it."""

    async def end(self, ended: Sequence[Ended], owner: int, *, carry: bool = False) -> list[bool]:
        """Write how runs ended; with ``carry`` a success is also kept for the ledger until it is forgotten."""
        ...

    async def carried(self, limit: int) -> list[Success]:
        """Return successes that the ledger does not have, at most ``limit``, in no order."""
        ...

    async def forget(self, successes: Sequence[Success]) -> None:
        """Drop what the ledger has; what has changed since stays."""
        ...
