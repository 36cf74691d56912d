"""Data of users in answers, and who sees it.

A view names the fields that hold what users gave us or were given. Whoever answers a request says once whether its
caller sees such data; every answer goes through :func:`shown`, so a route can forget nothing. Texts of errors
are no data of users: they are what an operator works with.
"""

from contextvars import ContextVar
from typing import Any, ClassVar, Self, TypeVar

import msgspec

from tickwright.domain.masking import masked_text

T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)
HIDDEN = "payload_hidden"
_seen: ContextVar[bool] = ContextVar("tickwright.user_data", default=True)
_whole: ContextVar[bool] = ContextVar("tickwright.doors", default=True)


class UserData:
    """A struct with data of users in the fields ``USER_DATA``, each of which may be null.

    It has a field ``payload_hidden``, false: the caller's role does not see that data, so it is null.
    """

    __slots__ = ()
    USER_DATA: ClassVar[tuple[str, ...]] = ()


class Doors:
    """A struct with addresses or headers that may open a door to those who read them; operators see them whole."""

    __slots__ = ()

    def masked(self) -> Self:
        """Return a copy for viewers and for the audit."""
        raise NotImplementedError


class Link:
    """A struct that gives its caller an address to open: its texts are shown as they are, to every role."""

    __slots__ = ()


def let_see(*, allowed: bool, whole: bool = True) -> None:
    """Say, for the rest of this request, whether its caller sees data of users, and addresses whole; else he does."""
    _seen.set(allowed)
    _whole.set(whole)


def sees() -> bool:
    """Whether the caller of this request sees data of users; for what reads them without showing them."""
    return _seen.get()


def shown(value: T) -> T:
    """Return an answer as its caller may see it: ``value`` itself, or a copy without data of users.

    For a viewer every URL in a text, such as an error, shows its host only.
    """
    return value if _seen.get() and _whole.get() else _without(value)


def _without(value: Any) -> Any:
    if isinstance(value, str):
        return value if _whole.get() else masked_text(value)
    if isinstance(value, list):
        return [_without(item) for item in value]
    if isinstance(value, dict):
        return {name: _without(item) for name, item in value.items()}
    if not isinstance(value, msgspec.Struct) or isinstance(value, Link):
        return value
    fields = {name: _without(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, UserData) and not _seen.get():
        fields |= {**dict.fromkeys(value.USER_DATA), HIDDEN: True}
    copy = msgspec.structs.replace(value, **fields)
    return copy.masked() if isinstance(copy, Doors) and not _whole.get() else copy
