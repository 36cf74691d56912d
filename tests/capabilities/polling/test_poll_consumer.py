"""The poll consumer: polls are carried out under the partner contract, and each has its effect once."""

import asyncio
import json
import time
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from kit.consumers import (
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
from kit.mutants import mutate
from kit.partners import Courier
from kit.waiting import eventually_async
from tickwright import Answer, Poll, ScanEvent, Throttled
from tickwright.capabilities.polling.consumer.dispatcher import PartnerDispatcher
from tickwright.capabilities.polling.service import PollingService
from tickwright.engine.wakeup.turns import Turns
from tickwright.partners.contract import put_partner
from tickwright.store.pool import Pool

NOW = datetime.now(UTC).replace(microsecond=0)


async def test_a_poll_of_a_configured_partner_updates_tracker_ledger_and_topic(
    database_url: str,
) -> None:
    """One request per poll; status, events and ledger agree; nothing is left in the queue."""
    async with Courier() as courier, running_consumer(database_url) as side:
        moved = (NOW - timedelta(minutes=5)).isoformat()
        courier.states = {"T1": {"shipment": {"status": "PU", "at": moved, "events": [{"at": moved, "text": "hub"}]}}}
        http = {**http_of(courier), "statuses": {"PU": "picked_up"}}
        trackers = await seed(side.pool, 3, http=http)
        await eventually_async(lambda: all_done(side.pool, trackers))
        await eventually_async(lambda: queue_empty(side.pool))
        assert sorted(courier.asked) == trackers.external_ids
        rows = await side.pool.fetch("SELECT id, status, status_at FROM tickwright.trackers ORDER BY id")
        assert [row["status"] for row in rows] == ["picked_up", "in_transit", "in_transit"]
        assert rows[0]["status_at"] == NOW - timedelta(minutes=5)
        published = {event["tracker_id"]: event for event in await events(side.pool)}
        assert set(published) == set(trackers.ids)
        first = published[trackers.ids[0]]
        assert (first["event"], first["reason"], first["previous_status"]) == ("status", "poll", "registered")
        assert (first["account_id"], first["partner"], first["external_id"]) == ("shop", "acme", "T1")
        assert [event["text"] for event in first["events"]] == ["hub"]
        assert (await slice_of(side.pool, trackers))["polled"] == 3
        counted = {
            (sample.name, sample.labels): sample.value
            for sample in [*side.consumer.samples(), *side.contract.samples()]
        }
        assert counted["tickwright_polls_done_total", ()] == counted["tickwright_poll_news_total", ()] == 3
        assert counted["tickwright_partner_calls_total", ("acme", "answered")] == 3
        assert counted["tickwright_polls_held", ("acme",)] == counted["tickwright_partner_closed", ("acme",)] == 0


async def test_a_tracker_keeps_its_last_ten_events(database_url: str) -> None:
    """Newest last, none twice although sent again, none of tomorrow; an answer without events keeps them."""
    last = NOW - timedelta(minutes=30)
    answers = [
        Answer("a", events=tuple(ScanEvent(last + timedelta(minutes=n), f"scan {n}") for n in reversed(range(8)))),
        Answer("a", events=tuple(ScanEvent(last + timedelta(minutes=n), f"scan {n}") for n in range(4, 13))),
        Answer("b", events=(ScanEvent(NOW + timedelta(days=1), "tomorrow"),)),
        Answer("c"),
    ]

    async def next_answer(poll: Poll) -> Answer:
        return answers.pop(0)

    async with running_consumer(database_url, functions={"acme": next_answer}) as side:
        trackers = await seed(side.pool, 1)
        texts = "SELECT ARRAY (SELECT e ->> 'text' FROM jsonb_array_elements(events) AS e) FROM tickwright.trackers"
        for first, after in ((0, 8), (3, 13), (3, 13), (3, 13)):
            await eventually_async(lambda: all_done(side.pool, trackers))
            assert await side.pool.fetchval(texts) == [f"scan {n}" for n in range(first, after)]
            trackers.due_at += timedelta(seconds=-1)
            if answers:
                await deliver(side.pool, trackers)
        hot = "SELECT pg_stat_force_next_flush(), n_tup_upd > 0 AND n_tup_upd = n_tup_hot_upd FROM pg_stat_user_tables "
        await eventually_async(lambda: side.pool.fetchval(f"{hot} WHERE relname = 'trackers'", column=1))
        shown = await PollingService(side.pool).get(trackers.ids[0])
        events = shown.events or []
        assert (shown.status, [event.text for event in events]) == ("c", [f"scan {n}" for n in range(3, 13)])
        assert events[-1].at == last + timedelta(minutes=12)


async def test_an_answer_without_a_change_writes_no_tracker_and_no_message(database_url: str) -> None:
    """Only the ledger has a poll without a new status or scan; an older status is stale, a kept scan is known."""
    known = NOW - timedelta(hours=1)

    async def same(poll: Poll) -> Answer:
        match poll.tracker_id:
            case 1:
                return Answer("moving")
            case 2:
                return Answer("old", at=known - timedelta(hours=1))
            case 3:
                return Answer("moving", events=(ScanEvent(known - timedelta(days=1), "long ago"),))
        return Answer(None)

    async with running_consumer(database_url, functions={"acme": same}) as side:
        trackers = await seed(side.pool, 4, due="now() + interval '2 seconds'")
        scan = json.dumps([{"at": (known - timedelta(days=1)).isoformat(), "text": "long ago"}])
        await side.pool.execute(
            "UPDATE tickwright.trackers SET status = 'moving', status_at = $1, events = $2::jsonb", known, scan
        )
        await eventually_async(lambda: all_done(side.pool, trackers))
        rows = await side.pool.fetch("SELECT status, status_at, last_polled_at FROM tickwright.trackers")
        assert {tuple(row) for row in rows} == {("moving", known, None)}
        assert await events(side.pool) == []


async def test_a_terminal_status_ends_the_tracker_and_it_is_polled_no_more(database_url: str) -> None:
    """It has no place and no next poll, one message reports the end, and a later delivery makes no call."""
    asked: list[int] = []

    async def delivered(poll: Poll) -> Answer:
        asked.append(poll.tracker_id)
        return Answer("delivered" if poll.tracker_id == 1 else "moving")

    async with running_consumer(database_url, functions={"acme": delivered}) as side:
        trackers = await seed(side.pool, 2, terminal_statuses=["delivered"])
        await eventually_async(lambda: queue_empty(side.pool))
        row = await side.pool.fetchrow("SELECT status, place, ended_at FROM tickwright.trackers WHERE id = 1")
        assert (row["status"], row["place"]) == ("delivered", None)
        assert row["ended_at"] is not None
        assert [event["event"] for event in await events(side.pool)] == ["ended", "status"]
        trackers.due_at += timedelta(seconds=-1)
        await deliver(side.pool, trackers)
        await eventually_async(lambda: queue_empty(side.pool))
        assert sorted(asked) == [1, 2, 2]


async def test_a_poll_that_is_delivered_twice_is_done_once(database_url: str) -> None:
    """POL-1: the ledger is the inbox, also for two deliveries that are carried out at the same time."""
    gate, asked = asyncio.Event(), list[int]()

    async def slow(poll: Poll) -> Answer:
        asked.append(poll.tracker_id)
        await gate.wait()
        return Answer("moving")

    async with (
        running_consumer(database_url, functions={"acme": slow}) as one,
        running_consumer(database_url, functions={"acme": slow}),
    ):
        trackers = await seed(one.pool, 10)
        await deliver(one.pool, trackers)
        await eventually_async(lambda: len(asked) == 20)
        gate.set()
        await eventually_async(lambda: queue_empty(one.pool))
        await deliver(one.pool, trackers)
        await eventually_async(lambda: queue_empty(one.pool))
        assert len(asked) == 20
        assert set((await done_times(one.pool, trackers)).values()) == {1}
        assert len(await events(one.pool)) == 10
        assert (await slice_of(one.pool, trackers))["polled"] == 10


async def test_a_failing_courier_costs_no_poll(database_url: str) -> None:
    """POL-3: 5xx, and a breaker that opens: the polls wait, and are all made when the courier works again."""
    async with Courier() as courier, running_consumer(database_url) as side:
        courier.status = 500
        breaker = {"failures": 3, "open": "300ms", "open_max": "300ms"}
        trackers = await seed(side.pool, 20, http=http_of(courier), breaker=breaker, concurrency=2)
        permits = side.contract.permits_of(trackers.partner_no)
        await eventually_async(lambda: permits.why == "breaker_open")
        assert len(courier.requests) < 12
        courier.status = 200
        await eventually_async(lambda: all_done(side.pool, trackers), 20)
        assert set((await done_times(side.pool, trackers)).values()) == {1}
        assert (await slice_of(side.pool, trackers))["superseded"] == 0


async def test_a_poll_that_waits_for_its_next_attempt_is_dropped_when_its_tracker_ends(database_url: str) -> None:
    """It does not wait for two hours until its next poll is due; the others are tried again."""
    async with Courier() as courier, running_consumer(database_url) as side:
        courier.status = 500
        trackers = await seed(side.pool, 4, http=http_of(courier), breaker={"failures": 1000})
        await eventually_async(lambda: len(set(courier.asked)) == 4, what="all have failed")
        ended, gone, *others = trackers.ids
        await side.pool.execute("UPDATE tickwright.trackers SET ended_at = now() WHERE id = $1", ended)
        await side.pool.execute("DELETE FROM tickwright.trackers WHERE id = $1", gone)
        [dispatcher] = side.consumer.dispatchers
        await eventually_async(lambda: dispatcher.held == len(others), 30, what="what has ended waits no more")
        courier.requests.clear()
        courier.status = 200
        await eventually_async(lambda: queue_empty(side.pool), 60)
        assert set(courier.asked) == {f"T{tracker_id}" for tracker_id in others}
        assert (await slice_of(side.pool, trackers))["superseded"] == 2


async def test_a_429_delays_all_calls_and_costs_no_poll(database_url: str) -> None:
    """No call is made before ``Retry-After`` is over; then the same polls are made."""
    async with Courier() as courier, running_consumer(database_url) as side:
        courier.status, courier.headers = 429, {"retry-after": "2"}
        trackers = await seed(side.pool, 5, http=http_of(courier), concurrency=1)
        await eventually_async(lambda: len(courier.requests) == 1)
        courier.status, courier.headers = 200, {}
        await eventually_async(lambda: all_done(side.pool, trackers), 20)
        assert courier.times_s[1] - courier.times_s[0] >= 2.0
        assert len(courier.requests) == 6


async def check_a_throttled_poll_comes_after_the_others(url: str) -> None:
    """One of eight polls is always throttled; two calls of it follow each other only when the others are done."""
    asked: list[int] = []

    async def ask(poll: Poll) -> Answer | Throttled:
        asked.append(poll.tracker_id)
        return Throttled(timedelta(seconds=1)) if poll.tracker_id == min(asked) else Answer("moving")

    async with running_consumer(url, functions={"acme": ask}) as side:
        trackers = await seed(side.pool, 8, concurrency=1)
        bad, others = trackers.ids[0], set(trackers.ids[1:])
        await eventually_async(lambda: others <= set(asked) or asked[:3] == [bad] * 3, 60)
        assert asked[0] == bad
        last = max((asked.index(one) for one in others if one in asked), default=len(asked))
        assert (bad, bad) not in pairwise(asked[:last]), "POL-1: the other polls are made first"


async def test_a_poll_that_is_always_throttled_holds_up_no_other(database_url: str) -> None:
    """All calls pause for as long as the partner asks; then its other polls come first."""
    await check_a_throttled_poll_comes_after_the_others(database_url)


async def test_the_suite_notices_a_throttled_poll_that_comes_first(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant: a throttled poll waits no longer than the others, at the head of the queue."""
    guard = "wait_s += result.retry_after.total_seconds()"
    mutate(monkeypatch, PartnerDispatcher._retry_later, guard, "return self._queue.appendleft(item)")
    with pytest.raises(AssertionError, match="POL-1"):
        await check_a_throttled_poll_comes_after_the_others(database_url)


@pytest.mark.matrix
@pytest.mark.parametrize("header", ["0", "Sat, 01 Jan 2000 00:00:00 GMT"])
async def test_a_throttled_poll_is_not_asked_again_at_once(database_url: str, header: str) -> None:
    """A pause that is over already still lasts a second, and the poll's own wait grows beside it."""
    async with Courier() as courier, running_consumer(database_url) as side:
        courier.status, courier.headers = 429, {"retry-after": header}
        await seed(side.pool, 1, http=http_of(courier))
        await eventually_async(lambda: len(courier.requests) >= 3, 60)
        first, second, third = courier.times_s[:3]
        assert second - first >= 2.0 - 0.1
        assert third - second >= 3.0 - 0.1


async def test_a_slow_partner_does_not_hold_up_a_fast_one(database_url: str) -> None:
    """While one courier does not answer, all polls of the other one are done."""
    async with Courier() as slow, Courier() as fast, running_consumer(database_url) as side:
        slow.be_silent()
        await seed(side.pool, 200, name="slow", http=http_of(slow))
        trackers = await seed(side.pool, 300, name="fast", http=http_of(fast))
        await eventually_async(lambda: all_done(side.pool, trackers))
        assert slow.running > 0
        slow.talk()


async def test_a_poll_is_superseded_when_its_trackers_next_poll_is_due(database_url: str) -> None:
    """It is dropped without a call, and counted, also when it waits for its permit."""
    asked: list[int] = []

    async def ask(poll: Poll) -> Answer | Throttled:
        asked.append(poll.tracker_id)
        return Throttled(timedelta(hours=1)) if poll.tracker_id > 3 else Answer("moving")

    async with running_consumer(database_url, functions={"acme": ask}) as side:
        old = await seed(side.pool, 3, due="now() - interval '3 hours'")
        await eventually_async(lambda: queue_empty(side.pool))
        assert asked == []
        assert dict(await slice_of(side.pool, old)) == {"polled": 0, "late": 0, "superseded": 3, "selected": 3}
        late = await seed(side.pool, 2, due="now() - interval '2 hours' + interval '3 seconds'", concurrency=1)
        await eventually_async(lambda: len(asked) == 1)
        await eventually_async(lambda: queue_empty(side.pool))
        assert (await slice_of(side.pool, late))["superseded"] == 2
        assert len(asked) == 1


async def test_a_stop_releases_polls_that_were_not_done(database_url: str) -> None:
    """A deploy loses no poll: running calls may end, the rest is released at once."""
    gate = asyncio.Event()

    async def slow(_poll: Poll) -> Answer:
        await gate.wait()
        return Answer("moving")

    async with running_consumer(database_url, functions={"acme": slow}, calls_max=2) as side:
        trackers = await seed(side.pool, 5)
        permits = side.contract.permits_of(trackers.partner_no)
        await eventually_async(lambda: permits.held == 2)
        quiesced = asyncio.create_task(side.consumer.quiesce())
        await asyncio.sleep(0)  # it has begun
        gate.set()
        await quiesced
        assert len(await done_times(side.pool, trackers)) == 2
        assert await side.pool.fetchval("SELECT count(*) FROM tickwright.poll_queue WHERE owner IS NULL") == 1
        async with running_consumer(database_url, functions={"acme": slow}):
            await eventually_async(lambda: all_done(side.pool, trackers))
        assert set((await done_times(side.pool, trackers)).values()) == {1}


async def test_a_couriers_limits_hold_in_every_window_as_the_courier_sees_them(database_url: str) -> None:
    """P4: two consumers with polls for many seconds: the courier's log has at most 30 a second, and 4 at once."""
    async with (
        Courier() as courier,
        running_consumer(database_url) as one,
        running_consumer(database_url),
    ):
        courier.delay_s = 0.03
        trackers = await seed(one.pool, 400, rate="30/s", concurrency=4, http=http_of(courier))
        await eventually_async(lambda: len(courier.requests) >= 90, 60)
        assert courier.most_within(1.0) <= 30
        assert courier.running_max <= 4
        assert trackers.ids


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("name", "value"),
    [("status", "x" * 101), ("events", ({"at": NOW},)), ("at", "yesterday"), ("events", (ScanEvent(NOW, object()),))],  # type: ignore[arg-type]
    ids=["status", "events", "at", "text"],
)
async def test_an_answer_that_cannot_be_written_does_not_hold_up_the_others(
    database_url: str, name: str, value: object
) -> None:
    """It alone is dropped; the answers of the same statement are written."""

    async def ask(poll: Poll) -> Answer:
        answer = Answer("moving")
        if poll.tracker_id == 7:
            object.__setattr__(answer, name, value)  # what the type itself refuses
        return answer

    async with running_consumer(database_url, functions={"acme": ask}) as side:
        trackers = await seed(side.pool, 30)
        await eventually_async(lambda: queue_empty(side.pool), 20)
        assert set(await done_times(side.pool, trackers)) == set(trackers.ids) - {7}
        counts = await slice_of(side.pool, trackers)
        assert (counts["polled"], counts["superseded"]) == (29, 1)


async def test_a_status_from_the_future_counts_and_makes_no_later_one_stale(database_url: str) -> None:
    """An instant ahead of the database's clock counts as none."""

    async def ask(_poll: Poll) -> Answer:
        return Answer("moving", at=NOW + timedelta(days=30))

    async with running_consumer(database_url, functions={"acme": ask}) as side:
        trackers = await seed(side.pool, 1)
        await eventually_async(lambda: all_done(side.pool, trackers))
        row = await side.pool.fetchrow("SELECT status, status_at <= clock_timestamp() AS past FROM tickwright.trackers")
        assert tuple(row) == ("moving", True)


async def test_an_answer_from_a_clock_that_runs_ahead_hides_no_later_event(database_url: str) -> None:
    """Also when it runs ahead by a minute only: the status counts from its receipt."""

    async def ask(_poll: Poll) -> Answer:
        ahead = datetime.now(UTC) + timedelta(minutes=1)
        return Answer("moving", at=ahead, events=(ScanEvent(ahead, "soon"),))

    async with running_consumer(database_url, functions={"acme": ask}) as side:
        trackers = await seed(side.pool, 1)
        await eventually_async(lambda: all_done(side.pool, trackers))
        row = await side.pool.fetchrow("SELECT status, status_at <= clock_timestamp() AS past FROM tickwright.trackers")
        assert tuple(row) == ("moving", True)
        assert [event["events"] for event in await events(side.pool)] == [[]]


async def test_a_terminal_answer_wins_over_a_later_scan_and_the_last_of_one_instant_counts(database_url: str) -> None:
    """An older terminal status ends its tracker; another status of the same instant is applied."""
    known = NOW - timedelta(hours=1)

    async def ask(poll: Poll) -> Answer:
        if poll.tracker_id == 1:
            return Answer("delivered", at=known - timedelta(hours=1))
        return Answer("customs", at=known)

    async with running_consumer(database_url, functions={"acme": ask}) as side:
        trackers = await seed(side.pool, 2, terminal_statuses=["delivered"], due="now() + interval '2 seconds'")
        await side.pool.execute("UPDATE tickwright.trackers SET status = 'depot', status_at = $1", known)
        await eventually_async(lambda: all_done(side.pool, trackers))
        rows = await side.pool.fetch("SELECT status, status_at, ended_by FROM tickwright.trackers ORDER BY id")
        assert [tuple(row) for row in rows] == [("delivered", known, "terminal"), ("customs", known, None)]
        assert [event["event"] for event in await events(side.pool)] == ["ended", "status"]


async def test_an_event_from_the_future_hides_no_event_beside_it(database_url: str) -> None:
    """The newest event that is not ahead counts; the other one is published when its time has come."""
    scanned = NOW - timedelta(minutes=1)

    async def ask(_poll: Poll) -> Answer:
        return Answer("moving", events=(ScanEvent(NOW + timedelta(days=1), "tomorrow"), ScanEvent(scanned, "scanned")))

    async with running_consumer(database_url, functions={"acme": ask}) as side:
        trackers = await seed(side.pool, 1, due="now() + interval '1 second'")
        await side.pool.execute(
            "UPDATE tickwright.trackers SET status = 'moving', status_at = $1", NOW - timedelta(hours=1)
        )
        await eventually_async(lambda: all_done(side.pool, trackers))
        [message] = await events(side.pool)
        assert [event["text"] for event in message["events"]] == ["scanned"]
        assert await side.pool.fetchval("SELECT status_at FROM tickwright.trackers") == scanned


async def test_polls_of_a_partner_without_a_function_here_are_left_to_others(database_url: str) -> None:
    """A process without the function takes none of them; one that has it carries them out."""

    async def ask(_poll: Poll) -> Answer:
        return Answer("moving")

    async with running_consumer(database_url, functions={"mine": ask}) as side:
        others = await seed(side.pool, 3, name="theirs")
        mine = await seed(side.pool, 3, name="mine")
        await eventually_async(lambda: all_done(side.pool, mine))
        row = await side.pool.fetchrow("SELECT partner_no, owner FROM tickwright.poll_queue")
        assert tuple(row) == (others.partner_no, None)
        async with running_consumer(database_url, functions={"theirs": ask}):
            await eventually_async(lambda: all_done(side.pool, others))


@pytest.mark.storm
async def test_a_limit_that_an_operator_lowers_counts_within_a_second(database_url: str) -> None:
    """Settings are read with every exchange; no process has to be restarted."""
    async with Courier() as courier, running_consumer(database_url) as side:
        trackers = await seed(side.pool, 1000, http=http_of(courier), rate="100/s")
        await eventually_async(lambda: len(courier.requests) >= 30)
        await put_partner(side.pool, "acme", json.dumps({"http": http_of(courier), "rate": "10/s"}))
        permits = side.contract.permits_of(trackers.partner_no)
        await eventually_async(lambda: permits.settings.budgets == ((10.0, 1),))
        changed_s = time.monotonic() + 1.0  # what was granted before may be used up
        await eventually_async(lambda: courier.times_s[-1] > changed_s + 2.5, 30, what="calls go on")
        assert courier.most_within(1.0, since_s=changed_s) <= 10


async def test_a_poll_with_another_partner_or_external_id_makes_no_call(database_url: str) -> None:
    """A record only names a tracker: its partner and external id have to be those of the tracker's row."""
    asked: list[str] = []

    async def ask(poll: Poll) -> Answer:
        asked.append(poll.external_id)
        return Answer("moving")

    async with running_consumer(database_url, functions={"acme": ask, "other": ask}) as side:
        [ours, theirs] = [await seed(side.pool, 1, name=name) for name in ("acme", "other")]
        await eventually_async(lambda: len(asked) == 2)
        forged = "INSERT INTO tickwright.poll_queue (due_at, slot_id, partner_no, ids, account_nos, external_ids) "
        later = ours.due_at + timedelta(seconds=1)
        for partner_no, external_id in ((ours.partner_no, "../evil"), (theirs.partner_no, ours.external_ids[0])):
            values = (later, ours.slot_id, partner_no, ours.ids, [1], [external_id])
            await side.pool.execute(forged + "VALUES ($1, $2, $3, $4, $5, $6)", *values)
        await eventually_async(lambda: queue_empty(side.pool))
    assert sorted(asked) == sorted([*ours.external_ids, *theirs.external_ids])


async def test_a_backlog_waits_for_room_and_not_for_turns(
    pool: Pool, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer of a large group has a turn every four seconds; its room for a partner is much smaller than that."""
    began: list[int] = []

    async def same(poll: Poll) -> Answer:
        began.append(poll.tracker_id)
        return Answer("in_transit")

    monkeypatch.setattr(Turns, "alone", property(lambda _: False))
    monkeypatch.setattr(Turns, "next_in_s", lambda _: 3600.0 if began else 0.05)
    trackers = await seed(pool, 400, rate="1000/s")
    await pool.execute("DELETE FROM tickwright.poll_queue")
    await deliver(pool, trackers, turn_polls=5)
    async with running_consumer(database_url, functions={"acme": same}, group="polls"):
        await eventually_async(lambda: all_done(pool, trackers))
