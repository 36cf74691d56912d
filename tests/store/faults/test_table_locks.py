"""Table locks that a role asks for without a right to them: PostgreSQL takes the lock before it checks rights.

Behind a weak lock of another session such a request waits as long as that session likes, and so do all behind it.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import asyncpg
import psycopg
import pytest
from structlog.testing import capture_logs

from kit.cli import environment, tickwright
from kit.fix_app_roles import PASSWORD, AppRole, drop
from kit.mutants import mutate
from kit.nodes import running, settings_of
from kit.postgres import PostgresServer
from kit.waiting import eventually_async
from tickwright import Job
from tickwright.app.declarations import Declarations
from tickwright.capabilities.operations.keys import ApiKeys
from tickwright.engine import table_locks as module
from tickwright.engine.table_locks import TableLocks
from tickwright.ports.caller import Caller, Role
from tickwright.store import pool as pools
from tickwright.store.app_roles import create_app_role
from tickwright.store.migrate import migrate
from tickwright.store.pool import HeldUp, Pool, open_pool

ADMIN = Caller("test", Role.ADMIN)
PREPARED = "PREPARE p AS SELECT FROM {}"
JOB = "INSERT INTO tickwright.scheduled_tasks (execute_at, task_type) VALUES (now() + interval '1 day', 't')"
WAITING = "SELECT count(*) FROM pg_locks WHERE pid = $1 AND NOT granted"
PATIENCE_S = 60
ENDED = (asyncpg.AdminShutdownError, asyncpg.ConnectionDoesNotExistError)
"""The driver's errors for a session that was ended."""


@dataclass(frozen=True)
class Attack:
    """What one session holds in an open transaction, and what another one requests behind it."""

    hold: str
    asks: tuple[str, ...]


ATTACKS = {
    "scheduled_tasks": Attack(JOB, ("CREATE TEMP TABLE t (a bigint REFERENCES tickwright.scheduled_tasks)",)),
    "workers": Attack(
        PREPARED.format("tickwright.workers"),
        ("CREATE TEMP TABLE t PARTITION OF tickwright.workers DEFAULT",),
    ),
    "api_keys": Attack(
        PREPARED.format("tickwright.api_keys"),
        (
            "CREATE TEMP TABLE p (a int) PARTITION BY LIST (a)",
            "ALTER TABLE p ATTACH PARTITION tickwright.api_keys DEFAULT",
        ),
    ),
}
RULE = "CREATE RULE r AS ON INSERT TO {} DO NOTHING"
TRIGGER = "CREATE TRIGGER a AFTER INSERT ON tickwright.outbox FOR EACH ROW EXECUTE FUNCTION tickwright.ring_outbox()"
OTHERS = {
    "a rule": Attack("PREPARE p AS UPDATE tickwright.outbox SET key = ''", (RULE.format("tickwright.outbox"),)),
    "a trigger": Attack("PREPARE p AS UPDATE tickwright.outbox SET key = ''", (TRIGGER,)),
    "an index": Attack(
        "SELECT count(*) FROM tickwright.scheduled_tasks", (RULE.format("tickwright.scheduled_tasks_due"),)
    ),
    "a view": Attack(
        PREPARED.format("tickwright.shipment_polling_tracker"), (RULE.format("tickwright.shipment_polling_tracker"),)
    ),
}


@asynccontextmanager
async def under(attack: Attack, url: str) -> AsyncIterator[tuple[asyncpg.Connection, "asyncio.Task[None]", int]]:
    """Return the session that holds, what the other one waits for, and the other one's pid."""
    holder, asker = await asyncpg.connect(url), await asyncpg.connect(url)
    transaction = holder.transaction()
    await transaction.start()
    await holder.execute(attack.hold)
    pid: int = await asker.fetchval("SELECT pg_backend_pid()")
    asking = asyncio.create_task(_ask(asker, attack.asks))
    try:
        await eventually_async(lambda: _waits(holder, pid), what="the request waits")
        yield holder, asking, pid
    finally:
        holder.terminate()
        asker.terminate()
        with suppress(asyncpg.PostgresError, asyncpg.InterfaceError, ConnectionError):
            await asking


async def _ask(connection: asyncpg.Connection, statements: tuple[str, ...]) -> None:
    for statement in statements:
        await connection.execute(statement)


async def _waits(connection: asyncpg.Connection, pid: int) -> bool:
    return bool(await connection.fetchval(WAITING, pid))


async def _over(task: "asyncio.Task[None]") -> bool:
    return task.done()


async def _scheduled(url: str, key: str) -> bool:
    """Whether a job could be scheduled by the API; a key that it has not seen yet is looked up."""
    headers, timeout = {"Authorization": f"Bearer {key}"}, aiohttp.ClientTimeout(total=10)
    async with (
        aiohttp.ClientSession(headers=headers, timeout=timeout) as client,
        client.post(f"{url}/v1/jobs", json={"task_type": "tick"}) as answer,
    ):
        return answer.status == 201


@pytest.mark.matrix
@pytest.mark.parametrize("table", ATTACKS)
async def test_a_lock_without_a_right_is_ended_and_jobs_run_again(
    app_role: AppRole, pool: Pool, tmp_path: Path, table: str
) -> None:
    """Without an operator the requesting session is ended and named; the other one's transaction stays open."""
    ran: list[int] = []
    program = Declarations()

    @program.job("tick")
    async def tick(job: Job) -> None:
        ran.append(job.id)

    first, second = [(await ApiKeys(pool).create(name, Role.ADMIN, caller=ADMIN)).key for name in ("first", "second")]
    settings = settings_of(app_role.owner_url, tmp_path, "")
    with capture_logs() as lines:
        async with running(settings, program, "worker", "scheduler", "api") as node:
            assert node.api is not None
            url = node.api.url
            await eventually_async(lambda: _scheduled(url, first), PATIENCE_S, what="a job is scheduled")
            await eventually_async(lambda: ran, PATIENCE_S, what="it runs")
            async with under(ATTACKS[table], app_role.url) as (holder, asking, pid):
                ran.clear()
                await eventually_async(lambda: _scheduled(url, second), PATIENCE_S, what="a job is scheduled again")
                await eventually_async(lambda: ran, PATIENCE_S, what="it runs, too")
                await eventually_async(lambda: _over(asking), what="the request is ended")
                assert isinstance(asking.exception(), ENDED), asking.exception()
                assert await holder.fetchval("SELECT 1") == 1, "the open transaction goes on"
    said = [line for line in lines if line["event"] == "database.table_lock"]
    assert {(line["pid"], line["role"], line["relation"], line["ended"]) for line in said} == {
        (pid, app_role.name, table, True)
    }


@pytest.mark.parametrize("name", OTHERS)
async def test_every_kind_of_request_is_found(app_role: AppRole, pool: Pool, name: str) -> None:
    """Rules and triggers; on tables, indexes and views."""
    async with under(OTHERS[name], app_role.url) as (holder, asking, _):
        await TableLocks(pool).search()
        await eventually_async(lambda: _over(asking), what="the request is ended")
        assert isinstance(asking.exception(), ENDED), asking.exception()
        assert await holder.fetchval("SELECT 1") == 1


async def test_a_session_that_holds_such_a_lock_and_waits_for_another_is_found(app_role: AppRole, pool: Pool) -> None:
    """A constraint's trigger has the lock of its table when it asks for the one that it refers to."""
    outside = "information_schema.sql_features"
    queue = Attack(PREPARED.format(outside), (RULE.format(outside),))
    constraint = (
        f"CREATE CONSTRAINT TRIGGER c AFTER INSERT ON tickwright.workers FROM {outside} "
        "FOR EACH ROW EXECUTE FUNCTION tickwright.ring_outbox()"
    )
    async with under(queue, app_role.url), under(Attack("SELECT", (constraint,)), app_role.url) as (_, asking, _pid):
        with pytest.raises(asyncpg.LockNotAvailableError):
            await pool.execute("SET lock_timeout = 100; UPDATE tickwright.workers SET name = name")
        await TableLocks(pool).search()
        await eventually_async(lambda: _over(asking), what="the session that holds the lock is ended")


@dataclass
class Crowd:
    """Sessions that wait for strong locks, by what they are."""

    asking: dict[str, "asyncio.Task[None]"]
    holders: list[asyncpg.Connection]

    async def ended(self, expected: set[str]) -> set[str]:
        """Wait for those that are to be ended, let the others have what they ask for; return those that were ended."""
        await eventually_async(lambda: all(self.asking[who].done() for who in expected), what=f"{expected} are over")
        for holder in self.holders:
            await holder.execute("ROLLBACK")
        answers = await asyncio.gather(*self.asking.values(), return_exceptions=True)
        return {name for name, answer in zip(self.asking, answers, strict=True) if isinstance(answer, ENDED)}


ROLES = """
CREATE ROLE {0}_reader LOGIN PASSWORD '{1}'; GRANT USAGE ON SCHEMA tickwright TO {0}_reader;
CREATE ROLE {0}_locker LOGIN PASSWORD '{1}'; GRANT USAGE ON SCHEMA tickwright TO {0}_locker;
GRANT DELETE ON tickwright.outbox TO {0}_locker;
CREATE ROLE {0}_triggers LOGIN PASSWORD '{1}'; GRANT USAGE ON SCHEMA tickwright TO {0}_triggers;
GRANT TRIGGER ON tickwright.outbox TO {0}_triggers;
CREATE ROLE {0}_refers LOGIN PASSWORD '{1}'; GRANT USAGE ON SCHEMA tickwright TO {0}_refers;
GRANT REFERENCES (name) ON tickwright.workers TO {0}_refers;
CREATE ROLE {0}_member LOGIN NOINHERIT PASSWORD '{1}'; GRANT {2} TO {0}_member
"""
NAMES = ("reader", "locker", "triggers", "refers", "member")


@pytest.fixture
async def crowd(app_role: AppRole, other: asyncpg.Connection) -> AsyncIterator[Crowd]:
    """A reader that may not have the lock that it waits for, and others that may."""
    name = f"crowd_{app_role.name}"
    await other.execute(f"CREATE ROLE {name}_owner")
    await other.execute(f"GRANT ALL ON SCHEMA tickwright TO {name}_owner")
    await other.execute(f"ALTER TABLE tickwright.audit OWNER TO {name}_owner")
    await other.execute(ROLES.format(name, PASSWORD, f"{name}_owner"))
    asks = {
        "reader": (RULE.format("tickwright.workers"),),
        "locker": ("DO 'BEGIN LOCK TABLE tickwright.outbox; END'",),
        "triggers": (TRIGGER.replace("TRIGGER a", "TRIGGER b"),),
        "refers": ("CREATE TEMP TABLE t (a text REFERENCES tickwright.workers (name))",),
        "member": (f"SET ROLE {name}_owner", "ALTER TABLE tickwright.audit ADD COLUMN a integer"),
        "owner": ("ALTER TABLE tickwright.workers ADD COLUMN a integer",),
        "writer": (JOB,),
    }
    holders, askers, asking = [], [], {}
    for table in ("workers", "outbox", "audit"):
        holder = await asyncpg.connect(app_role.url)
        await holder.execute(f"BEGIN; PREPARE p AS DELETE FROM tickwright.{table}")
        holders.append(holder)
    blocker = await asyncpg.connect(app_role.owner_url)
    await blocker.execute("BEGIN; LOCK TABLE tickwright.scheduled_tasks IN SHARE MODE")
    holders.append(blocker)
    for who, statements in asks.items():
        url = app_role.owner_url if who == "owner" else app_role.url
        if who in NAMES:
            url = replace(app_role, name=f"{name}_{who}").url
        asker = await asyncpg.connect(url)
        askers.append(asker)
        asking[who] = asyncio.create_task(_ask(asker, statements))
        await eventually_async(partial(_waits, other, asker.get_server_pid()), what=f"{who} waits")
    yield Crowd(asking, holders)
    for connection in (*holders, *askers):
        connection.terminate()
    await asyncio.gather(*asking.values(), return_exceptions=True)
    await other.execute(f"ALTER TABLE tickwright.audit OWNER TO {urlsplit(app_role.owner_url).username}")
    await asyncio.to_thread(drop, app_role.owner_url, *(f"{name}_{who}" for who in NAMES), f"{name}_owner")


async def test_only_a_session_that_can_never_have_the_lock_is_ended(crowd: Crowd, pool: Pool) -> None:
    """An owner, a migration, a role with a right that such a lock belongs to, and a writer that waits go on."""
    await TableLocks(pool).search()
    assert await crowd.ended({"reader"}) == {"reader"}


MUTANTS = {
    "members of the owner are ended": ("pg_has_role(a.usesysid, c.relowner, 'MEMBER')", "false", {"reader", "member"}),
    "rights do not count": (
        "has_table_privilege(a.usesysid, coalesce(i.indrelid, c.oid), r.rights)",
        "false",
        {"reader", "locker", "triggers"},
    ),
    "rights on columns do not count": (
        "has_any_column_privilege(a.usesysid, coalesce(i.indrelid, c.oid), 'REFERENCES')",
        "false",
        {"reader", "refers"},
    ),
    "writers are ended": ("'AccessExclusiveLock')", "'AccessExclusiveLock', 'RowExclusiveLock')", {"reader", "writer"}),
    "no session is found": ("k.waits", "false", set()),
}


@pytest.mark.parametrize("mutant", MUTANTS)
async def test_each_condition_is_needed(crowd: Crowd, pool: Pool, mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it others are ended, or none is."""
    guard, instead, expected = MUTANTS[mutant]
    text = module._SQL["end_table_locks"]
    assert text.count(guard) == 1
    monkeypatch.setattr(module, "_SQL", {**module._SQL, "end_table_locks": text.replace(guard, instead)})
    await TableLocks(pool).search()
    assert await crowd.ended(expected) == expected


async def test_locks_are_searched_only_after_a_statement_was_held_up(
    other: asyncpg.Connection, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock timeout is noted and leads to one search; the mutant that notes nothing never searches."""
    monkeypatch.setattr(HeldUp, "seen_s", float("-inf"))
    locks = TableLocks(pool)
    await pool.execute("SELECT")
    assert not locks.is_due()
    await _held_up(other, pool)
    assert locks.is_due()
    await locks.search()
    assert not locks.is_due()
    monkeypatch.setattr(HeldUp, "seen_s", float("-inf"))
    mutate(monkeypatch, pools._run_statement, "HeldUp.seen_s = monotonic()", "pass")
    await _held_up(other, pool)
    assert not TableLocks(pool).is_due()


async def _held_up(other: asyncpg.Connection, pool: Pool) -> None:
    async with other.transaction():
        await other.execute("LOCK TABLE tickwright.workers")
        with pytest.raises(asyncpg.LockNotAvailableError):
            await pool.execute("SET lock_timeout = 500; SELECT FROM tickwright.workers")


@dataclass(frozen=True)
class Plain:
    """An installation whose processes are no superuser."""

    url: str
    owner: str
    app: AppRole
    super_url: str


@pytest.fixture
def plain(pg_server: PostgresServer, empty_database_url: str) -> Iterator[Plain]:
    """A migrated database whose owner is a role like others."""
    database = urlsplit(empty_database_url).path[1:]
    owner = AppRole(f"owner_{database}", empty_database_url)
    app = AppRole(f"app_{database}", empty_database_url)
    with psycopg.connect(empty_database_url, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {owner.name} LOGIN PASSWORD '{PASSWORD}'")
        connection.execute(f"ALTER DATABASE {database} OWNER TO {owner.name}")
    migrate(owner.url)

    async def create() -> None:
        connection = await asyncpg.connect(empty_database_url)
        await create_app_role(connection, app.name, login=True, password=PASSWORD)
        await connection.close()

    asyncio.run(create())
    yield Plain(owner.url, owner.name, app, empty_database_url)
    with psycopg.connect(empty_database_url, autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {database} OWNER TO postgres")
    drop(empty_database_url, app.name, owner.name)


def test_the_doctor_says_of_which_roles_no_session_can_be_ended(plain: Plain) -> None:
    """Before it matters, with the statement that changes it."""

    def found() -> list[tuple[str, str]]:
        findings = tickwright("doctor", "--json", env=environment(DATABASE_URL=plain.url)).json["findings"]
        return [(one["verdict"], one["remedy"]) for one in findings if one["check"] == "table locks"]

    granted = f"GRANT {plain.app.name} TO {plain.owner}"
    [(verdict, remedy)] = found()
    assert verdict == "warn"
    assert remedy.startswith(f"{granted};")
    with psycopg.connect(plain.super_url, autocommit=True) as connection:
        connection.execute(granted)
    assert found() == []


@pytest.mark.storm
async def test_a_session_that_cannot_be_ended_is_named_with_the_remedy_until_it_can(
    plain: Plain, tmp_path: Path
) -> None:
    """``/readyz`` has pid, role and remedy; once the role is granted to the processes, the next search ends it."""
    settings = settings_of(plain.url, tmp_path, "")
    with capture_logs() as lines:
        async with running(settings, Declarations(), "scheduler") as node:
            await eventually_async(lambda: node.health.port is not None, 30, what="the probes are served")
            at = f"http://127.0.0.1:{node.health.port}/readyz"
            await eventually_async(lambda: _says(at, "ok"), 30, what="the process is ready")
            async with under(ATTACKS["workers"], plain.app.url) as (_, asking, pid):
                named = f"pg_terminate_backend({pid}); ALTER ROLE {plain.app.name} NOLOGIN"
                await eventually_async(lambda: _says(at, named), PATIENCE_S, what="it is named")
                assert not asking.done()
                async with _superuser(plain) as superuser:
                    await superuser.execute(f"GRANT {plain.app.name} TO {plain.owner}")
                await eventually_async(lambda: _over(asking), PATIENCE_S, what="it is ended")
                assert isinstance(asking.exception(), ENDED), asking.exception()
                await eventually_async(lambda: _says(at, "ok"), PATIENCE_S, what="it is named no more")
    said = [(line["pid"], line["ended"]) for line in lines if line["event"] == "database.table_lock"]
    assert said == [(pid, False), (pid, True)]


@asynccontextmanager
async def _superuser(plain: Plain) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(plain.super_url)
    yield connection
    await connection.close()


async def _says(at: str, what: str) -> bool:
    async with aiohttp.ClientSession() as client, client.get(at) as answer:
        return what in (await answer.json())["database"]


async def test_a_pool_of_a_role_that_may_signal_ends_them(plain: Plain) -> None:
    """``pg_signal_backend`` is enough, without any right of the role for plain SQL."""
    async with _superuser(plain) as superuser:
        await superuser.execute(f"GRANT pg_signal_backend TO {plain.owner}")
    pool = await open_pool(plain.url, max_size=1)
    async with under(ATTACKS["workers"], plain.app.url) as (_, asking, _pid):
        await TableLocks(pool).search()
        await eventually_async(lambda: _over(asking), what="it is ended")
    pool.terminate()
