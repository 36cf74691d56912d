"""Errors of an audience are reported when a campaign is saved, under their path, with the nearest names."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kit.audiences import DATABASES, AudienceWorld, audience_world
from tickwright.capabilities.batches.audience.audience import check_audience
from tickwright.domain.errors import Rejected


@pytest.fixture(params=DATABASES)
async def base(request: pytest.FixtureRequest, tmp_path: Path, empty_database_url: str) -> AsyncIterator[AudienceWorld]:
    """An audience of clients in each kind of database."""
    async with audience_world(request.param, tmp_path, empty_database_url) as made:
        await made.fill({"id": "bigint", "age": "integer", "ok": "boolean", "country": "text"}, [(1, 2, True, "UK")])
        yield made


async def problems_of(world: AudienceWorld, **changes: Any) -> list[str]:
    """Return the errors of a changed audience."""
    with pytest.raises(Rejected) as refused:
        await check_audience(world.audiences, {**world.place, "key": "id", **changes})
    assert refused.value.code == "invalid_audience"
    return list(refused.value.details["problems"])


async def test_a_readable_audience_is_returned(base: AudienceWorld) -> None:
    """With the types of its fields."""
    fields = {
        "age": "double",
        "text": {"type": "string", "column": "age"},
        "ok": "bool",
        "n": {"type": "int", "column": "age"},
    }
    document = {**base.place, "key": "country", "fields": fields, "columns": ["id"]}
    terms = await check_audience(base.audiences, document)
    assert terms.types == {"age": "double", "text": "string", "ok": "bool", "n": "int"}


async def test_every_unknown_name_comes_with_the_nearest(base: AudienceWorld) -> None:
    """Key, fields and columns at once."""
    found = await problems_of(base, key="idd", fields={"agee": "int", "ok": "bool"}, columns=["contry"])
    assert [line.partition(":")[0] for line in found] == ["audience.key", "audience.fields.agee", "audience.columns"]
    assert [line.rpartition(" ")[2] for line in found] == ["id", "age", "country"]


async def test_a_bad_table_or_query_is_named(base: AudienceWorld) -> None:
    """With the source's own error."""
    (problem,) = await problems_of(base, table="clints")
    assert problem.startswith("audience.table: ")
    assert "clints" in problem
    document = {"source": base.kind, "query": "SELECT idd FROM members", "key": "idd"}
    with pytest.raises(Rejected) as refused:
        await check_audience(base.audiences, document)
    assert refused.value.details["problems"][0].startswith("audience.query: ")


async def test_an_unknown_source_is_named(base: AudienceWorld) -> None:
    """With the sources that exist."""
    (problem,) = await problems_of(base, source="crn")
    assert problem.startswith("audience.source: ")
    assert base.kind in problem


@pytest.mark.parametrize("kind", ["postgresql", "duckdb"])
async def test_a_type_that_cannot_be_read_as_declared_is_named(
    tmp_path: Path, empty_database_url: str, kind: str
) -> None:
    """Not for SQLite, whose columns have no types."""
    async with audience_world(kind, tmp_path, empty_database_url) as world:
        await world.fill({"id": "bigint", "ok": "boolean", "at": "timestamp", "age": "int", "l": "int[]"}, [])
        fields = {"ok": "int", "at": "double", "age": "timestamp", "l": "int"}
        found = await problems_of(world, fields=fields)
        assert [line.partition(":")[0] for line in found] == [f"audience.fields.{name}" for name in fields]
        assert "ok is boolean, which cannot be read as int" in found[0]


@pytest.mark.parametrize("kind", ["numeric", "float8", "boolean", "timestamptz", "int[]", "json", "int4range"])
async def test_a_key_that_cannot_be_cut_is_named(tmp_path: Path, empty_database_url: str, kind: str) -> None:
    """With the advice to cast it."""
    async with audience_world("postgresql", tmp_path, empty_database_url) as world:
        await world.fill({"id": kind}, [])
        (problem,) = await problems_of(world)
        assert problem.startswith("audience.key: ")


async def test_a_query_that_names_a_column_twice_is_named(tmp_path: Path, empty_database_url: str) -> None:
    """The ambiguous fields are not checked any further."""
    async with audience_world("postgresql", tmp_path, empty_database_url) as world:
        query = "SELECT 1 AS id, 2 AS age, 3 AS age"
        document = {"source": "postgresql", "query": query, "key": "id", "fields": {"age": "int"}}
        with pytest.raises(Rejected) as refused:
            await check_audience(world.audiences, document)
        assert refused.value.details["problems"][0].startswith("audience.query: ")


async def test_keys_of_other_types_that_have_an_order_and_a_text_can_be_cut(
    tmp_path: Path, empty_database_url: str
) -> None:
    """A domain is its base type; an enum and an address compare as they do everywhere in their database."""
    async with audience_world("postgresql", tmp_path, empty_database_url) as world:
        world.run("CREATE DOMAIN client_id AS text CHECK (VALUE <> ''); CREATE TYPE size AS ENUM ('small', 'big')")
        world.run('CREATE TABLE members (d client_id, e size, i inet, v varchar(9), c char(3), n "name")')
        world.run(
            "INSERT INTO members VALUES "
            "('b', 'small', '10.0.0.9', 'x', 'a', 'p'), ('a', 'big', '9.9.9.9', 'y', 'b', 'q')"
        )
        for key, keys in {
            "d": "a b",
            "e": "small big",
            "i": "9.9.9.9/32 10.0.0.9/32",
            "v": "x y",
            "c": "a b",
            "n": "p q",
        }.items():
            terms = await check_audience(world.audiences, {**world.place, "key": key})
            read = await world.everything(terms, 1)
            assert [action.client_id for one in read for action in one.actions] == keys.split(), key
