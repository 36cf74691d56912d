"""The relay while destinations work and while they do not: no row is lost, none is blocked, order per key."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import asyncpg
import pytest
from aiohttp import web

from kit.mutants import mutate
from kit.probes import Stops
from kit.receivers import HttpReceiver
from kit.relays import RelayWorld, relay_world
from kit.waiting import eventually_async
from tickwright.domain.retries import RetryPolicy
from tickwright.engine.outbox import relay as module
from tickwright.engine.outbox.relay import OutboxRelay
from tickwright.engine.outbox.relay_rules import ATTEMPTS_MAX
from tickwright.engine.outbox.table import LANE_MIN, ClaimBounds, claim_rows
from tickwright.ports.broker import Accepted, Message, Outcome, Refused, Unknown
from tickwright.ports.ids import monotonic

DESTINATIONS = (
    "INSERT INTO tickwright.outbox (destination, payload) "
    "SELECT 'test:' || g, '{}' FROM generate_series(1, $1::integer) AS g"
)


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[RelayWorld]:
    """A database and a receiver."""
    async with relay_world(database_url) as world:
        yield world


class Scripted:
    """A broker with scripted answers per destination, which records each request."""

    schemes = frozenset({"test"})

    def __init__(self) -> None:
        self.answers: dict[str, Outcome] = {}
        self.asked: list[Message] = []
        self.refused_once: set[str] = set()

    def check(self, destination: str) -> None:
        """Accept every destination."""

    async def publish(self, message: Message) -> Outcome:
        """Answer one."""
        return (await self.publish_many([message]))[0]

    async def publish_many(self, messages: Sequence[Message]) -> list[Outcome]:
        """Answer each."""
        self.asked += messages
        return [self._answer(message) for message in messages]

    def _answer(self, message: Message) -> Outcome:
        if message.id in self.refused_once:
            self.refused_once.discard(message.id)
            return Refused("busy", "later")
        return self.answers.get(message.destination, Accepted())

    async def ready(self) -> bool:
        """Ready."""
        return True

    async def aclose(self) -> None:
        """Nothing to close."""


async def test_a_committed_row_is_published_once_and_gone(world: RelayWorld) -> None:
    """The message has the row's id, payload and headers; the row is deleted."""
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    row_id = await world.pool.fetchval(
        "INSERT INTO tickwright.outbox (destination, payload, headers) VALUES ($1, $2, $3) RETURNING id",
        world.receiver.url,
        '{"a": 1}',
        f'{{"traceparent": "{trace}", "X-Number": 7}}',
    )
    async with world.running(world.relay()):
        await world.emptied()
    (received,) = world.receiver.received
    headers = {name.lower(): value for name, value in received.headers.items()}
    assert (received.id, received.body) == (f"out_{row_id}", b'{"a": 1}')
    assert (headers["traceparent"], headers["x-number"]) == (trace, "7")


async def test_a_rolled_back_row_is_never_published(world: RelayWorld) -> None:
    """A row whose transaction rolls back is not sent."""
    async with world.running(world.relay()), world.pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute(
            "INSERT INTO tickwright.outbox (destination, payload) VALUES ($1, '{}')", world.receiver.url
        )
        await transaction.rollback()
        kept = await world.put(world.receiver.url)
        await world.emptied()
    assert world.ids() == [f"out_{kept}"]


async def test_a_row_that_commits_late_with_a_smaller_id_is_not_skipped(world: RelayWorld, database_url: str) -> None:
    """There is no high-water mark on ids."""
    slow = await asyncpg.connect(database_url)
    transaction = slow.transaction()
    await transaction.start()
    insert = "INSERT INTO tickwright.outbox (destination, payload) VALUES ($1, '{}') RETURNING id"
    early = await slow.fetchval(insert, world.receiver.url)
    async with world.running(world.relay()):
        late = await world.put(world.receiver.url)
        assert early < late
        await eventually_async(lambda: world.ids() == [f"out_{late}"], what="the row with the greater id is published")
        await transaction.commit()
        await world.emptied()
    await slow.close()
    assert world.ids() == [f"out_{late}", f"out_{early}"]


def has_received(world: RelayWorld, count: int) -> bool:
    """Whether the receiver has more than ``count`` messages."""
    return len(world.ids()) > count


async def test_an_idle_relay_is_woken_by_an_insert(world: RelayWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row is sent as it is inserted, without the relay's own poll, which is switched off here."""
    monkeypatch.setattr(module, "POLL_S", 600.0)
    relay = world.relay()
    async with world.running(relay):
        for _ in range(5):
            await eventually_async(lambda: relay.armed_wakeup.armed, what="the relay sleeps")
            seen = len(world.ids())
            await world.put(world.receiver.url)
            await eventually_async(partial(has_received, world, seen), what="it left")


@pytest.mark.storm
async def test_an_idle_relay_costs_about_one_transaction_a_second(world: RelayWorld, database_url: str) -> None:
    """Polls of the relay renew its lease, so no other transaction does."""
    watcher = await asyncpg.connect(database_url)
    count = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"
    ticks: Counter[str] = Counter()
    relay = world.relay()
    async with world.running(relay):
        await eventually_async(lambda: relay.armed_wakeup.armed)
        tick = relay.tick
        relay.tick = lambda: (tick(), ticks.update("t"))[0]  # type: ignore[method-assign]
        # a backend reports its counters up to ten seconds late; only then are those of the beginning counted
        await eventually_async(lambda: ticks["t"] >= 12, 60, what="the counters of the beginning are flushed")
        spent = []
        for _ in range(4):  # autovacuum runs now and then, and counts as well
            before, started, steps = await watcher.fetchval(count), monotonic(), ticks["t"]
            await eventually_async(lambda: ticks["t"] >= steps + 10, 60)  # noqa: B023  waited for right here
            spent.append((await watcher.fetchval(count) - before) / (monotonic() - started))
            if spent[-1] <= 1.5:
                break
        assert min(spent) <= 1.5, f"the watcher's own is among them: {spent}"
    await watcher.close()


async def test_a_dead_and_a_silent_destination_do_not_hold_up_the_others(world: RelayWorld) -> None:
    """A thousand rows for a port that refuses and a receiver that never answers, beside a good one."""
    await world.put_many(1000, "http://127.0.0.1:9/nobody")
    silent = f"http://127.0.0.1:{world.receiver.port}/callback?silent"
    world.receiver.be_silent()
    await world.put(silent)
    relay = world.relay(publish_timeout=timedelta(seconds=60))
    async with world.running(relay):
        await eventually_async(lambda: len(world.ids()) == 1, what="the silent one has a request")
        good = {f"out_{await world.put('pg:good')}" for _ in range(50)}
        stored = "SELECT message_id FROM tickwright.messages"

        async def arrived() -> Any:
            return {row["message_id"] for row in await world.pool.fetch(stored)} == good

        async def marked() -> bool:
            return await world.left() == 1001

        await eventually_async(arrived, what="the good destination has everything")
        await eventually_async(marked, what="the relay has written it")
        world.receiver._talking.set()


async def test_an_outage_of_a_destination_loses_nothing_and_costs_few_attempts(world: RelayWorld) -> None:
    """Only single rows are tried while a destination is unavailable; afterwards all arrive, under the same ids."""
    ids = await world.put_many(500, world.receiver.url)
    world.receiver.status = 503
    relay = world.relay()
    async with world.running(relay):
        await eventually_async(lambda: relay.counters.retried >= 210, 15, what="one batch and ten single rows failed")
        highest = await world.pool.fetchval("SELECT sum(attempts) FROM tickwright.outbox")
        assert highest < 400, "an outage must not use up the attempts of all waiting rows"
        world.receiver.status = 200
        world.receiver.received.clear()
        await world.emptied()
    assert set(world.ids()) == ids
    assert await world.dead() == []


async def test_a_row_with_an_unknown_scheme_waits_for_a_relay_that_supports_it(
    world: RelayWorld,
) -> None:
    """Neither lost nor failed: during a deploy an older relay must not fail rows of a newer one."""
    row_id = await world.put("test:later")
    good = await world.put(world.receiver.url)
    async with world.running(world.relay()):
        reason = "SELECT error_message FROM tickwright.outbox WHERE id = $1"
        text = await eventually_async(lambda: world.pool.fetchval(reason, row_id), what="the reason is noted")
        assert str(text).startswith("unknown_scheme")
        await eventually_async(lambda: world.ids() == [f"out_{good}"])
        left = "SELECT count(*) = 1 FROM tickwright.outbox"
        await eventually_async(lambda: world.pool.fetchval(left))
    scripted = Scripted()
    async with world.running(world.relay(brokers={"test": scripted})):
        await world.emptied()
    assert [message.id for message in scripted.asked] == [f"out_{row_id}"]


async def test_poison_rows_become_dead_letters_and_their_neighbours_arrive(world: RelayWorld) -> None:
    """A row that can never be sent is kept apart with its reason; it blocks no other and can be requeued."""
    bad = [
        await world.put("http://"),
        await world.put("http://10.0.0.1/blocked"),
        await world.put("pg:bad topic"),
        await world.pool.fetchval(
            "INSERT INTO tickwright.outbox (destination, payload, headers) VALUES ($1, '{}', $2) RETURNING id",
            world.receiver.url,
            '{"host": "evil"}',
        ),
    ]
    good = await world.put_many(20, world.receiver.url)
    async with world.running(world.relay()):
        await world.emptied()
    assert set(world.ids()) == good
    dead = await world.dead()
    assert [row["id"] for row in dead] == bad
    assert all(row["error_message"] and row["attempts"] == 1 for row in dead)


async def test_a_row_with_unknown_outcomes_is_tried_twenty_times_under_one_id(world: RelayWorld) -> None:
    """An unknown outcome is retried, with waits; after the last attempt the row is a dead letter."""
    scripted = Scripted()
    scripted.answers["test:fog"] = Unknown("timeout", "silence")
    row_id = await world.put("test:fog")

    async def hurry() -> Any:
        await world.pool.execute("UPDATE tickwright.outbox SET next_at = '-infinity' WHERE attempts > 0")
        return await world.left() == 0

    async with world.running(world.relay(brokers={"test": scripted})):
        await eventually_async(hurry, 60, what="the last attempt")
    assert [message.id for message in scripted.asked] == [f"out_{row_id}"] * ATTEMPTS_MAX
    (dead,) = await world.dead()
    assert (dead["id"], dead["attempts"]) == (row_id, ATTEMPTS_MAX)


async def test_rows_of_one_key_are_sent_in_order_also_while_one_is_refused(world: RelayWorld) -> None:
    """While an older row of a key is retried the younger ones wait; other keys and keyless rows do not."""
    scripted = Scripted()
    ids = [await world.put("test:one", key="k") for _ in range(6)]
    others = [await world.put("test:one", key=None if number % 2 else f"o{number}") for number in range(6)]
    scripted.refused_once = {f"out_{ids[0]}", f"out_{ids[3]}"}
    async with world.running(world.relay(brokers={"test": scripted})):
        await world.emptied()
    order = [int(message.id[4:]) for message in scripted.asked if message.key == "k"]
    assert order == [ids[0], *ids[:4], *ids[3:]], "each refused row is sent again before younger ones"
    positions = {int(message.id[4:]): place for place, message in enumerate(scripted.asked)}
    assert max(positions[other] for other in others) < positions[ids[-1]]


BAD_TO = (
    "INSERT INTO tickwright.outbox (destination, key, payload, attempts) "
    "SELECT $1, 'bad' || g, '{\"bad\": 1}', $3 FROM generate_series(1, $2::integer) AS g"
)
NEVER = RetryPolicy(base=timedelta(hours=1), cap=timedelta(hours=1))


class Picky(HttpReceiver):
    """Refuses some messages because of their content."""

    refused = 0
    refusal = 422

    async def _receive(self, request: web.Request) -> web.Response:
        if b"bad" in await request.read():
            self.refused += 1
            return web.Response(status=self.refusal)
        return await super()._receive(request)


async def test_messages_that_are_refused_hold_up_no_other(world: RelayWorld) -> None:
    """A receiver refuses many messages with HTTP 422 and is up: others to its address are sent at once."""
    async with Picky() as receiver:
        await world.pool.execute(BAD_TO, receiver.url, 500, 0)
        relay = world.relay(lane_retry=NEVER)  # a lane that counts as failed would wait for an hour
        async with world.running(relay):
            await eventually_async(lambda: receiver.refused > 500, 30, what="they are tried again")
            good = {await world.put(receiver.url, "good") for _ in range(50)}
            arrived = lambda: {one.id for one in receiver.received} == {f"out_{one}" for one in good}  # noqa: E731
            await eventually_async(arrived, 30, what="the others arrive")
            assert relay.lanes_failing == 0
        assert [int(one.id[4:]) for one in receiver.received] == sorted(good), "and in the order of their key"


async def test_a_failed_destination_is_tried_with_a_new_row_if_there_is_one(world: RelayWorld) -> None:
    """HTTP 500 for one message may concern the destination: rows that make their receiver fail hold up no new one."""
    await world.pool.execute(BAD_TO, "test:a", 20, 1)
    new = await world.put("test:a", "bad1"), await world.put("test:a")
    lane = await world.pool.fetchval("SELECT hashtextextended('test:a', 0)")
    claimed = []
    async with world.pool.acquire() as connection:
        for _ in range(2):
            found = await claim_rows(
                connection, after_lane=LANE_MIN, without=[], careful=[lane], bounds=ClaimBounds(rows_per_lane=10)
            )
            claimed += [(row.id, row.attempts) for row in found.rows]
            await connection.execute("DELETE FROM tickwright.outbox WHERE id = $1", new[1])
    assert claimed[0] == (new[1], 0), "not the one whose key has an older row"
    assert [attempts for _, attempts in claimed] == [0, 1]


async def test_retried_rows_leave_half_of_a_batch_to_new_ones(world: RelayWorld) -> None:
    """However many retries are due, and for however long."""
    await world.pool.execute(BAD_TO, "test:a", 20, 1)
    await world.put_many(20, "test:a")
    await world.pool.execute("UPDATE tickwright.outbox SET next_at = now() - interval '1 day' WHERE attempts > 0")
    async with world.pool.acquire() as connection:
        claimed = await claim_rows(
            connection, after_lane=LANE_MIN, without=[], careful=[], bounds=ClaimBounds(rows_per_lane=10)
        )
    assert Counter(row.attempts for row in claimed.rows) == {0: 5, 1: 5}


async def test_a_broker_that_raises_is_an_unknown_outcome(world: RelayWorld) -> None:
    """A bug in one broker stops neither the relay nor the other destinations."""

    class Raising(Scripted):
        async def publish_many(self, messages: Sequence[Message]) -> list[Outcome]:
            raise ValueError("a bug")

    raising = Raising()
    await world.put("test:bug")
    good = await world.put(world.receiver.url)
    async with world.running(world.relay(brokers={**world.brokers, "test": raising})):
        await eventually_async(lambda: world.ids() == [f"out_{good}"])
        error = "SELECT error_message LIKE 'broker_raised%' FROM tickwright.outbox"
        await eventually_async(lambda: world.pool.fetchval(error))


class Gated(Scripted):
    """Answers as many batches as a test lets pass, and no other."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Semaphore(0)
        self.silent = 0

    async def publish_many(self, messages: Sequence[Message]) -> list[Outcome]:
        """Answer once a permit is free."""
        self.silent += 1
        await self.gate.acquire()
        self.silent -= 1
        return await super().publish_many(messages)


TURNS_MAX = 10_000


async def check_full_lanes(world: RelayWorld, patch: pytest.MonkeyPatch) -> None:
    """With more busy destinations than lanes the relay waits for one to end, and leaves the event loop free."""
    await world.pool.execute(DESTINATIONS, 2 * module.LANES_MAX)
    gated, steps = Gated(), 0
    relay = world.relay(brokers={"test": gated})
    wait = relay._for_a_lane

    async def counted() -> None:
        nonlocal steps
        steps += 1
        if steps == TURNS_MAX:
            relay.stopping.set()
        await wait()

    patch.setattr(relay, "_for_a_lane", counted)
    async with world.running(relay):
        await eventually_async(lambda: relay.lanes_busy == module.LANES_MAX, what="all lanes are busy")
        gated.gate.release()
        await eventually_async(lambda: relay.lanes_busy == 2 * module.LANES_MAX - 1, what="a free lane is used")
        gated.gate.release()
        await eventually_async(lambda: relay.lanes_busy == 2 * module.LANES_MAX - 2, what="the next one has ended")
        for _ in range(2 * module.LANES_MAX):
            gated.gate.release()
        await world.emptied()
    assert steps < TURNS_MAX, "the relay loops without waiting"


async def test_more_destinations_than_lanes_leave_the_event_loop_free(
    world: RelayWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The relay waits for a lane without holding the event loop."""
    await check_full_lanes(world, monkeypatch)


async def test_a_wait_for_a_lane_that_ends_at_once_is_detected(
    world: RelayWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant that keeps the end of an earlier lane never waits, and holds the event loop."""
    mutate(monkeypatch, OutboxRelay._for_a_lane, "self._changed.clear()", "pass")
    with pytest.raises(AssertionError, match="loops without waiting"):
        await check_full_lanes(world, monkeypatch)


async def check_silent_crowd(world: RelayWorld, patch: pytest.MonkeyPatch) -> None:
    """Hundreds of destinations refuse and then stop answering; a new destination gets its message meanwhile."""
    patch.setattr(module, "LANES_MAX", module.TRIES_MAX // 2)  # the crowd alone would take all of them
    count = 4 * module.TRIES_MAX
    gated = Gated()
    gated.answers = {f"test:{number}": Refused("busy", "later") for number in range(1, count + 1)}
    await world.pool.execute(DESTINATIONS, count)
    relay = world.relay(brokers={**world.brokers, "test": gated})
    for _ in range(count):
        gated.gate.release()
    async with world.running(relay):
        await eventually_async(lambda: len(gated.asked) == count, 20, what="each was tried once")
        await eventually_async(lambda: gated.silent >= module.TRIES_MAX, what="they are silent")
        good = await world.put_many(3, world.receiver.url)
        await eventually_async(lambda: good <= set(world.ids()), what="the others' messages arrive")
        assert relay.lanes_busy < module.TRIES_MAX + ClaimBounds().lanes, "and the others wait for a lane"
        assert len(gated.asked) == count


async def test_hundreds_of_silent_destinations_do_not_hold_up_another(
    world: RelayWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Destinations that failed last have lanes of their own."""
    await check_silent_crowd(world, monkeypatch)


@pytest.mark.storm
async def test_silent_destinations_without_lanes_of_their_own_are_detected(
    world: RelayWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant lets them take every lane."""
    mutate(monkeypatch, OutboxRelay._relay, "len(self._lanes) - tries >= LANES_MAX", "len(self._lanes) >= LANES_MAX")
    with pytest.raises(AssertionError):
        await check_silent_crowd(world, monkeypatch)


async def test_each_of_thousands_of_destinations_is_tried(world: RelayWorld) -> None:
    """One statement with 3,000 destinations of which most refuse: each is tried, and those that accept get all rows."""
    scripted = Scripted()
    good = {f"test:{number}" for number in range(1, 3001, 100)}
    scripted.answers = {f"test:{number}": Refused("busy", "later") for number in range(1, 3001)}
    scripted.answers |= dict.fromkeys(good, Accepted())
    await world.pool.execute(DESTINATIONS, 3000)

    async def gone() -> bool:
        return not await world.pool.fetchval(
            "SELECT count(*) FROM tickwright.outbox WHERE destination = ANY ($1)", good
        )

    async with world.running(world.relay(brokers={"test": scripted})):
        await eventually_async(gone, 30, what="every destination that accepts has its message")
        await eventually_async(lambda: len({one.destination for one in scripted.asked}) == 3000, 30)
    counts = Counter(one.destination for one in scripted.asked)
    assert all(counts[name] == 1 for name in good)


@pytest.mark.parametrize("headers", ['{"x": 1e5000}', '{"x": ' + "[" * 3000 + "]" * 3000 + "}"])
async def test_a_row_with_unreadable_headers_alone_becomes_a_dead_letter(world: RelayWorld, headers: str) -> None:
    """Its neighbours of the same destination are sent at the first attempt."""
    scripted = Scripted()
    insert = "INSERT INTO tickwright.outbox (destination, payload, headers) VALUES ('test:a', '{}', $1)"
    await world.pool.execute(
        "ALTER TABLE tickwright.outbox DISABLE TRIGGER outbox_fits"
    )  # as a row of an earlier release
    await world.pool.executemany(insert, [["{}"], [headers], ["{}"]])
    relay = world.relay(brokers={"test": scripted})
    async with world.running(relay):
        await world.emptied()
    (dead,) = await world.dead()
    assert dead["error_message"].startswith("invalid_header")
    assert (len(scripted.asked), relay.counters.published, relay.counters.retried) == (2, 2, 0)


async def test_quiescing_finishes_what_was_claimed(world: RelayWorld) -> None:
    """What was sent is marked before the relay ends, and its lease is free at once."""
    stops = Stops()
    stops.close("relay.published_not_marked")
    await world.put_many(5, world.receiver.url)
    relay = world.relay(probe=stops)
    task = asyncio.create_task(relay.run())
    await eventually_async(lambda: stops.reached_times["relay.published_not_marked"] == 1)
    quiescing = asyncio.create_task(relay.quiesce())
    await asyncio.sleep(0)
    assert not quiescing.done()
    stops.open("relay.published_not_marked")
    await quiescing
    await task
    assert await world.left() == 0
    assert not await world.pool.fetchval("SELECT running FROM tickwright.job_config")
