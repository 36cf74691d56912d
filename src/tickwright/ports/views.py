"""Views that every capability shares, and which callers see user data in them.

A view names the fields with data from or for users. The code that answers a request declares once whether its caller
sees such data. Every answer (``rest.routing.answer``), problem and stream event passes :func:`shown`; a test reads
every route as a caller that may not. Texts of errors are not user data, because operators need them.
"""

from collections.abc import Mapping
from contextvars import ContextVar
from functools import cache
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar

import msgspec

from tickwright.domain.masking import masked_text, masked_tokens

T = TypeVar("T")
HIDDEN = "payload_hidden"
CURSOR_CHARS_MAX = 4_000
"""A cursor holds the last name of a page: at most 255 characters, each of up to six bytes as JSON, in base64."""


class Page(msgspec.Struct, Generic[T]):
    """One page of a listing; ``next`` is the cursor of the next page, null at the end."""

    items: list[T]
    next: str | None = None


class Reason(msgspec.Struct):
    """One step of an explanation: a stable code, and a text."""

    code: str
    text: str


class Explanation(msgspec.Struct):
    """Why an item is in its state."""

    id: int
    status: str
    summary: str
    reasons: list[Reason]


def view(kind: type[T], row: Mapping[str, Any], **more: Any) -> T:
    """Return a row as ``kind``; fields of type ``Any`` hold JSON text and stay JSON."""
    fields: dict[str, Any] = {}
    for name, is_json in _fields(kind):  # type: ignore[arg-type]  # a class is hashable
        value = more[name] if name in more else row[name]
        fields[name] = raw(value) if is_json else value
    return kind(**fields)


@cache  # msgspec evaluates the annotations at each call, which costs more than the row
def _fields(kind: Any) -> tuple[tuple[str, bool], ...]:
    """Return the fields that a row has, and whether they hold JSON text; the answer itself sets ``HIDDEN``."""
    found = msgspec.structs.fields(kind)
    return tuple((field.name, field.type is Any) for field in found if field.name != HIDDEN)


def raw(text: str | None) -> msgspec.Raw | None:
    """Return JSON text from PostgreSQL for an answer that copies it unparsed."""
    return None if text is None else msgspec.Raw(text.encode())


class Sight(NamedTuple):
    """What a caller sees: user data, and complete addresses."""

    data: bool = True
    whole: bool = True


ALL = Sight()
_sight: ContextVar[Sight] = ContextVar("tickwright.sight", default=ALL)


class UserData:
    """A struct with user data in the fields ``USER_DATA``, each of which may be null.

    It has a field ``payload_hidden``, false by default; true means that the data is null because the caller's role does
    not see it.
    """

    __slots__ = ()
    USER_DATA: ClassVar[tuple[str, ...]] = ()


class AccessGranting:
    """A struct with addresses or headers that may grant access to their readers; operators see them unmasked."""

    __slots__ = ()

    def masked(self) -> Self:
        """Return a masked copy for viewers and for the audit trail."""
        raise NotImplementedError


class Link:
    """A struct with an address for its caller to open: its texts are shown unmasked to every role."""

    __slots__ = ()


def set_sight(*, allowed: bool, whole: bool = True) -> None:
    """Set what the caller of this request sees: user data (``allowed``), and complete addresses (``whole``)."""
    _sight.set(Sight(allowed, whole))


def sight() -> Sight:
    """Return what the caller of this request sees; for later output, such as a stream's events."""
    return _sight.get()


def sees_user_data() -> bool:
    """Return whether the caller of this request sees user data; for code that reads it without showing it."""
    return _sight.get().data


def shown(value: T, to: Sight | None = None) -> T:
    """Return an answer as its caller, or ``to``, may see it: ``value`` itself, or a copy without user data.

    For a viewer, every URL in a text, such as an error, shows only its host; also in JSON that is copied unparsed.
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
    return copy.masked() if isinstance(copy, AccessGranting) and not seen.whole else copy
