"""Values that no message can carry are refused where they enter: each costs one client, or its own execution."""

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kit.audiences import AudienceWorld, audience_world
from kit.nodes import running, settings_of
from kit.waiting import eventually_async
from tickwright import BatchChunk
from tickwright.app.declarations import Declarations
from tickwright.capabilities.batches.executions.states import BatchAction
from tickwright.capabilities.batches.service import CampaignsService
from tickwright.domain.errors import Rejected
from tickwright.ports.batches import Run
from tickwright.ports.caller import Caller, Role

ADMIN = Caller("me", Role.ADMIN)
DOCUMENTS = {
    "many long numbers": "[" + "1e131071," * 3000 + "1]",
    "some long numbers": "[" + "1e131071," * 40 + "1]",
    "small numbers": "[" + "1e-16000," * 40 + "1]",
    "no number of PostgreSQL": "[1e999999]",
    "an exponent of many digits": "[1e" + "9" * 50 + "]",
    "doubles that are long together": "[" + "1e308," * 10_000 + "1]",
    "NUL": '["\\u0000"]',
    "half a pair": '["\\ud800"]',
}
FITS = '{"big": 1.7976931348623157e308, "small": 5e-324, "list": [1e300, 2e300], "text": "1e131071", "n": -0.0}'


@pytest.mark.parametrize("document", DOCUMENTS.values(), ids=DOCUMENTS)
async def test_a_document_that_no_message_carries_costs_its_client_only(
    database_url: str, tmp_path: Path, document: str
) -> None:
    """PostgreSQL's json keeps them as texts; jsonb refuses them, or writes them out as megabytes."""
    async with audience_world("postgresql", tmp_path, database_url) as world:
        await world.fill({"id": "bigint", "doc": "json"}, [(1, FITS), (2, document), (3, "[]")])
        await skips_the_second(world, "doc")


async def test_a_document_of_duckdb_that_is_no_json_costs_its_client_only(database_url: str, tmp_path: Path) -> None:
    """DuckDB accepts NaN in a document, JSON does not."""
    async with audience_world("duckdb", tmp_path, database_url) as world:
        await world.fill({"id": "bigint", "doc": "json"}, [(1, "[0.5]"), (2, "[NaN]"), (3, "[]")])
        await skips_the_second(world, "doc")


@pytest.mark.parametrize("where", ["fields", "columns", "key"])
async def test_a_text_of_sqlite_that_is_not_utf_8_costs_its_client_only(
    database_url: str, tmp_path: Path, where: str
) -> None:
    """Whether it is a field, a column or the key; a dry run counts the same."""
    async with audience_world("sqlite", tmp_path, database_url) as world:
        await world.fill({"id": "text", "doc": "text"}, [("1", "a"), ("2", "b"), ("zoë", "c")])
        name = "id" if where == "key" else "doc"
        world.run(f"UPDATE members SET {name} = CAST(x'32c328' AS TEXT) WHERE id = '2'")
        await skips_the_second(world, "doc", fields={"doc": "string"} if where == "fields" else {})


async def skips_the_second(world: AudienceWorld, column: str, fields: dict[str, Any] | None = None) -> None:
    """Check that two of three members are selected, and that a dry run counts the same."""
    terms = world.terms(fields=fields) if fields else world.terms(columns=[column], fields={})
    (read,) = await world.everything(terms, 100)
    assert [read.result.seen, read.result.selected, read.result.skipped] == [3, 2, 1]
    assert len(read.result.problems) == 1
    assert "2" not in {action.client_id for action in read.actions}
    found = await world.count(terms)
    assert (found.members, found.selected, found.skipped) == (3, 2, 1)


def chunk_of() -> BatchChunk:
    """Return a chunk as a handler sees it."""
    run = Run(1, 1, "program", "large", 1, cast(Any, None), {})
    return BatchChunk(cast(Any, SimpleNamespace(run=run, number=0, value={})), cast(Any, None))


@pytest.mark.parametrize(
    "payload",
    [
        {"x": "y" * 3_000_000}, {"x": float("nan")}, {"x": "\0"}, {"x": "\ud800"}, {"x": [1e308] * 10_000},
        {"x": object()},
    ],
    ids=["large", "nan", "nul", "half a pair", "long", "no json"],
)  # fmt: skip
def test_a_payload_that_no_message_carries_is_refused_at_once(payload: Any) -> None:
    """``act`` raises; a payload that fits is taken."""
    with pytest.raises(Rejected) as refused:
        chunk_of().act("1", payload)
    assert refused.value.code == "invalid_action"


@pytest.mark.parametrize("client_id", ["", "\ud800", "a\0", "x" * 1001])
def test_an_id_that_no_message_carries_is_refused_at_once(client_id: str) -> None:
    """Like a payload."""
    with pytest.raises(Rejected) as refused:
        chunk_of().act(client_id)
    assert refused.value.code == "invalid_action"


async def test_a_payload_that_postgresql_stores_too_large_ends_its_own_execution(
    database_url: str, tmp_path: Path
) -> None:
    """A list of small numbers takes twelve bytes each; a payload that fits leaves, and so does another batch."""
    program = Declarations()

    @program.batch("large", action="pg:large")
    async def large(chunk: BatchChunk) -> None:
        chunk.act("1", [1] * 200_000)

    @program.batch("small", action="pg:small")
    async def small(chunk: BatchChunk) -> None:
        chunk.act("1", {"x": "y" * 900_000, **json.loads(FITS)})

    settings = settings_of(database_url, tmp_path, "")
    async with running(settings, program, "scheduler", "campaign-consumer") as node:
        start = partial(node.installation.of(CampaignsService).programs.act, BatchAction.START)
        for name in ("large", "small"):
            await start(name, caller=ADMIN)
        asked = "SELECT status, error_code, released FROM tickwright.executions ORDER BY id"

        async def over() -> bool:
            rows = [tuple(row) for row in await node.installation.pool.fetch(asked)]
            return rows == [("EXCEPTION_OCCURRED", "invalid_action", 0), ("FINISHED", None, 1)]

        await eventually_async(over, 30)
