"""Polls, tasks and chunks of workers and consumers that are stopped, killed or repeat themselves."""

import asyncio
import json
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import aiohttp
import pytest

from kit.api import Client
from kit.remote import RemoteSite, RemoteWorker, ended, of, register
from kit.remote_kinds import KINDS, WorkKind, kind_site, shown
from kit.waiting import eventually_async
from tickwright.engine.remote import calls as calls_module
from tickwright.engine.remote import work as work_module
from tickwright.engine.remote.calls import RemoteCalls

PROGRAM = Path(__file__).parents[2] / "kit/remote_program.py"
LOST = [409, "session_lost"]
STALE = {"done": 0, "locked": []}
ROWS = "SELECT count(*) FROM tickwright.remote_calls"


@pytest.fixture(params=[*KINDS])
async def sited(
    request: pytest.FixtureRequest, database_url: str, tmp_path: Path
) -> AsyncIterator[tuple[RemoteSite, WorkKind]]:
    """An api with the consumer of each kind."""
    async with kind_site(database_url, tmp_path, request.param) as found:
        yield found


@asynccontextmanager
async def program(site: RemoteSite, kind: WorkKind) -> AsyncIterator[Process]:
    """A remote worker as a process, which ends with the block."""
    given = (
        str(PROGRAM),
        site.client.base,
        str(site.client.key),
        json.dumps(kind.works),
        json.dumps(kind.result("late")),
    )
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


async def is_done(site: RemoteSite, kind: WorkKind, text: str) -> None:
    """Wait until the work is done with a result."""

    async def done() -> bool:
        return await kind.done(site) == shown(kind, text)

    await eventually_async(done, 60, what="the work is done")


async def claim_one(worker: RemoteWorker) -> dict[str, Any]:
    """Claim one piece of work, however long it takes until it is handed over."""
    [found] = await worker.claim_calls(most=1, wait="60s")
    return found


async def test_a_stopped_worker_that_comes_back_changes_nothing(sited: tuple[RemoteSite, WorkKind]) -> None:
    """Its lease expires, another worker does the work; then each of its calls is refused, and nothing changes."""
    site, kind = sited
    async with program(site, kind) as stopped:
        await kind.begin(site)
        late = await line_of(stopped)
        stopped.send_signal(signal.SIGSTOP)
        worker = await register(site.client, **kind.registration)
        again = await claim_one(worker)
        assert (again["payload"], again["kind"]) == (late["payload"] | _changed(again), kind.kind)
        assert (await worker.results(ended(again, result=kind.result("second"))))["done"] == 1
        await is_done(site, kind, "second")
        stopped.send_signal(signal.SIGCONT)
        assert stopped.stdin is not None
        stopped.stdin.write(b"\n")
        answers = await line_of(stopped)
    assert answers == dict.fromkeys(("results", "heartbeat", "progress", "begin", "claim", "close"), LOST)
    assert await kind.done(site) == shown(kind, "second")


def _changed(again: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a payload that another attempt may change."""
    return {name: again["payload"][name] for name in ("run_fence", "last_executed_at") if name in again["payload"]}


async def test_a_killed_worker_loses_its_work_to_another(sited: tuple[RemoteSite, WorkKind]) -> None:
    """When its lease has expired, the work is done elsewhere, once."""
    site, kind = sited
    async with program(site, kind) as killed:
        await kind.begin(site)
        await line_of(killed)
        killed.kill()
        worker = await register(site.client, **kind.registration)
        again = await claim_one(worker)
    await worker.results(ended(again, result=kind.result("second")))
    await is_done(site, kind, "second")


async def check_answers_count_once_and_only_from_the_holder(sited: tuple[RemoteSite, WorkKind]) -> None:
    """A result with an old fence, of another session, or sent again changes nothing."""
    site, kind = sited
    worker, other = [await register(site.client, **kind.registration) for _ in range(2)]
    await kind.begin(site)
    first = await claim_one(worker)
    stolen = ended(first, result=kind.result("stolen"))
    assert await other.results(stolen) == {**STALE, "stale": [first["id"]]}
    progress = {"jobs": [{**of(first), "progress": 1}]}
    assert await other.said("progress", progress) == {"done": 0, "stale": [first["id"]]}
    assert (await other.said("heartbeat", {"held": [of(first)]}))["stop"] == [{**of(first), "reason": "lost"}]
    assert (await other.results(ended(first, "release")))["stale"] == [first["id"]]
    assert (await worker.said("heartbeat", {"held": [of(first)]}))["stop"] == []
    assert (await worker.results(ended(first, "release")))["done"] == 1
    again = await claim_one(worker)
    assert (again["id"], again["fence"] > first["fence"]) == (first["id"], True)
    for late in (ended(first, result=kind.result("late")), ended(first, "release"), ended(first, "snooze", wait="1s")):
        assert await worker.results(late) == {**STALE, "stale": [first["id"]]}, late
    assert await worker.said("progress", progress) == {"done": 0, "stale": [first["id"]]}
    assert await site.pool.fetchval("SELECT progress FROM tickwright.remote_calls") is None
    results = [worker.results(ended(again, result=kind.result("once"))) for _ in range(5)]
    assert sorted(answer["done"] for answer in await asyncio.gather(*results)) == [0, 0, 0, 0, 1]
    await is_done(site, kind, "once")


async def test_answers_count_once_and_only_from_the_holder(sited: tuple[RemoteSite, WorkKind]) -> None:
    """Every call is fenced by its session and by the fence of the claim."""
    await check_answers_count_once_and_only_from_the_holder(sited)


async def check_work_of_a_claim_without_an_answer_is_released(sited: tuple[RemoteSite, WorkKind]) -> None:
    """The next claim says what is held: the rest is given out again."""
    site, kind = sited
    worker = await register(site.client, **kind.registration)
    await kind.begin(site)
    lost = await claim_one(worker)  # the client never saw this answer
    found = await worker.claim_calls(held=[])
    assert [one["id"] for one in found] == [lost["id"]]
    [again] = found
    assert again["fence"] > lost["fence"]
    assert await worker.claim_calls(held=[of(again)]) == []
    await worker.results(ended(again, result=kind.result("second")))
    await is_done(site, kind, "second")


async def test_work_of_a_claim_without_an_answer_is_released(sited: tuple[RemoteSite, WorkKind]) -> None:
    """It is not lost until the session ends."""
    await check_work_of_a_claim_without_an_answer_is_released(sited)


async def test_a_closed_session_leaves_its_work_to_others(sited: tuple[RemoteSite, WorkKind]) -> None:
    """It says how much that was."""
    site, kind = sited
    leaves, stays = [await register(site.client, **kind.registration) for _ in range(2)]
    await kind.begin(site)
    first = await claim_one(leaves)
    assert await leaves.said("close", {}) == {"released": 1}
    again = await claim_one(stays)
    assert (again["id"], again["fence"] > first["fence"]) == (first["id"], True)
    await stays.results(ended(again, result=kind.result("second")))
    await is_done(site, kind, "second")


async def test_a_worker_may_leave_while_it_waits_for_work(sited: tuple[RemoteSite, WorkKind]) -> None:
    """What comes later is another worker's."""
    site, kind = sited
    async with aiohttp.ClientSession() as http:
        leaves = await register(Client(http, site.client.base, site.client.key), **kind.registration)
        waiting = asyncio.create_task(leaves.claim_calls(wait="60s"))
        await eventually_async(lambda: len(site.workers.claims._waiting) == 1)
        waiting.cancel()
    await eventually_async(lambda: not site.workers.claims._waiting, what="it has left")
    stays = await register(site.client, **kind.registration)
    await kind.begin(site)
    found = await claim_one(stays)
    await stays.results(ended(found, result=kind.result("first")))
    await is_done(site, kind, "first")


async def check_the_answer_to_a_lost_consumer_changes_nothing(sited: tuple[RemoteSite, WorkKind]) -> None:
    """Its session is declared lost with the call; the work is handed over again, under another claim."""
    site, kind = sited
    worker = await register(site.client, **kind.registration)
    await kind.begin(site)
    first = await claim_one(worker)
    mine = site.node.installation.context  # the consumer is a part of this process
    caller = await site.pool.fetchval("SELECT caller FROM tickwright.remote_calls")
    async with mine.pool.acquire() as connection, connection.transaction():
        await connection.execute(
            "UPDATE tickwright.workers SET lease_until = now() - interval '1 s' WHERE id = $1", caller
        )
        rows = await connection.fetch(
            "UPDATE tickwright.workers SET lost_at = now() WHERE id = $1 RETURNING id", caller
        )
        await connection.execute(calls_module.SQL["lose"], [row["id"] for row in rows])
        await _reclaim(connection, kind, [caller])
    late = ended(first, result=kind.result("late"))
    assert await worker.results(late) == {**STALE, "stale": [first["id"]]}
    again = await claim_one(worker)
    assert again["id"] != first["id"]
    await worker.results(ended(again, result=kind.result("second")))
    await is_done(site, kind, "second")


async def _reclaim(connection: Any, kind: WorkKind, tokens: list[int]) -> None:
    from tickwright.capabilities.batches.executions.chunks_store import ChunksStore
    from tickwright.capabilities.fanout.consumer.run_claims import LedgerRunClaims
    from tickwright.capabilities.polling.consumer.queue import reclaim

    reclaims: dict[str, Any] = {"poll": reclaim, "task": LedgerRunClaims.reclaim, "chunk": ChunksStore.reclaim}
    await reclaims[kind.kind](connection, tokens)


async def test_the_answer_to_a_lost_consumer_changes_nothing(sited: tuple[RemoteSite, WorkKind]) -> None:
    """The call's row is gone with the consumer's session."""
    await check_the_answer_to_a_lost_consumer_changes_nothing(sited)


async def test_a_call_that_no_worker_claims_is_taken_back(sited: tuple[RemoteSite, WorkKind]) -> None:
    """No row stays behind; the work waits at the consumer, and is handed over again, which costs no attempt."""
    site, kind = sited
    absent = await register(site.client, **kind.registration)
    await kind.begin(site)
    await eventually_async(lambda: site.pool.fetchval(f"{ROWS} WHERE owner IS NULL"), 60, what="it is handed over")

    async def is_counted() -> bool:
        counts = site.calls.counts
        return counts[kind.kind, "unclaimed"] > 0

    await eventually_async(is_counted, 60, what="it is taken back")
    found = await claim_one(absent)
    await absent.results(ended(found, result=kind.result("late")))
    await is_done(site, kind, "late")


async def test_calls_whose_rows_are_gone_are_made_again(sited: tuple[RemoteSite, WorkKind]) -> None:
    """A crash of the server empties the table, which is not logged."""
    site, kind = sited
    worker = await register(site.client, **kind.registration)
    await kind.begin(site)
    first = await claim_one(worker)
    await site.pool.execute("TRUNCATE tickwright.remote_calls")
    again = await claim_one(worker)
    assert again["id"] != first["id"]
    assert (await worker.results(ended(first, result=kind.result("late"))))["stale"] == [first["id"]]
    await worker.results(ended(again, result=kind.result("second")))
    await is_done(site, kind, "second")


def without(query: str, guard: str, instead: str = "") -> MappingProxyType[str, str]:
    """Return the queries with one of them without a guard."""
    sql = calls_module.SQL[query]
    assert guard in sql
    return MappingProxyType({**calls_module.SQL, query: sql.replace(guard, instead)})


def weakened(query: str, guard: str, instead: str = "") -> Callable[[pytest.MonkeyPatch], None]:
    """Take a guard out of a query."""

    def weaken(patch: pytest.MonkeyPatch) -> None:
        weak = without(query, guard, instead)
        for module in (calls_module, work_module):
            patch.setattr(module, "SQL", weak)

    return weaken


async def _nothing(*_: object) -> int:
    return 0


MUTANTS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], Callable[[Any], Any]]] = {
    "an answer without the fence of its claim": (
        weakened("end_calls", " AND c.fence = u.fence"),
        check_answers_count_once_and_only_from_the_holder,
    ),
    "an answer without its owner": (
        weakened("end_calls", " AND c.owner = u.owner"),
        check_answers_count_once_and_only_from_the_holder,
    ),
    "progress without the fence of its claim": (
        weakened("report_progress", " AND c.fence = u.fence"),
        check_answers_count_once_and_only_from_the_holder,
    ),
    "a release without the fence of its claim": (
        weakened("release_calls", " AND g.fence = c.fence"),
        check_answers_count_once_and_only_from_the_holder,
    ),
    "a claim that releases nothing": (
        lambda patch: patch.setattr(work_module.CallStore, "release_unknown", _nothing),
        check_work_of_a_claim_without_an_answer_is_released,
    ),
    "a lost consumer whose calls stay": (
        weakened("lose", "c.caller = ANY ($1::bigint[]) OR NOT EXISTS", "false AND NOT EXISTS"),
        check_the_answer_to_a_lost_consumer_changes_nothing,
    ),
}


@pytest.mark.mutant
@pytest.mark.parametrize("mutant", [*MUTANTS])
async def test_the_suite_notices_a_missing_fence(
    database_url: str, tmp_path: Path, mutant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each fence of a call is needed."""
    weaken, check = MUTANTS[mutant]
    weaken(monkeypatch)
    async with kind_site(database_url, tmp_path, "poll") as sited:
        with pytest.raises(AssertionError):
            await check(sited)


async def test_operators_see_calls(sited: tuple[RemoteSite, WorkKind]) -> None:
    """The list has each with its worker and its progress; metrics count them by kind and outcome."""
    site, kind = sited
    worker = await register(site.client, **kind.registration)
    await kind.begin(site)
    found = await claim_one(worker)
    await worker.said("progress", {"jobs": [{**of(found), "progress": {"done": 0.5}}]})
    [shown_call] = (await site.client.get("/v1/remote-calls")).json["items"]
    assert (shown_call["id"], shown_call["kind"], shown_call["worker"]) == (found["id"], kind.kind, worker.id)
    assert (shown_call["progress"], shown_call["began_at"] is not None) == ({"done": 0.5}, True)
    calls: RemoteCalls = site.calls
    samples = {(one.name, one.labels): one.value for one in calls.samples()}
    assert samples["tickwright_remote_pending_calls", ()] == 1
    await worker.results(ended(found, result=kind.result("x")))
    await is_done(site, kind, "x")
    samples = {(one.name, one.labels): one.value for one in calls.samples()}
    assert samples["tickwright_remote_calls_total", (kind.kind, "complete")] == 1
