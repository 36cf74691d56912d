"""What every capability shows in the same shape: pages of a listing, and why a thing is where it is."""

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import msgspec

from tickwright.ports.user_data import HIDDEN

T = TypeVar("T")
CURSOR_CHARS_MAX = 4_000
"""A cursor holds the last name of a page: at most 255 characters, each of up to six bytes as JSON, in base64."""


class Page(msgspec.Struct, Generic[T]):
    """One page of a listing; ``next`` is the cursor of the following one, or nothing at the end."""

    items: list[T]
    next: str | None = None


class Reason(msgspec.Struct):
    """One link of the chain that says why a thing is where it is: a stable code, and words."""

    code: str
    text: str


class Explanation(msgspec.Struct):
    """Why a thing is where it is."""

    id: int
    status: str
    summary: str
    reasons: list[Reason]


def view(kind: type[T], row: Mapping[str, Any], **more: Any) -> T:
    """Return a row as ``kind``; fields of type ``Any`` hold JSON text and stay JSON."""
    fields: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):  # type: ignore[arg-type]  # T is always one of the structs above
        if field.name == HIDDEN:  # whoever answers knows that, no row does
            continue
        value = more[field.name] if field.name in more else row[field.name]
        fields[field.name] = raw(value) if field.type is Any else value
    return kind(**fields)


def raw(text: str | None) -> msgspec.Raw | None:
    """Return JSON text from PostgreSQL so that it is copied into an answer as it is."""
    return None if text is None else msgspec.Raw(text.encode())
