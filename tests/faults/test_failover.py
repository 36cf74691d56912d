"""A primary that dies under load, a standby that is promoted, and a URL that names both."""

import asyncio
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from subprocess import Popen

import pytest

from kit.cli import environment, tickwright
from kit.ports import free_port
from kit.postgres import PostgresServer, Standby, make_synchronous
from kit.processes import kill_group, spawn, stopped
from kit.servers import started
from kit.waiting import eventually_async
from tickwright import Rejected, Tickwright, TickwrightError
from tickwright.store.pool import AWAY, connect, open_pool

ROLES = ("worker", "scheduler", "relay", "fanout-consumer", "report-listener", "campaign-consumer", "poll-consumer")
PROGRAM = Path(__file__).parents[1] / "kit" / "failover_program.py"
_OPEN = "SELECT count(*) FROM ONLY tickwright.scheduled_tasks"
_LEASES = "SELECT job_name FROM tickwright.job_config WHERE running AND lease_until > clock_timestamp()"


class Pair:
    """A primary, its synchronous standby, and the URL that names both."""

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


# ---------------------------------------------------------------------- the URL


async def test_of_several_servers_the_one_that_takes_writes_is_asked(pair: Pair) -> None:
    """Whichever comes first, with and without ``target_session_attrs``; the standby alone is none that we work with."""
    both = f"127.0.0.1:{pair.standby.port},127.0.0.1:{pair.primary.port}"
    user = f"postgresql://postgres:{pair.primary.password}@"
    for url in (pair.url, f"{user}{both}/shop"):
        pool = await open_pool(url, max_size=1)
        assert await pool.fetchval("SELECT inet_server_port()") == pair.primary.port
        await pool.close()
    with pytest.raises(AWAY):
        await connect(f"{user}127.0.0.1:{pair.standby.port},127.0.0.1:{pair.standby.port}/shop")


async def test_a_server_that_is_silent_leaves_time_for_the_next_one(pair: Pair) -> None:
    """A dead machine answers no connection at all: it costs its share of the timeout, once."""
    pair.standby.promote()
    with stopped(pair.primary.pid):
        connection = await connect(pair.url)
        assert await connection.fetchval("SELECT inet_server_port()") == pair.standby.port
        await connection.close()


def test_every_command_takes_a_url_of_several_servers(pair: Pair) -> None:
    """Migrations, jobs and the doctor; a standby as the only server is refused before anything is asked."""
    env = environment(DATABASE_URL=pair.url)
    for words in (["migrate"], ["jobs", "list", "--json"], ["doctor", "--json"]):
        said = tickwright(*words, env=env)
        assert said.code == 0 or words[0] == "doctor", said.err
    checks = {finding["check"]: finding["verdict"] for finding in said.json["findings"]}
    assert (checks["database"], checks["schema"], checks["failover"], checks["notifications"]) == ("ok",) * 4
    wrong = environment(DATABASE_URL=pair.url.replace("read-write", "standby"))
    assert "asks for a standby" in tickwright("jobs", "list", env=wrong).err


# ---------------------------------------------------------------------- the failover


def _run(url: str, folder: Path, name: str) -> "Popen[bytes]":
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
    """Schedule and publish, one after the other, and remember what was acknowledged."""
    number = 0
    while not over.is_set():
        with suppress(TickwrightError, *AWAY):
            acknowledged.add((await app.schedule("work", {})).id)
            await app.publish("pg:news", {"number": number})
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
    rows = await app.pool.fetch("SELECT payload FROM tickwright.messages WHERE topic = 'news'")
    return numbers <= {int(bytes(row["payload"]).split(b":")[1].strip(b" }")) for row in rows}


async def _is_finished(app: Tickwright, report_id: int) -> bool:
    return (await app.reports.records.get(report_id)).status == "finished"


async def _are_held(app: Tickwright, wanted: set[str]) -> bool:
    return wanted <= {row["job_name"] for row in await app.pool.fetch(_LEASES)}
