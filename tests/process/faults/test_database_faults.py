"""PostgreSQL crashes, has a full disk or is cut at COMMIT under each service: it goes on, each effect is there once."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from kit.api import running_api
from kit.batches import AGAIN_S, MEMBERS, BatchWorld, Numbers, batch_world, is_right, new_producer, redone, sent_once
from kit.database_faults import AnswerCuts, Crash, CutCommits, Fault, NoRoom
from kit.kafka_polls import poll_world
from kit.nodes import RoleProcess
from kit.preloads import full_disk
from kit.relays import relay_world
from kit.servers import KafkaServer, PostgresServer, started
from kit.waiting import eventually_async
from kit.wheels import EVENTS, REGISTER, Wheels, check_each_once, open_wheels
from tickwright.capabilities.batches.executions.checker import Checker
from tickwright.capabilities.polling.trackers.freshness import FreshnessJudge
from tickwright.capabilities.polling.wheels.loops import Corrector, Registrar, Selector
from tickwright.engine.leases import TERMS, LeasedRounds, Leases
from tickwright.ports.session import HeldLease
from tickwright.store.migrate import migrate
from tickwright.store.pool import UNAVAILABLE, Pool

TRACKERS = 600
_SOON = "UPDATE tickwright.poll_slots SET next_due_at = date_trunc('minute', now()) + interval '10 minutes'"
_ON_WHEEL = """
SELECT count(*) FROM tickwright.trackers t JOIN tickwright.poll_slots s ON s.slot_id = t.place / 60
 WHERE s.interval_minutes = $1
"""
_PLACED_YESTERDAY = """
UPDATE tickwright.trackers SET created_at = now() - interval '1 day', placed_at = now() - interval '1 day'
"""
_PROMISED_YESTERDAY = "UPDATE tickwright.polling_schedule_config SET promised_since = now() - interval '1 day'"
_PROMISED_TO_PARTNERS = "UPDATE tickwright.partners SET promised_since = now() - interval '1 day'"
_COUNTED = """
SELECT (SELECT sum(polls) FROM tickwright.account_freshness) AS counted,
       (SELECT count(*) FROM tickwright.poll_wheels w
         CROSS JOIN LATERAL generate_series(
           $1::timestamptz + interval '1 minute', w.judged_until, '1 minute') AS turn (at)
          JOIN tickwright.trackers t
            ON t.place / 60 = w.first_slot_id + date_part('epoch', turn.at)::bigint / 60 % w.interval_minutes) AS placed
"""
_TO_JUDGE = """
UPDATE tickwright.poll_wheels SET judged_until = date_trunc('minute', now() - interval '281 seconds')
RETURNING judged_until
"""
_JUDGED = "SELECT bool_and(judged_until > now() - interval '3 minutes') FROM tickwright.poll_wheels"
_SLOTS = "SELECT count(*) AS n, count(DISTINCT slot_at) AS slots FROM tickwright.executions GROUP BY batch_id"
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[PostgresServer, Path]]:
    """A server of the module's own, whose disk is full while the file exists."""
    made = PostgresServer()
    made.environment, mark = full_disk(made.folder)
    with started(made):
        migrate(made.create_database("empty"))
        yield made, mark


@pytest.fixture(params=["crash", "no room", "cut commits"])
async def fault(request: pytest.FixtureRequest, server: tuple[PostgresServer, Path]) -> AsyncIterator[Fault]:
    """A database of the test's own, and the fault that is injected."""
    postgres, mark = server
    url = postgres.create_database(f"faulty{next(_numbers)}", template="empty")
    async with AnswerCuts(url) as cuts:
        faults: dict[str, Fault] = {
            "crash": Crash(postgres, url),
            "no room": NoRoom(postgres, mark, url),
            "cut commits": CutCommits(cuts),
        }
        yield faults[request.param]


@pytest.fixture
async def wheels(fault: Fault) -> AsyncIterator[Wheels]:
    """An account that polls every six minutes."""
    async with open_wheels(fault.url) as wheels:
        await wheels.account("a", 6)
        yield wheels


@pytest.fixture
async def world(fault: Fault) -> AsyncIterator[BatchWorld]:
    """Batches."""
    async with batch_world(fault.url) as world:
        yield world


@asynccontextmanager
async def rounds(
    pool: Pool, name: str, round_: Callable[[HeldLease], Awaitable[float]]
) -> AsyncIterator[Callable[[], None]]:
    """Run one loop as the role ``scheduler`` does; it must still run at the end.

    It has its lease, and works as soon as the yielded function is called.
    """
    has_lease, may_work = asyncio.Event(), asyncio.Event()

    async def waiting(lease: HeldLease) -> float:
        has_lease.set()
        await may_work.wait()
        return await round_(lease)

    loop = LeasedRounds(name, Leases(pool, owner="test", terms=TERMS), waiting, terms=TERMS)
    process = RoleProcess(services=[loop])
    process.begin()
    try:
        await has_lease.wait()
        yield may_work.set
        assert not process.tasks[0].done(), "the loop ended with the database"
    finally:
        may_work.set()
        await process.stop()


async def until(pool: Pool, query: str, *arguments: Any, is_: Any = True) -> None:
    """Wait until the database, which may be unavailable, gives this answer."""

    async def said() -> bool:
        try:
            return bool(await pool.fetchval(query, *arguments) == is_)
        except UNAVAILABLE:
            return False

    await eventually_async(said, AGAIN_S, what=query)


# ---------------------------------------------------------------------- polling


@pytest.mark.matrix
async def test_a_fault_under_the_registrar_places_each_tracker_once(wheels: Wheels, fault: Fault) -> None:
    """What was taken from the intake and not committed is there again, and is placed."""
    await wheels.pool.execute(REGISTER, "a", "dhl", "AWB", TRACKERS)
    async with rounds(wheels.pool, "registrar", Registrar().round) as work, fault.under_writes("trackers") as strike:
        work()
        await strike()
        await until(wheels.pool, "SELECT count(*) FROM tickwright.tracker_intake", is_=0)
    assert await wheels.pool.fetchval(_ON_WHEEL, 6) == TRACKERS


@pytest.mark.matrix
async def test_a_fault_under_the_selector_selects_each_poll_once(wheels: Wheels, fault: Fault) -> None:
    """A time slot is advanced and its polls are written in one transaction: after the crash both are, or neither."""
    await wheels.register(TRACKERS)
    await wheels.pool.execute(_SOON)
    round_ = Selector(ahead=timedelta(minutes=20)).round
    async with rounds(wheels.pool, "selector", round_) as work, fault.under_writes("scheduler_outbox") as strike:
        work()
        await strike()
        await until(wheels.pool, "SELECT sum(selected) >= $1::integer FROM tickwright.poll_slices", TRACKERS)
    polls = await wheels.polls()
    check_each_once(polls)
    assert len({row["id"] for row in polls}) == TRACKERS


@pytest.mark.matrix
async def test_a_fault_under_the_corrector_moves_each_tracker_once(wheels: Wheels, fault: Fault) -> None:
    """An account gets another interval: all of its trackers are on the new wheel, and none is lost between two."""
    await wheels.register(TRACKERS)
    await wheels.account("a", 10)
    async with (
        rounds(wheels.pool, "corrector", Corrector(EVENTS).round) as work,
        fault.under_writes("trackers") as strike,
    ):
        work()
        await strike()
        await until(wheels.pool, _ON_WHEEL, 10, is_=TRACKERS)
    assert await wheels.pool.fetchval("SELECT count(*) FROM tickwright.trackers") == TRACKERS


@pytest.mark.matrix
async def test_a_fault_under_the_judge_judges_each_poll_once(wheels: Wheels, fault: Fault) -> None:
    """A minute that was being judged is judged afterwards: each tracker of its time slot counts once."""
    await wheels.register(TRACKERS)
    for statement in (_PLACED_YESTERDAY, _PROMISED_YESTERDAY, _PROMISED_TO_PARTNERS):
        await wheels.pool.execute(statement)
    since = await wheels.pool.fetchval(_TO_JUDGE)
    async with (
        rounds(wheels.pool, "freshness", FreshnessJudge().round) as work,
        fault.under_writes("account_lags") as strike,
    ):
        work()
        await strike()
        await until(wheels.pool, _JUDGED)
    counted, placed = await wheels.pool.fetchrow(_COUNTED, since)
    assert counted == placed > 0


@pytest.mark.matrix
async def test_a_fault_under_the_relay_of_polls_publishes_each_poll_once(
    fault: Fault, kafka_server: KafkaServer, kafka_prefix: str
) -> None:
    """A batch is in Kafka and its mark is not in PostgreSQL: the position in Kafka says so, and it is marked only."""
    async with poll_world(fault.url, kafka_server.url, kafka_prefix) as world:
        await world.fill(60, 7)
        async with fault.under_writes("poll_batches") as strike, world.running(world.relay()):
            await strike()
            await until(world.pool, "SELECT count(*) FROM tickwright.scheduler_outbox", is_=0)
        await world.check()


# ---------------------------------------------------------------------- the outbox


@pytest.mark.matrix
async def test_a_fault_under_the_relay_sends_every_message(fault: Fault) -> None:
    """Messages were sent and their rows could not be deleted: none is lost, and a repeated message keeps its id."""
    async with relay_world(fault.url) as world:
        ids = await world.put_many(50, world.receiver.url)
        async with fault.under_writes("outbox") as strike, world.running(world.relay()):
            await strike()
            await until(world.pool, "SELECT count(*) FROM tickwright.outbox", is_=0)
        assert set(world.ids()) == ids
        assert await world.dead() == []


# ---------------------------------------------------------------------- campaigns


@pytest.mark.matrix
async def test_a_fault_under_the_producer_makes_each_execution_once(world: BatchWorld, fault: Fault) -> None:
    """Ten slots of five batches: fifty executions, whatever was open in the crash."""
    first = await world.pool.fetchval("SELECT date_trunc('hour', clock_timestamp()) - interval '9 hours'")
    for number in range(5):
        await world.put(
            f"b{number}", first_at=first, every=(1, "HOURS"), next_slot_at=first, misfire="all", overlap="queue"
        )
    due = "SELECT count(*) FROM tickwright.batches WHERE next_slot_at <= now()"
    round_ = new_producer().round
    async with rounds(world.pool, "campaign-producer", round_) as work, fault.under_writes("executions") as strike:
        work()
        await strike()
        await until(world.pool, due, is_=0)
    counts = [(row["n"], row["slots"]) for row in await world.pool.fetch(_SLOTS)]
    assert len(counts) == 5
    assert all(executions == slots >= 10 for executions, slots in counts)


@pytest.mark.matrix
async def test_a_fault_under_the_consumer_gives_each_client_one_action(world: BatchWorld, fault: Fault) -> None:
    """The chunks whose transactions were cut are done again, and no other."""
    execution_id = await world.start(await world.put())
    async with fault.under_writes("execution_actions") as strike:
        process = await world.process(Numbers(members=MEMBERS))
        await strike()
    await until(world.pool, "SELECT status FROM tickwright.executions WHERE id = $1", execution_id, is_="FINISHED")
    await is_right(world, execution_id)
    assert await redone(world) <= 2, "two chunks were open"
    await process.stop()


@pytest.mark.matrix
async def test_a_fault_under_the_checker_releases_each_action_once(world: BatchWorld, fault: Fault) -> None:
    """The messages and the mark of their chunk are one transaction."""
    process = await world.process(Numbers(members=MEMBERS))
    execution_id = await world.start(await world.put())
    await world.over(execution_id)
    await process.stop()
    left = "SELECT chunks - chunks_released FROM tickwright.executions WHERE id = $1"
    async with rounds(world.pool, "campaign-checker", Checker().round) as work, fault.under_writes("outbox") as strike:
        work()
        await strike()
        await until(world.pool, left, execution_id, is_=0)
    await sent_once(world, execution_id)


# ---------------------------------------------------------------------- the API


@pytest.mark.parametrize(
    ("fault", "code"), [("crash", "database_unavailable"), ("no room", "disk_full")], indirect=["fault"]
)
async def test_a_fault_under_the_api_is_reported_and_a_repeated_request_counts_once(fault: Fault, code: str) -> None:
    """A request that was cut is answered 503; sent again under its ``Idempotency-Key`` it makes one job.

    Commits that are cut: ``test_jobs_invariants.py``.
    """
    said: list[str] = []
    async with running_api(fault.url) as api:

        async def taken() -> Any:
            answer = await api.admin.post("/v1/jobs", {"task_type": "noop"}, headers={"Idempotency-Key": "once"})
            if answer.status != 503:
                assert answer.status in {200, 201, 202}, answer.body
                return answer.json
            answer.says(503, answer.json["code"])
            said.append(answer.json["code"])
            assert ("may have done" in answer.json["detail"]) == (said[-1] == "database_unavailable")
            return None

        async with fault.under_writes("scheduled_tasks") as strike:
            sending = asyncio.create_task(eventually_async(taken, 2 * AGAIN_S, what="the job is taken"))
            await strike()
            job = await sending
        assert said[0] == code
        assert (await api.viewer.get(f"/v1/jobs/{job['id']}")).status == 200
        assert await api.pool.fetchval("SELECT count(*) FROM tickwright.scheduled_tasks") == 1
