"""Workers whose wall clock jumps by two hours, ahead and back: only the database's clock counts, so nothing changes."""

import asyncio
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest

from kit.cli import environment
from kit.consumers import ConsumerProcess, all_done, done_times, http_of, seed, slice_of
from kit.kafka_polls import PollWorld, poll_world
from kit.partners import Courier
from kit.preloads import WorkerClock
from kit.processes import kill_group, spawn
from kit.receivers import HttpReceiver
from kit.servers import KafkaServer
from kit.waiting import eventually_async
from kit.wheels import Wheels, check_each_once, open_wheels
from tickwright import Tickwright
from tickwright.store.pool import open_pool

JUMPS_H = (2.0, -2.0, 0.0, -2.0, 2.0)
KIT = Path(__file__).parents[3] / "kit"
SELECTOR = KIT / "selector_process.py"
AHEAD_MINUTES = 20  # of the selector's process
ROLES = ("scheduler", "relay", "fanout-consumer", "report-listener", "campaign-consumer")
NEAR_S = 0.2
"""The most that reading two clocks one after the other may take."""
PIECES = 20  # of the program's batch
_KNOWN = "SELECT (SELECT count(*) FROM tickwright.modules) * (SELECT count(*) FROM tickwright.report_types)"
_ENTITY = "INSERT INTO tickwright.entities (code, party, polling_enabled_modules) VALUES ('A', '{}', 'NEWS')"
_EXECUTED = "SELECT EXISTS (SELECT FROM tickwright.executions WHERE status = 'FINISHED')"


@pytest.fixture
def clock(tmp_path: Path) -> WorkerClock:
    """The children's clock."""
    return WorkerClock(tmp_path)


# ---------------------------------------------------------------------- a consumer


@pytest.mark.storm
async def test_a_consumers_clock_makes_no_poll_early_repeated_or_superseded(
    database_url: str, tmp_path: Path, clock: WorkerClock
) -> None:
    """POL-1 and P4: a jump during the work costs no poll, repeats none and breaks no limit."""
    async with Courier() as courier:
        pool = await open_pool(database_url, max_size=2)
        trackers = await seed(pool, 150, rate="30/s", http=http_of(courier))
        child = ConsumerProcess(database_url, tmp_path / "consumer.log", environment=clock.environment)
        try:
            for n, hours in enumerate(JUMPS_H):
                await eventually_async(lambda n=n: len(courier.requests) >= 10 + 25 * n, 30)  # type: ignore[misc]
                clock.jump(hours)
            await eventually_async(lambda: all_done(pool, trackers), 30)
        finally:
            kill_group(child.process)
        assert await done_times(pool, trackers) == Counter(trackers.ids)
        assert Counter(courier.asked) == Counter(trackers.external_ids)
        assert courier.most_within(1.0) <= 30
        books = await slice_of(pool, trackers)
        assert (books["polled"], books["late"], books["superseded"]) == (150, 0, 0)
        await pool.close()


@pytest.mark.parametrize("hours", [2.0, -2.0])
async def test_a_retry_after_date_is_read_by_the_couriers_clock(
    database_url: str, tmp_path: Path, clock: WorkerClock, hours: float
) -> None:
    """P4: ``Retry-After`` as a date counts from the answer's own date, whatever the worker's clock says."""
    async with Courier() as courier:
        pool = await open_pool(database_url, max_size=2)
        clock.jump(hours)
        courier.status = 429
        courier.headers = {"Retry-After": format_datetime(datetime.now(UTC) + timedelta(minutes=5), usegmt=True)}
        await seed(pool, 5, concurrency=1, http=http_of(courier))
        child = ConsumerProcess(database_url, tmp_path / "consumer.log", environment=clock.environment)
        silent = """SELECT date_part('epoch', blocked_until - clock_timestamp()) FROM tickwright.partner_states
                     WHERE blocked_until IS NOT NULL"""
        try:
            left_s = await eventually_async(lambda: pool.fetchval(silent), 30, what="the partner is blocked")
        finally:
            kill_group(child.process)
        assert 200 < left_s <= 301
        await pool.close()


# ---------------------------------------------------------------------- a relay


@pytest.fixture
async def world(database_url: str, kafka_server: KafkaServer, kafka_prefix: str) -> AsyncIterator[PollWorld]:
    """A database, a topic."""
    async with poll_world(database_url, kafka_server.url, kafka_prefix) as world:
        yield world


EARLY = """
SELECT count(*) FROM test_releases r
 WHERE r.release_at > clock_timestamp()
   AND NOT EXISTS (SELECT FROM tickwright.scheduler_outbox o WHERE o.id = r.id AND o.batch_no IS NULL)
"""


@pytest.mark.storm
async def test_a_relays_clock_releases_no_poll_early_and_none_twice(
    world: PollWorld, tmp_path: Path, clock: WorkerClock
) -> None:
    """K1 to K5: rows are sent at their second by the database's clock; Kafka takes them with any clock of the relay."""
    await world.fill(60, 5, release_in_s=1.0)
    await world.pool.execute("CREATE TABLE test_releases AS SELECT id, release_at FROM tickwright.scheduler_outbox")
    total, over = await world.pending(), asyncio.Event()

    async def never_early() -> None:
        while not over.is_set():
            assert await world.pool.fetchval(EARLY) == 0, "a poll was released before its second"
            with suppress(TimeoutError):
                async with asyncio.timeout(0.05):
                    await over.wait()

    clock.jump(2)
    child = world.child(tmp_path, 2, environment=clock.environment)
    checking = asyncio.create_task(never_early())
    try:
        for n, hours in enumerate((2.0, -2.0, 0.0, -2.0, 2.0)):
            left = total - total * (n + 1) // 6
            await eventually_async(lambda left=left: _at_most(world, left), 30, what="the relay continues")  # type: ignore[misc]
            clock.jump(hours)
        await world.emptied()
    finally:
        kill_group(child)
        over.set()
    await checking
    seen = await world.check()
    off_by = [abs(one.at - datetime.now(UTC)) for one in seen]
    assert max(off_by) < timedelta(minutes=5), "a record carries the relay's clock"


async def _at_most(world: PollWorld, left: int) -> bool:
    return await world.pending() <= left


# ---------------------------------------------------------------------- a selector


DUE = """
UPDATE tickwright.poll_slots
   SET next_due_at = date_trunc('minute', clock_timestamp())
                     + make_interval(mins => CASE WHEN slot_id % 2 = 0 THEN $1::integer ELSE $2::integer END)
"""


@pytest.fixture
async def wheels(database_url: str) -> AsyncIterator[Wheels]:
    """Six hundred trackers on a wheel of six slots."""
    async with open_wheels(database_url) as wheels:
        await wheels.account("a", 6)
        await wheels.register(600)
        yield wheels


async def test_a_selectors_clock_selects_no_scheduled_poll_early_and_none_twice(
    wheels: Wheels, tmp_path: Path, clock: WorkerClock
) -> None:
    """P1: two hours ahead it selects nothing of the next hour; two hours behind it misses nothing."""
    command = [sys.executable, str(SELECTOR), wheels.url, "2"]
    soon, later = AHEAD_MINUTES - 4, AHEAD_MINUTES + 40  # the time slot after that, six minutes on, is not selected yet
    rounds = "SELECT count(DISTINCT due_at) FROM tickwright.poll_slices WHERE selected > 0"
    clock.jump(2)
    child = spawn(command, tmp_path / "selector.log", clock.environment)
    try:
        for step, hours in enumerate((-2.0, 2.0, 0.0), start=1):
            await wheels.pool.execute(DUE, soon + step, later)
            await eventually_async(lambda step=step: _is(wheels, rounds, step), 30, what=f"round {step}")  # type: ignore[misc]
            clock.jump(hours)
    finally:
        kill_group(child)
    polls = await wheels.polls()
    check_each_once(polls)
    odd = await wheels.pool.fetch("SELECT id FROM tickwright.trackers WHERE place / 60 % 2 = 1")
    assert not {row["id"] for row in odd} & {row["id"] for row in polls}, "P1 broken: selected an hour early"
    assert await wheels.pool.fetchval("SELECT count(*) FROM tickwright.poll_slots WHERE missed_due_at IS NOT NULL") == 0


async def _is(wheels: Wheels, query: str, number: int) -> bool:
    return bool(await wheels.pool.fetchval(query) == number)


# ---------------------------------------------------------------------- messages


async def test_a_messages_timestamp_is_from_the_databases_clock(
    database_url: str, tmp_path: Path, clock: WorkerClock
) -> None:
    """A receiver that verifies ``webhook-timestamp`` accepts a message of a process whose clock is two hours off."""
    clock.jump(2.0)
    pool = await open_pool(database_url, max_size=2)
    command = [sys.executable, "-m", "tickwright", "run", "relay"]
    environment = {
        **clock.environment,
        "TICKWRIGHT_DATABASE_URL": database_url,
        "TICKWRIGHT_ALLOW_TARGETS": "127.0.0.1",
        "TICKWRIGHT_METRICS_BIND": "127.0.0.1:0",
    }
    async with HttpReceiver() as receiver:
        sql = "INSERT INTO tickwright.outbox (destination, payload) VALUES ($1, '{}')"
        await pool.execute(sql, receiver.url)
        child = spawn(command, tmp_path / "relay.log", environment)
        try:
            await eventually_async(lambda: receiver.received, 60, what="a message")
        finally:
            kill_group(child)
    says_s = int(receiver.received[0].headers["webhook-timestamp"])
    now_s = await pool.fetchval("SELECT date_part('epoch', clock_timestamp())")
    await pool.close()
    assert abs(says_s - now_s) < 300


# ---------------------------------------------------------------------- entities, reports and batches


def _recorded(log: Path, kind: str) -> list[list[float]]:
    lines = log.read_text().splitlines() if log.exists() else []
    return [[float(field) for field in line.split()[1:]] for line in lines if line.startswith(kind)]


@asynccontextmanager
async def _programs(url: str, folder: Path, clock: WorkerClock, batch_at: datetime) -> AsyncIterator[Path]:
    """Run two processes of every role but the API; yield the file that they write into."""
    log = folder / "called"
    names = {
        **environment(DATABASE_URL=url, HOME=str(folder), APP="clock_program:app", METRICS_BIND="127.0.0.1:0"),
        **clock.environment,
        "CLOCK_LOG": str(log),
        "CLOCK_BATCH_AT": batch_at.isoformat(),
        "PYTHONPATH": str(KIT),
    }
    command = [sys.executable, "-m", "tickwright", "run", *ROLES]
    with ExitStack() as processes:
        for number in range(2):
            child = spawn(command, folder / f"{number}.log", names)
            processes.callback(kill_group, child)
        yield log


async def test_with_jumping_clocks_each_window_report_and_batch_runs_once_and_in_time(
    database_url: str, tmp_path: Path, clock: WorkerClock
) -> None:
    """Schedulers, consumers, listeners: their clocks begin two hours ahead of the database and jump back and forth."""
    clock.jump(JUMPS_H[0])
    async with Tickwright(database_url) as app:
        batch_at = await app.pool.fetchval("SELECT date_trunc('second', clock_timestamp()) + interval '20 seconds'")
        async with _programs(database_url, tmp_path, clock, batch_at) as log:
            await eventually_async(lambda: app.pool.fetchval(_KNOWN), 60, what="the program is registered")
            await app.pool.execute(_ENTITY)
            for hours in JUMPS_H:
                clock.jump(hours)
                report = await app.request_report("numbers")
                await eventually_async(lambda report=report: _is_made(app, report.id), 60, what="the report is made")  # type: ignore[misc]
                runs = len(_recorded(log, "entity"))
                await eventually_async(lambda runs=runs: len(_recorded(log, "entity")) >= runs + 3, 60)  # type: ignore[misc]
            await eventually_async(lambda: app.pool.fetchval(_EXECUTED), 60, what="the batch is over")
            execution = await app.pool.fetchrow("SELECT * FROM tickwright.executions")
            offset_s = await app.pool.fetchval("SELECT date_part('epoch', clock_timestamp())") - time.monotonic()
        windows = Counter(window for window, _, _ in _recorded(log, "entity"))
        assert set(windows.values()) == {1}, "a window ran twice"
        for begins_s, ends_s, called_s in _recorded(log, "entity"):
            assert begins_s - NEAR_S <= called_s + offset_s <= ends_s + NEAR_S
        chunks = _recorded(log, "chunk")
        assert sorted(number for number, _ in chunks) == list(range(PIECES))
        assert min(called_s for _, called_s in chunks) + offset_s >= batch_at.timestamp() - NEAR_S
        assert execution["started_at"] >= batch_at
        assert await app.pool.fetchval("SELECT count(*) FROM tickwright.executions") == 1


async def _is_made(app: Tickwright, report_id: int) -> bool:
    return bool((await app.reports.records.get(report_id)).status == "finished")
