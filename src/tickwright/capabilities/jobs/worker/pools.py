"""Queues and pools: which task types one worker runs, and how many of its slots each queue has. Pure.

A type belongs to a queue. Of ``critical:50,default:200,*:30`` the queue ``critical`` has 50 slots that no other queue
takes, ``default`` has 200, and all queues share 30 more, also those that are not named. Without ``*`` a worker runs the
types of the named queues only. It has as many slots as these numbers say together.

A type may need something that not every machine has, such as ``gpu``. A worker without a list of ``needs`` runs the
types that need nothing; a worker with one runs the types that need something, and nothing that is not on its list.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

from tickwright.domain.errors import Rejected

QUEUE = "default"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,49}")
NAME_RULE = "1 to 50 letters, digits, '_', '.', ':' or '-'"
SHARED = "*"
SLOTS_MAX = 100_000
NAMES_MAX = 1_000
"""Queues, type patterns or needs of one worker."""
NEEDS_MAX = 10
SHOWN_MAX = 60


@dataclass(frozen=True, slots=True)
class WorkerScope:
    """What one worker runs.

    Attributes:
        queues: Reserved slots by queue; empty where all queues share all slots.
        shared: Slots for every queue; ``None`` where only ``queues`` are served, or where there are none.
        types: Names of types, or beginnings of names with ``*`` behind; empty for all.
        needs: What this worker has for types that need it; empty for types that need nothing.
    """

    queues: Mapping[str, int] = field(default_factory=dict)
    shared: int | None = None
    types: tuple[str, ...] = ()
    needs: frozenset[str] = frozenset()

    @property
    def slots(self) -> int | None:
        """The number of slots, or ``None`` where queues have none of their own."""
        return sum(self.queues.values()) + (self.shared or 0) if self.has_pools else None

    @property
    def has_pools(self) -> bool:
        """Whether queues have slots of their own."""
        return bool(self.queues) or self.shared is not None

    def serves(self, name: str, queue: str, needs: AbstractSet[str]) -> bool:
        """Return whether the worker runs a type; ``tickwright.serves`` is the same in SQL."""
        if self.queues and self.shared is None and queue not in self.queues:
            return False
        if self.types and not any(_fits(name, pattern) for pattern in self.types):
            return False
        return bool(needs) == bool(self.needs) and needs <= self.needs

    def facts(self) -> dict[str, Any]:
        """Return what the worker's session says of it; a limit that it does not have is left out.

        ``queues`` is there where other queues are not served, ``slots`` where queues have slots.
        """
        found: dict[str, Any] = {}
        if self.has_pools:
            found["slots"] = {**self.queues, **({} if self.shared is None else {SHARED: self.shared})}
            if self.shared is None:
                found["queues"] = sorted(self.queues)
        if self.types:
            found["types"] = sorted(self.types)
        if self.needs:
            found["needs"] = sorted(self.needs)
        return found

    def group(self) -> list[Any]:
        """Return what workers of the same types have in common; nothing without limits, as in earlier releases."""
        parts = [self.facts().get(part) for part in ("queues", "types", "needs")]
        return parts if any(parts) else []


ALL = WorkerScope()
"""All types of all queues that need nothing, which share all slots."""


def _fits(name: str, pattern: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


def parse_queues(text: str) -> Mapping[str, int]:
    """Return the slots by queue, with ``*`` for the shared ones.

    Raises:
        Rejected: ``invalid_queues`` with every mistake. Permanent.
    """
    found: dict[str, int] = {}
    problems: list[str] = []
    for entry in _entries(text):
        name, colon, slots = entry.rpartition(":")
        if not entry:
            problems.append("nothing between two commas: write NAME:SLOTS")
        elif not colon or not slots.isascii() or not slots.isdigit():
            problems.append(f"{_shown(entry)}: write NAME:SLOTS, such as critical:50 or *:30")
        elif name != SHARED and not NAME.fullmatch(name):
            problems.append(f"{_shown(name)}: the name of a queue has {NAME_RULE}")
        elif name in found:
            problems.append(f"{name}: there twice")
        else:
            found[name] = number = int(slots[:7])
            if not 1 <= number <= SLOTS_MAX:
                problems.append(f"{name}: 1 to {SLOTS_MAX} slots")
    if not problems and sum(found.values()) > SLOTS_MAX:
        problems.append(f"at most {SLOTS_MAX} slots together")
    _check("invalid_queues", found, problems)
    return found


def parse_types(text: str) -> tuple[str, ...]:
    """Return the names and patterns of types.

    Raises:
        Rejected: ``invalid_types`` with every mistake. Permanent.
    """
    rule = f"a type has {NAME_RULE}; a * at the end means any rest, such as report.*"
    return _names(text, "invalid_types", lambda name: bool(NAME.fullmatch(name.removesuffix("*"))), rule)


def parse_needs(text: str) -> frozenset[str]:
    """Return what a worker has.

    Raises:
        Rejected: ``invalid_needs`` with every mistake. Permanent.
    """
    return frozenset(_names(text, "invalid_needs", lambda name: bool(NAME.fullmatch(name)), f"a need has {NAME_RULE}"))


def read_scope(queues: str = "", types: str = "", needs: str = "") -> WorkerScope:
    """Return the scope of a worker from its settings. Raises what the functions above raise."""
    slots = dict(parse_queues(queues)) if queues else {}
    shared = slots.pop(SHARED, None)
    return WorkerScope(
        slots,
        shared,
        parse_types(types) if types else (),
        parse_needs(needs) if needs else frozenset(),
    )


def _names(text: str, code: str, fits: Callable[[str], bool], rule: str) -> tuple[str, ...]:
    found: dict[str, None] = {}
    problems: list[str] = []
    for entry in _entries(text):
        if not entry:
            problems.append(f"nothing between two commas: {rule}")
        elif not fits(entry):
            problems.append(f"{_shown(entry)}: {rule}")
        elif entry in found:
            problems.append(f"{entry}: there twice")
        else:
            found[entry] = None
    _check(code, found, problems)
    return tuple(found)


def _entries(text: str) -> list[str]:
    return [entry.strip() for entry in text.split(",")]


def _shown(entry: str) -> str:
    return repr(entry if len(entry) <= SHOWN_MAX else entry[:SHOWN_MAX] + "…")


def _check(code: str, found: Iterable[str], problems: list[str]) -> None:
    if not problems and len(list(found)) > NAMES_MAX:
        problems = [f"at most {NAMES_MAX} names"]
    if problems:
        more = f"; and {len(problems) - 10} more" if len(problems) > 10 else ""
        raise Rejected(code, "; ".join(problems[:10]) + more, problems=problems[:10])


def check_queue(queue: object) -> str:
    """Return the name of a type's queue. Raises ``Rejected`` (``invalid_queue``): permanent."""
    if not isinstance(queue, str) or not NAME.fullmatch(queue):
        raise Rejected("invalid_queue", f"queue: {NAME_RULE}", field="queue")
    return queue


def check_needs(needs: object) -> frozenset[str]:
    """Return what a type needs of its worker. Raises ``Rejected`` (``invalid_needs``): permanent."""
    is_list = isinstance(needs, list | tuple | set | frozenset) and len(needs) <= NEEDS_MAX
    if not is_list or not all(isinstance(need, str) and NAME.fullmatch(need) for need in needs):  # type: ignore[attr-defined]
        text = f'needs: a list such as ["gpu"] of up to {NEEDS_MAX} names, each of {NAME_RULE}'
        raise Rejected("invalid_needs", text, field="needs")
    return frozenset(needs)  # type: ignore[call-overload, no-any-return]
