"""The role of `tickwright roles create app`: every documented statement works for it, and no attack does."""

import asyncio
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from urllib.parse import urlsplit

import asyncpg
import psycopg
import pytest

from kit.api import ADMIN, running_api
from kit.cli import environment, tickwright
from kit.engine import running_engine
from kit.fix_app_roles import PASSWORD, AppRole, drop
from kit.migrations import upgrade_to
from kit.redis_fanout import open_session
from kit.servers import PgBouncer, PostgresServer
from tickwright import cli
from tickwright.capabilities.fanout.consumer.run_claims import LedgerRunClaims
from tickwright.capabilities.jobs.model import Job
from tickwright.capabilities.polling import partners as partner_rows
from tickwright.capabilities.polling.consumer.result_writer import GroupAnswers, WrittenResults, write_results
from tickwright.capabilities.polling.partners import Partners
from tickwright.capabilities.polling.wheels import loops as wheels_store
from tickwright.domain.errors import Rejected
from tickwright.engine.outbox.table import reserve_prefixes
from tickwright.ports.fanout import Run, RunStart
from tickwright.store.app_roles import create_app_role, excess_rights
from tickwright.store.migrate import migrate
from tickwright.store.pool import Pool
from tickwright.store.queries import load

PACKAGE = Path(cli.__file__).parents[1]
DENIED = asyncpg.InsufficientPrivilegeError
JOB = (
    "INSERT INTO tickwright.scheduled_tasks (execute_at, task_type, payload) "
    "VALUES (now() + interval '1 hour', 't', '{}')"
)
OUTBOX = "INSERT INTO tickwright.outbox (destination, key, payload) VALUES ($1, 'k', '{}')"


TRACKER = (
    "INSERT INTO tickwright.shipment_polling_tracker (account_id, partner, external_id) "
    "VALUES ('a', 'dhl', $1) RETURNING id"
)


@pytest.fixture
async def app(app_role: AppRole) -> AsyncIterator[asyncpg.Connection]:
    """A connection of the role."""
    connection = await asyncpg.connect(app_role.url)
    yield connection
    connection.terminate()


DELETED = (
    "SELECT ARRAY[(SELECT count(*) FROM tickwright.shipment_polling_tracker), "
    "(SELECT count(*) FROM tickwright.entities)]"
)


async def use(connection: asyncpg.Connection) -> None:
    """Carry out each documented statement."""
    job = await connection.fetchval(f"{JOB} RETURNING id")
    keyed = (
        "INSERT INTO tickwright.scheduled_tasks (execute_at, task_type, payload, priority, max_attempts, timeout_ms, "
        "expires_at, idempotency_key) "
        "VALUES (now() + interval '1 hour', 't', '{}', 1, 2, 100, now() + interval '1 day', 'k') "
        "ON CONFLICT DO NOTHING"
    )
    assert [await connection.execute(keyed) for _ in range(2)] == ["INSERT 0 1", "INSERT 0 0"]
    moved = "UPDATE tickwright.scheduled_tasks SET execute_at = now() + interval '5 minutes' WHERE id = $1"
    assert await connection.execute(moved, job) == "UPDATE 1"
    tagged = (
        "INSERT INTO tickwright.scheduled_tasks (execute_at, task_type, tags, metadata) "
        "VALUES (now() + interval '1 hour', 't', '{eu}', '{\"tenant\": 1}') RETURNING id"
    )
    edited = (
        "UPDATE tickwright.scheduled_tasks SET payload = '1', priority = 2, tags = '{a}', metadata = NULL WHERE id = $1"
    )
    assert await connection.execute(edited, await connection.fetchval(tagged)) == "UPDATE 1"
    await connection.execute("UPDATE tickwright.scheduled_tasks SET status = 'cancelled'")
    assert {row["status"] for row in await connection.fetch("TABLE tickwright.scheduled_tasks")} == {"cancelled"}
    assert await connection.execute(keyed) == "INSERT 0 0", "a key outlives its job"
    assert await connection.fetchval(f"{OUTBOX} RETURNING id", "pg:orders") > 0
    assert await connection.fetchval(TRACKER, "X") > 0
    for statement in (
        "UPDATE tickwright.shipment_polling_tracker SET status = 'Delivered' WHERE external_id = 'X'",
        "SELECT tickwright.delete_tracker(id) FROM tickwright.shipment_polling_tracker WHERE external_id = 'X'",
        "INSERT INTO tickwright.entities (code, party, polling_enabled_modules) VALUES ('A', '{}', 'LOCATIONS')",
        "UPDATE tickwright.entities SET is_polling_enabled = false, partner = NULL WHERE code = 'A'",
        "SELECT tickwright.delete_entity(code) FROM tickwright.entities WHERE code = 'A'",
    ):
        assert (await connection.execute(statement)).endswith(" 1"), statement
    unique = "SELECT outcome FROM tickwright.schedule_unique('t', '{}', '{\"by\": [], \"on_conflict\": [\"payload\"]}')"
    assert [await connection.fetchval(unique) for _ in range(2)] == ["inserted", "replaced"]
    assert await connection.fetchval(DELETED) == [0, 0]
    assert await connection.fetchval("SELECT tickwright.delete_entity('A') OR tickwright.delete_tracker(1)") is False
    for relation in ("shipment_polling_tracker", "entities", "modules", "fanout_cursors", "scheduled_tasks_dead"):
        await connection.fetch(f"TABLE tickwright.{relation}")
    await connection.fetch("SELECT name, paused_at FROM tickwright.task_types")


async def test_every_documented_statement_works(app: asyncpg.Connection) -> None:
    """Alone, in a transaction, and by COPY; the first one of a day makes the day's table."""
    await app.execute("SET statement_timeout = '60s'")
    await use(app)
    columns = ("execute_at", "task_type", "payload")
    row = await app.fetchrow("SELECT now() AS execute_at, 'c'::text AS task_type, '{}'::text AS payload")
    copied = await app.copy_records_to_table(
        "scheduled_tasks", schema_name="tickwright", columns=columns, records=[tuple(row)] * 3
    )
    assert copied == "COPY 3"
    transaction = app.transaction()
    await transaction.start()
    await app.execute(JOB)
    await transaction.rollback()
    assert await app.fetchval("SELECT count(*) FROM tickwright.scheduled_tasks WHERE status = 'pending'") == 4


async def test_a_day_without_a_table_can_be_cancelled_in(app: asyncpg.Connection, other: asyncpg.Connection) -> None:
    """The trigger makes it with the owner's rights."""
    day = await other.fetchval("SELECT tickwright.history_table(clock_timestamp())")
    await other.execute(f"DROP TABLE tickwright.{day}")
    await app.execute(JOB)
    assert await app.execute("UPDATE tickwright.scheduled_tasks SET status = 'cancelled'") == "UPDATE 1"


async def test_every_documented_statement_works_through_a_pooler(app_role: AppRole, pgbouncer: PgBouncer) -> None:
    """In transaction mode, where one connection is another one with each statement."""
    pgbouncer.add_user(app_role.name, PASSWORD)
    url = app_role.at(pgbouncer.database_url(urlsplit(app_role.owner_url).path[1:]))
    connection = await asyncpg.connect(url, statement_cache_size=0)
    await use(connection)
    await connection.close()


ATTACKS = load("kit", "app_role_attacks.sql")
WORKER = (
    "INSERT INTO tickwright.workers (id, name, roles, version, lease_until) "
    "VALUES (7, 'w', '{worker}', '1', now() + interval '1 hour')"
)
CLAIM = (
    "UPDATE tickwright.scheduled_tasks SET status = 'processing', owner = 7, fence = 1, attempts = 1 "
    "WHERE task_type = 'held'"
)
JOBS = "SELECT id, status, owner, fence FROM tickwright.scheduled_tasks ORDER BY id"


@pytest.fixture
async def rows(app: asyncpg.Connection, other: asyncpg.Connection) -> asyncpg.Connection:
    """The owner's connection, and what attacks aim at: jobs that wait and run, a type, a later release's table."""
    await other.execute("CREATE TABLE tickwright.later (a integer)")
    await reserve_prefixes(other, ["acme"])
    await other.execute("INSERT INTO tickwright.task_types (name, target) VALUES ('t', 'pg:t')")
    await app.execute(JOB)
    await app.execute(JOB.replace("'t'", "'held'"))
    await other.execute(WORKER)
    await other.execute(CLAIM)
    return other


async def test_a_role_edits_no_job_that_a_worker_holds(app: asyncpg.Connection, rows: asyncpg.Connection) -> None:
    """Its worker has read it already."""
    with pytest.raises(asyncpg.CheckViolationError, match="cannot be edited"):
        await app.execute("UPDATE tickwright.scheduled_tasks SET payload = '[1]' WHERE task_type = 'held'")
    assert await rows.fetchval("SELECT edits FROM tickwright.scheduled_tasks WHERE task_type = 'held'") is None


async def try_attack(app: asyncpg.Connection, name: str) -> str | None:
    """Return the SQLSTATE of the refusal; ``None`` when there was none."""
    try:
        await app.execute(ATTACKS[name])
    except asyncpg.PostgresError as error:
        return str(error.sqlstate)
    return None


async def test_no_attack_does_anything(app: asyncpg.Connection, app_role: AppRole, rows: asyncpg.Connection) -> None:
    """Each is refused for lack of a right, also after a migration; afterwards all rows are as they were."""
    await asyncio.to_thread(migrate, app_role.owner_url)
    before = await rows.fetch(JOBS)
    refused = {name: await try_attack(app, name) for name in ATTACKS}
    assert {name: state for name, state in refused.items() if state != "42501"} == {}
    assert await rows.fetch(JOBS) == before
    assert await rows.fetchval("SELECT count(*) FROM tickwright.outbox") == 0


MUTANTS = {
    "every role is ours": (
        "CREATE OR REPLACE FUNCTION tickwright.is_ours() RETURNS boolean LANGUAGE sql STABLE RETURN true",
        {
            "forge_an_alert", "forge_an_alert_in_a_list", "forge_an_entitys_task", "forge_an_entitys_task_in_its_queue",
            "forge_an_entitys_task_inside_postgresql", "forge_an_announcement_of_a_report", "forge_a_poll",
            "forge_a_trackers_event", "forge_a_message_of_a_configured_prefix", "strand_a_job", "release_a_running_job",
            "complete_a_job", "fail_a_job",
        },
    ),
    "prefixes of our own do not count": (
        "DELETE FROM tickwright.reserved_prefixes WHERE prefix = 'acme'",
        {"forge_a_message_of_a_configured_prefix"},
    ),
    "statuses are not asked about": (
        "DROP TRIGGER scheduled_tasks_allowed ON tickwright.scheduled_tasks",
        {"complete_a_job", "strand_a_job", "release_a_running_job"},
    ),
    "functions of triggers are everybody's": (
        "GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA tickwright TO PUBLIC",
        {"use_a_registering_trigger", "use_a_finishing_trigger", "use_a_trigger_of_keys"},
    ),
    "rows are deleted directly": (
        "GRANT DELETE ON tickwright.shipment_polling_tracker, tickwright.entities TO {role}",
        {
            "delete_a_tracker_without_its_function", "delete_an_entity_without_its_function",
            "lock_everything_behind_trackers", "lock_all_entities",
        },
    ),
    "rights on whole tables": (
        "GRANT INSERT ON tickwright.outbox, tickwright.scheduled_tasks, tickwright.shipment_polling_tracker TO {role}",
        {"delay_or_rank_a_message", "number_a_message", "give_a_jobs_id"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS)
async def test_the_suite_notices_a_missing_guard(
    app: asyncpg.Connection, app_role: AppRole, rows: asyncpg.Connection, mutant: str
) -> None:
    """Attacks that it refuses succeed, each tried by itself."""
    statement, expected = MUTANTS[mutant]
    await rows.execute(statement.format(role=app_role.name))
    for name in sorted(expected):
        transaction = app.transaction()
        await transaction.start()
        assert await try_attack(app, name) is None, name
        await transaction.rollback()


async def test_a_search_path_of_its_own_changes_no_decision(app: asyncpg.Connection, other: asyncpg.Connection) -> None:
    """An operator that the role defines is not used by the checks of its rows."""
    name = await app.fetchval("SELECT current_user")
    await other.execute(f"CREATE SCHEMA evil AUTHORIZATION {name}")
    await app.execute("CREATE FUNCTION evil.no(text, text) RETURNS boolean LANGUAGE sql RETURN false")
    for operator in ("=", "~", "~~"):
        await app.execute(f"CREATE OPERATOR evil.{operator} (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.no)")
    await app.execute("SET search_path = evil, pg_catalog")
    with pytest.raises(DENIED, match="destination_reserved"):
        await app.execute(OUTBOX, "alert:oncall")
    await app.execute("INSERT INTO tickwright.entities (code) VALUES ('A')")


async def test_a_destination_that_no_relay_carries_is_refused(app: asyncpg.Connection) -> None:
    """Its row would stay for ever, and be read with all the others."""
    for destination in ("carrier-pigeon:home", "example.com/hook", "HTTPS://example.com", "alerts:x"):
        with pytest.raises(asyncpg.CheckViolationError, match="destination_unknown") as refused:
            await app.execute(OUTBOX, destination)
        assert "https://" in (refused.value.hint or "")
    for destination in (
        "pg:mine",
        "kafka:mine",
        "amqp:mine/key",
        "https://example.com/",
        "wss://example.com/",
        "ws:mine",
    ):
        await app.execute(OUTBOX, destination)


async def test_running_jobs_are_asked_to_stop_and_no_more(app: asyncpg.Connection, other: asyncpg.Connection) -> None:
    """A cancellation by the role leaves the job with its worker."""
    await app.execute(JOB.replace("'t'", "'held'"))
    await other.execute(WORKER)
    await other.execute(CLAIM)
    await app.execute("UPDATE tickwright.scheduled_tasks SET status = 'cancelled'")
    row = await other.fetchrow("SELECT status, owner, cancel_requested_at FROM tickwright.scheduled_tasks")
    assert (row["status"], row["owner"]) == ("processing", 7)
    assert row["cancel_requested_at"] is not None


async def test_advisory_locks_of_any_user_stop_nothing(app: asyncpg.Connection, database_url: str) -> None:
    """Every user may hold them: jobs still run, a day gets its table, an interval gets its wheel."""

    async def handler(_job: Job) -> None:
        pass

    for number in (1, 2, 3, 10):
        await app.execute("SELECT pg_advisory_lock_shared(7313, $1)", number)
    async with running_engine(database_url, {"tick": handler}) as engine:
        await engine.until(await engine.insert("tick"), "completed")
        async with engine.pool.acquire() as connection, connection.transaction():
            await connection.execute("SET LOCAL statement_timeout = '20s'")
            await connection.execute("SELECT tickwright.ensure_history(now() + interval '9 days')")
            await connection.execute(TRACKER, "X")
            assert await wheels_store.add_missing_wheels(connection) == 1


async def test_advisory_locks_of_any_user_stop_neither_runs_nor_polls(app: asyncpg.Connection, pool: Pool) -> None:
    """Entities are begun and effects are written while the role holds what earlier releases waited for."""
    due_at = datetime(2030, 1, 1, tzinfo=UTC)
    await app.execute("SELECT pg_advisory_lock(7315, hashtext('A'))")
    await app.execute(
        "SELECT pg_advisory_lock(7314, hashtext(concat_ws('/', 1, date_part('epoch', $1::timestamptz)::bigint, 2)))",
        due_at,
    )
    begun = await LedgerRunClaims(pool).begin([Run("A", "CDRS", 1_700_000_000, 1)], await open_session(pool))
    assert [one.start for one in begun] == [RunStart.BEGUN]
    async with pool.acquire() as connection, connection.transaction():
        assert await write_results(connection, {(1, due_at, 2): GroupAnswers(60)}, "pg:x") == WrittenResults()


async def check_an_entity_that_is_being_added_keeps_no_partner(app: asyncpg.Connection, pool: Pool) -> None:
    """Operators pause, change, enable and reset its partner meanwhile."""
    partners = Partners(pool)
    await partners.put("dhl", {}, caller=ADMIN)
    async with app.transaction():
        await app.execute("INSERT INTO tickwright.entities (code, partner) VALUES ('A', 'dhl')")
        for action in ("pause", "enable", "reset"):
            await partners.switch("dhl", action, caller=ADMIN)
        await partners.change("dhl", {"rate": "1/s"}, caller=ADMIN)


async def test_an_entity_that_is_being_added_keeps_no_operator_from_changing_its_partner(
    app: asyncpg.Connection, pool: Pool
) -> None:
    """Its foreign key locks the partner's row for as long as the role likes."""
    await check_an_entity_that_is_being_added_keeps_no_partner(app, pool)


async def test_the_suite_notices_a_change_of_a_partner_that_waits_for_foreign_keys(
    app: asyncpg.Connection, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mutant of the cure: the stronger lock waits until the role's transaction ends, or for lock_timeout."""
    mutated = partner_rows._SQL["lock_partner"].replace("FOR NO KEY UPDATE", "FOR UPDATE")
    monkeypatch.setattr(partner_rows, "_SQL", MappingProxyType({**partner_rows._SQL, "lock_partner": mutated}))
    with pytest.raises(asyncpg.LockNotAvailableError):
        await check_an_entity_that_is_being_added_keeps_no_partner(app, pool)


WAITS = {
    "embedded/sql/one_at_a_time.sql": ["pg_advisory_lock(20058, 1)"],  # of an embedded server's start, by itself
    "store/migrate.py": ["pg_advisory_lock({_MIGRATION_LOCK})"],  # two seconds, then migration_locked
    "register_tracker": ["pg_advisory_lock(7313, 11)"],  # of an id that is given, for lock_timeout
    "testing/sql/databases.sql": ["pg_advisory_lock(hashtext('tickwright_template')"],  # of fixtures
}


async def test_what_waits_for_an_advisory_lock_is_a_closed_list(other: asyncpg.Connection) -> None:
    """Any user of the database may hold one, so no loop may wait for one; what only tries goes on without."""
    texts = {
        str(path.relative_to(PACKAGE)): path.read_text()
        for path in PACKAGE.rglob("*.[ps][yq]*")
        if path.suffix in {".py", ".sql"} and not {"versions", "bench"} & set(path.parts)
    }
    functions = await other.fetch(
        "SELECT proname, pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'tickwright'::regnamespace"
    )
    found = {
        name: re.findall(r"pg_advisory_(?:xact_)?lock\w*\([^)]*\)", text) for name, text in [*texts.items(), *functions]
    }
    assert {name: locks for name, locks in found.items() if locks} == WAITS


DEFINERS = """
SELECT p.proname::text FROM pg_proc p
 WHERE p.pronamespace = 'tickwright'::regnamespace AND p.prosecdef
   AND has_function_privilege($1, p.oid, 'EXECUTE') ORDER BY 1"""
SEQUENCES = "SELECT sequencename, last_value FROM pg_sequences WHERE schemaname = 'tickwright' ORDER BY 1"
ENTER = """
DO $$ BEGIN FOR i IN 1..3 LOOP
  BEGIN PERFORM tickwright.enter_timeline(); RAISE EXCEPTION 'x'; EXCEPTION WHEN raise_exception THEN NULL; END;
END LOOP; END $$"""


async def test_functions_with_the_rights_of_the_owner_are_a_closed_list(
    app_role: AppRole, other: asyncpg.Connection
) -> None:
    """Those that the role may execute: two insert jobs, two delete a row, and five read or refuse."""
    found = [name for (name,) in await other.fetch(DEFINERS, app_role.name)]
    writing = ["add_workflow", "delete_entity", "delete_tracker"]
    reading = ["enter_timeline", "fence_floor", "is_internal", "payload_fits_type"]
    assert found == [*writing, *reading, "schedule_unique", "timeline_is_known"]


async def test_a_role_for_plain_sql_moves_no_sequence_after_a_change_of_the_timeline(
    app: asyncpg.Connection, other: asyncpg.Connection
) -> None:
    """Neither rolled back nor kept; the change is left to the next process, which notices it."""
    await other.execute("UPDATE tickwright.timelines SET timeline = '00000077'")
    before = await other.fetch(SEQUENCES)
    await app.execute(ENTER)
    assert await app.fetchval("SELECT tickwright.enter_timeline()") is None
    assert await other.fetch(SEQUENCES) == before
    assert await other.fetchval("SELECT tickwright.enter_timeline() IS NOT NULL")


async def test_a_process_whose_role_owns_nothing_enters_a_timeline(other: asyncpg.Connection) -> None:
    """It has all rights on the tables, unlike a role for plain SQL."""
    await other.execute("CREATE ROLE process_of_another_owner")
    try:
        await other.execute("GRANT USAGE ON SCHEMA tickwright TO process_of_another_owner")
        await other.execute("GRANT ALL ON ALL TABLES IN SCHEMA tickwright TO process_of_another_owner")
        await other.execute("UPDATE tickwright.timelines SET timeline = '00000077'")
        await other.execute("SET SESSION AUTHORIZATION process_of_another_owner")
        assert await other.fetchval("SELECT tickwright.enter_timeline() IS NOT NULL")
    finally:
        await other.execute("RESET SESSION AUTHORIZATION")
        await other.execute("DROP OWNED BY process_of_another_owner; DROP ROLE process_of_another_owner")


INSTANTS = ("infinity", "-infinity", "294276-01-01", "9999-01-01Z", "1969-12-31 23:59Z", "4713-01-01 BC")
NEW_TRACKER = (
    "INSERT INTO tickwright.shipment_polling_tracker (account_id, partner, external_id, {}) "
    "VALUES ('a', 'dhl', 'Y', '{}')"
)
WITH_END = "INSERT INTO tickwright.scheduled_tasks (execute_at, task_type, expires_at) VALUES (now(), 't', '{}')"


@pytest.mark.parametrize("instant", INSTANTS)
async def test_no_instant_can_be_written_that_cannot_be_shown(app: asyncpg.Connection, instant: str) -> None:
    """From 1970 to 9998, in every column of the role; each refusal says so."""
    await app.execute(TRACKER, "X")
    given = ("created_at", "tracking_until", "last_polled_at")
    for statement in (
        *(NEW_TRACKER.format(column, instant) for column in given),
        f"UPDATE tickwright.shipment_polling_tracker SET tracking_until = '{instant}' WHERE external_id = 'X'",
        WITH_END.format(instant),
        f"{JOB.replace('now() + interval ', '').replace('1 hour', instant)}",
    ):
        with pytest.raises(asyncpg.CheckViolationError, match="between 1970 and 9998"):
            await app.execute(statement)
    with pytest.raises(asyncpg.CheckViolationError, match="tracking_until: between 1970 and 9998"):
        await app.execute(NEW_TRACKER.format("created_at", "9998-12-31Z"))


async def test_what_earlier_releases_let_in_breaks_no_list(empty_database_url: str) -> None:
    """The migration changes trackers, live jobs and dead letters into what can be shown; finished jobs are shown so."""
    upgrade_to(empty_database_url, "0019")
    connection = await asyncpg.connect(empty_database_url)
    for status in ("pending", "failed", "cancelled"):
        await connection.execute(WITH_END.format("294276-01-01"))
        if status != "pending":
            await connection.execute(
                "UPDATE ONLY tickwright.scheduled_tasks SET status = $1 "
                "WHERE id = (SELECT max(id) FROM ONLY tickwright.scheduled_tasks)",
                status,
            )
    for column, instant in (
        ("created_at", "294276-01-01"),
        ("tracking_until", "infinity"),
        ("last_polled_at", "-infinity"),
    ):
        await connection.execute(NEW_TRACKER.replace("'Y'", f"'{column}'").format(column, instant))
    await asyncio.to_thread(migrate, empty_database_url)
    assert (
        await connection.fetchval(
            "SELECT count(*) FROM tickwright.scheduled_tasks_dead WHERE expires_at < '9999-01-01Z'"
        )
        == 1
    )
    await connection.close()
    async with running_api(empty_database_url) as api:
        jobs = (await api.admin.get("/v1/jobs")).json["items"]
        trackers = (await api.admin.get("/v1/trackers")).json["items"]
        for path in (
            *(f"/v1/jobs/{job['id']}" for job in jobs),
            *(f"/v1/trackers/{one['id']}/explain" for one in trackers),
        ):
            assert (await api.admin.get(path)).status == 200, path
    assert {job["expires_at"] for job in jobs} == {"9998-12-31T23:59:59.999999Z"}
    assert len(jobs) == len(trackers) == 3


async def test_rights_by_hand_end_with_the_next_migration(app_role: AppRole, other: asyncpg.Connection) -> None:
    """Also those on tables of later releases; what it needs comes back."""
    await other.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA tickwright TO {app_role.name}")
    await other.execute(f"GRANT ALL ON ALL SEQUENCES IN SCHEMA tickwright TO {app_role.name}")
    await other.execute(f"GRANT CREATE ON SCHEMA tickwright TO {app_role.name}")
    await other.execute(f"ALTER DEFAULT PRIVILEGES IN SCHEMA tickwright GRANT INSERT ON TABLES TO {app_role.name}")
    await other.execute(f"REVOKE INSERT ON tickwright.entities FROM {app_role.name}")
    await asyncio.to_thread(migrate, app_role.owner_url)
    await other.execute("CREATE TABLE tickwright.later (a integer)")
    assert await excess_rights(other) == []
    connection = await asyncpg.connect(app_role.url)
    await use(connection)
    with pytest.raises(DENIED):
        await connection.execute("INSERT INTO tickwright.later VALUES (1)")
    await connection.close()


async def test_the_grants_of_earlier_releases_cannot_forge_either_and_are_found(
    pg_server: PostgresServer, other: asyncpg.Connection
) -> None:
    """A role with a plain INSERT on the outbox is refused internal destinations; the check names its excess."""
    name = "shop_jobs_of_old"
    await other.execute(f"CREATE ROLE {name}")
    await other.execute(f"GRANT USAGE ON SCHEMA tickwright TO {name}")
    await other.execute(f"GRANT INSERT ON tickwright.outbox TO {name}")
    await other.execute(f"ALTER DEFAULT PRIVILEGES IN SCHEMA tickwright GRANT INSERT ON TABLES TO {name}")
    try:
        found = {(row["role"], row["privilege"], row["on"]) for row in await excess_rights(other)}
        assert found == {(name, "INSERT", "outbox"), (name, "INSERT", "tables of later releases")}
        await other.execute(f"SET ROLE {name}")
        with pytest.raises(DENIED, match="destination_reserved"):
            await other.execute(OUTBOX, "alert:oncall")
        await other.execute("RESET ROLE")
    finally:
        drop(pg_server.database_url(await other.fetchval("SELECT current_database()")), name)


async def test_roles_that_cannot_be_held_are_refused(other: asyncpg.Connection) -> None:
    """A superuser, the owner, and names that mean something else to PostgreSQL."""
    codes = {"postgres": "role_too_powerful", "public": "invalid_role", "pg_x": "invalid_role", 'a"b': "invalid_role"}
    for name, code in codes.items():
        with pytest.raises(Rejected) as refused:
            await create_app_role(other, name, login=False, password=None)
        assert refused.value.code == code


def test_the_command_makes_checks_and_prints(database_url: str, tmp_path: Path) -> None:
    """Twice is once; the printed statements make the same; the password is a verifier; the doctor looks, too."""
    env = environment(DATABASE_URL=database_url)
    names = [f"cli_{n}_{urlsplit(database_url).path[1:]}" for n in range(2)]
    secret = tmp_path / "password"
    secret.write_text(f"{PASSWORD}\n")
    made = ["roles", "create", "app", "--name", names[0], "--password-file", str(secret)]
    printed = tickwright("roles", "create", "app", "--name", names[1], "--login", "--sql", env=env)
    assert printed.code == 0, printed
    try:
        for _ in range(2):
            said = tickwright(*made, env=env)
            assert (said.code, said.out) == (0, f"role {names[0]}\n"), said
        with psycopg.connect(database_url, autocommit=True) as connection:
            connection.execute(printed.out)
            rights = (
                "SELECT relation, attribute, privilege FROM tickwright.granted_rights WHERE role = %s ORDER BY 1, 2, 3"
            )
            first, second = (connection.execute(rights, [name]).fetchall() for name in names)
            assert first
            assert first == second
        psycopg.connect(AppRole(names[0], database_url).url).close()
        assert tickwright("roles", "check", env=env).code == 0
        with psycopg.connect(database_url, autocommit=True) as connection:
            connection.execute(f"GRANT SELECT ON tickwright.api_keys TO {names[1]}")
        checked = tickwright("roles", "check", "--json", env=env)
        assert (checked.code, [row["on"] for row in checked.json["items"]]) == (1, ["api_keys"])
        findings = tickwright("doctor", "--json", env=env).json["findings"]
        assert [one["verdict"] for one in findings if one["check"] == "roles"] == ["warn"]
    finally:
        drop(database_url, *names)


def test_a_role_needs_the_schema_and_a_password_that_can_be_typed(empty_database_url: str, tmp_path: Path) -> None:
    """Said by code, before anything is made."""
    env = environment(DATABASE_URL=empty_database_url)
    assert tickwright("roles", "create", "app", "--json", env=env).error["code"] == "schema_behind"
    upgrade_to(empty_database_url, "0011")
    assert tickwright("roles", "check", "--json", env=env).error["code"] == "schema_behind"
    migrate(empty_database_url)
    secret = tmp_path / "password"
    secret.write_text("short\n")
    said = tickwright("roles", "create", "app", "--password-file", str(secret), "--json", env=env)
    assert (said.code, said.error["code"]) == (2, "invalid_password")


def test_a_role_has_its_rights_with_each_revision(empty_database_url: str) -> None:
    """In the same transaction: a migrator that is killed between two leaves no right of the release before."""
    upgrade_to(empty_database_url, "0020")
    role = f"app_{urlsplit(empty_database_url).path[1:]}"
    may = "SELECT has_table_privilege(%s, 'tickwright.shipment_polling_tracker', 'DELETE')"
    with psycopg.connect(empty_database_url, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role}")
        try:
            connection.execute("SELECT tickwright.grant_app_role(%s)", (role,))
            assert connection.execute(may, (role,)).fetchone() == (True,)
            upgrade_to(empty_database_url, "0021")
            assert connection.execute(may, (role,)).fetchone() == (False,)
        finally:
            connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
