"""Data of users in answers, and who sees it.

A view names the fields that hold what users gave us or were given. Whoever answers a request says once whether its
caller sees such data; every answer goes through :func:`shown`, so a route can forget nothing. Texts of errors
are no data of users: they are what an operator works with.
"""

from contextvars import ContextVar
from typing import Any, ClassVar, TypeVar

import msgspec

T = TypeVar("T")
HIDDEN = "payload_hidden"
_seen: ContextVar[bool] = ContextVar("tickwright.user_data", default=True)


class UserData:
    """A struct with data of users in the fields ``USER_DATA``, each of which may be null.

    It has a field ``payload_hidden``, false: the caller's role does not see that data, so it is null.
    """

    __slots__ = ()
    USER_DATA: ClassVar[tuple[str, ...]] = ()


def let_see(*, allowed: bool) -> None:
    """Say, for the rest of this request, whether its caller sees data of users. Without a word he does."""
    _seen.set(allowed)


def sees() -> bool:
    """Whether the caller of this request sees data of users; for what reads them without showing them."""
    return _seen.get()


def shown(value: T) -> T:
    """Return an answer as its caller may see it: ``value`` itself, or a copy without data of users."""
    return value if _seen.get() else _without(value)


def _without(value: Any) -> Any:
    if isinstance(value, list):
        return [_without(item) for item in value]
    if isinstance(value, dict):
        return {name: _without(item) for name, item in value.items()}
    if not isinstance(value, msgspec.Struct):
        return value
    fields = {name: _without(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, UserData):
        fields |= {**dict.fromkeys(value.USER_DATA), HIDDEN: True}
    return msgspec.structs.replace(value, **fields)
