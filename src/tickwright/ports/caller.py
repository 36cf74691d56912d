"""Who asks, and what they may do."""

from dataclasses import dataclass
from enum import IntEnum


class Role(IntEnum):
    """``viewer < operator < admin``; each role may do what the ones below it may."""

    VIEWER = 1
    OPERATOR = 2
    ADMIN = 3


@dataclass(frozen=True, slots=True)
class Caller:
    """The one a request is made for; ``name`` goes into the audit trail, ``session_id`` is of a browser."""

    name: str
    role: Role
    key_id: int | None = None
    session_id: int | None = None
