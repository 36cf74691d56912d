"""Poll consumers are killed, frozen and disconnected: each poll has its effect once, and every limit holds.

Calls are counted in the courier's log, effects in the ledger and the outbox.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from kit.consumers import (
    LONG,
    Consumer,
    ConsumerProcess,
    Trackers,
    all_done,
    deliver,
    done_times,
    events,
    http_of,
    queue_empty,
    running_consumer,
    seed,
    slice_of,
)
from kit.partners import Courier
from kit.probes import Stops
from kit.processes import kill_group
from kit.waiting import eventually_async
from tickwright import Answer, Poll
from tickwright.capabilities.polling.consumer import queue as poll_queue
from tickwright.capabilities.polling.consumer import result_writer
from tickwright.store.pool import Pool, open_pool


async def _check_effects(pool: Pool, trackers: Trackers) -> None:
    """Check that each poll is in the ledger once, is counted once, and has one event."""
    assert await done_times(pool, trackers) == Counter(trackers.ids)
    assert Counter(event["tracker_id"] for event in await events(pool)) == Counter(trackers.ids)
    assert (await slice_of(pool, trackers))["polled"] == len(trackers.ids)


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("kill_at", "times"),
    [
        ("polls.before_results", 1),
        ("polls.before_commit", 2),
        ("polls.results_written", 1),
        ("polls.results_written", 3),
    ],
)
async def test_kill_9_of_a_consumer_loses_no_poll_and_doubles_no_effect(
    database_url: str, tmp_path: Path, kill_at: str, times: int
) -> None:
    """POL-1: wherever a consumer dies, the next owner of its group makes the polls without an effect, and no others."""
    async with Courier() as courier:
        pool = await open_pool(database_url, max_size=2)
        courier.delay_s = 0.05
        trackers = await seed(pool, 60, http=http_of(courier), concurrency=8)
        dying = ConsumerProcess(database_url, tmp_path / "dying.log", kill_at=kill_at, times=times)
        try:
            await eventually_async(lambda: dying.process.poll() == -9, 30, what="it dies at its probe")
        finally:
            kill_group(dying.process)
        asked_before = len(courier.requests)
        done_before = len(await done_times(pool, trackers))
        async with running_consumer(database_url):
            await eventually_async(lambda: queue_empty(pool), 30)
        await _check_effects(pool, trackers)
        assert len(courier.requests) - asked_before == 60 - done_before
        await pool.close()


@pytest.mark.storm
async def test_a_storm_of_kills_doubles_nothing(database_url: str, tmp_path: Path) -> None:
    """POL-1: three consumers are killed one after the other while they work."""
    async with Courier() as courier:
        pool = await open_pool(database_url, max_size=2)
        courier.delay_s = 0.05
        trackers = await seed(pool, 150, http=http_of(courier), concurrency=5)
        for number in range(3):
            child = ConsumerProcess(database_url, tmp_path / f"{number}.log", lease_s=2.0)
            try:
                seen = len(courier.requests)
                await eventually_async(lambda seen=seen: len(courier.requests) >= seen + 15, 30)  # type: ignore[misc]
            finally:
                kill_group(child.process)
        async with running_consumer(database_url):
            await eventually_async(lambda: queue_empty(pool), 30)
        await _check_effects(pool, trackers)
        assert courier.running_max <= 10, "five, and five of the killed consumer"
        await pool.close()


async def test_answers_of_a_consumer_frozen_past_its_lease_have_no_effect(database_url: str, tmp_path: Path) -> None:
    """POL-2: SIGSTOP past the lease with answers under way; what the consumer writes afterwards has no effect."""
    async with Courier() as courier:
        pool = await open_pool(database_url, max_size=2)
        courier.be_silent()
        trackers = await seed(pool, 5, http=http_of(courier))
        frozen = ConsumerProcess(database_url, tmp_path / "frozen.log", lease_s=2.0)
        try:
            await eventually_async(lambda: courier.running == 5, 20)
            frozen.pause()
            courier.talk()
            await eventually_async(lambda: courier.running == 0)
            async with running_consumer(database_url):
                await eventually_async(lambda: all_done(pool, trackers), 20)
                await eventually_async(lambda: queue_empty(pool))
                frozen.resume()
                log = tmp_path / "frozen.log"
                await eventually_async(lambda: b"session.lost" in log.read_bytes(), 20, what="the zombie logs the loss")
            await _check_effects(pool, trackers)
        finally:
            kill_group(frozen.process)
        await pool.close()


async def test_limits_hold_over_two_processes_from_their_start_and_through_a_kill(
    database_url: str, tmp_path: Path
) -> None:
    """P4: the courier's log has at most 20 calls a second; a killed process causes no burst."""
    async with Courier() as courier:
        pool = await open_pool(database_url, max_size=2)
        trackers = await seed(pool, 1000, rate="20/s", http=http_of(courier))
        await deliver(pool, await seed(pool, 1000, rate="20/s", http=http_of(courier)))
        children = [ConsumerProcess(database_url, tmp_path / f"{n}.log") for n in range(2)]
        try:
            await eventually_async(lambda: len(courier.requests) >= 40, 30)
            children[0].kill9()
            await eventually_async(lambda: len(courier.requests) >= 90, 30)
        finally:
            for child in children:
                kill_group(child.process)
        assert courier.most_within(1.0) <= 20
        assert trackers.ids
        await pool.close()


@pytest.mark.storm
async def test_open_calls_keep_to_the_concurrency_while_calls_hang_and_consumers_are_killed(
    database_url: str, tmp_path: Path
) -> None:
    """PAR-4: a killed consumer's connections close before its share is free; a courier may still work on its calls."""
    async with Courier() as courier:
        pool = await open_pool(database_url, max_size=2)
        courier.be_silent()
        await seed(pool, 200, http=http_of(courier), concurrency=4, timeout="500ms", breaker={"failures": 1000})
        children = [ConsumerProcess(database_url, tmp_path / f"{n}.log", lease_s=2.0) for n in range(3)]
        try:
            for killed in children[:2]:
                seen = len(courier.requests)
                await eventually_async(lambda seen=seen: len(courier.requests) >= seen + 12, 30)  # type: ignore[misc]
                killed.kill9()
            seen = len(courier.requests)
            await eventually_async(
                lambda: len(courier.requests) >= seen + 24, 30, what="the third one has every permit"
            )
        finally:
            for child in children:
                kill_group(child.process)
        assert courier.open_max == 4
        assert courier.running_max > 4, "the courier works on calls that were given up"
        await pool.close()


# ---------------------------------------------------------------------- zombies in one process, and the mutants


async def _stop_heartbeat(side: Consumer) -> None:
    side.heart.cancel()
    await asyncio.wait([side.heart])


async def _zombie_writes_while_another_works(url: str) -> tuple[list[str], Counter[int], int]:
    """Return the published statuses, the ledger, and how many answers of the zombie were lost."""
    zombie_gate, second_gate, second_asked = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def zombie_answers(_poll: Poll) -> Answer:
        while not zombie_gate.is_set():
            try:
                await zombie_gate.wait()
            except asyncio.CancelledError:
                continue
        return Answer("zombie")

    async def second_answers(_poll: Poll) -> Answer:
        second_asked.set()
        await second_gate.wait()
        return Answer("second")

    stops = Stops()
    async with running_consumer(url, functions={"acme": zombie_answers}, probe=stops) as zombie:
        trackers = await seed(zombie.pool, 1)
        permits = zombie.contract.permits_of(trackers.partner_no)
        await eventually_async(lambda: permits.held == 1)
        stops.close("polls.before_results")
        zombie_gate.set()
        await eventually_async(lambda: stops.reached_times["polls.before_results"] == 1)
        await _stop_heartbeat(zombie)
        async with running_consumer(url, functions={"acme": second_answers}) as taker:
            await asyncio.wait_for(second_asked.wait(), 10)
            stops.open("polls.before_results")
            await zombie.consumer.writer.drained()
            second_gate.set()
            await eventually_async(lambda: queue_empty(taker.pool))
            published = [event["status"] for event in await events(taker.pool)]
            return published, await done_times(taker.pool, trackers), zombie.consumer.writer.lost


async def test_a_zombies_answer_changes_nothing_while_another_consumer_works(database_url: str) -> None:
    """POL-2: a result is written under a lock on its group's row with the token and the instant of the take."""
    published, ledger, lost = await _zombie_writes_while_another_works(database_url)
    assert (published, list(ledger.values()), lost) == (["second"], [1], 1)


async def test_the_mutant_without_the_fence_is_caught(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the token in the lock the zombie's answer counts."""
    mutated = poll_queue._SQL["hold"].replace("SELECT q.seq, q.owner, q.taken_at", "SELECT u.*")
    mutated = mutated.replace(" AND q.owner = u.owner AND q.taken_at = u.taken_at", "")
    assert "q.owner" not in mutated
    assert "q.taken_at" not in mutated
    monkeypatch.setattr(poll_queue, "_SQL", MappingProxyType({**poll_queue._SQL, "hold": mutated}))
    published, _, _ = await _zombie_writes_while_another_works(database_url)
    assert published == ["zombie"]


async def any_done(pool: Pool, trackers: Trackers) -> bool:
    """Return whether the first effects are written."""
    return bool(await done_times(pool, trackers))


async def _two_deliveries_at_once(url: str) -> tuple[Counter[int], int]:
    first_gate, second_gate, asked = asyncio.Event(), asyncio.Event(), list[int]()

    async def slow(poll: Poll) -> Answer:
        asked.append(poll.tracker_id)
        await (first_gate if len(asked) <= 5 else second_gate).wait()
        return Answer("moving")

    async with (
        running_consumer(url, functions={"acme": slow}, terms=LONG) as one,
        running_consumer(url, functions={"acme": slow}, terms=LONG),
    ):
        trackers = await seed(one.pool, 5)
        await deliver(one.pool, trackers)
        await eventually_async(lambda: len(asked) == 10)
        first_gate.set()
        await eventually_async(lambda: any_done(one.pool, trackers))
        second_gate.set()
        await eventually_async(lambda: queue_empty(one.pool))
        return await done_times(one.pool, trackers), (await slice_of(one.pool, trackers))["polled"]


MUTANTS: dict[str, Callable[[Any], Any]] = {
    "no inbox check": lambda sql: sql.replace(
        " WHERE NOT EXISTS (SELECT FROM done WHERE done.n = a.n AND done.id = a.id)", ""
    )
}


async def test_two_deliveries_of_one_poll_have_one_effect(database_url: str) -> None:
    """POL-1: two consumers make the poll at the same time; the ledger takes one result."""
    ledger, polled = await _two_deliveries_at_once(database_url)
    assert set(ledger.values()) == {1}
    assert polled == 5


@pytest.mark.parametrize("mutant", MUTANTS)
async def test_the_mutant_without_the_inbox_is_caught(
    database_url: str, monkeypatch: pytest.MonkeyPatch, mutant: str
) -> None:
    """Without the guard the same two deliveries have two effects."""
    mutated = MUTANTS[mutant](result_writer.SQL["write_results"])
    assert mutated != result_writer.SQL["write_results"]
    monkeypatch.setattr(result_writer, "SQL", MappingProxyType({**result_writer.SQL, "write_results": mutated}))
    ledger, polled = await _two_deliveries_at_once(database_url)
    assert set(ledger.values()) == {2}
    assert polled == 10


CUT = """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
          WHERE pid <> pg_backend_pid() AND datname = current_database()"""


async def test_a_short_outage_of_the_database_costs_no_answer(database_url: str) -> None:
    """Connections are cut: answers wait while the lease holds, and are written without a second call."""
    asked: list[int] = []

    async def ask(poll: Poll) -> Answer:
        asked.append(poll.tracker_id)
        return Answer("moving")

    stops = Stops()
    stops.close("polls.before_results")
    async with running_consumer(database_url, functions={"acme": ask}, terms=LONG, probe=stops) as side:
        pool = await open_pool(database_url, max_size=1)
        trackers = await seed(pool, 10)
        await eventually_async(lambda: len(asked) == 10)
        await pool.execute(CUT)
        stops.open("polls.before_results")
        await eventually_async(lambda: all_done(pool, trackers), 20)
        assert len(asked) == 10
        await _check_effects(pool, trackers)
        assert side.consumer.writer.lost == 0
        await pool.close()
