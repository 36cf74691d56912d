"""Shared by the routes of every capability: parameters, answers, and their documentation."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Path, Query
from fastapi.responses import Response
from fastapi.routing import APIRoute

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


class StructSchema(dict[str, Any]):
    """The OpenAPI reference to a struct, or another schema of it; the components get the structs of all routes."""

    def __init__(self, kind: Any, schema: Mapping[str, Any] | None = None) -> None:
        (reference,), _ = msgspec.json.schema_components([kind], ref_template="#/components/schemas/{name}")
        super().__init__(reference if schema is None else schema)
        self.kind = kind


def structs_of(router: APIRouter) -> Iterator[Any]:
    """Yield the structs that document the routes of ``router``."""
    routes = [route for route in router.routes if isinstance(route, APIRoute)]
    left: list[Any] = [part for route in routes for part in (route.responses, route.openapi_extra)]
    while left:
        found = left.pop()
        if isinstance(found, StructSchema):
            yield found.kind
        elif isinstance(found, dict):
            left += found.values()


def answers(kind: Any, *statuses: int) -> dict[str, Any]:
    """Return the keyword arguments that document a route's answers."""
    content = {"application/json": {"schema": StructSchema(kind)}}
    return {"responses": {status: {"description": "Done", "content": content} for status in statuses or (200,)}}


def accepts(kind: Any, *, required: bool = True) -> dict[str, Any]:
    """Return the keyword arguments that document a route's body."""
    body = {"required": required, "content": {"application/json": {"schema": StructSchema(kind)}}}
    return {"openapi_extra": {"requestBody": body}}


def instant_of(text: str | None, field: str) -> datetime | None:
    """Return the instant in a parameter, if any; see ``parse_instant`` for the errors."""
    return None if text is None else parse_instant(text, field=field)
