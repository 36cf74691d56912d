"""A primary that dies under load, a standby that is promoted, and a URL that names both."""

import asyncio
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from kit.cli import environment, tickwright
from kit.forks import Child
from kit.ports import free_port
from kit.postgres import PostgresServer, Standby, make_synchronous
from kit.processes import kill_group, spawn, stopped
from kit.servers import started
from kit.waiting import eventually_async
from tickwright import Rejected, Tickwright, TickwrightError
from tickwright.engine.leases import Leases
from tickwright.store.migrate import migrate
from tickwright.store.pool import CONNECT_TIMEOUT_S, UNAVAILABLE, Pool, connect, open_pool

pytestmark = pytest.mark.storm

ROLES = ("worker", "scheduler", "relay", "fanout-consumer", "report-listener", "campaign-consumer", "poll-consumer")
PROGRAM = Path(__file__).parents[2] / "kit" / "failover_program.py"
_OPEN = "SELECT count(*) FROM ONLY tickwright.scheduled_tasks"
_NEXT_TOKEN = "SELECT nextval('tickwright.fence_seq')"
_ALERTED = "SELECT count(*) FROM tickwright.alerts WHERE rule = 'possible_data_loss' AND resolved_at IS NULL"
_LEASES = "SELECT job_name FROM tickwright.job_config WHERE running AND lease_until > clock_timestamp()"


class Pair:
    """A primary, its standby, and the URL that names both."""

    def __init__(self, primary: PostgresServer, standby: Standby) -> None:
        self.primary, self.standby = primary, standby
        hosts = f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
        self.url = f"postgresql://postgres:{primary.password}@{hosts}/shop?target_session_attrs=read-write"


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Two servers of the test's own."""
    with started(PostgresServer()) as primary:
        primary.create_database("shop")
        with started(Standby(primary)) as standby:
            make_synchronous(primary, standby)
            yield Pair(primary, standby)


@pytest.fixture
def lagging() -> Iterator[Pair]:
    """The same, whose standby is asynchronous."""
    with started(PostgresServer()) as primary:
        primary.create_database("shop")
        with started(Standby(primary)) as standby:
            yield Pair(primary, standby)


# ---------------------------------------------------------------------- the URL


async def test_of_several_servers_the_one_that_takes_writes_is_used(pair: Pair) -> None:
    """Whichever comes first, with and without ``target_session_attrs``; the standby alone is refused."""
    both = f"127.0.0.1:{pair.standby.port},127.0.0.1:{pair.primary.port}"
    user = f"postgresql://postgres:{pair.primary.password}@"
    for url in (pair.url, f"{user}{both}/shop"):
        pool = await open_pool(url, max_size=1)
        assert await pool.fetchval("SELECT inet_server_port()") == pair.primary.port
        await pool.close()
    with pytest.raises(UNAVAILABLE):
        await connect(f"{user}127.0.0.1:{pair.standby.port},127.0.0.1:{pair.standby.port}/shop")


async def test_a_server_that_is_silent_leaves_time_for_the_next_one(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dead machine answers no connection at all: it costs its share of the timeout, once."""
    pair.standby.promote()
    shares: list[float] = []
    dial = asyncpg.connect

    async def noted(*args: Any, timeout: float, **more: Any) -> Any:
        shares.append(timeout)
        return await dial(*args, timeout=timeout, **more)

    monkeypatch.setattr(asyncpg, "connect", noted)
    with stopped(pair.primary.pid):
        connection = await connect(pair.url)
        assert await connection.fetchval("SELECT inet_server_port()") == pair.standby.port
        await connection.close()
    assert len(shares) == 2
    assert sum(shares) <= CONNECT_TIMEOUT_S


@pytest.mark.parametrize(
    "form",
    [
        "postgresql://{user}@/shop?host=127.0.0.1,127.0.0.1&port={standby},{primary}",
        "postgresql://{user}@127.0.0.1,127.0.0.1/shop?port={standby},{primary}&connect_timeout=3&keepalives_idle=5",
        "postgresql://{user}@127.0.0.1:{standby},localhost:{primary}/?dbname=shop&gssencmode=disable",
        "postgresql://{user}@/shop?host={folders}&port={standby},{primary}",
    ],
)
async def test_hosts_ports_and_settings_of_libpq_are_read_as_libpq_reads_them(pair: Pair, form: str) -> None:
    """By the engine's driver as by that of migrations; a standby that is named first is skipped."""
    folders = f"{pair.standby.folder},{pair.primary.folder}"
    ports = {"standby": pair.standby.port, "primary": pair.primary.port}
    url = form.format(user=f"postgres:{pair.primary.password}", folders=folders, **ports)
    migrate(url)
    connection = await connect(url)
    assert int(await connection.fetchval("SHOW port")) == pair.primary.port
    await connection.close()


def test_a_standby_as_the_only_server_is_named_with_what_to_do(pair: Pair) -> None:
    """An address that leads to a standby after a failover: one line for each command, and no traceback."""
    url = f"postgresql://postgres:{pair.primary.password}@127.0.0.1:{pair.standby.port}/shop"
    ports = {"API_BIND": f"127.0.0.1:{free_port()}", "METRICS_BIND": f"127.0.0.1:{free_port()}"}
    for words in (["migrate"], ["jobs", "list"], ["run", "worker", "api"]):
        said = tickwright(*words, env=environment(DATABASE_URL=url, **ports))
        assert said.code == 1
        assert "it is a standby, or read-only, and takes no writes" in " ".join(said.err.split())
        assert "Traceback" not in said.err


def test_every_command_takes_a_url_of_several_servers(pair: Pair) -> None:
    """Migrations, jobs and the doctor; a standby as the only server is refused before any statement."""
    env = environment(DATABASE_URL=pair.url)
    for words in (["migrate"], ["jobs", "list", "--json"], ["doctor", "--json"]):
        said = tickwright(*words, env=env)
        assert said.code == 0 or words[0] == "doctor", said.err
    checks = {finding["check"]: finding["verdict"] for finding in said.json["findings"]}
    assert (checks["database"], checks["schema"], checks["failover"], checks["notifications"]) == ("ok",) * 4
    wrong = environment(DATABASE_URL=pair.url.replace("read-write", "standby"))
    assert "asks for a standby" in tickwright("jobs", "list", env=wrong).err


# ---------------------------------------------------------------------- the failover


def _run(url: str, folder: Path, name: str) -> Child:
    env = {
        **environment(
            DATABASE_URL=url,
            HOME=str(folder),
            APP="failover_program:app",
            API_BIND=f"127.0.0.1:{free_port()}",
            METRICS_BIND=f"127.0.0.1:{free_port()}",
        ),
        "FAILOVER_LOG": str(folder / f"{name}.runs"),
        "PYTHONPATH": str(PROGRAM.parent),
    }
    return spawn([sys.executable, "-m", "tickwright", "run", *ROLES, "api"], folder / f"{name}.log", env)


def _runs(folder: Path, kind: str) -> list[list[str]]:
    lines = [line for log in folder.glob("*.runs") for line in log.read_text().splitlines()]
    return [line.split() for line in lines if line.startswith(kind)]


async def _keep_asking(app: Tickwright, acknowledged: set[int], published: list[int], over: asyncio.Event) -> None:
    """Schedule and publish, one after the other, and record what was acknowledged."""
    number = 0
    while not over.is_set():
        with suppress(TickwrightError, *UNAVAILABLE):
            acknowledged.add((await app.schedule("work", {})).id)
            await app.publish("pg:events", {"number": number})
            published.append(number)
        number += 1
        await asyncio.sleep(0.002)


async def test_a_promoted_synchronous_standby_has_every_acknowledged_job_and_every_role_goes_on(
    pair: Pair, tmp_path: Path
) -> None:
    """Kill -9 of the primary under load: nothing acknowledged is lost, and every attempt has a fence of its own."""
    assert tickwright("migrate", env=environment(DATABASE_URL=pair.url)).code == 0
    acknowledged: set[int] = set()
    published: list[int] = []
    over = asyncio.Event()
    processes = [_run(pair.url, tmp_path, str(number)) for number in range(2)]
    try:
        async with Tickwright(pair.url) as app:
            await eventually_async(lambda: _types(app), 60, what="a worker registers its type")
            await app.pool.execute(
                "INSERT INTO tickwright.entities (code, party, polling_enabled_modules) VALUES ('A', '{}', 'LOCATIONS')"
            )
            asking = asyncio.create_task(_keep_asking(app, acknowledged, published, over))
            await eventually_async(lambda: _ran(tmp_path, "job", 300), 60)
            await eventually_async(lambda: _ran(tmp_path, "entity", 2), 60)
            pair.primary.kill9()
            before = len(acknowledged), len(_runs(tmp_path, "entity"))
            pair.standby.promote()
            await eventually_async(lambda: _are_more(acknowledged, before[0] + 300), 60, what="jobs are taken again")
            await eventually_async(
                lambda: _ran(tmp_path, "entity", before[1] + 2), 90, what="entities are polled again"
            )
            over.set()
            await asking
            await eventually_async(lambda: _is_empty(app), 60, what="every job ends")
            await eventually_async(lambda: _arrived(app, set(published)), 60, what="every message is in its topic")
            report = await app.request_report("numbers")
            await eventually_async(lambda: _is_finished(app, report.id), 60, what="a report is made")
            wanted = {"selector", "registrar", "upkeep", "alerting", "campaign-producer", "campaign-checker"}
            await eventually_async(lambda: _are_held(app, wanted), 60, what="every loop has an owner")
            rows = await app.pool.fetch("SELECT id, status FROM tickwright.scheduled_tasks")
    finally:
        for process in processes:
            kill_group(process)
    assert acknowledged <= {row["id"] for row in rows}
    assert {row["status"] for row in rows} == {"completed"}
    assert len({row["id"] for row in rows}) == len(rows)
    fences = Counter((job_id, fence) for _, job_id, fence in _runs(tmp_path, "job"))
    assert set(fences.values()) == {1}, "one attempt, one fence, before and after"
    entity_fences = [int(fence) for _, fence in _runs(tmp_path, "entity")]
    assert len(set(entity_fences)) == len(entity_fences)


async def test_a_promoted_asynchronous_standby_gives_out_no_number_of_the_lost_timeline(
    lagging: Pair, tmp_path: Path
) -> None:
    """Ids and fences of lost commits are not given out again; an alert says what may be lost; every role goes on."""
    assert tickwright("migrate", env=environment(DATABASE_URL=lagging.url)).code == 0
    before: set[int] = set()
    after: set[int] = set()
    over = asyncio.Event()
    processes = [_run(lagging.url, tmp_path, str(number)) for number in range(2)]
    try:
        async with Tickwright(lagging.url) as app:
            await eventually_async(lambda: _types(app), 60, what="a worker registers its type")
            await app.pool.execute(
                "INSERT INTO tickwright.entities (code, party, polling_enabled_modules) VALUES ('A', '{}', 'LOCATIONS')"
            )
            asking = asyncio.create_task(_keep_asking(app, before, [], over))
            await eventually_async(lambda: _ran(tmp_path, "job", 200), 60)
            await eventually_async(lambda: _ran(tmp_path, "entity", 2), 60)
            lagging.standby.hold_back()
            lost_from = len(before)
            await eventually_async(lambda: _are_more(before, lost_from + 200), 60, what="jobs that the standby misses")
            await asyncio.gather(*(app.pool.fetchval(_NEXT_TOKEN) for _ in range(100)))
            token = await app.pool.fetchval("SELECT last_value FROM tickwright.fence_seq")
            versions = await _versions(app)
            over.set()
            await asking
            lagging.primary.kill9()
            runs = {tuple(words) for words in _runs(tmp_path, "job")}
            lagging.standby.promote()
            over.clear()
            asking = asyncio.create_task(_keep_asking(app, after, [], over))
            await eventually_async(lambda: _are_more(after, 200), 90, what="jobs are taken again")
            wanted = {"selector", "registrar", "upkeep", "alerting", "campaign-producer", "campaign-checker"}
            await eventually_async(lambda: _are_held(app, wanted), 120, what="every loop has an owner")
            over.set()
            await asking
            await eventually_async(lambda: _is_empty(app), 90, what="every job ends")
            report = await app.request_report("numbers")
            await eventually_async(lambda: _is_finished(app, report.id), 60, what="a report is made")
            await eventually_async(lambda: _is_alerted(app), 60, what="possible_data_loss fires")
            rows = await app.pool.fetch("SELECT id, status FROM tickwright.scheduled_tasks")
            ids = {row["id"] for row in rows}
            first = await app.pool.fetchval("SELECT min(id) FROM tickwright.workers WHERE lost_at IS NULL")
            now = await _versions(app)
    finally:
        for process in processes:
            kill_group(process)
    assert before - ids, "the standby missed nothing: the test proves nothing"
    assert not before & after
    assert after <= ids
    assert {row["status"] for row in rows} == {"completed"}
    fences = Counter(tuple(words) for words in _runs(tmp_path, "job"))
    assert set(fences.values()) == {1}, "no job has one fence twice, on whatever timeline"
    assert {job for _, job, _ in set(fences) - runs} >= {str(one) for one in after}
    assert first > token
    assert all(now[name] == version or now[name] > 10**9 for name, version in versions.items()), "kept, or beyond"


_MUTANTS = {
    "ids repeat": "CREATE OR REPLACE FUNCTION tickwright.move_sequences() RETURNS void LANGUAGE sql AS ''",
    "fences repeat": "CREATE OR REPLACE FUNCTION tickwright.fence_floor() RETURNS bigint LANGUAGE sql RETURN 0",
}


@pytest.mark.parametrize("mutant", [None, *_MUTANTS])
async def test_ids_tokens_and_lease_fences_of_lost_commits_are_not_given_out_again(
    lagging: Pair, mutant: str | None
) -> None:
    """Without the step of the sequences ids repeat, and without the floor fences do: the check notices each."""
    assert tickwright("migrate", env=environment(DATABASE_URL=lagging.url)).code == 0
    pool = await open_pool(lagging.url, max_size=2)
    if mutant is not None:
        await pool.execute(_MUTANTS[mutant])
    await _give_out(pool)
    await pool.execute(_FOLLOWED)
    await _until_replayed(lagging)
    lagging.standby.hold_back()
    lost = await _give_out(pool)
    lagging.primary.kill9()
    lagging.standby.promote()
    await pool.expire_connections()
    given = await _give_out(pool)
    repeated = {kind for kind, numbers in lost.items() if numbers & given[kind]}
    assert repeated == {None: set(), "ids repeat": {"job", "session", "message"}, "fences repeat": {"lease"}}[mutant]
    forks = [row["forked_lsn"] for row in await pool.fetch("SELECT forked_lsn FROM tickwright.timelines ORDER BY no")]
    assert len(forks) == 2
    assert forks[1] is not None
    assert await pool.fetchval("SELECT count(*) FROM tickwright.audit WHERE action = 'database.timeline_changed'") == 1
    await pool.close()


_FOLLOWED = "CREATE TABLE followed ()"
_MAKE = {
    "job": "INSERT INTO tickwright.scheduled_tasks (task_type, payload, execute_at) SELECT 'none', '{}', now() "
    "FROM generate_series(1, 100) RETURNING id",
    "message": "INSERT INTO tickwright.outbox (destination, payload) SELECT 'pg:none', '{}' "
    "FROM generate_series(1, 100) RETURNING id",
    "session": "SELECT nextval('tickwright.fence_seq') AS id FROM generate_series(1, 100)",
}


async def _give_out(pool: Pool) -> dict[str, set[int]]:
    """Return numbers of every kind, as processes get them."""
    given = {}
    for kind, statement in _MAKE.items():
        given[kind] = {row["id"] for row in await pool.fetch(statement)}
    lease = await Leases(pool, owner="test").take("tested")
    assert lease is not None
    await lease.release()
    given["lease"] = {lease.fence}
    return given


async def _until_replayed(pair: Pair) -> None:
    async def is_there() -> bool:
        connection = await asyncpg.connect(pair.standby.database_url("shop"))
        try:
            return bool(await connection.fetchval("SELECT to_regclass('followed') IS NOT NULL"))
        finally:
            await connection.close()

    await eventually_async(is_there, 30, what="the standby has what was committed so far")


async def _versions(app: Tickwright) -> dict[str, int]:
    rows = await app.pool.fetch("SELECT job_name, version FROM tickwright.job_config")
    return {row["job_name"]: row["version"] for row in rows}


async def _is_alerted(app: Tickwright) -> bool:
    return bool(await app.pool.fetchval(_ALERTED))


async def _types(app: Tickwright) -> bool:
    try:
        return bool(await app.pool.fetchval("SELECT count(*) FROM tickwright.task_types WHERE name = 'work'"))
    except Rejected:
        return False


async def _ran(folder: Path, kind: str, count: int) -> bool:
    return len(_runs(folder, kind)) >= count


async def _are_more(found: set[int], count: int) -> bool:
    return len(found) >= count


async def _is_empty(app: Tickwright) -> bool:
    return not await app.pool.fetchval(_OPEN)


async def _arrived(app: Tickwright, numbers: set[int]) -> bool:
    rows = await app.pool.fetch("SELECT payload FROM tickwright.messages WHERE topic = 'events'")
    return numbers <= {int(bytes(row["payload"]).split(b":")[1].strip(b" }")) for row in rows}


async def _is_finished(app: Tickwright, report_id: int) -> bool:
    return (await app.reports.records.get(report_id)).status == "finished"


async def _are_held(app: Tickwright, wanted: set[str]) -> bool:
    return wanted <= {row["job_name"] for row in await app.pool.fetch(_LEASES)}
