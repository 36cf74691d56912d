"""The caller of a request, and its rights."""

from collections.abc import Mapping
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
    "jobs:work": "works jobs of remote task types, as a remote worker",
    "reports:deliver": "reads what a part of a report is to contain, delivers it, or refuses it",
    "trackers:events": "reports events of trackers that a courier sent",
    "trackers:register": "registers trackers, one or many, and ends them",
})  # fmt: skip
"""Rights of a key without a role: a scope opens the routes that name it, and no other."""


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

    @property
    def rank(self) -> Role:
        """The role that decides which user data a response shows: scoped routes count as an operator's."""
        return Role.OPERATOR if self.scopes else self.role
