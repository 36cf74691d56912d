"""Views that every capability shares: pages of a listing, and explanations of a state."""

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import msgspec

from tickwright.ports.user_data import HIDDEN

T = TypeVar("T")
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
    for field in msgspec.structs.fields(kind):  # type: ignore[arg-type]  # T is always one of the structs above
        if field.name == HIDDEN:  # the answer sets it; no row has it
            continue
        value = more[field.name] if field.name in more else row[field.name]
        fields[field.name] = raw(value) if field.type is Any else value
    return kind(**fields)


def raw(text: str | None) -> msgspec.Raw | None:
    """Return JSON text from PostgreSQL for an answer that copies it unparsed."""
    return None if text is None else msgspec.Raw(text.encode())
