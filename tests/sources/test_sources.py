"""PostgreSQL as a source: rows come in pieces, values are bound, nothing is written, an error says what to change."""

import asyncio
import csv
from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from kit.postgres import as_reader
from kit.servers import PgBouncer, PostgresServer
from kit.waiting import eventually_async
from tickwright.capabilities.reports.merge.merge import PartFile, merge
from tickwright.capabilities.reports.parts.spool import write_part
from tickwright.domain.errors import Rejected, Unavailable
from tickwright.ports.reports import Source
from tickwright.sources.named import Sources, SourceSettings

MINUTE = timedelta(minutes=1)


def no_secrets(_name: str) -> str | None:
    """Return no secret."""
    return None


@pytest.fixture
async def source(empty_database_url: str) -> AsyncIterator[Source]:
    """An empty database as a source."""
    sources = Sources({"shop": SourceSettings(url="${env:SHOP_URL}")}, {"SHOP_URL": as_reader(empty_database_url)}.get)
    yield sources.get("shop")
    await sources.aclose()


async def rows_of(source: Source, sql: str, /, timeout: timedelta = MINUTE, **values: Any) -> list[tuple[Any, ...]]:
    """Return all rows of a query."""
    async with source.query(sql, values, timeout=timeout) as rows:
        return [row async for piece in rows for row in piece]


async def types_of(source: Source, sql: str) -> Mapping[str, str]:
    """Return the columns of a query."""
    async with source.query(sql, {}, timeout=MINUTE) as rows:
        return dict(rows.columns)


@pytest.mark.parametrize(
    ("kind", "value", "shown"),
    [
        ("date", "2026-01-31", "2026-01-31"),
        ("timestamptz", "2026-01-31T12:00:00+02:00", "2026-01-31 10:00:00+00"),
        ("timestamp", "2026-01-31T12:00:00.000001", "2026-01-31 12:00:00.000001"),
        ("numeric", "12.50", "12.50"),
        ("numeric", 12, "12"),
        ("int", 7, 7),
        ("int", "7", 7),
        ("text", 7, "7"),
        ("text", "it's \\ \" {,}", "it's \\ \" {,}"),
        ("float8", 0.1, 0.1),
        ("boolean", True, True),
        ("uuid", "00000000-0000-0000-0000-00000000000a", "00000000-0000-0000-0000-00000000000a"),
        ("int[]", [1, None, 3], [1, None, 3]),
        ("text[]", ["a,b", '"', "\\", "", "NULL", None], ["a,b", '"', "\\", "", "NULL", None]),
        ("text[]", [], []),
        ("int[]", [[1, 2], [3, 4]], [[1, 2], [3, 4]]),
        ("jsonb", {"a": [1, None]}, None),
        ("text", None, None),
    ],
)
async def test_a_value_is_read_as_the_parameter_s_type(source: Source, kind: str, value: Any, shown: Any) -> None:
    """What JSON has works for dates, instants, numbers, UUIDs and lists, as a quoted literal would."""
    ((got,),) = await rows_of(source, f"SELECT :value::{kind} AS got", value=value)
    assert (bytes(got) == b'{"a": [1, null]}') if kind == "jsonb" else got == shown


async def test_a_silent_server_is_waited_for_without_busy_polling(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver's own default would keep a processor busy for as long as the query runs."""
    await rows_of(source, "SELECT 1")
    loop, timers = asyncio.get_running_loop(), 0

    def call_later(*arguments: Any, **more: Any) -> asyncio.TimerHandle:
        nonlocal timers
        timers += 1
        return asyncio.BaseEventLoop.call_later(loop, *arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(loop, "call_later", call_later)
    await rows_of(source, "SELECT pg_sleep(0.5)")
    assert timers < 50


async def test_the_type_of_a_value_comes_from_its_context(empty_database_url: str, source: Source) -> None:
    """An enum, a list of UUIDs, a date beside an interval: no cast is needed."""
    connection = await asyncpg.connect(empty_database_url)
    await connection.execute(
        "CREATE TYPE mood AS ENUM ('sad', 'glad'); CREATE TABLE people (id uuid, mood mood, born date);"
        "INSERT INTO people SELECT gen_random_uuid(), 'glad', '2000-02-29' FROM generate_series(1, 3)"
    )
    ids = [str(row["id"]) for row in await connection.fetch("SELECT id FROM people LIMIT 2")]
    await connection.close()
    sql = "SELECT mood, born FROM people WHERE mood = :mood AND id = ANY(:ids) AND born + interval '1 day' > :day"
    assert await rows_of(source, sql, mood="glad", ids=ids, day="2000-03-01") == []
    assert await rows_of(source, sql, mood="glad", ids=ids, day="2000-02-29") == [("glad", "2000-02-29")] * 2
    optional = "SELECT count(*) FROM people WHERE (:mood IS NULL OR mood = :mood)"
    assert await rows_of(source, optional, mood=None) == [(3,)]


WORDS = (
    "SMALLINT INTEGER BIGINT FLOAT DOUBLE BOOLEAN VARCHAR VARCHAR VARCHAR DATE TIME TIMESTAMP TIMESTAMPTZ INTERVAL "
    "UUID JSON JSON VARCHAR INTEGER[] VARCHAR[] DECIMAL(12,2) DECIMAL VARCHAR[] VARCHAR VARCHAR VARCHAR"
)


async def test_a_number_in_a_document_keeps_its_digits_in_a_report(source: Source, tmp_path: Path) -> None:
    """Of json and jsonb, alone and in arrays, as PostgreSQL wrote it."""
    document = """{"amount": 12345678901234567.89, "n": [170141183460469231731687303715884105728], "s": "a, b"}"""
    kept = '{"n":[170141183460469231731687303715884105728],"s":"a, b","amount":12345678901234567.89}'
    sql = f"SELECT d AS a, d::json AS b, ARRAY[d, '1e400', NULL] AS c FROM (SELECT '{document}'::jsonb AS d) AS q"
    async with source.query(sql, {}, timeout=MINUTE) as rows:
        facts = await write_part(rows, tmp_path / "shop.ndjson", declared={})
    out = tmp_path / "out.csv"
    part = PartFile("shop", tmp_path / "shop.ndjson", facts.columns)
    merge([part], "SELECT * FROM shop", out, form="csv", bom=False, folder=tmp_path)
    _, row = csv.reader(out.read_text().splitlines())
    assert row == [kept, kept, f"[{kept},1{'0' * 400},null]"]


MANY_INTERVALS = """
WITH n (months, days, us) AS (
  SELECT m.n, d.n, u.n * s.n
    FROM unnest('{0,1,-1,11,-12,13,-2147483647,2147483647}'::int[]) AS m (n)
   CROSS JOIN unnest('{0,1,-1,-29,365,-2147483647,2147483647}'::int[]) AS d (n)
   CROSS JOIN unnest('{0,1,500000,59999999,72000000000,86400000001,9223372036854775807}'::bigint[]) AS u (n)
   CROSS JOIN unnest('{1,-1}'::int[]) AS s (n)
   UNION ALL
  SELECT ((random() * 2 - 1) * 10 ^ (random() * 9))::int, ((random() * 2 - 1) * 10 ^ (random() * 9))::int,
         ((random() * 2 - 1) * 10 ^ (random() * 18))::bigint
    FROM generate_series(1, 5000)
)
SELECT *, make_interval(months => months, days => days) + (us || ' microseconds')::interval AS value FROM n
"""


async def test_an_interval_of_any_signs_is_the_same_in_a_report(source: Source, tmp_path: Path) -> None:
    """Months, days and microseconds have signs of their own; texts are compared, which keep the three apart."""
    async with source.query(MANY_INTERVALS, {}, timeout=MINUTE) as rows:
        facts = await write_part(rows, tmp_path / "shop.ndjson", declared={})
    assert dict(facts.columns)["value"] == "INTERVAL"
    part = PartFile("shop", tmp_path / "shop.ndjson", facts.columns)
    made = "to_months(months::INT) + to_days(days::INT) + to_microseconds(us::BIGINT)"
    sql = f"SELECT *, {made} AS made FROM shop WHERE CAST(value AS VARCHAR) <> CAST(made AS VARCHAR)"
    found = merge([part], sql, tmp_path / "out.csv", form="csv", bom=False, folder=tmp_path)
    assert found.rows == 0, (tmp_path / "out.csv").read_text()[:1000]
    assert facts.rows == 8 * 7 * 7 * 2 + 5000


async def test_columns_are_known_before_the_first_row_and_without_one(source: Source) -> None:
    """PostgreSQL's types under DuckDB's names."""
    assert await types_of(
        source,
        "SELECT 1::int2 AS a, 1 AS b, 1::int8 AS c, 1::float4 AS d, 1::float8 AS e, true AS f, 'x'::text AS g, "
        "'x'::varchar(3) AS h, 'x'::char(3) AS i, date '2026-01-01' AS j, time '00:00' AS k, now()::timestamp AS l, "
        "now() AS m, interval '1 day' AS n, gen_random_uuid() AS o, '{}'::json AS p, '{}'::jsonb AS q, "
        "'x'::bytea AS r, ARRAY[1] AS s, ARRAY['x'] AS t, 1.5::numeric(12,2) AS u, 1.5::numeric AS v, "
        "ARRAY[1.5] AS w, int4range(1, 2) AS x, ROW(1, 2) AS y, '1.1.1.1'::inet AS z WHERE false",
    ) == dict(
        zip(
            "abcdefghijklmnopqrstuvwxyz",
            WORDS.split(),
            strict=True,
        )
    )


async def test_rows_come_while_the_server_still_makes_them(source: Source) -> None:
    """The first piece of an endless query is there, and leaving ends the query on the server."""
    sql = "SELECT pg_backend_pid(), generate_series(1, 1000000000000)"
    async with source.query(sql, {}, timeout=MINUTE) as rows:
        async for piece in rows:
            pid = piece[0][0]
            assert len(piece) <= 1000
            break
    running = "SELECT count(*) FROM pg_stat_activity WHERE pid = :pid AND state = 'active'"

    async def ended() -> bool:
        return await rows_of(source, running, pid=pid) == [(0,)]

    await eventually_async(ended, what="the query ends on the server")


async def test_a_cancelled_task_ends_its_query_on_the_server(source: Source) -> None:
    """The server does not work on for a task that is gone."""
    count = (
        "SELECT count(*) FROM pg_stat_activity WHERE query LIKE :what AND state = 'active' AND pid <> pg_backend_pid()"
    )
    task = asyncio.create_task(rows_of(source, "SELECT pg_sleep(50), 'marked'"))

    async def counted(number: int) -> bool:
        return await rows_of(source, count, what="%pg_sleep(50)%") == [(number,)]

    await eventually_async(lambda: counted(1), what="the query runs")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await eventually_async(lambda: counted(0), what="the query ends")


async def test_a_slow_query_is_ended_by_its_timeout(source: Source) -> None:
    """It may be faster the next time: Unavailable."""
    with pytest.raises(Unavailable) as late:
        await rows_of(source, "SELECT pg_sleep(50)", timeout=timedelta(milliseconds=100))
    assert late.value.code == "source_timeout"


@pytest.mark.parametrize(
    ("sql", "says"),
    [
        ("SELECT\n  nothing FROM generate_series(1, :n)", 'at line 2, column 3: column "nothing" does not exist'),
        ("SELECT :n AND nothing", "column 15"),
        ("SELECT jsonb_build_array(:n)", "write its type behind the name, as :name::text"),
        ("SELEKT 1", "at line 1, column 1: syntax error"),
        ("SELECT 1 / 0", "division by zero"),
        ("SELECT :n::int", 'invalid input syntax for type integer: "seven"'),
        ("CREATE TABLE mine (id int)", 'at line 1, column 1: syntax error at or near "CREATE"'),
        ("SELECT nextval('numbers')", "read-only transaction"),
        ("SELECT set_config('transaction_read_only', 'off', false)", "read-write mode must be set before"),
        ("SET TRANSACTION READ WRITE", "a source answers one query"),
        ("SELECT 1; SELECT 2", "multiple commands"),
        ("COMMIT", "a source answers one query"),
        ("COPY (SELECT 1) TO STDOUT", "a source answers one query"),
        ("DO $$ BEGIN END $$", "a source answers one query"),
    ],
)
async def test_a_query_that_can_never_succeed_is_refused_with_the_server_s_message(
    empty_database_url: str, source: Source, sql: str, says: str
) -> None:
    """The position is one in the query as written, and the source serves the next query."""
    connection = await asyncpg.connect(empty_database_url)
    await connection.execute("CREATE SEQUENCE numbers; GRANT ALL ON SEQUENCE numbers TO PUBLIC")
    await connection.close()
    with pytest.raises(Rejected) as refused:
        await rows_of(source, sql, n="seven" if "int" in sql else 7)
    assert refused.value.code == "source_refused"
    assert says in refused.value.message
    assert await rows_of(source, "SELECT 1") == [(1,)]


async def test_a_permission_that_is_missing_is_named(pg_server: PostgresServer, empty_database_url: str) -> None:
    """No connection string is in the message."""
    connection = await asyncpg.connect(empty_database_url)
    await connection.execute("CREATE TABLE secrets (id int); CREATE ROLE clerk LOGIN PASSWORD 'hidden-word'")
    url = empty_database_url.replace(f"postgres:{pg_server.password}", "clerk:hidden-word")
    sources = Sources({"shop": SourceSettings(url="${env:URL}")}, {"URL": url}.get)
    try:
        with pytest.raises(Rejected, match="permission denied for table secrets") as refused:
            await rows_of(sources.get("shop"), "SELECT * FROM secrets")
        assert "hidden-word" not in refused.value.message
    finally:
        await sources.aclose()
        await connection.execute("DROP ROLE clerk")
        await connection.close()


async def test_a_source_works_behind_a_pooler(pgbouncer: PgBouncer, empty_database_url: str) -> None:
    """PgBouncer in transaction mode: values, types, cancel and timeout as without it."""
    url = as_reader(pgbouncer.database_url(empty_database_url.rpartition("/")[2]))
    sources = Sources({"shop": SourceSettings(url=url)}, no_secrets)
    source = sources.get("shop")
    try:
        assert await rows_of(source, "SELECT :d::date, current_setting('timezone')", d="2026-01-01") == [
            ("2026-01-01", "UTC")
        ]
        with pytest.raises(Unavailable) as late:
            await rows_of(source, "SELECT pg_sleep(50)", timeout=timedelta(milliseconds=100))
        assert late.value.code == "source_timeout"
        with pytest.raises(Rejected, match="a source answers one query"):
            await rows_of(source, "CREATE TABLE mine (id int)")
        assert len(await rows_of(source, "SELECT n FROM generate_series(1, 5000) AS n")) == 5000
    finally:
        await sources.aclose()


async def test_no_more_queries_run_at_once_than_the_source_allows(empty_database_url: str) -> None:
    """The others wait for a place, within their own time."""
    sources = Sources({"shop": SourceSettings(url=as_reader(empty_database_url), connections_max=1)}, no_secrets)
    source = sources.get("shop")
    try:
        async with source.query("SELECT 1", {}, timeout=MINUTE):
            waiting = asyncio.create_task(rows_of(source, "SELECT 2"))
            with pytest.raises(Unavailable):
                await rows_of(source, "SELECT 3", timeout=timedelta(milliseconds=10))
            assert not waiting.done()
        assert await waiting == [(2,)]
    finally:
        await sources.aclose()


async def test_what_a_query_sets_is_not_there_for_the_next_one(source: Source) -> None:
    """Connections are kept, settings made on them are not."""
    ((first, _),) = await rows_of(source, "SELECT pg_backend_pid(), set_config('work_mem', '77MB', false)")
    ((second, setting),) = await rows_of(source, "SELECT pg_backend_pid(), current_setting('work_mem')")
    assert first == second
    assert setting != "77MB"


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("mysql://u:hidden-word@host/db", "unknown_source_scheme"),
        ("hidden-word", "unknown_source_scheme"),
        ("postgresql://u:hidden-word@host/db?nonsense=1", "invalid_source"),
        ("postgresql://u:p@hidden-word@host/db", "invalid_source"),
        ("postgresql://u:12/hidden-word@host/db", "invalid_source"),
        ("${env:NOTHING}", "secret_missing"),
    ],
)
def test_a_source_that_cannot_be_is_refused_without_its_url(url: str, code: str) -> None:
    """The error says what to write instead."""
    with pytest.raises(Rejected) as refused:
        Sources({"shop": SourceSettings(url=url)}, no_secrets).get("shop")
    assert refused.value.code == code
    assert "hidden-word" not in refused.value.message


def test_an_unknown_source_is_named_with_the_known_ones() -> None:
    """So a misspelt name is found at once."""
    with pytest.raises(Rejected, match="known: shop") as refused:
        Sources({"shop": SourceSettings(url="sqlite:///x")}, no_secrets).get("shot")
    assert refused.value.code == "unknown_source"
