"""The next step of a report: a pure decision over its record and its parts. No I/O, no clock.

::

    pending ──claim of a part──▶ querying ──complete──▶ merging ──file──▶ finished
                  ▲                 │  │ complete, another stage              │
                  └─epoch + 1───────┘  └──▶ querying (stage + 1)              └─reason─▶ failed
    any of the first three ──cancel──▶ cancelled

A stage is complete when each of its parts is done or, if optional, has failed. The supervisor that claimed the step
carries the decision out; every write has the claim's fence.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tickwright.capabilities.reports.plan import Plan
from tickwright.domain.errors import Rejected
from tickwright.ports.reports import Column

RESTARTS_MAX = 3
OPEN = frozenset({"waiting", "due", "running"})


@dataclass(frozen=True, slots=True)
class Record:
    """A claimed report; ``check_due`` and ``overdue`` compare its delayed check and its deadline with the clock."""

    id: int
    type: str
    status: str
    stage: int
    epoch: int
    fence: int
    restarts: int
    tries: int
    checks: int
    conditions: dict[str, Any]
    requester: str
    feed: dict[str, Any]
    plan: Plan
    check_due: bool
    overdue: bool
    left_s: float
    deadline_at: datetime
    nonce: str

    @property
    def key(self) -> tuple[int, int]:
        """The claimed step: the report and the fence."""
        return self.id, self.fence


@dataclass(frozen=True, slots=True)
class Part:
    """A part in the ledger."""

    listener: str
    stage: int
    required: bool
    state: str
    attempts: int = 0
    rows: int = 0
    bytes: int = 0
    checksum: str | None = None
    columns: tuple[Column, ...] = ()
    place: str | None = None
    object_key: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """Do nothing before the next check."""


@dataclass(frozen=True, slots=True)
class Announce:
    """Announce the stage to these listeners again."""

    listeners: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NextStage:
    """Begin the next stage; the current one is complete."""


@dataclass(frozen=True, slots=True)
class Merge:
    """Merge, because all stages are complete; ``missing`` are optional parts that did not arrive."""

    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Fail:
    """Fail the report, with a stable code and a text for people."""

    code: str
    text: str


Decision = Wait | Announce | NextStage | Merge | Fail


def decide(record: Record, parts: Sequence[Part]) -> Decision:
    """Return the next step of a claimed record with all of its parts.

    Invariants:
        RST-1: ``Merge`` only if every required part of every stage is done.
        RST-2: a report never waits beyond its deadline, and a stage never beyond its last check.
    """
    current = [part for part in parts if part.stage == record.stage]
    missing = [part for part in current if part.state in OPEN]
    broken = [part for part in parts if part.required and part.state in {"failed", "dropped"}]
    if broken:
        return Fail("part_failed", "; ".join(_why(part) for part in broken)[:1000])
    if record.overdue:
        waited = f"; it waited for {_names(missing)}" if missing else ""
        return Fail("deadline_passed", f"it was not finished within {record.plan.deadline_s} s{waited}")
    if not missing:
        return _complete(record, parts)
    return _check(record, parts, missing) if record.check_due else Wait()


def _check(record: Record, parts: Sequence[Part], missing: Sequence[Part]) -> Decision:
    """Decide a due delayed check: announce missing parts again, or stop waiting for them."""
    if record.checks + 1 < record.plan.checks:
        return Announce(tuple(part.listener for part in missing))
    required = [part for part in missing if part.required]
    if not required:
        return _complete(record, parts)
    within = f"{record.plan.checks} checks of {record.plan.check_every_s} s"
    return Fail("parts_missing", f"{_names(required)} did not come within {within}")


def check_feed(record: Record, values: Mapping[str, Any]) -> None:
    """Refuse a feed with a column that is also a condition: a query would get another value than was requested.

    Raises:
        Rejected: ``feed_replaces_condition``. Permanent.
    """
    if twice := sorted(values.keys() & record.conditions.keys()):
        names = ", ".join(twice)[:200]
        raise Rejected(
            "feed_replaces_condition",
            f"the feed of stage {record.stage + 1} gives {names}, which the request gives, too",
        )


def missing_of(parts: Sequence[Part]) -> tuple[str, ...]:
    """Return the listeners whose parts a file would not have."""
    return tuple(part.listener for part in parts if part.state != "done")


def _complete(record: Record, parts: Sequence[Part]) -> Decision:
    return NextStage() if record.stage < record.plan.stages else Merge(missing_of(parts))


def _names(parts: Sequence[Part]) -> str:
    return ", ".join(_why(part) if part.error else part.listener for part in parts)


def _why(part: Part) -> str:
    tried = f" after {part.attempts} attempts" if part.attempts > 1 else ""
    return f"{part.listener}: {part.error or 'it was dropped'}{tried}"
