"""A storm over all processes between the outbox and a courier: brokers, relays and consumers are killed at random.

Polls come in waves: the same trackers, each time due a minute later than before.
"""

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from kit.consumers import ConsumerProcess, events, http_of_url, seed
from kit.forks import Child
from kit.kafka import KafkaServer
from kit.kafka_polls import PollWorld, Seen
from kit.partners import CourierLog
from kit.processes import kill_group
from kit.waiting import eventually_async
from tickwright.domain.errors import Unavailable

TRACKERS = 120
RATE, CONCURRENCY = 80, 10
LEASE_S = 2.0
CHECK_S = 0.2
WAVE = """
WITH slot AS (
  INSERT INTO tickwright.poll_slots (slot_id, interval_minutes, next_due_at, prev_due_at)
  VALUES ($2::integer, 120, $1::timestamptz + interval '2 hours', $1)
), put AS (
  INSERT INTO tickwright.scheduler_outbox (release_at, due_at, slot_id, partner_no, ids, account_nos, external_ids)
  SELECT due_at, due_at, $2, $3, array_agg(id ORDER BY id), array_fill(1, ARRAY[count(*)::integer]),
         array_agg('T' || id ORDER BY id)
    FROM (SELECT id, $1 + id % 6 * interval '1 second' AS due_at FROM unnest($4::bigint[]) AS id) AS poll
   GROUP BY due_at ORDER BY due_at
  RETURNING ids, due_at
), ledger AS (
  INSERT INTO tickwright.poll_slices (due_at, slot_id, partner_no, interval_minutes, selected)
  VALUES ($1, $2, $3, 120, cardinality($4))
)
SELECT unnest(ids) AS id, date_part('epoch', due_at)::bigint AS due FROM put
"""
"""Trackers $4 of partner $3, due in the minute $1; the wave's number $2 is also its slot."""

DONE = """
SELECT 'poll_' || id || '_' || date_part('epoch', d.due_at)::bigint AS poll
  FROM tickwright.poll_done d CROSS JOIN LATERAL unnest(d.ids) AS x (id)
"""


class Storm:
    """Two relays, two consumers, three brokers and a courier; a killed process is replaced.

    Args:
        seed_number: Seed of the random choices, shown when a test fails.
    """

    def __init__(
        self, world: PollWorld, cluster: KafkaServer, courier: CourierLog, folder: Path, seed_number: int
    ) -> None:
        self.world, self.cluster, self.courier, self._folder = world, cluster, courier, folder
        self.chance = random.Random(seed_number)
        self.waves = self.deaths = self.looks = 0
        self._trackers: list[int] = []
        self._partner_no = 0
        self._relays: list[Child] = []
        self._consumers: list[ConsumerProcess] = []
        self._over = asyncio.Event()

    @asynccontextmanager
    async def raging(self) -> AsyncIterator[None]:
        """Run all processes, and check the ledger all the time; none is left at the end."""
        checking: asyncio.Task[None] | None = None
        try:
            await self._prepare()
            for _ in range(2):
                self._start_relay()
                self._start_consumer()
            checking = asyncio.create_task(self._check_balance())
            yield
            self._over.set()
            await checking
        finally:
            if checking is not None:
                checking.cancel()
            for child in (*self._relays, *(one.process for one in self._consumers)):
                kill_group(child)

    async def _prepare(self) -> None:
        """Create three replicas of each topic, a partner and its trackers."""
        log = self.world.log(allow_single_broker=False)

        async def opened() -> bool:
            with suppress(Unavailable):  # a broker that does not know the new topics yet
                await log.open(0)
                return True
            return False

        await eventually_async(opened, 60, what="three replicas of each topic")
        await log.close()
        pool = self.world.pool
        terms: dict[str, Any] = {"rate": f"{RATE}/s", "concurrency": CONCURRENCY, "http": http_of_url(self.courier.url)}
        trackers = await seed(pool, TRACKERS, **terms)
        self._trackers, self._partner_no = trackers.ids, trackers.partner_no
        await pool.execute("TRUNCATE tickwright.poll_queue, tickwright.poll_slices, tickwright.poll_slots")

    async def _check_balance(self) -> None:
        """P2: at every check selected = published + pending."""
        while not self._over.is_set():
            await self.world.pending()
            self.looks += 1
            with suppress(TimeoutError):
                async with asyncio.timeout(CHECK_S):
                    await self._over.wait()

    # ------------------------------------------------------------------ what happens

    async def wave(self) -> None:
        """Make every tracker due once more."""
        at = "SELECT date_trunc('minute', clock_timestamp()) - interval '90 minutes' + $1 * interval '1 minute'"
        minute = await self.world.pool.fetchval(at, self.waves)
        found = await self.world.pool.fetch(WAVE, minute, self.waves, self._partner_no, self._trackers)
        self.world.expected |= {f"poll_{row['id']}_{row['due']}" for row in found}
        self.waves += 1

    def wanted(self) -> Counter[str]:
        """Return how often the courier has to be called for each tracker: once per wave."""
        return Counter({f"T{tracker}": self.waves for tracker in self._trackers})

    async def strike(self, brokers: int) -> None:
        """Kill brokers and a relay or a consumer during the work, and restart all of them."""
        done = await self.done_count()
        await self.wave()
        await self.wave()
        await self.advanced(done + self.chance.randrange(1, TRACKERS))
        victims = self.chance.sample(range(1, self.cluster.nodes + 1), brokers)
        for number in victims:
            self.deaths += 1
            await asyncio.to_thread(self.cluster.kill_node, number)
        self._kill_one()
        await self.wave()
        for number in victims:
            await asyncio.to_thread(self.cluster.start_node, number)
        self._kill_one()

    def _kill_one(self) -> None:
        self.deaths += 1
        if self.chance.random() < 0.5:
            kill_group(self._relays.pop(self.chance.randrange(2)))
            self._start_relay()
        else:
            kill_group(self._consumers.pop(self.chance.randrange(2)).process)
            self._start_consumer()

    def _start_relay(self) -> None:
        self._relays.append(self.world.child(self._folder, LEASE_S))

    def _start_consumer(self) -> None:
        kafka = (self.world.bootstrap, self.world.prefix)
        log = self._folder / "consumer.log"
        self._consumers.append(ConsumerProcess(self.world.url, log, lease_s=LEASE_S, kafka=kafka))

    async def advanced(self, count: int, within_s: float = 90) -> None:
        """Wait until so many polls are done."""

        async def enough() -> bool:
            return await self.done_count() >= count

        await eventually_async(enough, within_s, what=f"{count} polls are done")

    async def done_count(self) -> int:
        """Return how many polls are counted as done."""
        counted: int = await self.world.pool.fetchval("SELECT coalesce(sum(polled), 0) FROM tickwright.poll_slices")
        return counted

    # ------------------------------------------------------------------ results

    async def check(self) -> None:
        """K1 to K5 on the topic and per tracker, the ledger once each, and no event twice."""
        seen = await self.world.check()
        check_tracker_order(seen)
        done = Counter(row["poll"] for row in await self.world.pool.fetch(DONE))
        assert done == Counter(self.world.expected), "K6 broken: the ledger has not each poll once"
        delivered = Counter(event["tracker_id"] for event in await events(self.world.pool))
        assert delivered == Counter(self._trackers), "K6 broken: events were delivered twice or never"
        counted = await self.world.pool.fetchrow("SELECT sum(polled), sum(published) FROM tickwright.poll_slices")
        assert tuple(counted) == (len(self.world.expected),) * 2


def check_tracker_order(seen: list[Seen]) -> None:
    """K3: a tracker has one partition, and its due seconds rise with the offsets."""
    places: dict[int, list[Seen]] = defaultdict(list)
    for one in sorted(seen, key=lambda one: one.offset):
        places[one.value["tracker_id"]].append(one)
    for tracker, found in places.items():
        assert len({one.partition for one in found}) == 1, f"K3 broken: tracker {tracker} is in two partitions"
        dues = [one.value["due_at"] for one in found]
        assert dues == sorted(dues), f"K3 broken: tracker {tracker} is out of order"
