"""Claims whose answer was lost, or that reach the server late: their work is done once, and no try is counted.

Jobs have their own file.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType

import pytest

from kit.batches import BatchWorld, Numbers
from kit.consumers import LONG, done_times, queue_empty, running_consumer, seed
from kit.database_faults import AnswerCuts, How, first_line
from kit.engine import SHORT, insert, job_row
from kit.mutants import mutate
from kit.redis_fanout import start_of
from kit.report_faults import ask, functions, is_made
from kit.reports import report_world
from kit.waiting import eventually_async
from tickwright import Answer, Poll
from tickwright.capabilities.batches.executions.chunks_store import ChunksStore
from tickwright.capabilities.fanout.consumer import run_claims
from tickwright.capabilities.fanout.consumer.run_claims import LedgerRunClaims
from tickwright.capabilities.jobs.model import ClaimPlan, ClaimRange
from tickwright.capabilities.jobs.worker.claims import ClaimedJobs, ClaimRequest, ClaimStore
from tickwright.capabilities.polling.consumer import queue as poll_queue
from tickwright.capabilities.polling.consumer.queue import QueueSource
from tickwright.capabilities.reports.parts.store import PartsStore
from tickwright.capabilities.reports.requests.store import RecordsStore, Routes
from tickwright.domain.errors import Unavailable
from tickwright.engine.claim_gate import ClaimGate, Ticket
from tickwright.engine.leases import Lease, Leases
from tickwright.engine.outbox.relay import LEASE, OutboxRelay
from tickwright.engine.outbox.table import Verdicts
from tickwright.engine.session import WorkerSession
from tickwright.ports.fanout import TIMED_OUT, Run, RunStart
from tickwright.store.pool import UNAVAILABLE, Connection, Pool, open_pool

JOBS = first_line("capabilities.jobs", "claims.sql", "claim")
PARTS = first_line("capabilities.reports", "parts.sql", "claim_parts")
STEPS = first_line("capabilities.reports", "records.sql", "claim_steps")
CHUNKS = first_line("capabilities.batches", "chunks.sql", "claim_chunk")
EXECUTIONS = first_line("capabilities.batches", "chunks.sql", "claim_execution")
RUNS = first_line("capabilities.fanout", "runs.sql", "begin")
POLLS = first_line("capabilities.polling", "poll_queue.sql", "take")
RELEASED_POLLS = first_line("capabilities.polling", "poll_queue.sql", "release")
TAKEN_LEASE = first_line("engine", "leases.sql", "take_lease")
RETRIED_MESSAGES = first_line("engine", "outbox.sql", "retry_later")
HOWS: tuple[How, ...] = ("unsent", "unheard", "late")
RUN = Run("DE*ABC", "CDRS", 1_700_000_000 // 900 * 900, 1)


@pytest.mark.matrix
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("word", [PARTS, STEPS], ids=["parts", "steps"])
async def test_a_report_is_made_although_answers_of_its_claims_are_lost(
    database_url: str, tmp_path: Path, word: str, how: How
) -> None:
    """G1: its parts are brought once each, as their first attempt, and the file is whole."""
    asked: Counter[str] = Counter()

    async def noted(name: str, _request: object) -> None:
        asked[name] += 1

    async with (
        report_world(database_url, tmp_path) as world,
        AnswerCuts(database_url) as cuts,
        world.process(functions(noted), database_url=cuts.url),
    ):
        cuts.cut(word, how, times=2, rows_min=1)
        report = await ask(world)
        await eventually_async(lambda: cuts.made == 2, 60, what="two cuts")
        row = await is_made(world, report)
        await cuts.send_late()
        parts = await world.pool.fetch("SELECT attempts, owner FROM tickwright.report_parts")
    assert asked == {"lefts": 1, "rights": 1}
    assert [tuple(part) for part in parts] == [(1, None)] * 2
    assert row["owner"] is None


@pytest.mark.matrix
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("word", [CHUNKS, EXECUTIONS], ids=["chunks", "executions"])
async def test_an_execution_ends_although_answers_of_its_claims_are_lost(
    batches: BatchWorld, word: str, how: How
) -> None:
    """C2: every chunk is worked once, and neither a try nor a lost process is counted."""
    work = Numbers()
    async with AnswerCuts(batches.url) as cuts, await open_pool(cuts.url) as pool:
        process = await batches.process(work, pool=pool)
        cuts.cut(word, how, times=2, rows_min=1)
        execution_id = await batches.start(await batches.put())
        await eventually_async(lambda: cuts.made >= 1, 60, what="a cut")
        row = await batches.over(execution_id)
        await cuts.send_late()
        await process.vanish()
    chunks = await batches.pool.fetch("SELECT state, tries, lost FROM tickwright.execution_chunks")
    assert (row["status"], row["tries"], row["lost"], row["actions"]) == ("FINISHED", 0, 0, 13)
    assert {tuple(chunk) for chunk in chunks} == {("done", 0, 0)}
    assert Counter(work.log) == {(execution_id, number): 1 for number in range(3)}


@pytest.mark.matrix
@pytest.mark.parametrize("how", HOWS)
async def test_polls_are_made_although_answers_of_their_claims_are_lost(database_url: str, how: How) -> None:
    """POL-1: each poll is made once."""
    asked: Counter[int] = Counter()

    async def answers(poll: Poll) -> Answer:
        asked[poll.tracker_id] += 1
        return Answer("moving")

    async with (
        AnswerCuts(database_url) as cuts,
        await open_pool(database_url) as pool,
        running_consumer(cuts.url, functions={"acme": answers}, terms=LONG),
    ):
        cuts.cut(POLLS, how, times=2, rows_min=1)
        trackers = await seed(pool, 20)
        await eventually_async(lambda: queue_empty(pool), 60)
        await cuts.send_late()
        assert await done_times(pool, trackers) == Counter(trackers.ids)
    assert cuts.made
    assert asked == Counter(trackers.ids)


async def check_a_run_is_not_busy(database_url: str, how: How) -> None:
    """The same process claims it at its next try, though its session lives on; what it has then is not given back."""
    async with AnswerCuts(database_url) as cuts, await open_pool(cuts.url) as pool:
        session = WorkerSession(pool, name="test", roles=["fanout-consumer"], version="0")
        await session.open()
        runs = LedgerRunClaims(pool, session)
        cuts.cut(RUNS, how)
        with pytest.raises(Unavailable):
            await start_of(runs, RUN, session.token)
        assert await start_of(runs, RUN, session.token) is RunStart.BEGUN
        await cuts.send_late()
        assert await start_of(runs, RUN, session.token) is RunStart.BUSY, "a run of its own was given back"


@pytest.mark.matrix
@pytest.mark.parametrize("how", HOWS)
async def test_a_run_is_not_busy_because_the_answer_of_its_claim_was_lost(database_url: str, how: How) -> None:
    """RUN-1, behind a lost answer, too."""
    await check_a_run_is_not_busy(database_url, how)


# ---------------------------------------------------------------------- what arrives late


Claim = Callable[[Pool, Ticket], Awaitable[object]]
Ready = Callable[[BatchWorld, Path], Awaitable[Claim]]
SERVED = ["program:numbers"]


async def _jobs(world: BatchWorld, _folder: Path) -> Claim:
    await world.pool.execute("INSERT INTO tickwright.scheduled_tasks (execute_at, task_type) VALUES (now(), 't')")
    return _claim_jobs


async def _claim_jobs(pool: Pool, to: Ticket) -> ClaimedJobs:
    plan, lanes = ClaimPlan(("t",), (5,), 5), [ClaimRange("t", 0)]
    horizon = timedelta(seconds=1)
    return await ClaimStore(pool).claim(ClaimRequest(to.owner, plan, lanes, horizon, number=to.number))


async def _report(world: BatchWorld, folder: Path) -> None:
    async with report_world(world.url, folder) as reports:
        await ask(reports)
    await world.pool.execute("UPDATE tickwright.reports SET step_at = now()")


async def _parts(world: BatchWorld, folder: Path) -> Claim:
    await _report(world, folder)
    rooms = {"function:lefts": 5}
    return lambda pool, to: PartsStore(pool).claim(to.owner, rooms, announced=(1, "lefts"), number=to.number)


async def _steps(world: BatchWorld, folder: Path) -> Claim:
    await _report(world, folder)
    return lambda pool, to: RecordsStore(pool, Routes()).claim(to.owner, 5, number=to.number)


async def _executions(world: BatchWorld, _folder: Path) -> Claim:
    await world.start(await world.put())
    return lambda pool, to: ChunksStore(pool).claim_execution(to.owner, SERVED, number=to.number)


async def _chunks(world: BatchWorld, folder: Path) -> Claim:
    await _executions(world, folder)
    plan = await world.store.claim_execution(1, SERVED)
    assert plan is not None
    assert await world.store.end_plan(plan, 1, [chunk async for chunk in Numbers().plan(plan.run)])
    return lambda pool, to: ChunksStore(pool).claim_chunk(to.owner, SERVED, number=to.number)


async def _runs(_world: BatchWorld, _folder: Path) -> Claim:
    said = [RUN.entity_code], [RUN.task_type], [RUN.window_s], [RUN.at_once]
    return lambda pool, to: pool.fetch(run_claims._SQL["begin"], to.owner, *said, to.number, TIMED_OUT)


async def _polls(world: BatchWorld, _folder: Path) -> Claim:
    trackers = await seed(world.pool, 5)
    said = [trackers.partner_no], [5]
    return lambda pool, to: pool.fetch(poll_queue._SQL["take"], to.owner, *said, to.number)


KINDS: dict[str, tuple[Ready, str, str]] = {
    "jobs": (_jobs, JOBS, "scheduled_tasks"),
    "parts": (_parts, PARTS, "report_parts"),
    "steps": (_steps, STEPS, "reports"),
    "executions": (_executions, EXECUTIONS, "executions"),
    "chunks": (_chunks, CHUNKS, "execution_chunks"),
    "runs": (_runs, RUNS, "fanout_cursors"),
    "polls": (_polls, POLLS, "poll_queue"),
}


async def check_a_late_claim_takes_nothing(world: BatchWorld, folder: Path, kind: str) -> None:
    """CLG-1: what its process gave up takes nothing behind the release; the next claim does."""
    ready, word, table = KINDS[kind]
    claim = await ready(world, folder)
    owned = f"SELECT count(*) FROM tickwright.{table} WHERE owner = $1"
    async with AnswerCuts(world.url) as cuts, await open_pool(cuts.url) as pool:
        session = WorkerSession(world.pool, name="test", roles=["worker"], version="0")
        await session.open()
        gate = ClaimGate(pool.acquire, session, kind, _nothing)
        cuts.cut(word, "late")
        with pytest.raises(UNAVAILABLE):
            async with gate.claiming() as ticket:
                await claim(pool, ticket)
        await gate.settle()
        await cuts.send_late()
        assert await world.pool.fetchval(owned, session.token) == 0, f"CLG-1 broken: {kind}"
        async with gate.claiming() as ticket:
            await claim(pool, ticket)
        assert await world.pool.fetchval(owned, session.token) >= 1, f"nobody claims {kind} any more"


async def _nothing(_connection: Connection, _owner: int) -> int:
    return 0


@pytest.mark.parametrize("kind", KINDS)
async def test_a_late_claim_takes_nothing(batches: BatchWorld, tmp_path: Path, kind: str) -> None:
    """CLG-1."""
    await check_a_late_claim_takes_nothing(batches, tmp_path, kind)


@pytest.mark.parametrize("kind", KINDS)
async def test_the_suite_notices_claims_whose_number_is_not_looked_at(
    batches: BatchWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A mutant of the guard: what is settled refuses nothing."""
    mutate(monkeypatch, WorkerSession.next_claim_number, "self.claim_number += 1", "pass")
    with pytest.raises(AssertionError, match="CLG-1 broken"):
        await check_a_late_claim_takes_nothing(batches, tmp_path, kind)


async def test_the_suite_notices_that_nothing_is_released(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutant of the cure: what nobody knows of stays owned, and the run is busy for as long as its session lives."""
    mutate(monkeypatch, ClaimGate._settle, "if not self.unsure:", "if self.unsure or not self.unsure:")
    with pytest.raises(AssertionError):
        await check_a_run_is_not_busy(database_url, "unheard")


# ---------------------------------------------------------------------- what is given back late


async def check_a_late_give_back_reaches_no_later_take(url: str) -> None:
    """Known is (key, fence): the session has taken the turns again when the statement comes that gave them back."""
    async with AnswerCuts(url) as cuts, await open_pool(cuts.url) as cut, await open_pool(url) as pool:
        trackers = await seed(pool, 3, due="now() - interval '1 second'")
        ours, other = (WorkerSession(pool, name=n, roles=["poll-consumer"], version="0") for n in ("ours", "other"))
        await ours.open()
        await other.open()
        source, room = QueueSource(cut, ours), {trackers.partner_no: 10}
        first = await source.take(room)
        cuts.cut(RELEASED_POLLS, "late")
        with pytest.raises(UNAVAILABLE):
            await source.release(first)
        again = await source.take(room)
        assert [turn.ids for turn in again] == [turn.ids for turn in first]
        await cuts.send_late()
        assert not await QueueSource(pool, other).take(room), "two sessions carry out one poll at once"
        async with pool.acquire() as connection, connection.transaction():
            assert not await source.hold(connection, first), "an earlier take counts"
            assert await source.hold(connection, again) == again


async def test_a_late_give_back_of_polls_reaches_no_later_take(database_url: str) -> None:
    """The fence of a poll is the instant of its take: an earlier one gives nothing back and has no effect."""
    await check_a_late_give_back_reaches_no_later_take(database_url)


@pytest.mark.parametrize(("name", "match"), [("release", "two sessions"), ("hold", "an earlier take")])
async def test_the_suite_notices_polls_that_are_known_by_their_owner_alone(
    database_url: str, monkeypatch: pytest.MonkeyPatch, name: str, match: str
) -> None:
    """A mutant of the fence: whatever the session took before is taken for what it has now."""
    mutated = (
        poll_queue._SQL[name]
        .replace(" AND q.taken_at = u.taken_at", "")
        .replace("SELECT q.seq, q.owner, q.taken_at", "SELECT u.*")
    )
    assert mutated != poll_queue._SQL[name]
    monkeypatch.setattr(poll_queue, "_SQL", MappingProxyType({**poll_queue._SQL, name: mutated}))
    with pytest.raises(AssertionError, match=match):
        await check_a_late_give_back_reaches_no_later_take(database_url)


async def test_what_could_not_be_given_back_is_settled_by_the_heartbeat(database_url: str) -> None:
    """Also where there is no room for another claim, which would settle it."""
    async with await open_pool(database_url) as pool:
        session = WorkerSession(pool, name="test", roles=["worker"], version="0", terms=SHORT)
        settled = list[int]()

        async def notes(_connection: Connection, owner: int) -> int:
            settled.append(owner)
            return 1

        gate = ClaimGate(pool.acquire, session, "test", notes)
        await session.open()
        gate.unsure = True
        running = asyncio.create_task(session.run())
        await eventually_async(lambda: settled == [session.token], 20)
        await session.stop()
        await running
    assert not gate.unsure


# ---------------------------------------------------------------------- what a session that leaves owns still


def _leaver(pool: Pool) -> WorkerSession:
    """Return a session that gives back whatever it owns, as that of every process does."""
    session = WorkerSession(pool, name="test", roles=["worker"], version="0")
    for reclaim in (
        ClaimStore(pool).reclaim_for_others,
        poll_queue.reclaim,
        LedgerRunClaims(pool).reclaim,
        PartsStore(pool).reclaim,
        ChunksStore(pool).reclaim,
    ):
        session.on_reclaim(reclaim)
    return session


async def check_nothing_is_owned_without_a_session(world: BatchWorld, folder: Path, kind: str) -> None:
    """SES-1: what is known and was not released when its session leaves can be claimed at once, and none is lost."""
    ready, _, table = KINDS[kind]
    claim = await ready(world, folder)
    owned = f"SELECT count(*) FROM tickwright.{table} WHERE owner = $1"
    session, heir = _leaver(world.pool), _leaver(world.pool)
    for one in (session, heir):
        await one.open()
    token = session.token
    async with ClaimGate(world.pool.acquire, session, kind, _nothing).claiming() as ticket:
        await claim(world.pool, ticket)
    assert await world.pool.fetchval(owned, token) >= 1
    await session.stop()
    assert await world.pool.fetchval("SELECT count(*) FROM tickwright.workers WHERE id = $1", token) == 0
    assert await world.pool.fetchval(owned, token) == 0, f"SES-1 broken: {kind}"
    await claim(world.pool, Ticket(heir.token, 0))
    assert await world.pool.fetchval(owned, heir.token) >= 1, f"nobody claims {kind} any more"


@pytest.mark.parametrize("kind", KINDS)
async def test_what_a_session_that_leaves_owns_goes_back(batches: BatchWorld, tmp_path: Path, kind: str) -> None:
    """SES-1."""
    await check_nothing_is_owned_without_a_session(batches, tmp_path, kind)


@pytest.mark.parametrize(
    ("function", "guard"),
    [
        (
            WorkerSession._owns,
            "return None in queries or any([await self._pool.fetchval(sql, token) for sql in queries])",
        ),
        (WorkerSession._leave, "await self._release(connection, [token])"),
    ],
    ids=["does not ask", "gives nothing back"],
)
async def test_the_suite_notices_a_session_that_only_leaves(
    batches: BatchWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: object, guard: str
) -> None:
    """Mutants of the cure: the row goes, and nothing looks for what it owned."""
    mutate(monkeypatch, function, guard, "return False")
    with pytest.raises(AssertionError, match="SES-1 broken"):
        await check_nothing_is_owned_without_a_session(batches, tmp_path, "chunks")


async def test_each_table_that_a_session_owns_rows_of_is_looked_at(database_url: str) -> None:
    """SES-1 for kinds of claims that are still to come; a partition is taken over whoever its reader is."""
    async with await open_pool(database_url, max_size=1) as pool:
        found = await pool.fetch(
            "SELECT c.relname FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid AND c.relkind IN ('r', 'p') "
            "WHERE c.relnamespace = 'tickwright'::regnamespace AND a.attname = 'owner' "
            "AND a.atttypid = 'bigint'::regtype AND NOT EXISTS (SELECT FROM pg_inherits i WHERE i.inhrelid = c.oid)"
        )
    assert {row[0] for row in found} - {"poll_partitions"} == {table for _, _, table in KINDS.values()}


async def test_a_last_attempt_that_its_session_left_is_the_last_only_where_it_began(database_url: str) -> None:
    """As behind a kill: one that began ends its job, and one that did not is not counted."""
    async with await open_pool(database_url) as pool:
        begun, waits = [await insert(pool, "t", max_attempts=1) for _ in range(2)]
        session, store = _leaver(pool), ClaimStore(pool)
        await session.open()
        async with ClaimGate(pool.acquire, session, "jobs", _nothing).claiming() as ticket:
            claimed = await _claim_jobs(pool, ticket)
        fences = {row.id: row.fence for row in claimed.rows}
        assert await store.begin_last(session.token, [begun], [fences[begun]]) == {begun: True}
        await session.stop()
        ended, back = [await job_row(pool, job_id) for job_id in (begun, waits)]
    assert (ended["status"], ended["attempts"]) == ("failed", 1)
    assert (back["status"], back["attempts"], back["owner"]) == ("pending", 0, None)


async def test_a_session_that_cannot_give_back_does_not_leave(database_url: str) -> None:
    """What it owns would be nobody's: it runs out instead, and whoever declares it lost gives that back."""

    async def fails(_connection: Connection, _tokens: object) -> None:
        raise ConnectionError("cut off")

    async with await open_pool(database_url) as pool:
        session = WorkerSession(pool, name="test", roles=["worker"], version="0")
        session.on_reclaim(fails)
        await session.open()
        token = session.token
        await insert(pool, "t")
        async with ClaimGate(pool.acquire, session, "jobs", _nothing).claiming() as ticket:
            await _claim_jobs(pool, ticket)
        await session.stop()
        assert await pool.fetchval("SELECT count(*) FROM tickwright.workers WHERE id = $1", token) == 1


# ---------------------------------------------------------------------- leases and the outbox


async def _retake(database_url: str, how: How) -> tuple[Lease | None, Lease | None]:
    """Return what somebody else gets behind a take that was cut, and then what the same process gets."""
    async with (
        AnswerCuts(database_url) as cuts,
        await open_pool(cuts.url) as cut_pool,
        await open_pool(database_url) as pool,
    ):
        mine, others = Leases(cut_pool, owner="a", terms=LONG), Leases(pool, owner="b", terms=LONG)
        first = await mine.take("work")
        assert first is not None
        await first.release()
        cuts.cut(TAKEN_LEASE, how)
        with pytest.raises(UNAVAILABLE):
            await mine.take("work")
        theirs = await others.take("work") if how == "unheard" else None
        again = await mine.take("work")
        await cuts.send_late()
        assert again is None or await again.renew(), "a late take took it away"
        return theirs, again


@pytest.mark.parametrize("how", HOWS)
async def test_a_lease_whose_take_was_not_heard_of_is_taken_again_at_once(database_url: str, how: How) -> None:
    """LSE-3 for everybody else: only the process that took it knows that nobody works under it."""
    theirs, again = await _retake(database_url, how)
    assert theirs is None, "LSE-3 broken"
    assert again is not None
    assert again.fence == (3 if how == "unheard" else 2)


async def test_what_is_held_is_not_taken_twice_by_its_own_process(database_url: str) -> None:
    """A second take whose answer was lost says nothing of the first, which was heard."""
    async with AnswerCuts(database_url) as cuts, await open_pool(cuts.url) as pool:
        leases = Leases(pool, owner="a", terms=LONG)
        held = await leases.take("work")
        assert held is not None
        cuts.cut(TAKEN_LEASE, "unheard")
        with pytest.raises(UNAVAILABLE):
            await leases.take("work")
        assert await leases.take("work") is None
        assert await held.renew()


async def test_a_verdict_that_is_written_twice_is_one_attempt(database_url: str) -> None:
    """The answer of the commit was lost, and the relay writes it again."""
    async with AnswerCuts(database_url) as cuts, await open_pool(cuts.url) as pool:
        row_id = await pool.fetchval(
            "INSERT INTO tickwright.outbox (destination, payload) VALUES ('pg:x', '{}') RETURNING id"
        )
        lease = await Leases(pool, owner="a", terms=LONG).take(LEASE)
        assert lease is not None
        relay = OutboxRelay(Leases(pool, owner="a"), {}, direct_url=None)
        cuts.cut(RETRIED_MESSAGES, "unheard")
        verdicts = Verdicts(retried=[row_id], tries=[0], waits_s=[60.0], retry_errors=["no"])
        await relay._mark(lease, verdicts)
        assert cuts.made == 1
        assert await pool.fetchval("SELECT attempts FROM tickwright.outbox WHERE id = $1", row_id) == 1
        assert relay.counters.retried == 1
