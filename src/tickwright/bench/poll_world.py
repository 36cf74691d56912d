"""Trackers on wheels whose time passes as fast as polls are selected: what ``bench polling`` measures.

The loops are the product's own. They work under a lease without competition, so that each transaction of theirs can
be timed; what a relay and consumers would do with the polls is one statement between the time slots.
"""

import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from math import lcm, sqrt
from typing import Any

from tickwright.bench.report import Figures, median
from tickwright.capabilities.polling.wheels import loops
from tickwright.capabilities.polling.wheels.loops import SLICES_KEPT, Corrector, Registrar, Selector
from tickwright.store.pool import Pool
from tickwright.store.queries import load

SQL = load("tickwright.bench.sql", "polling.sql")
MIXED = ((120, 13), (30, 1), (240, 6))
"""Intervals in minutes, and in how many accounts of twenty. A minute has as many polls as if all were 120: N / 120."""

PARTNERS = (("one", 50), ("two", 30), ("three", 15), ("four", 4), ("five", 1))
REGISTER_STEP = 100_000
BUCKETS_A_MINUTE = 6
SLICE_BUCKETS = 5 * BUCKETS_A_MINUTE
TURNS_PER_CLEARING = 8
VACUUM_MINUTES = 60
VACUUM_WITHIN_S = 600.0
EVENTS = "pg:bench.poll-events"
INTERVAL_MINUTES = 120
"""Growth is counted in intervals of so many minutes."""

SETTLED_INTERVALS = 10
"""From here on growth counts. Before, the ledger fills: it keeps four turns of a slot, eight intervals on the slowest
wheel of four hours; and what a page leaves free for later versions of its rows is taken up once."""

Say = Callable[[str], None]


class TimedLease:
    """A lease without competition; notes how long each transaction under it took.

    Attributes:
        steps_ms: Milliseconds of each transaction.
        waits: Whether a commit waits for the disk, as it does in production. Sizes do not depend on it.
    """

    fence = 1

    def __init__(self, pool: Pool, name: str) -> None:
        self._pool = pool
        self.name = name
        self.steps_ms: list[float] = []
        self.waits = True

    def holds(self) -> bool:
        """Return that it is held."""
        return True

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        """Open a transaction and time it."""
        started = time.perf_counter()
        async with self._pool.acquire() as connection, connection.transaction():
            if not self.waits:
                await connection.execute("SET LOCAL synchronous_commit = off")
            yield connection
        self.steps_ms.append((time.perf_counter() - started) * 1000)


class World:
    """Accounts, partners, trackers, and the loops that place, select and level them.

    Args:
        intervals: Minutes, and in how many accounts of all.
    """

    def __init__(self, pool: Pool, intervals: Sequence[tuple[int, int]] = MIXED) -> None:
        self.pool = pool
        self.longest = max(minutes for minutes, _ in intervals)
        self._intervals = intervals
        self._registrar, self._selector, self._corrector = Registrar(), Selector(), Corrector(EVENTS)
        self._leases = {name: TimedLease(pool, name) for name in ("registrar", "selector", "corrector")}
        self._accounts: list[int] = []
        self._partners: list[int] = []
        self._registered = 0
        self._minutes_of: dict[int, int] = {}
        self._until: datetime | None = None

    @property
    def steps_ms(self) -> list[float]:
        """What every control-plane transaction took so far, sorted."""
        return sorted(step for lease in self._leases.values() for step in lease.steps_ms)

    def slowest(self) -> dict[str, float]:
        """Return the longest transaction of each loop in milliseconds."""
        return {name: round(max(lease.steps_ms, default=0.0), 1) for name, lease in self._leases.items()}

    async def prepare(self) -> None:
        """Make accounts and partners, each as often as its share says."""
        for minutes, share in self._intervals:
            for number in range(share):
                self._accounts.append(await self.pool.fetchval(SQL["add_account"], f"a{minutes}_{number}", minutes))
        for name, share in PARTNERS:
            self._partners += [await self.pool.fetchval(SQL["add_partner"], name)] * share

    async def add(self, trackers: int) -> float:
        """Register and place; return how many a second went through both."""
        started = time.perf_counter()
        for _ in range(0, trackers, REGISTER_STEP):
            count = min(REGISTER_STEP, trackers)
            await self.pool.execute(SQL["register"], count, self._accounts, self._partners, self._registered)
            self._registered += count
            while await self._registrar.round(self._leases["registrar"]) == 0.0:
                pass
        return trackers / (time.perf_counter() - started)

    async def begin_turns(self, at: datetime | None = None) -> datetime:
        """Let every time slot be next due at ``at`` or later; return ``at``, by default the minute after the next.

        Nothing was selected while trackers were being placed: without this the polls of those minutes would be missed.
        """
        async with self.pool.acquire() as connection:
            _, next_minute = await loops.read_clock(connection)
            begin = at or next_minute + timedelta(minutes=1)
            await connection.execute(SQL["begin_turns"], begin)
            self._minutes_of = dict(await connection.fetch(SQL["slots"]))
        return begin

    async def end(self, share: float) -> None:
        """Let a share of the trackers end, at random."""
        ids = await self.pool.fetchrow(SQL["ids"])
        for first in range(ids["first"], ids["last"] + 1, REGISTER_STEP):
            await self.pool.execute(SQL["end_at_random"], share, first, first + REGISTER_STEP - 1)

    # ------------------------------------------------------------------ turns

    async def _turns(self, minutes: int) -> list[loops.DueSlot]:
        """Return the due time slots of the minutes after those that were selected."""
        if self._until is None:
            self._until = await self.begin_turns() - timedelta(minutes=1)
        self._until += timedelta(minutes=minutes)
        async with self.pool.acquire() as connection:
            return await loops.due_slots(connection, self._until)

    async def select_minutes(self, minutes: int) -> tuple[float, float]:
        """Return the median seconds and bytes of WAL that it takes to select all polls of one minute."""
        seconds, wal = [], []
        for _ in range(minutes):
            turns = await self._turns(1)
            before = await self.pool.fetchval("SELECT pg_current_wal_insert_lsn()")
            started = time.perf_counter()
            for turn in turns:
                await self._selector.select(self._leases["selector"], turn)
            seconds.append(time.perf_counter() - started)
            wal.append(float(await self.pool.fetchval("SELECT pg_current_wal_insert_lsn() - $1::pg_lsn", before)))
        await self.pool.execute(SQL["drop_polls"])
        return median(seconds), median(wal)

    async def go_round(self, times: int, *, results: bool = False) -> None:
        """Select all polls of the longest interval so many times, and correct the time slots that have passed."""
        for minute in range(times * self.longest):
            for turn in await self._turns(1):
                await self._selector.select(self._leases["selector"], turn)
                turned = loops.PassedSlot(turn.slot_id, self._minutes_of[turn.slot_id], turn.due_at)
                await self._corrector.maintain_slot(self._leases["corrector"], turned)
            if minute % TURNS_PER_CLEARING == 0:
                await self._clear(minute, results=results)

    async def _clear(self, minute: int, *, results: bool) -> None:
        """Do with the polls that wait what relay and consumers would do, and what autovacuum does by then."""
        if not results:
            await self.pool.execute(SQL["drop_polls"])
            return
        tables = [f"tickwright.{name}" for name in ("poll_done", "poll_slices", "scheduler_outbox", "poll_slots")]
        if minute % VACUUM_MINUTES < TURNS_PER_CLEARING:
            tables.append("tickwright.trackers")
        async with self.pool.acquire() as connection:
            await connection.execute("SET statement_timeout = 0")  # ten million take longer than a statement may
            await connection.execute(f"VACUUM {', '.join(tables)}", timeout=VACUUM_WITHIN_S)
        await self.pool.execute(SQL["write_results"], minute // TURNS_PER_CLEARING)

    async def moved_since(self, transaction_id: int) -> int:
        """Return how many trackers were written by that transaction or a later one."""
        return int(await self.pool.fetchval(SQL["moved_since"], transaction_id))

    async def transaction_id(self) -> int:
        """Return the id that the next transaction gets, or about that."""
        return int(await self.pool.fetchval("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint"))

    # ------------------------------------------------------------------ disk

    async def grow(self, intervals: int, say: Say) -> Figures:
        """Return how much larger everything is after so many intervals in which every poll's result was written.

        The slice ledger begins full: its three days do not fill within the warm-up, and are no growth afterwards.
        """
        await self.pool.execute(SQL["fill_slices"], self._until, SLICES_KEPT)
        per_round = max(1, self.longest // INTERVAL_MINUTES)
        settled: dict[str, int] = {}
        for lease in self._leases.values():
            lease.waits = False
        for number in range(1, max(2, intervals // per_round) + 1):
            await self.go_round(1, results=True)
            sizes = await self.sizes()
            say(f"interval {number * per_round}: {sum(sizes.values()):,} bytes")
            say("  " + " ".join(f"{name}={size:,}" for name, size in sizes.items()))
            if not settled and number * per_round >= min(SETTLED_INTERVALS, intervals // 2):
                settled = sizes
        for name in sizes.keys() | settled.keys():
            if sizes.get(name, 0) != settled.get(name, 0):
                say(f"  {name}: {settled.get(name, 0):,} -> {sizes.get(name, 0):,}")
        return {
            "disk_growth_ratio": sum(sizes.values()) / sum(settled.values()),
            "disk_settled_bytes": float(sum(settled.values())),
        }

    async def sizes(self) -> dict[str, int]:
        """Return the bytes of every table and index that trackers and their polls take up."""
        return {row["name"]: row["bytes"] for row in await self.pool.fetch(SQL["sizes"])}

    async def disk_bytes(self) -> float:
        """Return their sum."""
        return float(sum((await self.sizes()).values()))

    # ------------------------------------------------------------------ flatness

    async def flatness(self) -> Figures:
        """Return busiest over mean, in total and for the worst partner, over the whole pattern of the intervals."""
        period = lcm(*(minutes for minutes, _ in self._intervals)) * BUCKETS_A_MINUTE
        partners: dict[int, list[int]] = defaultdict(lambda: [0] * period)
        for row in await self.pool.fetch(SQL["bucket_loads"]):
            step = row["interval_minutes"] * BUCKETS_A_MINUTE
            for at in range(row["minute"] * BUCKETS_A_MINUTE + row["bucket"], period, step):
                partners[row["partner_no"]][at] += row["trackers"]
        total = [sum(loads) for loads in zip(*partners.values(), strict=True)]
        buckets = [*partners.values(), total]
        slices = [[sum(loads[at : at + SLICE_BUCKETS]) for at in range(0, period, SLICE_BUCKETS)] for loads in buckets]
        return {
            "flatness_steady": _peak(slices[-1]),
            "flatness_partner": max((_peak(loads) for loads in slices if _mean(loads) >= 10_000), default=1.0),
            "flatness_1000": max((_peak(loads) for loads in slices if _mean(loads) >= 1000), default=1.0),
            "flatness_10s": max((_peak(loads) for loads in buckets if _mean(loads) >= 100), default=1.0),
            "small_buckets_over": float(sum(_over(loads) for loads in buckets if _mean(loads) < 100)),
        }


def _mean(loads: Sequence[int]) -> float:
    return sum(loads) / len(loads)


def _peak(loads: Sequence[int]) -> float:
    return max(loads) / _mean(loads)


def _over(loads: Sequence[int]) -> int:
    """How many buckets are above what chance allows: the mean and three of its roots."""
    mean = _mean(loads)
    return sum(load > mean + 3 * sqrt(mean) for load in loads)
