"""The OpenAPI document, and the API checked against it by generated requests."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from kit.api import RunningApi, running_api

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
EXAMPLES = 12


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[RunningApi]:
    """A running API."""
    async with running_api(database_url) as running:
        yield running


async def test_the_document_is_complete(api: RunningApi) -> None:
    """OpenAPI 3.1, every reference resolves, every operation has its errors and says whether it needs a key."""
    document = (await api.stranger.get("/v1/openapi.json")).json
    assert document["openapi"].startswith("3.1")
    names = set(document["components"]["schemas"])
    assert references(document) <= names
    assert set(document["components"]["securitySchemes"]) == {"key", "session", "csrf"}
    for path, item in document["paths"].items():
        for method, operation in item.items():
            assert operation["responses"]["default"]["content"]["application/problem+json"]
            assert operation["summary"], path
            opened = not path.startswith("/v1") or "openapi" in path or path.startswith("/v1/report-files/")
            opened = opened or (method, path) == ("post", "/v1/session")
            cookie: dict[str, list[str]] = {"session": []} if method == "get" else {"session": [], "csrf": []}
            assert operation["security"] == ([] if opened else [{"key": []}, cookie])


def references(value: Any) -> set[str]:
    """Return the names of all schemas that ``value`` refers to."""
    if isinstance(value, dict):
        found = {value["$ref"].rsplit("/", 1)[1]} if isinstance(value.get("$ref"), str) else set()
        return found.union(*(references(item) for item in value.values()))
    return set().union(*(references(item) for item in value)) if isinstance(value, list) else set()


async def test_generated_requests_are_answered_as_documented(api: RunningApi) -> None:
    """No server error, no undocumented status, type or shape, whatever the document allows or forbids."""
    document = (await api.stranger.get("/v1/openapi.json")).json
    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=api.admin.base)
    await asyncio.to_thread(_try_all, schema, api.admin.key)


def _try_all(schema: Any, key: str | None) -> None:
    headers = {"Authorization": f"Bearer {key}"}
    for found in schema.get_all_operations():
        operation = found.ok()
        lines = operation.method == "put" and operation.path.endswith("/parts/{listener}")
        if lines or operation.path.endswith(("/revoke", ":bulk", "/v1/stream")):
            continue  # one could revoke the key that this test uses; bodies of the others are no JSON, or do not end

        @given(case=operation.as_strategy())
        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        def one(case: Any) -> None:
            case.call_and_validate(headers=headers, checks=CHECKS)

        one()
