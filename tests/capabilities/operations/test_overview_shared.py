"""Several processes show the overview: one reads it, the others find its snapshots, and one of them takes over."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec
import pytest

from kit.mutants import mutate
from kit.streams import CountingProbe
from kit.waiting import eventually_async
from tickwright.capabilities.operations import shared_snapshot
from tickwright.capabilities.operations.shared_snapshot import SharedSnapshot
from tickwright.capabilities.operations.snapshots import Snapshots, Subscriber
from tickwright.ports.session import Place
from tickwright.process.installation import overview_parts
from tickwright.store.pool import Pool

AWAY_AT = "2001-01-01T00:00:00Z"


class Fellow:
    """A session that knows of another process with the overview, or of none."""

    def __init__(self, others: int = 1) -> None:
        self.others = others

    def join(self, _group: str, _joins: Callable[[], bool]) -> Callable[[], Place | None]:
        """Return a place among the others."""
        return lambda: Place(self.others, 0, 0, 0, 0)


@dataclass
class Process:
    """One process that shows the overview."""

    snapshots: Snapshots
    subscriber: Subscriber
    probe: CountingProbe
    running: "asyncio.Task[None]"

    @property
    def readings(self) -> int:
        """How often it has read itself."""
        return self.probe.reached_times

    async def next(self) -> Any:
        """Return the next message."""
        message = await self.subscriber.next(30)
        assert message is not None, "the stream has ended"
        return json.loads(message)

    async def newer(self, than: str) -> Any:
        """Return the next message with a newer snapshot."""
        while (message := await self.next())["at"] <= than:
            pass
        return message

    async def kill(self) -> None:
        """End it at once, as `kill -9` does for the others."""
        self.running.cancel()
        await asyncio.wait({self.running})


@asynccontextmanager
async def showing(
    pool: Pool, *, others: int = 1, version: str = "0", key_id: int | None = None
) -> AsyncIterator[Process]:
    """Run a process that shows the overview."""
    probe = CountingProbe()
    snapshots = Snapshots(pool, overview_parts(), version=version, every_s=0.2, probe=probe)
    snapshots.share_with_others(Fellow(others))  # type: ignore[arg-type]
    with snapshots.subscribe(key_id) as subscriber:
        process = Process(snapshots, subscriber, probe, asyncio.create_task(snapshots.run()))
        try:
            yield process
        finally:
            await process.kill()


async def test_one_process_reads_for_all(pool: Pool) -> None:
    """The others show the same snapshots and read nothing, however long it goes on."""
    async with showing(pool) as first:
        known = {(await first.next())["at"]}
        async with showing(pool) as second, showing(pool) as third:
            for _ in range(4):
                message = await first.newer(max(known))
                known.add(message["at"])
                for other in (second, third):
                    found = await other.newer(min(known))
                    assert (found["version"], found["changes"]) == (message["version"], message["changes"])
            assert (second.readings, third.readings) == (0, 0)
            assert first.readings >= 4
            latest = await second.snapshots.latest()
            assert latest.series.at, "a process has the points of the series that it has shown"


async def test_another_process_takes_over_from_one_that_is_killed(pool: Pool) -> None:
    """Its page goes on, and exactly one of the others reads from then on."""
    async with showing(pool) as first:
        at = (await first.next())["at"]
        async with showing(pool) as second, showing(pool) as third:
            await second.newer("")
            await first.kill()
            for process in (second, third):
                await process.newer((await process.newer(at))["at"])
            before = second.readings, third.readings
            assert sorted(map(bool, before)) == [False, True]


async def test_a_process_that_lost_the_reading_writes_no_more(pool: Pool) -> None:
    """A paused process comes back: its write has an old fence."""
    parts = overview_parts()
    paused, fresh = SharedSnapshot("f", parts), SharedSnapshot("f", parts)
    async with showing(pool, others=0) as alone, pool.acquire() as connection:
        view = msgspec.structs.replace(await alone.snapshots.latest(), series=None)
        assert await paused.take_over(connection)
        assert not await fresh.take_over(connection), "it is not overdue"
        await connection.execute("UPDATE tickwright.overview_snapshots SET due_at = now() - interval '1 minute'")
        assert await fresh.take_over(connection)
        await fresh.share(connection, view, {}, 60)
        late = msgspec.structs.replace(view, at=datetime.fromisoformat(AWAY_AT))
        await paused.share(connection, late, {}, 60)
        assert not paused.is_ours
        found = await paused.find(connection, (), ())
        assert found.view is not None
        assert found.view.at == view.at


@pytest.mark.mutant
async def test_without_the_fence_a_paused_process_would_write(pool: Pool) -> None:
    """The test above would fail."""
    with pytest.MonkeyPatch.context() as patch:
        unfenced = shared_snapshot._SQL["share"].replace(" AND fence = $2", " AND $2::bigint > 0")
        patch.setattr(shared_snapshot, "_SQL", {**shared_snapshot._SQL, "share": unfenced})
        with pytest.raises(AssertionError):
            await test_a_process_that_lost_the_reading_writes_no_more(pool)


async def test_a_found_snapshot_ends_streams_of_keys_that_are_not_valid(pool: Pool) -> None:
    """A process that does not read checks its own keys as well."""
    async with showing(pool) as first:
        await first.next()
        async with showing(pool, key_id=4711) as second:
            await eventually_async(lambda: second.subscriber.is_over, 30, what="the stream of an unknown key has ended")
            assert second.readings == 0


@pytest.mark.mutant
async def test_a_process_that_does_not_check_keys_is_noticed(pool: Pool) -> None:
    """The test above would fail."""
    with pytest.MonkeyPatch.context() as patch:
        mutate(patch, Snapshots._find, "self._end_invalid(found.good_keys, found.good_sessions)", "pass")
        patch.setitem(globals(), "eventually_async", _once)
        with pytest.raises(AssertionError):
            await test_a_found_snapshot_ends_streams_of_keys_that_are_not_valid(pool)


async def test_another_release_reads_for_itself(pool: Pool) -> None:
    """Its fields may differ."""
    async with showing(pool) as first, showing(pool, version="1") as other:
        assert (await first.next())["version"] == "0"
        assert (await other.next())["version"] == "1"
        assert other.readings
        rows = await pool.fetch("SELECT format FROM tickwright.overview_snapshots")
        assert len(rows) == 2


async def test_a_process_reads_for_itself_where_it_cannot_read_what_is_shared(pool: Pool) -> None:
    """A plugin of another release may use the names of fields for other values."""
    async with showing(pool) as first:
        await first.next()
        for foreign in ("[]", '{"view": {"at": 7}, "point": {}}', "no JSON"):
            await pool.execute(
                "UPDATE tickwright.overview_snapshots SET content = $1, due_at = now() + interval '1 hour', fence = 9",
                foreign,
            )
            async with showing(pool) as other:
                await other.newer((await other.next())["at"])
                assert other.readings >= 2


async def test_a_process_alone_shares_nothing(pool: Pool) -> None:
    """No other process would find it."""
    async with showing(pool, others=0) as alone:
        await alone.newer((await alone.next())["at"])
        assert await pool.fetchval("SELECT count(*) FROM tickwright.overview_snapshots") == 0


async def _once(holds: Callable[[], bool], *_: object, what: str) -> None:
    await asyncio.sleep(2)
    assert holds(), what
