"""Data of users in answers, and who sees it.

A view names the fields that hold what users gave us or were given. Whoever answers a request says once whether its
caller sees such data; every answer, problem and event of a stream goes through :func:`shown`, so a route can forget
nothing. Texts of errors are no data of users: they are what an operator works with.
"""

from contextvars import ContextVar
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

import msgspec

from tickwright.domain.masking import masked_text, masked_tokens

T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)
HIDDEN = "payload_hidden"


class Sight(NamedTuple):
    """What a caller sees: data of users, and addresses whole."""

    data: bool = True
    whole: bool = True


ALL = Sight()
_sight: ContextVar[Sight] = ContextVar("tickwright.sight", default=ALL)


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
    _sight.set(Sight(allowed, whole))


def sight() -> Sight:
    """Return what the caller of this request sees; for what is made for him later, such as a stream's events."""
    return _sight.get()


def sees() -> bool:
    """Whether the caller of this request sees data of users; for what reads them without showing them."""
    return _sight.get().data


def shown(value: T, to: Sight | None = None) -> T:
    """Return an answer as its caller may see it: ``value`` itself, or a copy without data of users.

    For a viewer every URL in a text, such as an error, shows its host only, in JSON that is copied as it is too.

    Args:
        value: Of structs, lists, maps and texts.
        to: Whoever sees that much; else the caller of this request.
    """
    seen = _sight.get() if to is None else to
    return value if seen.data and seen.whole else _without(value, seen)


def _without(value: Any, seen: Sight) -> Any:
    if isinstance(value, str):
        return value if seen.whole else masked_text(value)
    if isinstance(value, msgspec.Raw):
        return value if seen.whole else msgspec.Raw(masked_tokens(bytes(value)))
    if isinstance(value, list | tuple):
        return [_without(item, seen) for item in value]
    if isinstance(value, dict):
        return {_without(name, seen): _without(item, seen) for name, item in value.items()}
    if not isinstance(value, msgspec.Struct) or isinstance(value, Link):
        return value
    fields = {name: _without(getattr(value, name), seen) for name in value.__struct_fields__}
    if isinstance(value, UserData) and not seen.data:
        fields |= {**dict.fromkeys(value.USER_DATA), HIDDEN: True}
    copy = msgspec.structs.replace(value, **fields)
    return copy.masked() if isinstance(copy, Doors) and not seen.whole else copy
