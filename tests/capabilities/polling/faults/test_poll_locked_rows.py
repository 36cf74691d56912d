"""Tracker rows that another session keeps locked: each delays the answers for its own tracker, and nothing else."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import MappingProxyType

import asyncpg
import pytest

from kit.consumers import (
    LONG,
    Consumer,
    Trackers,
    all_done,
    done_times,
    events,
    queue_empty,
    running_consumer,
    seed,
    slice_of,
)
from kit.fix_app_roles import AppRole
from kit.waiting import eventually_async
from tickwright import Answer, Poll
from tickwright.capabilities.polling.consumer import result_writer
from tickwright.store.pool import Pool

CHANGE = "UPDATE tickwright.shipment_polling_tracker SET tracking_until = tracking_until - interval '1 s' WHERE id = $1"
MOVING = Answer("moving")


@asynccontextmanager
async def _locking(role: AppRole, *ids: int) -> AsyncIterator[None]:
    """Lock rows as a role for plain SQL can, until the end of the block."""
    connection = await asyncpg.connect(role.url)
    try:
        async with connection.transaction():
            for tracker_id in ids:
                assert await connection.execute(CHANGE, tracker_id) == "UPDATE 1"
            yield
    finally:
        await connection.close()


async def _answers(_poll: Poll) -> Answer:
    return MOVING


async def _check_effects(pool: Pool, *all_trackers: Trackers) -> None:
    """Check that each poll is in the ledger once, is counted once, and has one event."""
    for trackers in all_trackers:
        assert await done_times(pool, trackers) == Counter(trackers.ids)
        assert (await slice_of(pool, trackers))["polled"] == len(trackers.ids)
    ids = [tracker_id for trackers in all_trackers for tracker_id in trackers.ids]
    assert Counter(event["tracker_id"] for event in await events(pool)) == Counter(ids)


async def check_a_locked_tracker_delays_its_own_answer(role: AppRole, within_s: float) -> None:
    """Other answers of its group, its partner and other partners are written, and groups without it end."""
    asked: Counter[int] = Counter()

    async def ask(poll: Poll) -> Answer:
        asked[poll.tracker_id] += 1
        return MOVING

    async with running_consumer(role.owner_url, functions={"dhl": ask, "acme": ask}, terms=LONG) as side:
        mixed = await seed(side.pool, 20, name="dhl", due="now() + interval '3 seconds'")
        async with _locking(role, mixed.ids[7]):
            await eventually_async(lambda: len(asked) == 20, what="all polls of the group are made")
            others = await seed(side.pool, 50, name="acme")
            await eventually_async(lambda: all_done(side.pool, others), within_s, what="other effects are written")
            await eventually_async(lambda: _waits(side, 1), within_s, what="one answer waits")
            assert set(mixed.ids) - set(await done_times(side.pool, mixed)) == {mixed.ids[7]}
            assert await side.pool.fetch("SELECT partner_no FROM tickwright.poll_queue") == [(mixed.partner_no,)]
            assert side.consumer.writer.backlog == 0, "answers for locked trackers keep a consumer from polling"
        await eventually_async(lambda: queue_empty(side.pool), what="the group ends after its last answer")
        await _check_effects(side.pool, mixed, others)
        assert set(asked.values()) == {1}
        assert side.consumer.writer.lost == 0


async def _waits(side: Consumer, count: int) -> bool:
    return side.consumer.writer.unwritten == count


async def test_a_locked_tracker_delays_its_own_answer_only(app_role: AppRole) -> None:
    """POL-1: while it is locked; its poll is made once, and has its effect once."""
    await check_a_locked_tracker_delays_its_own_answer(app_role, 60)


async def test_the_suite_notices_effects_that_wait_for_a_locked_tracker(
    app_role: AppRole, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant: the statement waits for the locked row, and fails with all of its answers."""
    mutated = result_writer.SQL["write_results"].replace("SKIP LOCKED", "")
    assert mutated != result_writer.SQL["write_results"]
    monkeypatch.setattr(result_writer, "SQL", MappingProxyType({**result_writer.SQL, "write_results": mutated}))
    with pytest.raises(AssertionError, match="other effects are written"):
        await check_a_locked_tracker_delays_its_own_answer(app_role, 10)


async def test_answers_for_a_locked_tracker_are_written_in_the_order_of_their_polls(app_role: AppRole) -> None:
    """A status without an instant counts when it is written, so a later one never comes before an earlier one."""
    go = [asyncio.Event(), asyncio.Event()]
    asked: list[int] = []

    async def ask(_poll: Poll) -> Answer:
        asked.append(number := len(asked))
        await go[number].wait()
        return Answer(f"status {number}")

    async with running_consumer(app_role.owner_url, functions={"acme": ask}, terms=LONG) as side:
        trackers = await seed(side.pool, 1, due="now() - interval '30 minutes'")
        await eventually_async(lambda: len(asked) == 1)
        await side.pool.execute(LATER)
        await eventually_async(lambda: len(asked) == 2)
        async with _locking(app_role, *trackers.ids):
            for number in range(2):
                go[number].set()
                await eventually_async(lambda n=number: _waits(side, n + 1))  # type: ignore[misc]
        await eventually_async(lambda: queue_empty(side.pool))
        assert [event["status"] for event in await events(side.pool)] == ["status 0", "status 1"]


LATER = """WITH later AS (
  INSERT INTO tickwright.poll_queue (due_at, slot_id, partner_no, ids, account_nos, external_ids)
  SELECT due_at + interval '1 minute', slot_id, partner_no, ids, account_nos, external_ids FROM tickwright.poll_queue)
INSERT INTO tickwright.poll_slices (due_at, slot_id, partner_no, interval_minutes, selected)
SELECT due_at + interval '1 minute', slot_id, partner_no, interval_minutes, selected FROM tickwright.poll_slices"""


async def test_a_consumer_stops_with_a_locked_tracker_and_another_one_polls_it(
    app_role: AppRole, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group is released with the poll whose answer is not written, and with no other."""
    monkeypatch.setattr("tickwright.capabilities.polling.consumer.consumer.DRAIN_S", 0.1)
    async with running_consumer(app_role.owner_url, functions={"acme": _answers}, terms=LONG) as side:
        trackers = await seed(side.pool, 5, due="now() + interval '2 seconds'")
        async with _locking(app_role, trackers.ids[2]):
            await eventually_async(lambda: all_but(side.pool, trackers, 2))
            await side.consumer.stop()
            assert side.consumer.writer.lost == 1
            assert await side.pool.fetchval("SELECT count(*) FROM tickwright.poll_queue WHERE owner IS NULL") == 1
    async with running_consumer(app_role.owner_url, functions={"acme": _answers}, terms=LONG) as side:
        await eventually_async(lambda: queue_empty(side.pool))
        await _check_effects(side.pool, trackers)


async def all_but(pool: Pool, trackers: Trackers, index: int) -> bool:
    """Return whether the ledger has every poll but one."""
    return set(trackers.ids) - set(await done_times(pool, trackers)) == {trackers.ids[index]}


async def test_answers_for_locked_trackers_beyond_a_bound_are_dropped_and_counted(
    app_role: AppRole, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory is bounded, and other answers are written; dropped ones count as superseded."""
    monkeypatch.setattr(result_writer, "LOCKED_MAX", 3)
    async with running_consumer(app_role.owner_url, functions={"acme": _answers}, terms=LONG) as side:
        trackers = await seed(side.pool, 10, due="now() + interval '3 seconds'")
        async with _locking(app_role, *trackers.ids[:8]):
            await eventually_async(lambda: _dropped(side, 5), what="five of eight are dropped")
            assert set(await done_times(side.pool, trackers)) == set(trackers.ids[8:])
        await eventually_async(lambda: queue_empty(side.pool))
        counted = await slice_of(side.pool, trackers)
        assert (counted["polled"], counted["superseded"]) == (5, 5)


async def _dropped(side: Consumer, count: int) -> bool:
    return side.consumer.writer.lost == count
