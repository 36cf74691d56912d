"""Sources asked by an attacker who may write queries: nothing is run, written or read on the database's host."""

from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from msgspec.structs import replace

from kit.campaigns import LOAN, CampaignApi
from kit.mutants import mutate
from kit.postgres import PostgresServer, as_reader
from kit.reports import ReportWorld, plan_of, report_world
from kit.waiting import eventually_async
from tickwright.capabilities.batches.audience.audience import Audience
from tickwright.capabilities.batches.audience.schema import read_audience
from tickwright.capabilities.reports.merge.sandbox import sql_checks
from tickwright.capabilities.reports.plan import Listener
from tickwright.capabilities.reports.schema import check_definition
from tickwright.domain.errors import Rejected
from tickwright.ports.reports import Source
from tickwright.sources import postgres as postgres_connections
from tickwright.sources import postgres as postgres_source
from tickwright.sources.named import Sources, SourceSettings

MINUTE = timedelta(minutes=1)
NO_QUERIES = [
    "COPY (SELECT 1) TO PROGRAM 'touch {mark}'",
    "COPY (SELECT 1) TO '{mark}'",
    "COPY (SELECT 1 AS id) TO STDOUT",
    "COPY secrets FROM '/etc/passwd'",
    "DO $$ BEGIN EXECUTE 'COPY (SELECT 1) TO PROGRAM ''touch {mark}'''; END $$",
    "CALL boom()",
    "SET ROLE postgres",
    "RESET ROLE",
    "ROLLBACK",
    "EXPLAIN ANALYZE SELECT 1",
    "EXECUTE boom",
    "PREPARE boom AS SELECT 1",
    "DECLARE other CURSOR FOR SELECT 1",
    "LISTEN boom",
    "LOCK secrets",
    "CREATE TEMP TABLE mine AS SELECT 1",
    "SELECT 1 AS id INTO mine",
    "INSERT INTO secrets VALUES (1) RETURNING id",
    "WITH gone AS (DELETE FROM secrets RETURNING id) SELECT * FROM gone",
    "SELECT 1; COPY (SELECT 1) TO PROGRAM 'touch {mark}'",
    "SELECT 1 AS id) AS m; COPY (SELECT 1) TO PROGRAM 'touch {mark}'; SELECT (1",
    "; COPY (SELECT 1) TO PROGRAM 'touch {mark}'",
    "/* SELECT */ COPY (SELECT 1) TO PROGRAM 'touch {mark}'",
    "-- SELECT\nCOPY (SELECT 1) TO PROGRAM 'touch {mark}'",
    "SELECT $q$ $q$; COPY (SELECT 1) TO PROGRAM $$touch {mark}$$",
    "",
    "-- nothing",
    "SELECT 1 AS id /* without an end",
    "SELECT 1 AS id) AS m --",
    "SELECT 1 AS id) UNION (SELECT 2",
    "SELECT 1 AS id) AS m, (SELECT 2 AS id",
]
"""What PostgreSQL's grammar does not take as one query."""
ONLY_THE_GRAMMAR_TELLS = [
    "SELECT 1 AS id INTO mine",
    "WITH gone AS (DELETE FROM secrets RETURNING id) SELECT * FROM gone",
]
NO_RIGHTS = [
    "SELECT pg_read_file('/etc/passwd') AS id",
    "SELECT pg_read_binary_file('/etc/passwd') AS id",
    "SELECT pg_ls_dir('/') AS id",
    "SELECT pg_stat_file('/etc/passwd') AS id",
    "SELECT lo_import('/etc/passwd') AS id",
    "SELECT lo_export(1, '{mark}') AS id",
    "SELECT pg_file_write('{mark}', 'x', false) AS id",
    "SELECT dblink('host=127.0.0.1', 'COPY (SELECT 1) TO PROGRAM ''touch {mark}''') AS id",
    "SELECT set_config('role', 'postgres', false) AS id",
    "SELECT set_config('session_authorization', 'postgres', false) AS id",
    "SELECT query_to_xml('COPY (SELECT 1) TO PROGRAM ''touch {mark}''', true, true, '')::text AS id",
    "SELECT query_to_xml('SELECT pg_read_file(''/etc/passwd'')', true, true, '')::text AS id",
]
"""One query each, of which a plain role is refused what it asks for."""
HOSTILE = NO_QUERIES + NO_RIGHTS


@pytest.fixture
def mark(pg_server: PostgresServer) -> Iterator[Path]:
    """A file that the server could write; whatever is tried, it is not there."""
    path = pg_server.folder / "mark"
    yield path
    assert not path.exists()


@pytest.fixture
async def shop(empty_database_url: str) -> AsyncIterator[Source]:
    """A database as a source, read by a plain role."""
    sources = Sources({"shop": SourceSettings(url=as_reader(empty_database_url))}, lambda _: None)
    run(empty_database_url, "CREATE TABLE secrets (id int)")
    yield sources.get("shop")
    await sources.aclose()


@pytest.fixture
async def world(database_url: str, tmp_path: Path) -> AsyncIterator[ReportWorld]:
    """A world of reports."""
    async with report_world(database_url, tmp_path) as made:
        yield made


def run(url: str, sql: str) -> None:
    """Run a statement on the database, as its owner."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(sql.encode())


async def ask(source: Source, sql: str) -> list[tuple[Any, ...]]:
    """Return all rows of a query."""
    async with source.query(sql, {}, timeout=MINUTE) as rows:
        return [row async for piece in rows for row in piece]


async def test_a_source_answers_one_query_and_nothing_else(shop: Source, mark: Path) -> None:
    """Each is refused for good with PostgreSQL's message, and the source serves the next query."""
    for text in HOSTILE:
        with pytest.raises(Rejected) as refused:
            await ask(shop, text.replace("{mark}", str(mark)))
        assert refused.value.code == "source_refused", text
        if text in NO_QUERIES:
            assert "a single select, values or with that only reads" in refused.value.message, text
        assert await ask(shop, "VALUES (1), (2)") == [(1,), (2,)]


async def test_every_form_of_a_query_is_answered(shop: Source) -> None:
    """What the grammar calls a query, with a semicolon or a comment at its end."""
    for sql in ("SELECT 1 AS id;", "(SELECT 1)", "WITH a AS (SELECT 1) TABLE a -- end", "VALUES (1) ; /* end */"):
        assert await ask(shop, sql) == [(1,)]
    assert await ask(shop, "TABLE secrets") == []


async def test_an_audience_cannot_leave_its_parentheses(shop: Source, mark: Path) -> None:
    """Its query is one by itself, also where an older release has saved it without the checks of this one."""
    terms = read_audience({"source": "shop", "query": "SELECT 1 AS id", "key": "id"})
    for text in [*HOSTILE, "SELECT 1 AS id) AS m, (SELECT 2 AS other"]:
        hostile = replace(terms, query=text.replace("{mark}", str(mark)))
        with pytest.raises(Rejected) as refused:
            await Audience(hostile, shop).count(None, datetime(2026, 1, 1, tzinfo=UTC))
        assert refused.value.code == "source_refused", text


async def test_a_dry_run_or_a_saved_campaign_asks_one_query_only(campaigns: CampaignApi, mark: Path) -> None:
    """422 with a code for each, and nothing was saved."""
    for text in HOSTILE:
        sql = text.replace("{mark}", str(mark))
        audience = {"source": "crm", "query": sql, "key": "id", "fields": {"age": "int"}}
        tried = {"audience": audience, "expression": "client.age > 25"}
        answer = await campaigns.api.admin.post("/v1/campaigns:dry-run", tried)
        assert (answer.status, answer.json["code"]) in {(422, "invalid_audience"), (422, "source_refused")}, text
        problem = await campaigns.refused({**LOAN, "audience": audience})
        assert problem["code"] in {"invalid_campaign", "invalid_audience"}, text


def test_a_listeners_statement_that_is_no_query_is_refused_when_it_is_saved() -> None:
    """Without asking a database; what only its grammar refuses fails when the part is fetched."""
    problems = {sql: _problems_of_listener(sql) for sql in NO_QUERIES}
    assert [sql for sql, said in problems.items() if not said] == ONLY_THE_GRAMMAR_TELLS
    assert all("listeners.a" in problem for said in problems.values() for problem in said)


def _problems_of_listener(sql: str) -> list[str]:
    words = {"listeners": {"a": {"source": "src", "sql": sql}}, "merge": "SELECT * FROM a"}
    try:
        check_definition("t", words, checks=sql_checks())
    except Rejected as error:
        return list(error.details["problems"])
    return []


async def test_a_listener_of_a_report_asks_one_query_only(world: ReportWorld, mark: Path) -> None:
    """The part fails for good, and the record says why."""
    async with world.process({}, sources={"src": world.url}):
        for text in HOSTILE:
            listener = Listener(name="a", kind="sql", source="src", sql=text.replace("{mark}", str(mark)), attempts=1)
            row = await world.over(await world.request(plan_of(listener), {"text": text}))
            assert row["status"] != "finished", text
            assert "source src refuses the query" in row["error"], (text, row["error"])


# ------------------------------------------------------------------------------------------------------- the role

POWERS = {
    "LOGIN SUPERUSER": "is a superuser",
    "LOGIN IN ROLE pg_execute_server_program": "is a member of pg_execute_server_program",
    "LOGIN IN ROLE pg_read_server_files": "is a member of pg_read_server_files",
    "LOGIN NOINHERIT IN ROLE pg_write_server_files": "is a member of pg_write_server_files",
    "LOGIN NOINHERIT IN ROLE postgres": "is a member of the superuser postgres",
    "LOGIN IN ROLE attack_group": "is a member of pg_read_server_files",
    "LOGIN SUPERUSER; ALTER ROLE attacker SET role = 'reader'": "is a superuser",
}


@pytest.fixture
def attacker(pg_server: PostgresServer, empty_database_url: str) -> Iterator[str]:
    """The URL of an empty database, for a role that a test makes."""
    run(pg_server.url, "CREATE ROLE attack_group IN ROLE pg_read_server_files")
    yield empty_database_url.replace("//postgres:", "//attacker:")
    run(pg_server.url, "DROP ROLE IF EXISTS attacker, attack_group")


@pytest.mark.parametrize("made", POWERS)
async def test_a_role_that_may_do_more_than_read_is_refused(
    pg_server: PostgresServer, attacker: str, made: str
) -> None:
    """Its own powers, inherited or not, and those that it may take on: nothing of a query is sent."""
    create = made.replace("LOGIN", f"LOGIN PASSWORD '{pg_server.password}'", 1)
    run(pg_server.url, f"CREATE ROLE attacker {create}")
    sources = Sources({"shop": SourceSettings(url=attacker)}, lambda _: None)
    with pytest.raises(Rejected) as refused:
        await ask(sources.get("shop"), "SELECT 1")
    assert refused.value.code == "source_role_too_powerful"
    assert f"as the role attacker: it {POWERS[made]}," in refused.value.message
    assert "create role reader" in refused.value.message
    assert pg_server.password not in refused.value.message
    await sources.aclose()


async def test_a_role_that_creates_roles_is_refused_where_it_could_grant_itself_more(
    pg_server: PostgresServer, attacker: str
) -> None:
    """Up to PostgreSQL 15 it may grant any role but a superuser's; from 16 on only those that it administers."""
    run(pg_server.url, f"CREATE ROLE attacker LOGIN CREATEROLE PASSWORD '{pg_server.password}'")
    sources = Sources({"shop": SourceSettings(url=attacker)}, lambda _: None)
    with psycopg.connect(attacker) as connection:
        is_old = connection.info.server_version < 160000
    if is_old:
        with pytest.raises(Rejected, match="may create roles"):
            await ask(sources.get("shop"), "SELECT 1")
    else:
        assert await ask(sources.get("shop"), "SELECT 1") == [(1,)]
    await sources.aclose()


async def test_a_role_that_becomes_powerful_is_refused_on_kept_connections_too(
    pg_server: PostgresServer, attacker: str
) -> None:
    """The role is asked with each query, also after a failover and behind a pooler; made plain again, it is served."""
    run(pg_server.url, f"CREATE ROLE attacker LOGIN PASSWORD '{pg_server.password}'")
    sources = Sources({"shop": SourceSettings(url=attacker)}, lambda _: None)
    assert await ask(sources.get("shop"), "SELECT 1") == [(1,)]
    run(pg_server.url, "GRANT pg_execute_server_program TO attacker")
    with pytest.raises(Rejected, match="pg_execute_server_program"):
        await ask(sources.get("shop"), "SELECT 1")
    run(pg_server.url, "REVOKE pg_execute_server_program FROM attacker")
    assert await ask(sources.get("shop"), "SELECT 1") == [(1,)]
    await sources.aclose()


async def test_nothing_of_a_query_is_left_on_a_kept_connection(empty_database_url: str, shop: Source) -> None:
    """A lock of its session is released, also where the query fails; settings and channels end with the transaction."""
    locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = 4242"
    with psycopg.connect(empty_database_url, autocommit=True) as connection:
        for sql in (
            "SELECT 'x' || pg_advisory_lock(4242, 11)",
            "SELECT 1 / (1 - length(pg_advisory_lock(4242, 11)::text || 'x'))",
        ):
            with suppress(Rejected):
                await ask(shop, sql)
            # A connection that is closed instead of kept ends on the server a moment later.
            await eventually_async(lambda: connection.execute(locks).fetchone() == (0,), 3, what="its lock is released")
    backend = await ask(shop, "SELECT pg_backend_pid(), set_config('work_mem', '77MB', false)")
    assert await ask(shop, "SELECT pg_backend_pid(), current_setting('work_mem')") != backend
    assert (await ask(shop, "SELECT pg_backend_pid()"))[0][0] == backend[0][0]


# ---------------------------------------------------------------------------------------------------- the mutants


async def test_the_suite_notices_a_missing_check_of_the_query(
    shop: Source, mark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it, a text that is no query closes the parentheses that it is sent in, and is run."""
    mutate(monkeypatch, postgres_source._check_one_query, "(_ONE_QUERY + bound.sql)", "'SELECT 1'")
    assert await ask(shop, "SELECT 1 AS id) AS m, (SELECT 2 AS id") == [(1, 2)]
    with pytest.raises((pytest.fail.Exception, AssertionError)):
        await test_a_source_answers_one_query_and_nothing_else(shop, mark)


async def test_the_suite_notices_a_missing_check_of_the_role(
    pg_server: PostgresServer, attacker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it, a superuser is served."""
    mutate(monkeypatch, postgres_connections._check_role, "not powers.ntuples", "True")
    with pytest.raises(pytest.fail.Exception):
        await test_a_role_that_may_do_more_than_read_is_refused(pg_server, attacker, "LOGIN SUPERUSER")


async def test_the_suite_notices_a_lock_that_is_left(
    empty_database_url: str, shop: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a query ends with the transaction only, its lock is held while the connection is kept."""
    monkeypatch.setattr(postgres_connections, "_SQL", {**postgres_connections._SQL, "end": "ROLLBACK"})
    with pytest.raises(AssertionError):
        await test_nothing_of_a_query_is_left_on_a_kept_connection(empty_database_url, shop)
