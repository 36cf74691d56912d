"""Fields of an audience: each has its declared type wherever it comes from, when judged and in actions."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kit.audiences import NOW, AudienceWorld, OlderThan, audience_world
from tickwright.domain.errors import Rejected
from tickwright.ports.batches import SqlFilter, Verdict
from tickwright.ports.reports import Dialect

BAD = object()
"""A text that is no value of the type."""
INTS = {
    "1": 1, "-7": -7, "+5": 5, " 12 ": 12, "9223372036854775807": 2**63 - 1, "-9223372036854775808": -(2**63), "007": 7,
    "9223372036854775808": BAD, "-9223372036854775809": BAD, "1.5": BAD, "1e3": BAD, "1_000": BAD, "x": BAD,
    "0x10": BAD, "99999999999999999999": BAD, "٣": BAD,
}  # fmt: skip
DOUBLES = {
    "1.5": 1.5, "-.5": -0.5, "1.": 1.0, "1e3": 1000.0, " 2 ": 2.0, "1.7976931348623157e308": 1.7976931348623157e308,
    "NaN": None, "-Infinity": None, "inf": None, "0e999": 0.0,
    "1e309": BAD, "1_0": BAD, "0x10": BAD, "x": BAD, "1,5": BAD, "1e": BAD,
}  # fmt: skip
BOOLS = {
    "true": True,
    "T": True,
    "yes": True,
    "1": True,
    " on ": True,
    "FALSE": False,
    "0": False,
    "n": False,
    "2": BAD,
    "ja": BAD,
}
INSTANTS = {
    "2026-01-31T10:00:00Z": "2026-01-31T10:00:00+00:00",
    "2026-01-31 10:00:00.5+02:00": "2026-01-31T08:00:00.5+00:00",
    "2026-01-31 10:00": "2026-01-31T10:00:00+00:00",
    "2024-02-29": "2024-02-29T00:00:00+00:00",
    "0999-01-01T00:00:00+15:00": "0998-12-31T09:00:00+00:00",
    "2026-02-29": BAD, "2026-13-01": BAD, "2026-01-31T25:00:00Z": BAD, "2026-01-31T10:00:00+19:00": BAD,
    "0000-01-01": BAD, "infinity": BAD, "now": BAD, "31.01.2026": BAD, "12026-01-31": BAD,
}  # fmt: skip
TEXTS = {"int": INTS, "double": DOUBLES, "bool": BOOLS, "timestamp": INSTANTS}


class Everything:
    """An expression that reads fields and selects clients that have one.

    Args:
        translated: Whether it has SQL.
    """

    def __init__(self, *fields: str, translated: bool) -> None:
        self.fields, self._translated = fields, translated
        self.judged: list[Mapping[str, Any]] = []

    def sql(self, dialect: Dialect, column: Callable[[str], str], now: datetime) -> SqlFilter | None:
        """Return the same test in SQL."""
        del dialect, now
        tests = " OR ".join(f"{column(field)} IS NOT NULL" for field in self.fields)
        return SqlFilter(tests, {}) if self._translated else None

    def judge(self, values: Mapping[str, Any], now: datetime) -> Verdict:
        """Note the values."""
        assert now == NOW
        self.judged.append(values)
        return Verdict.SELECTED if any(value is not None for value in values.values()) else Verdict.NOT


def clients_of(actions: Any) -> dict[str, Any]:
    """Return each client of these actions."""
    return {action.client_id: msgspec.json.decode(action.client) for action in actions}


@pytest.mark.matrix
@pytest.mark.parametrize("translated", [True, False])
@pytest.mark.parametrize("kind", list(TEXTS))
async def test_a_text_is_read_as_the_declared_type_or_costs_its_client_only(
    audiences: AudienceWorld, kind: str, translated: bool
) -> None:
    """Texts are valid alike in every source; an invalid one fails no range, and its client is shown with the field."""
    texts = TEXTS[kind]
    await audiences.fill({"id": "text", "said": "text"}, [(f"k{at}", text) for at, text in enumerate(texts)])
    terms = audiences.terms(fields={"value": {"type": kind, "column": "said"}}, columns=["said"])
    (read,) = await audiences.everything(terms, 100, Everything("value", translated=translated))
    clients = clients_of(read.actions)
    got = {client["said"]: client["value"] for client in clients.values()}
    good = {text: value for text, value in texts.items() if value is not BAD}
    if kind == "timestamp":
        got = {text: _exact(value) for text, value in got.items()}
        good = {text: _exact(value) for text, value in good.items()}
    assert got == good
    bad = len(texts) - len(good)
    assert (read.result.seen, read.result.selected, read.result.skipped) == (len(texts), len(good), bad)
    assert len(read.result.problems) == min(bad, 10)
    assert all(one["problem"] == f"value: its value is not of type {kind}" for one in read.result.problems)
    found = await audiences.count(terms, Everything("value", translated=translated), limit=2)
    assert (found.members, found.selected, found.skipped, len(found.examples)) == (len(texts), len(good), bad, 2)
    assert len(found.problems) == min(bad, 10)


def _exact(value: Any) -> Any:
    return datetime.fromisoformat(value).astimezone(UTC)


@pytest.mark.matrix
@pytest.mark.parametrize("translated", [True, False])
async def test_judged_and_written_values_have_the_declared_types(audiences: AudienceWorld, translated: bool) -> None:
    """Numbers are numbers, instants are RFC 3339 in UTC, null is null."""
    columns = {"id": "bigint", "age": "integer", "income": "numeric(12,2)", "ok": "boolean", "since": "timestamptz"}
    await audiences.fill(
        {**columns, "note": "text"},
        [(1, 30, 10.5, True, "2026-01-31T10:00:00.25+02:00", 'ü"\\'), (2, None, None, None, None, None)],
    )
    fields = {"age": "int", "income": "double", "ok": "bool", "since": "timestamp", "note": "string"}
    judge = Everything("age", "since", "income", "ok", "note", translated=translated)
    (read,) = await audiences.everything(audiences.terms(fields=fields), 100, judge)
    assert clients_of(read.actions) == {
        "1": {"age": 30, "income": 10.5, "ok": True, "since": "2026-01-31T08:00:00.25+00:00", "note": 'ü"\\'}
    } or (audiences.kind == "sqlite" and clients_of(read.actions)["1"]["since"] == "2026-01-31T08:00:00.250000+00:00")
    assert read.result.missing == 0
    if not translated or audiences.kind == "sqlite":
        since = datetime(2026, 1, 31, 8, 0, 0, 250_000, UTC)
        assert judge.judged[0] == {"age": 30, "income": 10.5, "ok": True, "since": since, "note": 'ü"\\'}
        assert judge.judged[1] == dict.fromkeys(fields)
    else:
        assert judge.judged == []


@pytest.mark.matrix
@pytest.mark.parametrize("translated", [True, False])
async def test_every_member_is_in_one_count(audiences: AudienceWorld, translated: bool) -> None:
    """Selected, not selected, missing, skipped: the same numbers from the source, from the judge and in a dry run."""
    ages = [10, 20, 30, None, None, 40]
    await audiences.fill({"id": "bigint", "age": "bigint"}, list(enumerate(ages)))
    terms = audiences.terms(fields={"age": "int"})
    (read,) = await audiences.everything(terms, 100, OlderThan(25, translated=translated))
    result = read.result
    assert (result.seen, result.selected, result.missing, result.skipped) == (6, 2, 2, 0)
    assert clients_of(read.actions) == {"2": {"age": 30}, "5": {"age": 40}}
    found = await audiences.count(terms, OlderThan(25, translated=translated))
    assert (found.members, found.selected, found.missing, found.skipped) == (6, 2, 2, 0)
    assert clients_of(found.examples) == clients_of(read.actions)


@pytest.mark.matrix
@pytest.mark.parametrize("translated", [True, False])
async def test_a_field_that_cannot_be_read_costs_its_client_with_sql_or_without(
    audiences: AudienceWorld, translated: bool
) -> None:
    """An action would contain it; the client is counted and shown once."""
    await audiences.fill(
        {"id": "bigint", "age": "bigint", "said": "text"}, [(1, 30, "7"), (2, 31, "x"), (3, 1, "y"), (4, None, "z")]
    )
    terms = audiences.terms(fields={"age": "int", "said": "int"})
    (read,) = await audiences.everything(terms, 100, OlderThan(25, translated=translated))
    assert clients_of(read.actions) == {"1": {"age": 30, "said": 7}}
    assert sorted(one["client_id"] for one in read.result.problems) == ["2", "3", "4"]
    assert (read.result.seen, read.result.selected, read.result.missing, read.result.skipped) == (4, 1, 0, 3)
    found = await audiences.count(terms, OlderThan(25, translated=translated))
    assert (found.selected, found.missing, found.skipped, len(found.problems), len(found.examples)) == (1, 0, 3, 3, 1)


async def test_without_an_expression_all_clients_are_selected(audiences: AudienceWorld) -> None:
    """A range without a judge, and an audience without fields."""
    await audiences.fill({"id": "bigint"}, [(1,), (2,)])
    (read,) = await audiences.everything(audiences.terms(), 100)
    assert clients_of(read.actions) == {"1": {}, "2": {}}
    assert (await audiences.count(audiences.terms())).selected == 2


async def test_a_client_that_cannot_be_judged_is_skipped_and_shown(audiences: AudienceWorld) -> None:
    """Up to ten are shown; the others are judged."""
    await audiences.fill({"id": "bigint", "age": "bigint"}, [(at, 13) for at in range(15)] + [(99, 50)])
    (read,) = await audiences.everything(audiences.terms(fields={"age": "int"}), 100, OlderThan(25, translated=False))
    assert (read.result.selected, read.result.skipped, len(read.result.problems)) == (1, 15, 10)
    assert read.result.problems[0]["problem"] == "unlucky"


@pytest.mark.matrix
@pytest.mark.parametrize("translated", [True, False])
async def test_equal_keys_count_once_in_a_dry_run_too(audiences: AudienceWorld, translated: bool) -> None:
    """A dry run counts like an execution."""
    await audiences.fill({"id": "text", "age": "bigint"}, [("a", 30), ("b", 30), ("a", 31), ("A", 30), ("a", 1)])
    terms = audiences.terms(fields={"age": "int"})
    (read,) = await audiences.everything(terms, 100, OlderThan(25, translated=translated))
    found = await audiences.count(terms, OlderThan(25, translated=translated))
    assert read.result.selected == found.selected == 3


async def test_strange_numbers_of_postgresql(tmp_path: Path, empty_database_url: str) -> None:
    """A number that no double or 64-bit integer can hold costs its client; NaN and infinity are null in JSON."""
    async with audience_world("postgresql", tmp_path, empty_database_url) as world:
        await world.fill(
            {"id": "bigint", "n": "numeric", "f": "float8"},
            [
                (1, "1e400", 1),
                (2, "1e-400", 1),
                (3, "NaN", "NaN"),
                (4, "2", "-Infinity"),
                (5, "2.5", 2.5),
                (6, "9e18", 9e18),
            ],
        )
        doubles = world.terms(fields={"n": "double", "f": "double"})
        (read,) = await world.everything(doubles, 100, Everything("n", translated=True))
        assert clients_of(read.actions) == {
            "3": {"n": None, "f": None},
            "4": {"n": 2, "f": None},
            "5": {"n": 2.5, "f": 2.5},
            "6": {"n": 9e18, "f": 9e18},
        }
        assert [one["client_id"] for one in read.result.problems] == ["1", "2"]
        whole = world.terms(fields={"n": "int", "f": "int"})
        (read,) = await world.everything(whole, 100, Everything("n", translated=True))
        assert clients_of(read.actions) == {"6": {"n": 9 * 10**18, "f": 9 * 10**18}}
        assert read.result.skipped == 5


@pytest.mark.parametrize("kind", ["timestamptz", "timestamp", "date"])
async def test_instants_without_end_are_no_instants(tmp_path: Path, empty_database_url: str, kind: str) -> None:
    """Nor are years before Christ or after 9999; a timestamp without zone is UTC, whatever the server's zone."""
    async with audience_world("postgresql", tmp_path, empty_database_url) as world:
        world.run(
            "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET timezone = ''Asia/Tokyo''', current_database()); END $$"
        )
        rows = [
            "infinity",
            "-infinity",
            "0044-03-15 BC",
            "10000-01-01",
            "2026-01-31 00:00:00",
            "0001-01-01",
            "9999-12-31",
        ]
        await world.fill({"id": "bigint", "at": kind}, [])
        for at, text in enumerate(rows):
            world.run(f"SET timezone = 'UTC'; INSERT INTO members VALUES ({at}, '{text}')")
        (read,) = await world.everything(
            world.terms(fields={"at": "timestamp"}), 100, Everything("at", translated=True)
        )
        assert sorted(client["at"] for client in clients_of(read.actions).values()) == [
            "0001-01-01T00:00:00+00:00", "2026-01-31T00:00:00+00:00", "9999-12-31T00:00:00+00:00"
        ]  # fmt: skip
        assert read.result.skipped == 4


async def test_columns_are_written_as_they_are(tmp_path: Path, empty_database_url: str) -> None:
    """Exact numbers, documents, arrays, instants; a value that jsonb cannot keep costs its client only."""
    async with audience_world("postgresql", tmp_path, empty_database_url) as world:
        await world.fill(
            {
                "id": "bigint",
                "n": "numeric",
                "j": "json",
                "a": "int[]",
                "t": "timestamp",
                "z": "timestamptz",
                "b": "bytea",
            },
            [
                (
                    1,
                    "12345678901234567890.50",
                    '{"x": [1, null]}',
                    [1, None],
                    "2026-01-31 10:00",
                    "2026-01-31 10:00Z",
                    b"\x01",
                ),
                (2, "NaN", None, None, None, None, None),
                (3, None, '"\\u0000"', None, None, None, None),
                (4, None, '"\\ud800"', None, None, None, None),
                (5, None, '"\\\\u0000"', None, None, None, None),
            ],
        )
        (read,) = await world.everything(world.terms(columns=["n", "j", "a", "t", "z", "b"]), 100)
        first = next(action.client for action in read.actions if action.client_id == "1")
        assert first == (
            '{"n":12345678901234567890.50,"j":{"x": [1, null]},"a":[1,null],"t":"2026-01-31T10:00:00",'
            '"z":"2026-01-31T10:00:00+00:00","b":"AQ=="}'
        )
        assert sorted(clients_of(read.actions)) == ["1", "2", "5"]
        assert [one["client_id"] for one in read.result.problems] == ["3", "4"]


async def test_a_client_that_is_too_large_is_skipped(audience_bases: AudienceWorld) -> None:
    """An action is bounded; the others are selected."""
    await audience_bases.fill({"id": "bigint", "note": "text"}, [(1, "x" * 70_000), (2, "y")])
    (read,) = await audience_bases.everything(audience_bases.terms(columns=["note"]), 100)
    assert list(clients_of(read.actions)) == ["2"]
    assert "larger than 65536 bytes" in read.result.problems[0]["problem"]


@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
async def test_a_nul_character_costs_its_client_only(tmp_path: Path, kind: str) -> None:
    """PostgreSQL, which keeps the actions, has none; one in a key at a cut fails the plan."""
    async with audience_world(kind, tmp_path, "") as world:
        await world.fill({"id": "text", "note": "text"}, [("a", "x\0y"), ("b", "\\u0000"), ("c\0", "z"), ("d", "z")])
        (read,) = await world.everything(world.terms(columns=["note"]), 100)
        assert list(clients_of(read.actions)) == ["b", "d"]
        assert {one["client_id"] for one in read.result.problems} == {"a", "c\\u0000"}
        with pytest.raises(Rejected) as refused:
            await world.cut(world.terms(), 1)
        assert refused.value.code == "invalid_audience"


async def test_a_column_that_was_removed_is_named(audience_bases: AudienceWorld) -> None:
    """The execution ends with an error that says what to do, not with a database's error."""
    await audience_bases.fill({"id": "bigint", "age": "bigint"}, [(1, 1)])
    terms = audience_bases.terms(fields={"age": "int"})
    (chunk,) = await audience_bases.cut(terms, 10)
    audience_bases.run("ALTER TABLE members RENAME COLUMN age TO years")
    with pytest.raises(Rejected) as refused:
        await audience_bases.read(terms, chunk.value, OlderThan(1))
    assert (refused.value.code, "age" in refused.value.message) == ("invalid_audience", True)
