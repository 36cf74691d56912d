"""Shared by the routes of every capability: parameters, answers, and their documentation."""

from datetime import datetime
from typing import Annotated, Any

import msgspec
from fastapi import Path, Query
from fastapi.responses import Response

from tickwright.domain.time_texts import parse_instant
from tickwright.ports.views import CURSOR_CHARS_MAX, shown

Id = Annotated[int, Path(ge=1, le=2**63 - 1)]
Cursor = Annotated[str | None, Query(max_length=CURSOR_CHARS_MAX, description="`next` of the page before")]
Limit = Annotated[int, Query(ge=1, le=200)]
Instant = Annotated[str | None, Query(max_length=40, description="RFC 3339 with its offset")]
NDJSON = "application/x-ndjson"


def answer(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return ``value`` as a JSON answer, without user data that the caller may not see."""
    return Response(msgspec.json.encode(shown(value)), status, headers, media_type="application/json")


def schema_of(kind: Any) -> dict[str, Any]:
    """Return the OpenAPI reference to a struct; the API adds all ``STRUCTS`` to the components."""
    (schema,), _ = msgspec.json.schema_components([kind], ref_template="#/components/schemas/{name}")
    return dict(schema)


def answers(kind: Any, *statuses: int) -> dict[str, Any]:
    """Return the keyword arguments that document a route's answers."""
    content = {"application/json": {"schema": schema_of(kind)}}
    return {"responses": {status: {"description": "Done", "content": content} for status in statuses or (200,)}}


def accepts(kind: Any, *, required: bool = True) -> dict[str, Any]:
    """Return the keyword arguments that document a route's body."""
    body = {"required": required, "content": {"application/json": {"schema": schema_of(kind)}}}
    return {"openapi_extra": {"requestBody": body}}


def instant_of(text: str | None, field: str) -> datetime | None:
    """Return the instant in a parameter, if any; see ``parse_instant`` for the errors."""
    return None if text is None else parse_instant(text, field=field)
