"""While a part is fetched, its claim is checked every second, and its report's hash is renewed every minute."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta

import pytest

from kit.claims import ClaimChecks
from kit.probes import Stops
from kit.report_faults import ReportWorlds, ask, functions
from kit.reports import ReportWorld, plan_of
from kit.waiting import eventually_async
from tickwright.capabilities.reports.handlers import ReportRequest
from tickwright.capabilities.reports.merge import supervisor
from tickwright.capabilities.reports.parts import listeners as listening
from tickwright.capabilities.reports.parts.store import HASH_TTL, PartRows
from tickwright.engine import claimed_work
from tickwright.transports.redis.stores import RedisParts

COMPLETE = "SELECT count(*) = 0 FROM tickwright.report_parts WHERE state <> 'done'"


class Gate:
    """Makes ``rights`` wait, so that its report stays under way; opens at the end of the block."""

    def __init__(self) -> None:
        self._open = asyncio.Event()

    async def wait(self, name: str, _request: ReportRequest) -> None:
        """Wait, before the first row."""
        if name == "rights":
            await self._open.wait()

    def __enter__(self) -> None:
        """Close it."""

    def __exit__(self, *_: object) -> None:
        """Open it."""
        self._open.set()


async def test_the_hashes_of_reports_under_way_are_renewed_once_a_minute(
    report_worlds: ReportWorlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger gets every part every second; Redis gets reports of one time to live in one call, once a minute."""
    checks = ClaimChecks(monkeypatch, PartRows, "confirm")
    world, gate = await report_worlds.make("redis"), Gate()
    touched: list[tuple[list[int], timedelta]] = []

    async def touch(self: RedisParts, report_ids: Sequence[tuple[int, int]], *, ttl: timedelta) -> None:
        touched.append((sorted(report for report, _ in report_ids), ttl))
        await real_touch(self, report_ids, ttl=ttl)

    real_touch = RedisParts.touch
    monkeypatch.setattr(RedisParts, "touch", touch)
    asked = [await ask(world, words={"check_every_s": every_s}) for every_s in (60, 600, 60)]
    async with world.process(functions(gate.wait)):
        with gate:
            await eventually_async(lambda: checks.made > 20, what="twenty checks")
        for report in asked:
            await world.finished(report)
    assert touched == [([asked[0], asked[2]], HASH_TTL), ([asked[1]], timedelta(minutes=20))]


async def test_a_check_during_the_write_of_a_result_does_not_lose_the_part(
    alone: ReportWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CLW-2: the ledger no longer lists the claim, because the part is done: it is not cancelled and counts as done."""
    ClaimChecks(monkeypatch, PartRows, "confirm").beside("finish")
    async with alone.process({"lefts": functions()["lefts"]}) as process:
        await alone.finished(await alone.request(plan_of("lefts"), {"rows": 1}))
        await eventually_async(lambda: process.listener.running == 0, what="it has ended in this process, too")
        assert process.listener.counts == Counter(done=1)


async def test_a_hash_is_renewed_while_a_part_is_fetched(
    report_worlds: ReportWorlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is renewed at least ten times within its time to live."""
    assert timedelta(seconds=10 * listening.RENEW_S) <= HASH_TTL
    monkeypatch.setattr(listening, "RENEW_S", 0.0)
    world, gate = await report_worlds.make("redis"), Gate()
    assert isinstance(world.shared, RedisParts)
    redis = world.shared._redis._client
    async with world.process(functions(gate.wait)):
        report = await ask(world)
        key = world.shared.key(report)

        async def renewed() -> bool:
            return bool(await redis.pttl(key) > HASH_TTL / timedelta(milliseconds=2))

        with gate:
            await eventually_async(renewed, 20, what="a part is stored")
            for _ in range(2):
                await redis.pexpire(key, 60_000)
                await eventually_async(renewed, what="its time to live is renewed")
        await world.finished(report)


async def test_a_hash_is_renewed_while_its_step_waits_for_a_slot(
    report_worlds: ReportWorlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts survive a queue of merges that outlasts their time to live."""
    monkeypatch.setattr(supervisor, "RENEW_S", 0.0)
    monkeypatch.setattr(claimed_work, "CHECK_S", 0.02)
    world, stops = await report_worlds.make("redis"), Stops()
    assert isinstance(world.shared, RedisParts)
    redis = world.shared._redis._client
    stops.close("reports.merging")
    async with world.process(functions(), probe=stops):
        asked = [await ask(world) for _ in range(12)]
        await eventually_async(lambda: world.pool.fetchval(COMPLETE), 20, what="all their parts are done")
        for key in [world.shared.key(report) for report in asked]:
            await redis.pexpire(key, 60_000)

            async def renewed(key: str = key) -> bool:
                return bool(await redis.pttl(key) > HASH_TTL / timedelta(milliseconds=2))

            await eventually_async(renewed, what="its time to live is renewed")
        stops.open("reports.merging")
        for report in asked:
            await world.finished(report)
