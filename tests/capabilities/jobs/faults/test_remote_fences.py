"""Remote workers that are stopped, killed or repeat themselves: the fence of every call of the worker protocol."""

import asyncio
import json
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any

import aiohttp
import asyncpg
import pytest

from kit.api import Client
from kit.api_process import api_process
from kit.mutants import mutate
from kit.processes import kill_group
from kit.remote import RemoteSite, RemoteWorker, ended, of, register, remote_site
from kit.waiting import eventually_async
from tickwright.capabilities.jobs import retention
from tickwright.capabilities.jobs.remote import claims as claims_module
from tickwright.capabilities.jobs.remote import results as results_module
from tickwright.capabilities.jobs.remote.sessions import RemoteSessions

PROGRAM = Path(__file__).parents[3] / "kit/remote_program.py"
LOST = [409, "session_lost"]
STALE = {"done": 0, "locked": []}


@pytest.fixture
async def site(database_url: str, tmp_path: Path) -> AsyncIterator[RemoteSite]:
    """A running api."""
    async with remote_site(database_url, tmp_path) as site:
        yield site


@asynccontextmanager
async def program(site: RemoteSite) -> AsyncIterator[Process]:
    """A remote worker as a process, which ends with the block."""
    given = str(PROGRAM), site.client.base, str(site.client.key)
    process = await asyncio.create_subprocess_exec(sys.executable, *given, stdin=PIPE, stdout=PIPE)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGCONT)
            process.kill()
        await process.wait()


async def line_of(process: Process) -> Any:
    """Return the next line of a program."""
    assert process.stdout is not None
    return json.loads(await process.stdout.readline())


async def lose(site: RemoteSite, worker: RemoteWorker) -> None:
    """Let a worker's lease expire, and wait until its session is declared lost."""
    pool = site.workers.claims._pool
    await pool.execute("UPDATE tickwright.workers SET lease_until = now() WHERE id = $1", worker.id)

    async def is_lost() -> bool:
        return bool(await pool.fetchval("SELECT lost_at IS NOT NULL FROM tickwright.workers WHERE id = $1", worker.id))

    await eventually_async(is_lost, 30, what="the session is declared lost")


async def test_a_stopped_client_that_comes_back_changes_nothing(site: RemoteSite) -> None:
    """Its lease expires, another worker ends the job; then every call of the first one is refused, and says why."""
    [job_id] = await site.add(max_attempts=3)
    async with program(site) as stopped:
        job = await line_of(stopped)
        assert job["id"] == job_id
        stopped.send_signal(signal.SIGSTOP)
        worker = await register(site.client)
        [again] = await worker.claim(wait="60s")
        assert (again["id"], again["attempt"]) == (job_id, 2)
        assert again["fence"] > job["fence"]
        assert (await worker.results(ended(again, result="second")))["done"] == 1
        before = await site.job(job_id)
        stopped.send_signal(signal.SIGCONT)
        assert stopped.stdin is not None
        stopped.stdin.write(b"\n")
        answers = await line_of(stopped)
    assert answers == dict.fromkeys(("results", "heartbeat", "progress", "begin", "claim", "close"), LOST)
    assert await site.job(job_id) == before
    assert before["result"] == "second"


async def test_a_client_killed_in_its_handler_loses_its_job_to_another(site: RemoteSite) -> None:
    """The attempt counts, and its history shows the loss."""
    [job_id] = await site.add(max_attempts=2)
    async with program(site) as killed:
        await line_of(killed)
        killed.kill()
        worker = await register(site.client)
        [again] = await worker.claim(wait="60s")
        assert (again["id"], again["attempt"]) == (job_id, 2)
        await worker.results(ended(again))
    seen = await site.job(job_id)
    assert (seen["status"], seen["attempts"]) == ("completed", 2)


async def test_a_last_attempt_that_did_not_begin_is_not_lost_with_its_worker(site: RemoteSite) -> None:
    """One that began is: it may have had its effect."""
    first, second = await site.add(count=2, max_attempts=1)
    worker = await register(site.client)
    jobs = {job["id"]: job for job in await worker.claim()}
    assert (await worker.said("begin", {"jobs": [of(jobs[first])]}))["begins"] == [first]
    await lose(site, worker)
    assert ((await site.job(first))["status"], (await site.job(second))["status"]) == ("failed", "pending")
    other = await register(site.client)
    [again] = await other.claim(wait="30s")
    assert (again["id"], again["attempt"]) == (second, 1)


async def check_repeated_results_change_no_later_attempt(site: RemoteSite) -> None:
    """Every result of an attempt, sent again after the same session has claimed the job again, is stale."""
    [job_id] = await site.add(max_attempts=9)
    worker = await register(site.client)
    outcomes: list[dict[str, Any]] = [
        {"outcome": "release"},
        {"outcome": "release", "started": True},
        {"outcome": "cancelled"},
        {"outcome": "snooze", "wait": "0s"},
        {"outcome": "fail", "message": "x"},
    ]
    [job] = await worker.claim()
    for outcome in outcomes:
        result = {**of(job), **outcome}
        assert (await worker.results(result))["done"] == 1
        [again] = await worker.claim(wait="30s")
        for late in (result, ended(job), ended(job, result=1), ended(job, "fail", message="x", final=True)):
            assert await worker.results(late) == {**STALE, "stale": [job_id]}, (outcome, late)
        progress = {"jobs": [{**of(job), "progress": 1}]}
        assert await worker.said("progress", progress) == {"done": 0, "stale": [job_id]}
        assert (await worker.said("begin", {"jobs": [of(job)]}))["lost"] == [job_id]
        stops = (await worker.said("heartbeat", {"held": [of(job), of(again)]}))["stop"]
        assert stops == [{**of(job), "reason": "lost"}]
        job = again
    complete = ended(job, result="once")
    assert (await worker.results(complete))["done"] == 1
    assert await worker.results(complete) == {**STALE, "stale": [job_id]}
    assert (await site.job(job_id))["result"] == "once"


async def test_repeated_results_change_no_later_attempt(site: RemoteSite) -> None:
    """A call whose answer was lost may be sent again at any time."""
    await check_repeated_results_change_no_later_attempt(site)


async def test_results_of_many_calls_at_once_are_written_once(site: RemoteSite) -> None:
    """The same call five times, in one transaction or in several: one of them writes."""
    ids = await site.add(count=20)
    worker = await register(site.client)
    jobs = await worker.claim(most=20)
    answers = await asyncio.gather(*(worker.results(*map(ended, jobs)) for _ in range(5)))
    assert sum(answer["done"] for answer in answers) == 20
    assert all([(await site.job(job_id))["status"] == "completed" for job_id in ids])


async def check_a_session_cannot_end_the_job_of_another(site: RemoteSite) -> None:
    """Neither under its own secret nor under a made-up one of the other session."""
    [job_id] = await site.add()
    owner, thief = await register(site.client), await register(site.client)
    [job] = await owner.claim()
    assert await thief.results(ended(job)) == {**STALE, "stale": [job_id]}
    assert (await thief.said("progress", {"jobs": [{**of(job), "progress": 1}]}))["stale"] == [job_id]
    assert (await thief.said("begin", {"jobs": [of(job)]}))["lost"] == [job_id]
    forged = RemoteWorker(site.client, f"tws_{owner.id}_{thief.session.rpartition('_')[2]}", owner.registered)
    for name, body in {
        "results": {"results": [ended(job)]},
        "heartbeat": {"held": []},
        "claim": forged.claim_body(held=[]),
        "close": {},
    }.items():
        (await forged.call(name, body)).says(403, "session_forbidden")
    assert (await site.job(job_id))["status"] == "processing"
    assert (await owner.results(ended(job)))["done"] == 1


async def test_a_session_cannot_end_the_job_of_another(site: RemoteSite) -> None:
    """A session is proved by its secret, and owns what it claimed."""
    await check_a_session_cannot_end_the_job_of_another(site)


async def check_jobs_of_a_claim_without_an_answer_are_released(site: RemoteSite) -> None:
    """The next claim says what is held: the rest is released with no attempt counted, and given out again."""
    ids = await site.add(count=5, max_attempts=3)
    worker = await register(site.client)
    known = await worker.claim(most=2)
    lost = await worker.claim(most=3)  # the client never saw this answer
    again = await worker.claim(held=[of(job) for job in known])
    assert {job["id"] for job in again} == {job["id"] for job in lost}
    assert {job["attempt"] for job in again} == {1}
    assert await worker.results(*map(ended, known), *map(ended, again)) == {"done": 5, "stale": [], "locked": []}
    assert [(await site.job(job_id))["attempts"] for job_id in ids] == [1] * 5


async def test_jobs_of_a_claim_without_an_answer_are_released(site: RemoteSite) -> None:
    """They are not lost until the session ends."""
    await check_jobs_of_a_claim_without_an_answer_are_released(site)


async def check_a_late_claim_is_refused(site: RemoteSite) -> None:
    """A claim that arrives after a later one said what is held takes nothing."""
    worker = await register(site.client)
    late = worker.claim_body()
    assert await worker.claim(held=[]) == []
    await site.add()
    (await worker.call("claim", late)).says(409, "claim_superseded")
    assert len(await worker.claim()) == 1


async def test_a_late_claim_is_refused(site: RemoteSite) -> None:
    """Otherwise its jobs would be unknown to the client again."""
    await check_a_late_claim_is_refused(site)


async def test_a_client_that_leaves_while_it_is_given_jobs_holds_none(
    site: RemoteSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was claimed for it is released at once, with no attempt counted."""
    claimed, may_return = asyncio.Event(), asyncio.Event()
    store = site.workers.claims._store
    claim = store.claim

    async def held_back(*given: Any) -> Any:
        found = await claim(*given)
        claimed.set()
        await may_return.wait()
        return found

    [job_id] = await site.add()
    async with aiohttp.ClientSession() as http:
        leaves = await register(Client(http, site.client.base, site.client.key))
        monkeypatch.setattr(store, "claim", held_back)
        claiming = asyncio.create_task(leaves.claim())
        await claimed.wait()
        claiming.cancel()
    assert site.node.api is not None
    server = site.node.api._server
    assert server is not None
    await eventually_async(lambda: len(server.server_state.connections) <= 1, what="the connection is closed")
    for _ in range(20):  # turns of the loop in which the request notices that
        await asyncio.sleep(0)
    may_return.set()
    stays = await register(site.client)
    [job] = await stays.claim(wait="60s")
    assert (job["id"], job["attempt"]) == (job_id, 1)


async def test_a_client_that_leaves_while_it_waits_gets_nothing(site: RemoteSite) -> None:
    """A job that comes later is another worker's."""
    async with aiohttp.ClientSession() as http:
        leaves = await register(Client(http, site.client.base, site.client.key))
        waiting = asyncio.create_task(leaves.claim(wait="60s"))
        await eventually_async(lambda: len(site.workers.claims._waiting) == 1)
        waiting.cancel()
    await eventually_async(lambda: not site.workers.claims._waiting, what="it has left")
    await site.add()
    stays = await register(site.client)
    assert [job["attempt"] for job in await stays.claim(wait="60s")] == [1]


async def test_an_api_killed_between_claim_and_answer_loses_no_job(database_url: str, tmp_path: Path) -> None:
    """The client goes on through another api, says what it knows of, and gets the jobs with the same attempt."""
    async with (
        remote_site(database_url, tmp_path) as site,
        api_process(database_url, tmp_path) as (url, child),
        aiohttp.ClientSession() as http,
    ):
        await site.add(count=50, max_attempts=3)
        killed = (await register(site.client)).through(Client(http, url, site.client.key))
        connection = await asyncpg.connect(database_url)
        held = "SELECT count(*) FROM tickwright.scheduled_tasks WHERE owner = $1"
        claiming = asyncio.create_task(killed.call("claim", killed.claim_body(most=50)))
        await eventually_async(lambda: connection.fetchval(held, killed.id), what="the claim is committed")
        kill_group(child)
        with suppress(aiohttp.ClientError):  # where its answer was faster than the kill, it is lost here
            await claiming
        worker = killed.through(site.client)
        jobs = await worker.claim(most=50, wait="30s", held=[])
        assert len(jobs) == 50
        assert {job["attempt"] for job in jobs} == {1}
        assert (await worker.results(*map(ended, jobs)))["done"] == 50
        await connection.close()


async def test_a_worker_may_use_any_api(database_url: str, tmp_path: Path) -> None:
    """A session, its jobs and its results are in the database: every call may reach another process."""
    async with (
        remote_site(database_url, tmp_path) as site,
        api_process(database_url, tmp_path) as (url, _),
        aiohttp.ClientSession() as http,
    ):
        ids = await site.add(count=10)
        one = await register(site.client)
        other = one.through(Client(http, url, site.client.key))
        jobs = await other.claim()
        other._numbers = one._numbers
        assert (await one.said("heartbeat", {"held": list(map(of, jobs))}))["stop"] == []
        assert (await one.results(*map(ended, jobs[:5])))["done"] == 5
        assert (await other.results(*map(ended, jobs)))["stale"] == [job["id"] for job in jobs[:5]]
        assert all([(await site.job(job_id))["status"] == "completed" for job_id in ids])


async def test_a_locked_row_delays_no_other_result(site: RemoteSite, database_url: str) -> None:
    """Its own result is to be sent again; those of others are written."""
    first, second = await site.add(count=2)
    worker = await register(site.client)
    jobs = {job["id"]: job for job in await worker.claim()}
    connection = await asyncpg.connect(database_url)
    async with connection.transaction():
        await connection.execute("SELECT FROM tickwright.scheduled_tasks WHERE id = $1 FOR UPDATE", first)
        answer = await worker.results(ended(jobs[first]), ended(jobs[second]))
        assert answer == {"done": 1, "stale": [], "locked": [first]}
    assert (await worker.results(ended(jobs[first])))["done"] == 1
    await connection.close()


async def test_a_lost_session_is_not_renewed_by_anything(site: RemoteSite) -> None:
    """Its calls answer ``session_lost``; a claim that waits under it is ended so, too."""
    worker = await register(site.client)
    waiting = asyncio.create_task(worker.call("claim", worker.claim_body(wait="60s")))
    await eventually_async(lambda: len(site.workers.claims._waiting) == 1)
    await lose(site, worker)
    (await worker.call("heartbeat", {})).says(409, "session_lost")
    (await worker.call("claim", worker.claim_body())).says(409, "session_lost")
    (await waiting).says(409, "session_lost")


def without(module: Any, query: str, guard: str, instead: str = "") -> MappingProxyType[str, str]:
    """Return a module's queries with one of them without a guard."""
    assert guard in module.SQL[query]
    return MappingProxyType({**module.SQL, query: module.SQL[query].replace(guard, instead)})


MUTANTS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], Callable[[RemoteSite], Any]]] = {
    "a result without the fence of its attempt": (
        lambda patch: patch.setattr(
            results_module, "SQL", without(results_module, "lock_held", " AND t.fence = u.fence")
        ),
        check_repeated_results_change_no_later_attempt,
    ),
    "progress without the fence of its attempt": (
        lambda patch: patch.setattr(
            results_module, "SQL", without(results_module, "report_progress", " AND t.fence = u.fence")
        ),
        check_repeated_results_change_no_later_attempt,
    ),
    "a result without its owner": (
        lambda patch: patch.setattr(
            results_module,
            "SQL",
            without(results_module, "lock_held", " AND t.owner = u.owner", " AND u.owner IS NOT NULL"),
        ),
        check_a_session_cannot_end_the_job_of_another,
    ),
    "a session without its secret": (
        lambda patch: mutate(
            patch, RemoteSessions.of, 'if not hmac.compare_digest(row["remote_secret"], _hash_of(secret)):', "if False:"
        ),
        check_a_session_cannot_end_the_job_of_another,
    ),
    "a claim that releases nothing": (
        lambda patch: patch.setattr(claims_module.RemoteClaimer, "_release_unknown", _nothing),
        check_jobs_of_a_claim_without_an_answer_are_released,
    ),
    "a claim that refuses no earlier one": (
        lambda patch: patch.setattr(
            claims_module,
            "_WORKERS",
            MappingProxyType({**claims_module._WORKERS, "refuse_claims": "SELECT $1::bigint, $2::bigint"}),
        ),
        check_a_late_claim_is_refused,
    ),
}


async def _nothing(*_: object) -> None:
    """Do nothing."""


@pytest.mark.mutant
@pytest.mark.parametrize("mutant", [*MUTANTS])
async def test_the_suite_notices_a_missing_fence(
    site: RemoteSite, mutant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each fence of the protocol is needed."""
    weaken, check = MUTANTS[mutant]
    weaken(monkeypatch)
    with pytest.raises(AssertionError):
        await check(site)


async def check_an_attempt_that_no_heartbeat_names_ends(site: RemoteSite) -> None:
    """Retention releases it, a minute after its timeout; an attempt that is in time stays."""
    pool = site.workers.claims._pool
    late, in_time = await site.add(count=2, max_attempts=2)
    [unbegun] = await site.add(max_attempts=1)
    worker = await register(site.client)
    assert len(await worker.claim()) == 3
    for job_id, minutes in ((late, 2), (in_time, 1), (unbegun, None)):
        ago = None if minutes is None else timedelta(minutes=minutes)
        await pool.execute(
            "UPDATE tickwright.scheduled_tasks SET updated_at = now() - interval '1 hour', "
            "started_at = now() - $2::interval WHERE id = $1", job_id, ago
        )  # fmt: skip
    rows = await pool.fetch(retention.SQL["return_stuck"], timedelta(minutes=5), 100)
    assert sorted(map(tuple, rows)) == sorted([(late, "pending"), (unbegun, "pending")])
    assert [(await site.job(job_id))["attempts"] for job_id in (late, unbegun)] == [1, 0]
    assert (await site.job(late))["error_message"].startswith("timeout: its remote worker")


async def test_an_attempt_that_no_heartbeat_names_ends(site: RemoteSite) -> None:
    """A client that forgets a job while it lives does not keep it for ever."""
    await check_an_attempt_that_no_heartbeat_names_ends(site)


@pytest.mark.mutant
async def test_the_suite_notices_that_forgotten_attempts_stay(
    site: RemoteSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the rule they stay until the session ends."""
    guard = "w.remote_lease IS NULL OR "
    query = retention.SQL["return_stuck"]
    assert guard in query
    mutant = {**retention.SQL, "return_stuck": query.replace(guard, "true OR ")}
    monkeypatch.setattr(retention, "SQL", MappingProxyType(mutant))
    with pytest.raises(AssertionError):
        await check_an_attempt_that_no_heartbeat_names_ends(site)
