"""Shared by tests of the polls' relay: an outbox filled by SQL, relays, an independent consumer, and the checkers.

The consumer does not use the product: it reads the topic from its beginning to its end, committed records or all.
"""

import asyncio
import json
import sys
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from kit.forks import Child
from kit.kafka_proxy import END_TXN, KafkaProxy
from kit.leases import LONG, run_out
from kit.probes import Stops
from kit.processes import spawn
from kit.waiting import eventually, eventually_async
from tickwright.capabilities.polling.relay.batches import BatchBounds
from tickwright.capabilities.polling.relay.relay import PollRelay
from tickwright.domain.leases import LeaseTerms
from tickwright.engine.leases import Leases
from tickwright.store.pool import open_pool
from tickwright.transports.kafka.config import KafkaConfig
from tickwright.transports.kafka.transactions import KafkaLog

BOUNDS = BatchBounds(trackers=100, rows=1000)
BRIEF = LeaseTerms(ttl=timedelta(seconds=3))
READ_WITHIN_S = 30
_PROGRAM = Path(__file__).with_name("poll_relay_process.py")

FILL = """
WITH partner AS (
  INSERT INTO tickwright.partners (name) VALUES ($1) ON CONFLICT (name) DO UPDATE SET name = excluded.name
  RETURNING partner_no
), account AS (
  INSERT INTO tickwright.polling_schedule_config (account_id) VALUES ('shop')
      ON CONFLICT (account_id) DO UPDATE SET account_id = excluded.account_id RETURNING account_no
), minute AS (
  SELECT date_trunc('minute', clock_timestamp()) - interval '1 minute' - $5::integer * interval '1 minute' AS at
), wheel AS (
  INSERT INTO tickwright.poll_wheels (interval_minutes, first_slot_id) VALUES (120, 2000000) ON CONFLICT DO NOTHING
), slot AS (
  INSERT INTO tickwright.poll_slots (slot_id, interval_minutes, next_due_at)
  SELECT 0, 120, at + interval '2 hours' FROM minute ON CONFLICT DO NOTHING
), second AS (
  SELECT minute.at + n % 60 * interval '1 second' AS due_at, n, array_agg($4::bigint + n * $3::bigint + k) AS ids
    FROM minute, generate_series(0, $2::integer - 1) AS n, generate_series(0, $3::integer - 1) AS k
   GROUP BY minute.at, n
), put AS (
  INSERT INTO tickwright.scheduler_outbox (release_at, due_at, slot_id, partner_no, ids, account_nos, external_ids)
  SELECT coalesce(clock_timestamp() + ($6::float8 + n * 0.1) * interval '1 second', due_at), due_at, 0, partner_no,
         ids, array_fill(account_no, ARRAY[cardinality(ids)]),
         ARRAY (SELECT 'parcel "' || id || '"' FROM unnest(ids) AS id)
    FROM second, partner, account ORDER BY n
  RETURNING ids, due_at
), ledger AS (
  INSERT INTO tickwright.poll_slices (due_at, slot_id, partner_no, interval_minutes, selected)
  SELECT minute.at, 0, partner_no, 120, $2 * $3 FROM minute, partner
      ON CONFLICT (due_at, slot_id, partner_no) DO UPDATE SET selected = poll_slices.selected + excluded.selected
)
SELECT unnest(ids) AS id, date_part('epoch', due_at)::bigint AS due FROM put
"""
"""$2 rows of $3 trackers for partner $1, with ids from $4 on, due in the minute $5 minutes before the last one;
released at once, or one row each 0.1 s from $6 seconds on."""

FILL_TURNS = """
WITH partner AS (
  INSERT INTO tickwright.partners (name) VALUES ('dhl') ON CONFLICT (name) DO UPDATE SET name = excluded.name
  RETURNING partner_no
), account AS (
  INSERT INTO tickwright.polling_schedule_config (account_id) VALUES ('shop')
      ON CONFLICT (account_id) DO UPDATE SET account_id = excluded.account_id RETURNING account_no
), wheel AS (
  INSERT INTO tickwright.poll_wheels (interval_minutes, first_slot_id) VALUES (60, 600)
), turn AS (
  SELECT t, date_trunc('minute', clock_timestamp()) - interval '30 minutes' - t * interval '1 hour' AS at
    FROM generate_series(0, $1::integer - 1) AS t
), slot AS (
  INSERT INTO tickwright.poll_slots (slot_id, interval_minutes, next_due_at)
  SELECT 600, 60, at + interval '1 hour' FROM turn WHERE t = 0
), put AS (
  INSERT INTO tickwright.scheduler_outbox (release_at, due_at, slot_id, partner_no, ids, account_nos, external_ids)
  SELECT due_at, due_at, 600, partner_no, ARRAY[id], ARRAY[account_no], ARRAY[id::text]
    FROM partner, account, turn, generate_series(1, $2::integer) AS id,
         LATERAL (SELECT turn.at + id % 60 * interval '1 second' AS due_at) AS second
   ORDER BY due_at, id
), ledger AS (
  INSERT INTO tickwright.poll_slices (due_at, slot_id, partner_no, interval_minutes, selected)
  SELECT at, 600, partner_no, 60, $2 FROM turn, partner
)
SELECT id, date_part('epoch', at)::bigint + id % 60 AS due FROM turn, generate_series(1, $2) AS id WHERE t = 0
"""
"""$1 due minutes, an hour apart and all due, of $2 trackers with a row each; only the last one still counts."""

LATE_ROW = """
INSERT INTO tickwright.scheduler_outbox (release_at, due_at, slot_id, partner_no, ids, account_nos, external_ids)
SELECT due_at, due_at, slot_id, partner_no, ARRAY[77], ARRAY[1], ARRAY['late'] FROM tickwright.poll_slices
"""

CONSERVED = """
SELECT (SELECT coalesce(sum(selected), 0) FROM tickwright.poll_slices) AS selected,
       (SELECT coalesce(sum(published), 0) FROM tickwright.poll_slices) AS published,
       (SELECT coalesce(sum(superseded), 0) FROM tickwright.poll_slices) AS superseded,
       (SELECT coalesce(sum(cardinality(ids)), 0) FROM tickwright.scheduler_outbox) AS pending
"""


@dataclass(frozen=True, slots=True)
class Seen:
    """A record of the topic, as the consumer reads it."""

    partition: int
    offset: int
    key: bytes
    body: bytes
    headers: dict[str, bytes]
    at: datetime

    @property
    def value(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found

    @property
    def id(self) -> str:
        return str(self.value["id"])


def terms_of(bootstrap: str, prefix: str, **more: Any) -> KafkaConfig:
    """Return the configuration of a test: a single broker is enough, and waits are short."""
    return KafkaConfig(bootstrap, prefix, **{"allow_single_broker": True, "partitions": 3, **more})


def set_topic(bootstrap: str, topic: str, name: str, value: str) -> None:
    """Change a setting of a topic; blocks until the broker has applied it."""
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})  # kept: its pending requests end with it
    (done,) = admin.incremental_alter_configs([resource]).values()
    done.result(10)

    def is_applied() -> bool:
        (found,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
        return bool(found.result(10)[name].value == value)

    eventually(is_applied, what=f"{name} of {topic} is {value}")


def read_raw(bootstrap: str, topic: str, *, committed: bool = True) -> list[tuple[Message, bytes, dict[str, bytes]]]:
    """Return every record of a topic with its bytes and headers, from the beginning to the present end; blocks."""
    level = "read_committed" if committed else "read_uncommitted"
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "isolation.level": level,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    try:
        partitions = consumer.list_topics(topic, timeout=READ_WITHIN_S).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions])
        return list(_to_the_end(consumer, len(partitions)))
    finally:
        consumer.close()


def read_topic(bootstrap: str, topic: str, *, committed: bool = True) -> list[Seen]:
    """Return every record of a topic, from the beginning to the present end; blocks."""
    return [
        Seen(one.partition() or 0, one.offset() or 0, one.key() or b"", body, headers, _time_of(one))
        for one, body, headers in read_raw(bootstrap, topic, committed=committed)
    ]


def _time_of(message: Message) -> datetime:
    return datetime.fromtimestamp(message.timestamp()[1] / 1000, UTC)


def _to_the_end(consumer: Consumer, partitions: int) -> Iterable[tuple[Message, bytes, dict[str, bytes]]]:
    ended: set[int | None] = set()
    while len(ended) < partitions:
        message = consumer.poll(READ_WITHIN_S)
        assert message is not None, "the topic could not be read to its end"
        error = message.error()
        if error is None:
            headers = {str(name): value for name, value in list(message.headers() or []) if isinstance(value, bytes)}
            yield message, message.value() or b"", headers
        elif error.code() == KafkaError._PARTITION_EOF:
            ended.add(message.partition())


class PollWorld:
    """A database, a Kafka and names of one test."""

    def __init__(self, url: str, pool: asyncpg.Pool, bootstrap: str, prefix: str) -> None:
        self.url, self.pool, self.bootstrap, self.prefix = url, pool, bootstrap, prefix
        self.topic = f"{prefix}.polls"
        self.positions = f"{prefix}.relay-position"
        self.expected: set[str] = set()

    async def fill(
        self,
        rows: int,
        trackers: int,
        *,
        partner: str = "dhl",
        first: int = 1,
        minutes_ago: int = 0,
        release_in_s: float | None = None,
    ) -> None:
        """Put due polls into the outbox, and into the ledger, in one statement."""
        found = await self.pool.fetch(FILL, partner, rows, trackers, first, minutes_ago, release_in_s)
        self.expected |= {f"poll_{row['id']}_{row['due']}" for row in found}
        assert len(found) == rows * trackers

    async def fill_turns(self, turns: int, trackers: int) -> None:
        """Put overdue polls of the same trackers and several minutes into the outbox; only those of the last count."""
        found = await self.pool.fetch(FILL_TURNS, turns, trackers)
        self.expected |= {f"poll_{row['id']}_{row['due']}" for row in found}

    async def superseded(self) -> list[int]:
        """Return how many polls of each minute were dropped, oldest first, as the ledger says."""
        rows = await self.pool.fetch("SELECT superseded FROM tickwright.poll_slices ORDER BY due_at")
        return [row["superseded"] for row in rows]

    def log(self, **more: Any) -> KafkaLog:
        """Return a log on this world's topic."""
        return KafkaLog(terms_of(more.pop("bootstrap", self.bootstrap), self.prefix, **more), self.topic)

    def relay(self, name: str = "relay", **options: Any) -> PollRelay:
        """Return a relay that is not started."""
        terms = options.pop("terms", LONG)
        leases = Leases(self.pool, owner=name, terms=terms)
        log = options.pop("log", None) or self.log(**options.pop("log_terms", {}))
        return PollRelay(leases, log, topic=self.topic, terms=terms, **{"bounds": BOUNDS, **options})

    @asynccontextmanager
    async def running(self, relay: PollRelay) -> AsyncIterator[PollRelay]:
        """Run a relay for the length of the block."""
        task = asyncio.create_task(relay.run())
        try:
            yield relay
        finally:
            await relay.stop()
            await task

    def child(
        self,
        folder: Path,
        lease_s: float,
        probe: str | None = None,
        times: int = 1,
        environment: Mapping[str, str] | None = None,
    ) -> Child:
        """Start a relay as a separate process."""
        command = [sys.executable, str(_PROGRAM), self.url, self.bootstrap, self.prefix, str(lease_s)]
        return spawn([*command, *([probe, str(times)] if probe else [])], folder / "relay.log", environment)

    async def pending(self) -> int:
        """Return how many polls are in the outbox; the ledger must balance at every call."""
        async with (
            self.pool.acquire() as connection,
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            row = await connection.fetchrow(CONSERVED)
        assert row["selected"] == row["published"] + row["superseded"] + row["pending"], f"P2 broken: {dict(row)}"
        return int(row["pending"])

    async def emptied(self, within_s: float = 30) -> None:
        """Wait until everything is published and marked."""

        async def empty() -> bool:
            return await self.pending() == 0

        await eventually_async(empty, within_s, what="the outbox of polls is empty")

    async def seen(self, *, committed: bool = True) -> list[Seen]:
        """Return the records of the topic."""
        return await asyncio.to_thread(read_topic, self.bootstrap, self.topic, committed=committed)

    async def positions_seen(self) -> list[int]:
        """Return the batch numbers on the position topic, in order."""
        found = await asyncio.to_thread(read_topic, self.bootstrap, self.positions)
        return [one.value["batch_no"] for one in found]

    async def take_at_most(self, size_bytes: int) -> None:
        """Let the topic refuse larger sets of records."""
        await asyncio.to_thread(set_topic, self.bootstrap, self.topic, "max.message.bytes", str(size_bytes))

    async def check(self) -> list[Seen]:
        """K1 to K5: every poll exactly once, no other, batches whole and in order."""
        seen = await self.seen()
        check_exactly_once(seen, self.expected)
        check_batches(seen)
        return seen


def check_exactly_once(seen: Sequence[Seen], expected: set[str]) -> None:
    """K1, K2, K4: no poll is lost, none is there twice, and none is there that was not selected."""
    counts = Counter(one.id for one in seen)
    assert not expected - counts.keys(), f"K1 broken: {len(expected - counts.keys())} polls are lost"
    twice = [poll for poll, times in counts.items() if times > 1]
    assert not twice, f"K2 broken: {len(twice)} polls came more than once, such as {twice[0]}"
    assert not counts.keys() - expected, "K4 broken: polls that were not selected"


def check_batches(seen: Sequence[Seen]) -> None:
    """K3, K5: a batch is whole, has no gap, and batches follow one another in each partition."""
    indices: dict[int, list[int]] = defaultdict(list)
    newest: dict[int, int] = defaultdict(int)
    for one in sorted(seen, key=lambda one: (one.partition, one.offset)):
        number = int(one.headers["batch_no"])
        indices[number].append(int(one.headers["idx"]))
        assert number >= newest[one.partition], f"K3 broken: batch {number} comes after {newest[one.partition]}"
        newest[one.partition] = number
    for number, found in indices.items():
        assert sorted(found) == list(range(len(found))), f"K5 broken: batch {number} is torn"
    assert sorted(indices) == list(range(1, len(indices) + 1)), f"K5 broken: numbers {sorted(indices)}"


@asynccontextmanager
async def poll_world(url: str, bootstrap: str, prefix: str) -> AsyncIterator[PollWorld]:
    """A world for the length of the block."""
    pool = await open_pool(url, max_size=8)
    try:
        yield PollWorld(url, pool, bootstrap, prefix)
    finally:
        pool.terminate()


async def check_late_commit(world: PollWorld) -> None:
    """K2: a relay that was overtaken between freeze and commit, and has not noticed it, adds nothing to the topic."""
    frozen, published = "relay.poll_batch_frozen", "relay.poll_batch_published"
    stops = Stops()
    stops.close(frozen)
    stops.close(published)
    await world.fill(10, 7)
    zombie = world.relay("zombie", probe=stops)
    async with world.running(zombie):
        await eventually_async(lambda: stops.reached_times[frozen] == 1, 20, what="the zombie has frozen a batch")
        lease = zombie.lease
        await run_out(world.pool, "poll-relay:0")
        async with world.running(world.relay("heir")):
            await world.emptied()
            assert lease is not None
            assert lease.holds(), "it takes the lease for its own"
            stops.open(frozen)
            over = lambda: zombie.counters.fenced + stops.reached_times[published] == 1  # noqa: E731
            await eventually_async(over, 20, what="the zombie has tried")
            await world.check()
            assert zombie.counters.fenced == 1


async def check_overtaken_after_commit(world: PollWorld) -> None:
    """K2: the next relay finds a batch that is on the topic and not marked, and does not send it again."""
    published = "relay.poll_batch_published"
    stops = Stops()
    stops.close(published)
    await world.fill(10, 7)
    zombie = world.relay("zombie", probe=stops)
    async with world.running(zombie):
        await eventually_async(lambda: stops.reached_times[published] == 1, 20, what="the zombie has committed")
        await run_out(world.pool, "poll-relay:0")
        async with world.running(world.relay("heir")) as heir:
            await world.emptied(10)
            assert heir.counters.published == 70
            stops.open(published)
            await eventually_async(lambda: zombie.lease is None, 20, what="the zombie has noticed")
            assert zombie.counters.published == 0, "L2 broken: a late mark counted"
    await world.check()


async def check_stopped_before_send(world: PollWorld) -> None:
    """K1: a batch that a relay had frozen and not sent when it ended is sent by the next one."""
    frozen = "relay.poll_batch_frozen"
    stops = Stops()
    stops.close(frozen)
    await world.fill(10, 7)
    task = asyncio.create_task(world.relay("first", probe=stops).run())
    await eventually_async(lambda: stops.reached_times[frozen] == 1, 20, what="a batch is frozen")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await run_out(world.pool, "poll-relay:0")
    async with world.running(world.relay("heir")):
        await world.emptied()
    await world.check()


async def check_late_row(world: PollWorld) -> None:
    """K1: rows of a transaction that was open while later ones were published are found by state, in a later batch."""
    await world.fill(1, 1)
    async with world.pool.acquire() as connection, world.running(world.relay()) as relay:
        late = connection.transaction()
        await late.start()
        await connection.execute(LATE_ROW)
        await world.fill(2, 3, first=100)
        await eventually_async(lambda: relay.counters.published == 7, 20, what="later rows are published")
        due = await connection.fetchval("UPDATE tickwright.poll_slices SET selected = selected + 1 RETURNING due_at")
        await late.commit()
        world.expected.add(f"poll_77_{int(due.timestamp())}")
        await world.emptied(10)
    await world.check()


async def check_lost_answer(world: PollWorld, proxied: str, proxy: KafkaProxy) -> None:
    """K2: the broker has committed and the relay gets no answer: a doubt; the position shows the batch."""
    await world.fill(20, 7)
    proxy.lose_answer_of(END_TXN)
    relay = world.relay(log_terms={"bootstrap": proxied, "wait_s": 2.0})
    async with world.running(relay):
        await eventually_async(lambda: relay.counters.doubts + relay.counters.aborted >= 1, 30, what="no answer came")
        proxy.heal()
        proxy.reset()
        await world.emptied(20)
    await world.check()
    assert relay.counters.doubts >= 1
