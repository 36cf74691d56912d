"""Who asks, and what they may do."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType

CALLER = "tickwright.caller"
"""The entry of a request's scope that has its :class:`Caller`, once that is known."""


class Role(IntEnum):
    """``viewer < operator < admin``; each role may do what the ones below it may."""

    VIEWER = 1
    OPERATOR = 2
    ADMIN = 3


SCOPES: Mapping[str, str] = MappingProxyType({
    "jobs:schedule": "schedules jobs, one or many",
    "reports:deliver": "reads what a part of a report is to contain, delivers it, or refuses it",
    "trackers:events": "brings news of trackers that a courier sent",
    "trackers:register": "registers trackers, one or many, and ends them",
})  # fmt: skip
"""What a key without a role may do: a scope opens the routes that name it, and no other."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The one a request is made for.

    Attributes:
        name: Goes into the audit trail.
        role: The highest one whose routes are open; ``VIEWER`` and without meaning where there are scopes.
        key_id: The API key.
        session_id: Of a browser.
        scopes: Where there are any, only routes that name one of them are open, whatever the role is.
    """

    name: str
    role: Role
    key_id: int | None = None
    session_id: int | None = None
    scopes: frozenset[str] = frozenset()

    @property
    def rank(self) -> Role:
        """The role that decides which data of users a response shows: a scoped route is an operator's."""
        return Role.OPERATOR if self.scopes else self.role
