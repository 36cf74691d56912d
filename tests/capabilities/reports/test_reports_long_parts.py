"""Parts that do not end hold up no other type's parts of the same function or source."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from kit.reports import Process, ReportWorld, plan_of
from kit.waiting import eventually_async
from tickwright.capabilities.reports.handlers import ReportRequest
from tickwright.capabilities.reports.plan import Listener, Plan

SOURCE = "source:shop"


def query(sql: str, *, name: str = "a", **more: Any) -> Plan:
    """Return a definition of one query on the source of the test."""
    return plan_of(Listener(name=name, kind="sql", source="shop", sql=sql, **more), deadline_s=3600)


async def counted(world: ReportWorld, state: str, kind: str = "%") -> int:
    """Return how many parts of a type are in this state."""
    sql = """
SELECT count(*) FROM tickwright.report_parts p JOIN tickwright.reports r ON r.id = p.report_id
 WHERE p.state = $1 AND r.type LIKE $2
"""
    found: int = await world.pool.fetchval(sql, state, kind)
    return found


@asynccontextmanager
async def filled(world: ReportWorld, process: Process, slots: int) -> AsyncIterator[list[int]]:
    """Request reports of the type ``slow`` whose queries do not end, more than its ``slots``, for the block."""
    endless = query("SELECT pg_sleep(3600)::text AS v")
    slow = [await world.request(endless, {"n": number}, kind="slow") for number in range(slots + 3)]
    try:
        await eventually_async(lambda: process.listener.running == slots, what="the type has its slots")
        yield slow
    finally:
        for report in slow:
            await world.cancel(report)


async def test_queries_of_one_type_that_do_not_end_keep_no_other_type_waiting(alone: ReportWorld) -> None:
    """RPL-3: one slot above the setting is for a type that has none, again and again."""
    async with (
        alone.process({}, sources={"shop": alone.url}, at_once=2) as process,
        filled(alone, process, 2) as slow,
    ):
        for number in range(3):
            quick = await alone.request(query("SELECT 1 AS v"), {"n": number}, kind=f"quick{number % 2}")
            assert await alone.table(await alone.finished(quick)) == [["1"]]
        await process.listener.claim_announced(slow[-1], "a")  # the same limits hold for an announced part
        assert await counted(alone, "running", "slow") == 2
        assert await alone.cancel(slow[0])

        async def goes_on() -> bool:
            return await counted(alone, "running", "slow") == 2 and await counted(alone, "due", "slow") == 2

        await eventually_async(goes_on, what="the next of its type runs")


async def test_no_part_waits_for_a_connection_of_its_source(alone: ReportWorld) -> None:
    """RPL-4: where a source takes fewer queries than the setting, the slot for another type is one of these."""
    async with (
        alone.process({}, sources={"shop": alone.url}, connections=3, at_once=8) as process,
        filled(alone, process, 2),
    ):
        quick = await alone.request(query("SELECT 1 AS v", timeout_ms=3000, attempts=1), kind="quick")
        await alone.finished(quick)
        assert await counted(alone, "running", "slow") == 2


async def test_parts_that_are_announced_at_once_take_no_more_slots_than_there_are(alone: ReportWorld) -> None:
    """RPL-3: one slot, and one more for another type; for a function as for a source."""
    gate = asyncio.Event()

    async def waits(_request: ReportRequest) -> AsyncIterator[dict[str, Any]]:
        await gate.wait()
        yield {"id": 1}

    async with alone.process({"a": waits}, at_once=1) as process:
        asked = [await alone.request(plan_of("a"), {"n": number}, kind=kind) for number, kind in enumerate("aabbcc")]
        try:
            await asyncio.gather(*(process.listener.claim_announced(report, "a") for report in asked))
            assert sorted([await counted(alone, "running", kind) for kind in "abc"]) == [0, 1, 1]
        finally:
            gate.set()
        for report in asked:
            await alone.finished(report)


async def test_a_source_that_takes_one_query_serves_every_type(alone: ReportWorld) -> None:
    """Its one slot is for any type, in the order of requests."""
    async with (
        alone.process({}, sources={"shop": alone.url}, connections=1) as process,
        filled(alone, process, 1) as slow,
    ):
        quick = await alone.request(query("SELECT 1 AS v"), kind="quick")
        for report in slow:
            await alone.cancel(report)
        await alone.finished(quick)


async def test_parts_of_passed_over_types_are_not_claimed(alone: ReportWorld) -> None:
    """Among the others the oldest request comes first; a type is passed over for one function or source only."""
    asked = [await alone.request(query("SELECT 1 AS v"), {"n": number}, kind=kind) for number, kind in enumerate("aab")]

    async def claim(*but: tuple[str, str]) -> list[int]:
        return [claim.key.report_id for claim in await alone.parts.claim(1, {SOURCE: 1}, excluding=but)]

    assert await claim((SOURCE, "a"), (SOURCE, "b")) == []
    assert await alone.parts.claim(1, {SOURCE: 1}, excluding=[(SOURCE, "b")], announced=(asked[2], "a")) == []
    assert await claim((SOURCE, "a")) == [asked[2]]
    assert await claim(("source:other", "a")) == [asked[0]]
