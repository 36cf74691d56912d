"""The actions on batches and executions and their effects: one table for code, docs and tests.

::

    NEW ──begun──▶ IN_PROGRESS ──last chunk──▶ FINISHED
     ▲                 └──failure──▶ EXCEPTION_OCCURRED
     └──────────────retry───────────────┘
    stop, replace: ▶ STOPPED        deactivate: ▶ DISABLED

An execution is *open* while it is ``NEW`` or ``IN_PROGRESS``. A rule names the facts for which it holds; for any facts
exactly one rule of an action holds. The names of the statuses are those of the source document. Pure: the caller has
locked the rows, asks for the effect, and writes it. ``docs/campaigns.md`` shows them all.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Generic, NamedTuple, TypeVar

from tickwright.domain.errors import Rejected


class BatchType(StrEnum):
    """Whether operators start it, or its calendar."""

    MANUAL = "MANUAL"
    AUTOMATIC = "AUTOMATIC"


class BatchStatus(StrEnum):
    """Whether its calendar counts."""

    SCHEDULED = "SCHEDULED"
    IDLE = "IDLE"


class ExecutionStatus(StrEnum):
    """The status of an execution."""

    NEW = "NEW"
    IN_PROGRESS = "IN_PROGRESS"
    FINISHED = "FINISHED"
    EXCEPTION_OCCURRED = "EXCEPTION_OCCURRED"
    STOPPED = "STOPPED"
    DISABLED = "DISABLED"


class Overlap(StrEnum):
    """The policy for an occurrence that finds an execution open."""

    SKIP = "skip"
    QUEUE = "queue"
    REPLACE = "replace"


class BatchAction(StrEnum):
    """An action of an operator on a batch."""

    CREATE = "create"
    EDIT = "edit"
    ACTIVATE = "activate"
    DEACTIVATE = "deactivate"
    START = "start"
    STOP = "stop"


class ExecutionAction(StrEnum):
    """An action of an operator on one execution."""

    PAUSE = "pause"
    RESUME = "resume"
    STOP = "stop"
    RETRY = "retry"


OPEN = frozenset({ExecutionStatus.NEW, ExecutionStatus.IN_PROGRESS})

TRANSITIONS: Mapping[ExecutionStatus, Mapping[ExecutionStatus, str]] = {
    ExecutionStatus.NEW: {
        ExecutionStatus.IN_PROGRESS: "begun",
        ExecutionStatus.STOPPED: "stop, replace",
        ExecutionStatus.DISABLED: "deactivate",
    },
    ExecutionStatus.IN_PROGRESS: {
        ExecutionStatus.FINISHED: "last chunk done",
        ExecutionStatus.EXCEPTION_OCCURRED: "failure",
        ExecutionStatus.STOPPED: "stop, replace",
        ExecutionStatus.DISABLED: "deactivate",
    },
    ExecutionStatus.FINISHED: {
        ExecutionStatus.STOPPED: "stop, before all is released",
        ExecutionStatus.DISABLED: "deactivate, before all is released",
    },
    ExecutionStatus.EXCEPTION_OCCURRED: {ExecutionStatus.NEW: "retry"},
    ExecutionStatus.STOPPED: {},
    ExecutionStatus.DISABLED: {},
}


class BatchFacts(NamedTuple):
    """The facts that decide about a batch.

    Attributes:
        type: Of an edit: the new one.
        is_releasing: Whether an execution is finished, and some of what it decided is not released.
        is_same: Of an edit: whether the definition stays the same.
        has_next: Whether its calendar has an occurrence left.
    """

    type: BatchType
    status: BatchStatus = BatchStatus.IDLE
    overlap: Overlap = Overlap.SKIP
    is_open: bool = False
    is_releasing: bool = False
    is_same: bool = False
    has_next: bool = True

    @property
    def is_going_on(self) -> bool:
        """Whether something of an execution is still to come: it is open, or finished and releasing."""
        return self.is_open or self.is_releasing


class ExecutionFacts(NamedTuple):
    """The facts that decide about an execution; ``is_releasing`` as of a batch."""

    status: ExecutionStatus
    is_paused: bool = False
    is_releasing: bool = False

    @property
    def goes_on(self) -> bool:
        """Whether something of it is still to come: it is open, or finished and releasing."""
        return self.status in OPEN or (self.status is ExecutionStatus.FINISHED and self.is_releasing)


@dataclass(frozen=True, slots=True)
class Refused:
    """The refusal of an action: the error's code, in which ``{noun}`` is the kind of batch, and what to do instead."""

    code: str
    advice: str

    def error(self, what: str, *, noun: str = "batch", **details: Any) -> Rejected:
        """Return the error (409) about ``what``, such as ``execution 7 is FINISHED``."""
        return Rejected(self.code.format(noun=noun), f"{what}: {self.advice}", status=409, **details)


@dataclass(frozen=True, slots=True)
class BatchEffect:
    """The effect of an action on a batch.

    Attributes:
        outcome: In a word, for answers.
        text: In a sentence, for the page.
        status: The new status of the batch; ``None``: no change.
        ends_open: The new status of its open executions; ``None``: they go on.
        ends_releasing: Whether finished executions that still release get the same status.
        is_versioned: Whether a version is written.
        is_starting: Whether an execution ``NEW`` is written.
    """

    outcome: str
    text: str
    status: BatchStatus | None = None
    ends_open: ExecutionStatus | None = None
    ends_releasing: bool = False
    is_versioned: bool = False
    is_starting: bool = False


@dataclass(frozen=True, slots=True)
class ExecutionEffect:
    """The effect of an action on an execution; ``status`` and ``is_paused`` where they change."""

    outcome: str
    text: str
    status: ExecutionStatus | None = None
    is_paused: bool | None = None


Effect = TypeVar("Effect", BatchEffect, ExecutionEffect)


@dataclass(frozen=True, slots=True)
class Rule(Generic[Effect]):
    """The effect of an action where each fact in ``when`` has one of the values there; other facts do not matter."""

    action: BatchAction | ExecutionAction
    effect: Effect | Refused
    when: Mapping[str, frozenset[Any]] = field(default_factory=dict)

    def holds(self, facts: BatchFacts | ExecutionFacts) -> bool:
        """Return whether the rule holds for these facts."""
        return all(getattr(facts, name) in values for name, values in self.when.items())


def _when(**values: Any) -> dict[str, frozenset[Any]]:
    return {name: value if isinstance(value, frozenset) else frozenset({value}) for name, value in values.items()}


_NOTHING = BatchEffect("unchanged", "nothing changes")
_AUTOMATIC, _OPEN, _GOING_ON = _when(type=BatchType.AUTOMATIC), _when(is_open=True), _when(is_going_on=True)
_EDITED = BatchEffect("edited", "a new version; open executions keep theirs", is_versioned=True)
_EDITED_TO_MANUAL = BatchEffect(
    "edited", "a new version, and `IDLE`; open executions keep theirs", BatchStatus.IDLE, is_versioned=True
)
_ACTIVATED = BatchEffect("activated", "`SCHEDULED`, from the first occurrence from now on", BatchStatus.SCHEDULED)
_NEVER = "and what is not released is never released"
_DEACTIVATED = BatchEffect(
    "deactivated", f"`IDLE`; executions that go on become `DISABLED`, {_NEVER}", BatchStatus.IDLE,
    ExecutionStatus.DISABLED, ends_releasing=True,
)  # fmt: skip
_STARTED = BatchEffect("started", "an execution `NEW`, for now", is_starting=True)
_QUEUED = BatchEffect("started", "an execution `NEW`, which waits for the open one", is_starting=True)
_REPLACED = BatchEffect(
    "started", "the open ones become `STOPPED`; an execution `NEW`", ends_open=ExecutionStatus.STOPPED, is_starting=True
)
_STOPPED = BatchEffect(
    "stopped", f"executions that go on become `STOPPED`, {_NEVER}", ends_open=ExecutionStatus.STOPPED,
    ends_releasing=True,
)  # fmt: skip
_MANUAL = Refused("{noun}_is_manual", "it runs when an operator starts it; make it AUTOMATIC to activate it")
_NO_OCCURRENCE = Refused("no_occurrence", "give it a date_time_execution that is to come, or start it")
_IS_OPEN = Refused("execution_open", "stop it first, or choose overlap queue or replace")

BATCH_RULES: Sequence[Rule[BatchEffect]] = (
    Rule(BatchAction.CREATE, BatchEffect("created", "`IDLE`, version 1", BatchStatus.IDLE, is_versioned=True)),
    Rule(BatchAction.EDIT, _NOTHING, _when(is_same=True)),
    Rule(BatchAction.EDIT, _EDITED, _when(is_same=False) | _AUTOMATIC),
    Rule(BatchAction.EDIT, _EDITED_TO_MANUAL, _when(is_same=False, type=BatchType.MANUAL)),
    Rule(BatchAction.ACTIVATE, _MANUAL, _when(type=BatchType.MANUAL)),
    Rule(BatchAction.ACTIVATE, _NOTHING, _AUTOMATIC | _when(status=BatchStatus.SCHEDULED)),
    Rule(BatchAction.ACTIVATE, _ACTIVATED, _AUTOMATIC | _when(status=BatchStatus.IDLE, has_next=True)),
    Rule(BatchAction.ACTIVATE, _NO_OCCURRENCE, _AUTOMATIC | _when(status=BatchStatus.IDLE, has_next=False)),
    Rule(BatchAction.DEACTIVATE, _DEACTIVATED, _when(status=BatchStatus.SCHEDULED)),
    Rule(BatchAction.DEACTIVATE, _DEACTIVATED, _when(status=BatchStatus.IDLE) | _GOING_ON),
    Rule(BatchAction.DEACTIVATE, _NOTHING, _when(status=BatchStatus.IDLE, is_going_on=False)),
    Rule(BatchAction.START, _STARTED, _when(is_open=False)),
    Rule(BatchAction.START, _IS_OPEN, _OPEN | _when(overlap=Overlap.SKIP)),
    Rule(BatchAction.START, _QUEUED, _OPEN | _when(overlap=Overlap.QUEUE)),
    Rule(BatchAction.START, _REPLACED, _OPEN | _when(overlap=Overlap.REPLACE)),
    Rule(BatchAction.STOP, _STOPPED, _GOING_ON),
    Rule(BatchAction.STOP, Refused("nothing_to_stop", "no execution of it goes on"), _when(is_going_on=False)),
)

_UNTOUCHED = ExecutionEffect("unchanged", "nothing changes")
_PAUSED = ExecutionEffect("paused", "no chunk begins and none is released; those at work end", is_paused=True)
_RESUMED = ExecutionEffect("resumed", "it goes on", is_paused=False)
_ENDED = ExecutionEffect(
    "stopped", "`STOPPED`; what is not released is never released", ExecutionStatus.STOPPED, is_paused=False
)
_RETRIED = ExecutionEffect("retried", "`NEW`; it goes on at the chunks that are not done", ExecutionStatus.NEW)
_OVER = Refused("execution_ended", "it has ended; nothing of it goes on")
_NOT_PAUSED = Refused("not_paused", "there is nothing to resume")
_NOT_FAILED = Refused("not_failed", "only a failed one is retried")
_FAILED = frozenset({ExecutionStatus.EXCEPTION_OCCURRED})

EXECUTION_RULES: Sequence[Rule[ExecutionEffect]] = (
    Rule(ExecutionAction.PAUSE, _PAUSED, _when(goes_on=True, is_paused=False)),
    Rule(ExecutionAction.PAUSE, _UNTOUCHED, _when(goes_on=True, is_paused=True)),
    Rule(ExecutionAction.PAUSE, _OVER, _when(goes_on=False)),
    Rule(ExecutionAction.RESUME, _RESUMED, _when(goes_on=True, is_paused=True)),
    Rule(ExecutionAction.RESUME, _NOT_PAUSED, _when(goes_on=True, is_paused=False)),
    Rule(ExecutionAction.RESUME, _OVER, _when(goes_on=False)),
    Rule(ExecutionAction.STOP, _ENDED, _when(goes_on=True)),
    Rule(ExecutionAction.STOP, _OVER, _when(goes_on=False)),
    Rule(ExecutionAction.RETRY, _RETRIED, _when(status=_FAILED)),
    Rule(ExecutionAction.RETRY, _NOT_FAILED, _when(status=frozenset(ExecutionStatus) - _FAILED)),
)


def batch_effect(action: BatchAction, facts: BatchFacts) -> BatchEffect | Refused:
    """Return what an action does to a batch.

    Invariants:
        STA-1: one rule holds, whatever the facts are; so for executions.
    """
    return next(rule.effect for rule in BATCH_RULES if rule.action is action and rule.holds(facts))


def execution_effect(action: ExecutionAction, facts: ExecutionFacts) -> ExecutionEffect | Refused:
    """Return what an action does to an execution."""
    return next(rule.effect for rule in EXECUTION_RULES if rule.action is action and rule.holds(facts))
