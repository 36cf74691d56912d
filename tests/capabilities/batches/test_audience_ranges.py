"""Audiences are cut once and read range by range: every member is in exactly one range, whatever its key."""

import json
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest

from kit.audiences import NOW, AudienceWorld, OlderThan, audience_world
from tickwright.capabilities.batches.audience.audience import Audiences
from tickwright.capabilities.batches.audience.schema import read_audience
from tickwright.domain.errors import Rejected, Unavailable
from tickwright.sources.named import Sources, SourceSettings

INT64 = 2**63
ODD = [
    *("a", "A", "b", "B", "ä", "Ä", "a b", "ab", "a-b", "a_b", "Z", "z", "é", "e\u0301", "ß", "ss", "日本", "🙂"),
    *("it's", '"quoted"', "x'); DROP TABLE members; --", "\\", ":after", "$1", "%s", " lead", "trail ", "\t", "\n"),
    *("a" * 1000, "aaaaaaaa1", "aaaaaaaa2", "\x01", "\x7f", "\u200f", "\U0010ffff", "NULL", "0", "-1", "10", "9"),
]  # fmt: skip


async def ids(world: AudienceWorld, rows: int) -> Counter[str]:
    """Return how often each client was read."""
    read = await world.everything(world.terms(), rows)
    return Counter(action.client_id for one in read for action in one.actions)


@pytest.mark.matrix
@pytest.mark.parametrize("members", [0, 1, 9, 10, 11, 20, 95])
async def test_every_member_is_in_exactly_one_range(audiences: AudienceWorld, members: int) -> None:
    """None, one, one fewer than fits, exactly as many, one more, many; the numbers of members are right."""
    await audiences.fill({"id": "bigint"}, [(number * 7,) for number in reversed(range(members))])
    planned = await audiences.cut(audiences.terms(), 10)
    assert [chunk.members for chunk in planned] == [10] * (members // 10) + ([members % 10] if members % 10 else [])
    assert await ids(audiences, 10) == Counter(str(number * 7) for number in range(members))


async def test_ranges_are_read_over_one_connection(tmp_path: Path, empty_database_url: str) -> None:
    """No query makes its connection unusable, which would cost a server process each time."""
    query = "SELECT n AS id, pg_backend_pid() AS process FROM generate_series(1, 30) AS n"
    async with audience_world("postgresql", tmp_path, empty_database_url) as world:
        terms = read_audience({"source": "postgresql", "query": query, "key": "id", "columns": ["process"]})
        read = await world.everything(terms, 10)
        assert len(read) == 3
        assert len({json.loads(action.client)["process"] for one in read for action in one.actions}) == 1


@pytest.mark.matrix
async def test_the_ends_of_the_integers_are_keys(audiences: AudienceWorld) -> None:
    """JSON keeps them exactly, and the least one is in the first range."""
    keys = [-INT64, -INT64 + 1, -1, 0, 1, 2**53 + 1, INT64 - 2, INT64 - 1]
    await audiences.fill({"id": "bigint"}, [(key,) for key in keys])
    planned = await audiences.cut(audiences.terms(), 3)
    assert [chunk.members for chunk in planned] == [3, 3, 2]
    read = [await audiences.read(audiences.terms(), json.loads(json.dumps(chunk.value))) for chunk in planned]
    assert sorted(int(action.client_id) for one in read for action in one.actions) == keys


@pytest.mark.matrix
async def test_texts_are_cut_and_read_in_one_order(audiences: AudienceWorld) -> None:
    """Case, accents, quotes, blanks, SQL: whatever order the source has, cutting and reading use the same one."""
    await audiences.fill({"id": "text"}, [(key,) for key in ODD])
    assert await ids(audiences, 4) == Counter(ODD)


COLLATIONS = ['COLLATE "C"', 'COLLATE "en-x-icu"', 'COLLATE "sv-x-icu"', "COLLATE any_case", "COLLATE numbers"]


@pytest.mark.parametrize("collation", COLLATIONS)
@pytest.mark.parametrize("kind", ["text", "varchar(2000)", "char(1100)"])
async def test_a_column_s_own_order_is_used(tmp_path: Path, empty_database_url: str, collation: str, kind: str) -> None:
    """Also one that ignores case, or orders digits as numbers: keys that it holds equal are in one range."""
    async with audience_world("postgresql", tmp_path, empty_database_url) as world:
        world.run("CREATE COLLATION any_case (provider = icu, locale = 'und-u-ks-level1', deterministic = false)")
        world.run("CREATE COLLATION numbers (provider = icu, locale = 'und-u-kn-true')")
        keys = [key for key in ODD if key.strip(" ") == key]
        await world.fill({"id": f"{kind} {collation}"}, [(key,) for key in keys])
        assert await ids(world, 4) == Counter(keys)


@pytest.mark.parametrize(
    ("kind", "column"),
    [("sqlite", "text COLLATE NOCASE"), ("sqlite", "text COLLATE RTRIM"), ("duckdb", "text COLLATE NOCASE")],
)
async def test_a_column_that_ignores_case_is_cut_by_its_bytes(tmp_path: Path, kind: str, column: str) -> None:
    """By its own order, its greatest value would be another one."""
    async with audience_world(kind, tmp_path, "") as world:
        await world.fill({"id": column}, [(key,) for key in ODD])
        assert await ids(world, 3) == Counter(ODD)


@pytest.mark.matrix
async def test_uuids_are_keys(audiences: AudienceWorld) -> None:
    """Their order is that of their text."""
    if audiences.kind == "sqlite":
        await audiences.fill({"id": "text"}, [(f"{digit}{'0' * 7}-0000-4000-8000-000000000000",) for digit in "0789af"])
    else:
        await audiences.fill({"id": "uuid"}, [(f"{digit}{'0' * 7}-0000-4000-8000-000000000000",) for digit in "f7890a"])
    assert await ids(audiences, 2) == Counter(f"{digit}{'0' * 7}-0000-4000-8000-000000000000" for digit in "0789af")


@pytest.mark.matrix
async def test_equal_keys_stay_together_and_are_one_client(audiences: AudienceWorld) -> None:
    """A range grows for them; ``seen`` counts rows, ``selected`` counts clients."""
    keys = [1, 2, 3, 3, 3, 3, 3, 4, 4, 5]
    await audiences.fill({"id": "bigint"}, [(key,) for key in keys])
    planned = await audiences.cut(audiences.terms(), 4)
    assert [chunk.members for chunk in planned] == [7, 2, 1]
    read = await audiences.everything(audiences.terms(), 4)
    assert [[action.client_id for action in one.actions] for one in read] == [["1", "2", "3"], ["4"], ["5"]]
    assert [(one.result.seen, one.result.selected) for one in read] == [(7, 3), (2, 1), (1, 1)]


@pytest.mark.matrix
async def test_members_without_a_key_are_counted_and_not_selected(audiences: AudienceWorld) -> None:
    """They are the first range, of their own; the others are cut as if there were none."""
    await audiences.fill({"id": "bigint", "age": "bigint"}, [(None, 50), (3, 50), (None, 50), (1, 50), (2, 50)])
    terms = audiences.terms(fields={"age": "int"})
    planned = await audiences.cut(terms, 2)
    assert [(chunk.value.get("keyless"), chunk.members) for chunk in planned] == [(2, 2), (None, 2), (None, 1)]
    keyless, *others = await audiences.everything(terms, 2, OlderThan(1))
    assert (keyless.actions, keyless.result.seen, keyless.result.skipped) == ([], 2, 2)
    assert "2 members without a key" in keyless.result.problems[0]["problem"]
    assert [action.client_id for one in others for action in one.actions] == ["1", "2", "3"]
    found = await audiences.count(terms, OlderThan(1))
    assert (found.members, found.selected, found.skipped) == (5, 3, 2)


async def test_a_member_added_within_a_range_belongs_to_it_and_one_beyond_all_does_not(
    audience_bases: AudienceWorld,
) -> None:
    """Boundaries come from the plan only."""
    await audience_bases.fill({"id": "bigint"}, [(key,) for key in (10, 20, 30, 40)])
    planned = await audience_bases.cut(audience_bases.terms(), 2)
    audience_bases.add([(5,), (15,), (21,), (41,)])
    audience_bases.run("DELETE FROM members WHERE id = 40")
    read = [await audience_bases.read(audience_bases.terms(), chunk.value) for chunk in planned]
    assert [sorted(int(action.client_id) for action in one.actions) for one in read] == [[5, 10, 15, 20], [21, 30]]


@pytest.mark.parametrize("tail", [" -- ; and :unknown\n  ;  ", " -- the end"])
async def test_a_query_is_an_audience(audience_bases: AudienceWorld, tail: str) -> None:
    """A comment at its end hides nothing; a semicolon at its end is removed."""
    await audience_bases.fill({"id": "bigint", "name": "text"}, [(1, "x;y"), (2, "z"), (3, "w")])
    query = f"SELECT id AS who, upper(name) AS name FROM members WHERE name <> ')'{tail}"
    document = {"source": audience_bases.kind, "query": query, "key": "who", "columns": ["name"]}
    read = await audience_bases.everything(read_audience(document), 2)
    assert [tuple(action) for one in read for action in one.actions] == (
        [("1", '{"name":"X;Y"}'), ("2", '{"name":"Z"}'), ("3", '{"name":"W"}')]
    )


async def test_a_folder_of_files_is_a_source(tmp_path: Path) -> None:
    """Each file is a table of its name; every range reads the whole of it, as every query there does.

    Its keys are texts, and so is their order.
    """
    (tmp_path / "clients.csv").write_text("id,age\n" + "\n".join(f"{number},{number}" for number in range(25)))
    sources = Sources({"folder": SourceSettings(url=f"files://{tmp_path}")}, lambda _: None)
    terms = read_audience({"source": "folder", "table": "clients", "key": "id", "fields": {"age": "int"}})
    async with Audiences(sources, None).open(terms) as audience:
        planned = [chunk async for chunk in audience.cut(10)]
        async with audience.read(planned[1].value, OlderThan(17), NOW) as reading:
            found = [action.client_id async for piece in reading for action in piece]
    assert ([chunk.members for chunk in planned], found) == (
        [10, 10, 5],
        [str(number) for number in (18, 19, *range(20, 25))],
    )
    await sources.aclose()


async def test_a_dry_run_is_bounded_in_time(audience_bases: AudienceWorld) -> None:
    """All its queries together."""
    await audience_bases.fill({"id": "bigint", "age": "bigint"}, [(number, 1) for number in range(1000)])
    many = "SELECT a.id, a.age FROM members a, members b, members c"
    terms = read_audience({"source": audience_bases.kind, "query": many, "key": "id", "fields": {"age": "int"}})
    async with audience_bases.audiences.open(terms) as audience:
        with pytest.raises(Unavailable) as late:
            await audience.count(OlderThan(1), NOW, timeout=timedelta(milliseconds=200))
    assert late.value.code == "source_timeout"


async def test_names_are_quoted(audience_bases: AudienceWorld) -> None:
    """Capitals, blanks, quotes and SQL in the names of columns and tables are names."""
    strange = 'k"; DROP TABLE members; --'
    await audience_bases.fill({strange.replace('"', '""'): "bigint", "Order By": "text"}, [(1, "x")])
    audience_bases.run('CREATE TABLE "Odd ""name" AS SELECT * FROM members')
    document = {"source": audience_bases.kind, "table": 'Odd "name', "key": strange, "columns": ["Order By"]}
    (read,) = await audience_bases.everything(read_audience(document), 2)
    assert [tuple(action) for action in read.actions] == [("1", '{"Order By":"x"}')]
    assert len(await audience_bases.cut(audience_bases.terms(key=strange), 2)) == 1


@pytest.mark.parametrize("kind", ["numeric", "double precision", "boolean", "timestamptz", "date", "int[]"])
async def test_a_key_of_another_type_is_refused(tmp_path: Path, empty_database_url: str, kind: str) -> None:
    """With the advice to cast it."""
    async with audience_world("postgresql", tmp_path, empty_database_url) as world:
        await world.fill({"id": kind}, [])
        with pytest.raises(Rejected) as refused:
            await world.cut(world.terms(), 2)
        assert refused.value.code in {"invalid_audience", "source_refused"}


async def test_keys_of_sqlite_have_one_type(tmp_path: Path) -> None:
    """A column there may have numbers beside texts, which do not compare with each other."""
    async with audience_world("sqlite", tmp_path, "") as world:
        await world.fill({"id": ""}, [(1,), ("1",), (2,)])
        for rows in (1, 10):
            with pytest.raises(Rejected) as refused:
                await world.cut(world.terms(), rows)
            assert refused.value.code == "invalid_audience"


async def test_a_key_that_no_action_can_carry_is_skipped(audience_bases: AudienceWorld) -> None:
    """An empty one, or one of more than 1,000 bytes."""
    await audience_bases.fill({"id": "text"}, [("",), ("é" * 501,), ("ok",)])
    (read,) = await audience_bases.everything(audience_bases.terms(), 10)
    assert [action.client_id for action in read.actions] == ["ok"]
    assert (read.result.seen, read.result.selected, read.result.skipped) == (3, 1, 2)
    assert {problem["client_id"] for problem in read.result.problems} == {"", "é" * 200}
