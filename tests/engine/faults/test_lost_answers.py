"""Claims whose answer is lost, or that reach the server late: their work is done once, and no attempt is counted.

Jobs: ``test_lost_answers_jobs.py``.
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
from tickwright.capabilities.reports.parts.store import PartRows
from tickwright.capabilities.reports.requests.store import RecordsStore, Routes
from tickwright.domain.errors import Unavailable
from tickwright.engine.claim_gate import ClaimGate, Ticket
from tickwright.engine.leases import Lease, Leases
from tickwright.engine.outbox.relay import LEASE, OutboxRelay
from tickwright.engine.outbox.table import Verdicts
from tickwright.engine.session import WorkerSession
from tickwright.engine.wakeup.connection import DirectConnection
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
@pytest.mark.parametrize("statement", [PARTS, STEPS], ids=["parts", "steps"])
async def test_a_report_is_made_though_answers_of_its_claims_are_lost(
    database_url: str, tmp_path: Path, statement: str, how: How
) -> None:
    """G1: each part is fetched once, as its first attempt, and the file is whole."""
    calls: Counter[str] = Counter()

    async def noted(name: str, _request: object) -> None:
        calls[name] += 1

    async with (
        report_world(database_url, tmp_path) as world,
        AnswerCuts(database_url) as cuts,
        world.process(functions(noted), database_url=cuts.url),
    ):
        cuts.cut(statement, how, times=2, rows_min=1)
        report = await ask(world)
        await eventually_async(lambda: cuts.made == 2, 60, what="two cuts")
        row = await is_made(world, report)
        await cuts.send_late()
        parts = await world.pool.fetch("SELECT attempts, owner FROM tickwright.report_parts")
    assert calls == {"lefts": 1, "rights": 1}
    assert [tuple(part) for part in parts] == [(1, None)] * 2
    assert row["owner"] is None


@pytest.mark.matrix
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("statement", [CHUNKS, EXECUTIONS], ids=["chunks", "executions"])
async def test_an_execution_ends_though_answers_of_its_claims_are_lost(
    batches: BatchWorld, statement: str, how: How
) -> None:
    """C2: every chunk is worked once, and neither a try nor a lost process is counted."""
    work = Numbers()
    async with AnswerCuts(batches.url) as cuts, await open_pool(cuts.url) as pool:
        process = await batches.process(work, pool=pool)
        cuts.cut(statement, how, times=2, rows_min=1)
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
async def test_polls_are_made_though_answers_of_their_claims_are_lost(database_url: str, how: How) -> None:
    """POL-1: each poll is made once."""
    calls: Counter[int] = Counter()

    async def answers(poll: Poll) -> Answer:
        calls[poll.tracker_id] += 1
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
    assert calls == Counter(trackers.ids)


async def check_a_run_is_not_busy(database_url: str, how: How) -> None:
    """The same process claims the run at its next try, while its session lives; it then keeps the run."""
    async with AnswerCuts(database_url) as cuts, await open_pool(cuts.url) as pool:
        session = WorkerSession(pool, name="test", roles=["fanout-consumer"], version="0")
        await session.open()
        runs = LedgerRunClaims(pool, session)
        cuts.cut(RUNS, how)
        with pytest.raises(Unavailable):
            await start_of(runs, RUN, session.token)
        assert await start_of(runs, RUN, session.token) is RunStart.BEGUN
        await cuts.send_late()
        assert await start_of(runs, RUN, session.token) is RunStart.BUSY, "a run that the process holds was released"


@pytest.mark.matrix
@pytest.mark.parametrize("how", HOWS)
async def test_a_run_whose_claim_lost_its_answer_is_not_busy(database_url: str, how: How) -> None:
    """RUN-1, also after a lost answer."""
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
    return lambda pool, to: PartRows(pool).claim(to.owner, rooms, announced=(1, "lefts"), number=to.number)


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
    arguments = [RUN.entity_code], [RUN.task_type], [RUN.window_s], [RUN.at_once]
    return lambda pool, to: pool.fetch(run_claims._SQL["begin"], to.owner, *arguments, to.number, TIMED_OUT)


async def _polls(world: BatchWorld, _folder: Path) -> Claim:
    trackers = await seed(world.pool, 5)
    arguments = [trackers.partner_no], [5]
    return lambda pool, to: pool.fetch(poll_queue._SQL["take"], to.owner, *arguments, to.number)


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
    """CLG-1: a claim that its process gave up takes nothing after the release; the next claim does."""
    ready, statement, table = KINDS[kind]
    claim = await ready(world, folder)
    owned = f"SELECT count(*) FROM tickwright.{table} WHERE owner = $1"
    async with AnswerCuts(world.url) as cuts, await open_pool(cuts.url) as pool:
        session = WorkerSession(world.pool, name="test", roles=["worker"], version="0")
        await session.open()
        gate = ClaimGate(pool.acquire, session, kind, _nothing)
        cuts.cut(statement, "late")
        with pytest.raises(UNAVAILABLE):
            async with gate.claiming() as ticket:
                await claim(pool, ticket)
        await gate.settle()
        await cuts.send_late()
        assert await world.pool.fetchval(owned, session.token) == 0, f"CLG-1 broken: {kind}"
        async with gate.claiming() as ticket:
            await claim(pool, ticket)
        assert await world.pool.fetchval(owned, session.token) >= 1, f"{kind} can no longer be claimed"


async def _nothing(_connection: Connection, _owner: int) -> int:
    return 0


@pytest.mark.parametrize("kind", KINDS)
async def test_a_late_claim_takes_nothing(batches: BatchWorld, tmp_path: Path, kind: str) -> None:
    """CLG-1, for each kind of claim."""
    await check_a_late_claim_takes_nothing(batches, tmp_path, kind)


@pytest.mark.parametrize("kind", KINDS)
async def test_the_suite_notices_claims_whose_number_is_not_checked(
    batches: BatchWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A mutant of the guard: settled claims are not refused."""
    mutate(monkeypatch, WorkerSession.next_claim_number, "self.claim_number += 1", "pass")
    with pytest.raises(AssertionError, match="CLG-1 broken"):
        await check_a_late_claim_takes_nothing(batches, tmp_path, kind)


async def test_the_suite_notices_that_nothing_is_released(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutant of the release: unknown claims stay owned, and the run is busy for as long as its session lives."""
    mutate(monkeypatch, ClaimGate._settle, "if not self.unsure:", "if self.unsure or not self.unsure:")
    with pytest.raises(AssertionError):
        await check_a_run_is_not_busy(database_url, "unheard")


# ---------------------------------------------------------------------- what is released late


async def check_a_late_release_touches_no_later_claim(url: str) -> None:
    """The late release has (key, fence) of the first claim; the session has claimed the same polls again meanwhile."""
    async with AnswerCuts(url) as cuts, await open_pool(cuts.url) as cut, await open_pool(url) as pool:
        trackers = await seed(pool, 3, due="now() - interval '1 second'")
        own, other = (WorkerSession(pool, name=n, roles=["poll-consumer"], version="0") for n in ("ours", "other"))
        await own.open()
        await other.open()
        source, room = QueueSource(cut, own), {trackers.partner_no: 10}
        first = await source.take(room)
        cuts.cut(RELEASED_POLLS, "late")
        with pytest.raises(UNAVAILABLE):
            await source.release(first)
        again = await source.take(room)
        assert [polls.ids for polls in again] == [polls.ids for polls in first]
        await cuts.send_late()
        assert not await QueueSource(pool, other).take(room), "two sessions carry out one poll at once"
        async with pool.acquire() as connection, connection.transaction():
            assert not await source.hold(connection, first), "an earlier claim counts"
            assert await source.hold(connection, again) == again


async def test_a_late_release_of_polls_touches_no_later_claim(database_url: str) -> None:
    """The fence of a poll is the instant of its claim: an earlier one releases nothing and has no effect."""
    await check_a_late_release_touches_no_later_claim(database_url)


@pytest.mark.parametrize(("name", "match"), [("release", "two sessions"), ("hold", "an earlier claim")])
async def test_the_suite_notices_polls_that_are_compared_by_owner_alone(
    database_url: str, monkeypatch: pytest.MonkeyPatch, name: str, match: str
) -> None:
    """A mutant of the fence: an earlier claim of the session is mistaken for its present one."""
    mutated = (
        poll_queue._SQL[name]
        .replace(" AND q.taken_at = u.taken_at", "")
        .replace("SELECT q.seq, q.owner, q.taken_at", "SELECT u.*")
    )
    assert mutated != poll_queue._SQL[name]
    monkeypatch.setattr(poll_queue, "_SQL", MappingProxyType({**poll_queue._SQL, name: mutated}))
    with pytest.raises(AssertionError, match=match):
        await check_a_late_release_touches_no_later_claim(database_url)


async def test_the_heartbeat_settles_what_could_not_be_released(database_url: str) -> None:
    """Also while there is no room for another claim, which would settle it."""
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


# ---------------------------------------------------------------------- what a leaving session still owns


def _leaving(pool: Pool) -> WorkerSession:
    """Return a session that releases all that it owns when it leaves, as in every process."""
    session = WorkerSession(pool, name="test", roles=["worker"], version="0")
    for reclaim in (
        ClaimStore(pool).reclaim_for_others,
        poll_queue.reclaim,
        LedgerRunClaims(pool).reclaim,
        PartRows(pool).reclaim,
        ChunksStore(pool).reclaim,
    ):
        session.on_reclaim(reclaim)
    return session


async def check_nothing_is_owned_without_a_session(world: BatchWorld, folder: Path, kind: str) -> None:
    """SES-1: what a session still owns when it leaves can be claimed at once, and nothing is lost."""
    ready, _, table = KINDS[kind]
    claim = await ready(world, folder)
    owned = f"SELECT count(*) FROM tickwright.{table} WHERE owner = $1"
    session, heir = _leaving(world.pool), _leaving(world.pool)
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
    assert await world.pool.fetchval(owned, heir.token) >= 1, f"{kind} can no longer be claimed"


@pytest.mark.parametrize("kind", KINDS)
async def test_a_leaving_session_releases_what_it_owns(batches: BatchWorld, tmp_path: Path, kind: str) -> None:
    """SES-1, for each kind of claim."""
    await check_nothing_is_owned_without_a_session(batches, tmp_path, kind)


@pytest.mark.parametrize(
    ("function", "guard"),
    [
        (
            WorkerSession._owns_claims,
            "return None in queries or any([await self._pool.fetchval(sql, token) for sql in queries])",
        ),
        (WorkerSession._leave, "await self._release(connection, [token])"),
    ],
    ids=["does not check", "releases nothing"],
)
async def test_the_suite_notices_a_session_that_leaves_without_a_release(
    batches: BatchWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: object, guard: str
) -> None:
    """Mutants of the release: the session's row is deleted, and what it owned stays owned."""
    mutate(monkeypatch, function, guard, "return False")
    with pytest.raises(AssertionError, match="SES-1 broken"):
        await check_nothing_is_owned_without_a_session(batches, tmp_path, "chunks")


async def test_each_table_with_an_owner_is_checked_when_a_session_leaves(database_url: str) -> None:
    """SES-1 for kinds of claims that are still to come; a partition is taken over from any reader.

    Calls of remote workers are released by their own session; see tests/engine/remote.
    """
    async with await open_pool(database_url, max_size=1) as pool:
        found = await pool.fetch(
            "SELECT c.relname FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid AND c.relkind IN ('r', 'p') "
            "WHERE c.relnamespace = 'tickwright'::regnamespace AND a.attname = 'owner' "
            "AND a.atttypid = 'bigint'::regtype AND NOT EXISTS (SELECT FROM pg_inherits i WHERE i.inhrelid = c.oid)"
        )
    assert {row[0] for row in found} - {"poll_partitions", "remote_calls"} == {table for _, _, table in KINDS.values()}


async def test_a_last_attempt_of_a_session_that_left_counts_only_if_it_began(database_url: str) -> None:
    """As after a kill: an attempt that began ends its job, and one that did not is not counted."""
    async with await open_pool(database_url) as pool:
        begun, waits = [await insert(pool, "t", max_attempts=1) for _ in range(2)]
        session, store = _leaving(pool), ClaimStore(pool)
        await session.open()
        async with ClaimGate(pool.acquire, session, "jobs", _nothing).claiming() as ticket:
            claimed = await _claim_jobs(pool, ticket)
        fences = {row.id: row.fence for row in claimed.rows}
        assert await store.begin_last(session.token, [begun], [fences[begun]]) == {begun: True}
        await session.stop()
        ended, back = [await job_row(pool, job_id) for job_id in (begun, waits)]
    assert (ended["status"], ended["attempts"]) == ("failed", 1)
    assert (back["status"], back["attempts"], back["owner"]) == ("pending", 0, None)


async def test_a_session_that_cannot_release_what_it_owns_does_not_leave(database_url: str) -> None:
    """Its lease runs out instead, and the process that declares it lost releases what it owns."""

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
    """Return what another owner gets after a take that was cut, and then what the same process gets."""
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
        assert again is None or await again.renew(), "a late take ended it"
        return theirs, again


@pytest.mark.parametrize("how", HOWS)
async def test_a_lease_whose_take_lost_its_answer_is_taken_again_at_once(database_url: str, how: How) -> None:
    """By its own process only, which works under no such lease. LSE-3 keeps every other owner out."""
    theirs, again = await _retake(database_url, how)
    assert theirs is None, "LSE-3 broken"
    assert again is not None
    assert again.fence == (3 if how == "unheard" else 2)


async def test_a_lease_that_is_held_is_not_taken_twice_by_its_process(database_url: str) -> None:
    """The lost answer of a second take does not affect the first one, whose answer arrived."""
    async with AnswerCuts(database_url) as cuts, await open_pool(cuts.url) as pool:
        leases = Leases(pool, owner="a", terms=LONG)
        held = await leases.take("work")
        assert held is not None
        cuts.cut(TAKEN_LEASE, "unheard")
        with pytest.raises(UNAVAILABLE):
            await leases.take("work")
        assert await leases.take("work") is None
        assert await held.renew()


async def test_a_verdict_that_is_written_twice_counts_as_one_attempt(database_url: str) -> None:
    """The answer of the commit is lost, and the relay writes the verdict again."""
    async with AnswerCuts(database_url) as cuts, await open_pool(cuts.url) as pool:
        row_id = await pool.fetchval(
            "INSERT INTO tickwright.outbox (destination, payload) VALUES ('pg:x', '{}') RETURNING id"
        )
        lease = await Leases(pool, owner="a", terms=LONG).take(LEASE)
        assert lease is not None
        relay = OutboxRelay(Leases(pool, owner="a"), {}, direct=DirectConnection(None))
        cuts.cut(RETRIED_MESSAGES, "unheard")
        verdicts = Verdicts(retried=[row_id], tries=[0], waits_s=[60.0], retry_errors=["no"])
        await relay._mark(lease, verdicts)
        assert cuts.made == 1
        assert await pool.fetchval("SELECT attempts FROM tickwright.outbox WHERE id = $1", row_id) == 1
        assert relay.counters.retried == 1
