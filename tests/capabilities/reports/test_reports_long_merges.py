"""Merges that do not end hold up no other work of reports in their process."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from kit.reports import Process, ReportWorld, plan_of
from kit.waiting import eventually_async
from tickwright.capabilities.reports.handlers import ReportRequest
from tickwright.capabilities.reports.plan import Listener, Plan
from tickwright.domain.errors import Rejected

ENDLESS = "SELECT count(*) AS n FROM a, range(100000000000) AS x, range(1000) AS y"
HOUR_S = 3600


async def one(_request: ReportRequest) -> AsyncIterator[dict[str, Any]]:
    """Yield one row."""
    yield {"id": 1}


async def broken(request: ReportRequest) -> AsyncIterator[dict[str, Any]]:
    """Raise a permanent error."""
    if request.attempt:
        raise Rejected("no_such_thing", "it is gone")
    yield {}


def endless(**more: Any) -> Plan:
    """Return a plan whose merge does not end."""
    return plan_of("a", merge=ENDLESS, **{"deadline_s": HOUR_S, **more})


@asynccontextmanager
async def filled(world: ReportWorld, process: Process, asked: int = 2) -> AsyncIterator[list[int]]:
    """Request endless reports of the type ``slow``, whose merges have all slots that they may have in the block."""
    slow = [await world.request(endless(), {"n": number}, kind="slow") for number in range(asked)]

    async def fetched() -> bool:
        parts = [await world.part(report, "a") for report in slow]
        return all(part["state"] == "done" for part in parts)

    await eventually_async(fetched)
    await eventually_async(lambda: process.supervisor.running)
    try:
        yield slow
    finally:
        for report in slow:
            await world.cancel(report)


async def waits_for_slot(world: ReportWorld, report: int) -> bool:
    """Return whether a report waits for a merge slot."""
    found: bool = await world.pool.fetchval("SELECT step_at = 'epoch' FROM tickwright.reports WHERE id = $1", report)
    return found


async def test_merges_of_one_type_that_do_not_end_keep_no_other_type_waiting(alone: ReportWorld) -> None:
    """RSV-3: a slot stays free for a type that has none; after a cancel the next report of the slow type is merged."""
    async with alone.process({"a": one, "b": one}) as process, filled(alone, process, 3) as slow:
        for number in range(3):
            quick = await alone.request(plan_of("b"), {"n": number}, kind="quick")
            assert await alone.table(await alone.finished(quick)) == [["1"]]
        statuses = {report: (await alone.record(report))["status"] for report in slow}
        [merging] = [report for report, status in statuses.items() if status == "merging"]
        assert await alone.cancel(merging)

        async def goes_on() -> bool:
            return sorted([(await alone.record(report))["status"] for report in slow]) == [
                "cancelled", "merging", "querying",
            ]  # fmt: skip

        await eventually_async(goes_on, what="the next one of its type is merged")


async def test_merges_that_do_not_end_keep_no_short_step_of_their_own_type_waiting(alone: ReportWorld) -> None:
    """RSV-3: a step that fails a report, announces again or begins the next stage needs no slot."""
    stages = (Listener(name="a", kind="function"), Listener(name="b", kind="function", stage=2))
    fed = {2: "SELECT id FROM a"}
    plan = plan_of("c", checks=2, check_every_s=1)
    async with alone.process({"a": one, "b": one, "broken": broken}) as process, filled(alone, process):
        unserved = await alone.over(await alone.request(plan, kind="slow"))
        assert (unserved["error_code"], unserved["checks"]) == ("parts_missing", 1)
        failed = await alone.over(await alone.request(plan_of(Listener(name="broken", kind="function")), kind="slow"))
        assert failed["error_code"] == "part_failed"
        staged = await alone.request(plan_of(*stages, merge="SELECT * FROM a, b", deadline_s=HOUR_S), kind="slow")
        await eventually_async(lambda: waits_for_slot(alone, staged))
        assert (await alone.record(staged))["stage"] == 2
        fed_plan = plan_of(*stages, merge="SELECT * FROM a, b", feeds=fed, deadline_s=HOUR_S)
        waits = await alone.request(fed_plan, {"fed": True}, kind="slow")
        await eventually_async(lambda: waits_for_slot(alone, waits))
        assert (await alone.record(waits))["stage"] == 1


async def test_a_report_without_a_slot_fails_at_its_deadline(alone: ReportWorld) -> None:
    """RST-2: it fails although its step is not due before a slot is free."""
    async with alone.process({"a": one}) as process, filled(alone, process):
        row = await alone.over(await alone.request(endless(deadline_s=2), {"late": True}, kind="slow"))
    assert (row["status"], row["error_code"]) == ("failed", "deadline_passed")


async def test_a_slot_of_another_process_is_used(alone: ReportWorld) -> None:
    """A report without a slot here is merged by the first process that has one."""
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(alone.process({"a": one}))
        slow = await stack.enter_async_context(filled(alone, first))
        await stack.enter_async_context(alone.process({"a": one}))

        async def both() -> bool:
            return all([(await alone.record(report))["status"] == "merging" for report in slow])

        await eventually_async(both, what="each process merges one")
        for report in slow:
            await alone.cancel(report)


async def test_slots_go_to_the_type_that_has_the_fewest(alone: ReportWorld) -> None:
    """Among those the oldest request comes first; the last slot is for a type that has none."""
    asked = [await alone.request(plan_of("a"), {"n": number}, kind=kind) for number, kind in enumerate("aabc")]
    await alone.pool.execute("UPDATE tickwright.reports SET step_at = 'epoch'")

    async def claim(merging: str, slots: int) -> list[int]:
        return [record.id for record in await alone.records.claim(1, 8, merging=[*merging], slots=slots)]

    assert await claim("abc", 1) == []
    assert await claim("a", 0) == []
    assert await claim("aab", 2) == [asked[3]]
    assert await claim("a", 1) == [asked[2]]
    assert await claim("ab", 1) == []
    assert await claim("ab", 2) == [asked[0]]
    await alone.pool.execute("UPDATE tickwright.reports SET deadline_at = now() WHERE id = $1", asked[1])
    assert await claim("aa", 0) == [asked[1]], "one past its deadline needs no slot"


async def test_a_late_part_of_a_report_without_a_slot_does_not_make_it_due(alone: ReportWorld) -> None:
    """An optional part that was given up counts if it still comes; the report is not due before a slot is free."""
    gate = asyncio.Event()

    async def late(_request: ReportRequest) -> AsyncIterator[dict[str, Any]]:
        await gate.wait()
        yield {"id": 1}

    listeners = (Listener(name="a", kind="function"), Listener(name="late", kind="function", required=False))
    plan = plan_of(*listeners, merge="SELECT * FROM a", checks=1, check_every_s=1, deadline_s=HOUR_S)
    async with alone.process({"a": one, "late": late}) as process, filled(alone, process):
        report = await alone.request(plan, kind="slow")
        await eventually_async(lambda: waits_for_slot(alone, report))
        gate.set()

        async def came() -> bool:
            return bool((await alone.part(report, "late"))["state"] == "done")

        await eventually_async(came)
        assert await waits_for_slot(alone, report)
