"""The caller of a request, and its rights."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType

CALLER = "tickwright.caller"
"""The entry of a request's scope with its :class:`Caller`, after authentication."""


class Role(IntEnum):
    """``viewer < operator < admin``; each role includes the rights of the lower ones."""

    VIEWER = 1
    OPERATOR = 2
    ADMIN = 3


SCOPES: Mapping[str, str] = MappingProxyType({
    "jobs:schedule": "schedules jobs, one or many, and adds workflows",
    "jobs:work": "works whatever remote workers work",
    "reports:deliver": "reads what a part of a report is to contain, delivers it, or refuses it",
    "trackers:events": "reports events of trackers that a courier sent",
    "trackers:register": "registers trackers, one or many, and ends them",
})  # fmt: skip
"""Rights of a key without a role: a scope opens the routes that name it, and no other."""
WORK_SCOPES: Mapping[str, str] = MappingProxyType({
    "work:NAME": "works the task type, partner, module or batch of this name, as a remote worker; NAME may end with *",
    "work-pool:POOL": "works whatever has the target remote:POOL",
})  # fmt: skip
"""Narrower than ``jobs:work``: they open the routes of remote workers for some registrations."""
_WORK, _POOL = "work:", "work-pool:"
_WORK_SCOPE = re.compile(r"work:[A-Za-z0-9_.:-]{0,100}\*?|work-pool:[A-Za-z_][A-Za-z0-9_.-]{0,254}")


def is_scope(text: str) -> bool:
    """Return whether a key may have this scope."""
    return text in SCOPES or (_WORK_SCOPE.fullmatch(text) is not None and text != _WORK)


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller for whom a request is made; the audit trail has its ``name``.

    Attributes:
        role: The highest role whose routes are open; with scopes always ``VIEWER``, and without meaning.
        scopes: If any, only routes that name one of them are open, whatever the role.
    """

    name: str
    role: Role
    key_id: int | None = None
    session_id: int | None = None
    scopes: frozenset[str] = frozenset()

    def has_scope(self, scope: str | None) -> bool:
        """Return whether a key with scopes may use the routes of ``scope``."""
        return scope in self.scopes or (
            scope == "jobs:work" and any(one.startswith((_WORK, _POOL)) for one in self.scopes)
        )

    def may_work(self, pool: str, names: Iterable[str]) -> bool:
        """Return whether it may work these task types, partners, modules and batches in a pool, as a remote worker."""
        if not self.scopes or "jobs:work" in self.scopes or f"{_POOL}{pool}" in self.scopes:
            return True
        wanted = [one.removeprefix(_WORK) for one in self.scopes if one.startswith(_WORK)]
        return all(any(_matches(name, pattern) for pattern in wanted) for name in names)

    @property
    def rank(self) -> Role:
        """The role that decides which user data a response shows: scoped routes count as an operator's."""
        return Role.OPERATOR if self.scopes else self.role


def _matches(name: str, pattern: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern
