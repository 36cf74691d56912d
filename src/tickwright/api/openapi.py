"""The OpenAPI document: FastAPI's, with our schemas, errors and security schemes."""

import re
from collections.abc import Iterable
from typing import Any

import msgspec
from fastapi import APIRouter, FastAPI
from fastapi.openapi.utils import get_openapi

from tickwright.api.cookies import COOKIE, CSRF_HEADER, SAFE_METHODS
from tickwright.ports.caller import SCOPES
from tickwright.rest.event_stream import STREAM
from tickwright.rest.problems import PROBLEM_TYPE, Problem
from tickwright.rest.routing import structs_of

OPEN_PATHS = frozenset({"/healthz", "/readyz", "/metrics", "/v1/openapi.json"})
SIGN_IN = ("POST", "/v1/session")
SIGNED = "/v1/report-files/"
"""Paths below this are opened by a signature in the link itself."""
_REQUEUES = "/v1/dead-letters/"
_PROBLEM = {"content": {PROBLEM_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}}
UNKNOWN = "504"
_ERRORS = {
    "401": "No key, or one that is unknown, expired or revoked",
    "403": "The key's role is too low or its scopes open other routes, or a cookie signs a change without proof that a "
    "page of ours sent it",
    "422": "A value is not allowed",
    "429": "Too many requests; see Retry-After",
    "503": "The database is unavailable; see Retry-After",
    UNKNOWN: "It is unknown whether a change was done (`outcome_unknown`): check the result, or send it again",
    "default": "Any other error",
}
_SCHEMES = {
    "key": {"type": "http", "scheme": "bearer", "bearerFormat": "tw_…"},
    "session": {"type": "apiKey", "in": "cookie", "name": COOKIE},
    "csrf": {"type": "apiKey", "in": "header", "name": CSRF_HEADER},
}
_DESCRIPTION = (
    "Errors are RFC 9457 problem details with a stable `code`. Every route under /v1 needs a key "
    "(`Authorization: Bearer tw_…`, or the cookie of `POST /v1/session`, which for changes needs `x-tickwright-csrf` "
    "beside it) but this document, the sign-in and signed links to files; "
    "/healthz, /readyz and /metrics need none. "
    "Roles: viewer reads, operator acts on jobs and trackers, admin manages keys, task types, secrets, accounts, "
    "partners, entities, modules and report types. A key with scopes instead of a role opens nothing else: "
    + "; ".join(f"`{name}` {opens}" for name, opens in SCOPES.items())
    + "."
)


def needs_no_key(method: str, path: str) -> bool:
    """Return whether a request needs no key: it reveals nothing about users, has a signature, or signs in."""
    return path in OPEN_PATHS or path.startswith(SIGNED) or (method, path) == SIGN_IN


def is_endless(path: str) -> bool:
    """Return whether the answer lasts as long as its reader: a stream, or a file."""
    return path == STREAM or path.startswith(SIGNED)


def is_of_many(path: str) -> bool:
    """Return whether a change is a bulk action: each of its statements has a minute."""
    return (path.count("/") == 2 and ":" in path) or path.startswith(_REQUEUES)


def any_of(routes: Iterable[str]) -> re.Pattern[str]:
    """Return the pattern of paths that one of ``routes``, such as ``/v1/accounts/{account_id}/preview``, answers."""
    return re.compile("|".join("[^/]+".join(map(re.escape, re.split(r"{\w+}", route))) for route in routes) or "(?!)")


def document(app: FastAPI, routers: Iterable[APIRouter]) -> dict[str, Any]:
    """Return the document, computed once."""
    if app.openapi_schema is None:
        made = get_openapi(
            title="Tickwright",
            version=app.version,
            description=_DESCRIPTION,
            routes=app.routes,
            openapi_version="3.1.0",
        )
        structs = [kind for router in routers for kind in structs_of(router)]
        _, schemas = msgspec.json.schema_components([*structs, Problem], ref_template="#/components/schemas/{name}")
        components = made.setdefault("components", {})
        framework = components.get("schemas", {})
        for name in ("HTTPValidationError", "ValidationError"):
            framework.pop(name, None)  # our errors are problems
        components["schemas"] = dict(sorted({**framework, **schemas}.items()))
        components["securitySchemes"] = _SCHEMES
        for path, operations in made["paths"].items():
            for method, operation in operations.items():
                _complete(operation, method.upper(), path)
        app.openapi_schema = made
    return app.openapi_schema


def _complete(operation: dict[str, Any], method: str, path: str) -> None:
    answers = operation["responses"]
    needs_none = needs_no_key(method, path)
    answers.pop("422", None)
    for status, description in _ERRORS.items():
        if status == UNKNOWN and method in SAFE_METHODS:
            continue
        if not needs_none or status == "default":
            answers.setdefault(status, {"description": description, **_PROBLEM})
    for status, found in answers.items():
        if status == "200" and not found.get("content") and "201" in answers:
            answers.pop(status)
            break
    if method in SAFE_METHODS:
        cookie: dict[str, list[str]] = {"session": []}
    else:
        cookie = {"session": [], "csrf": []}
    operation["security"] = [] if needs_none else [{"key": []}, cookie]
