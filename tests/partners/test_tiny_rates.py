"""Rows with a rate of nearly zero, from SQL or from a release that accepted them, stop no others."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kit.consumers import all_done, done_times, running_consumer, seed
from kit.nodes import running, settings_of
from kit.partners import running_contract, set_partner
from kit.waiting import eventually_async
from tickwright import Answer, Job, Poll
from tickwright.app.declarations import Declarations
from tickwright.partners import model
from tickwright.partners.outcomes import ANSWERED

TINY = ["0." + "0" * 18 + "1/h", "0." + "0" * 306 + "1/h"]


@pytest.mark.matrix
@pytest.mark.parametrize("rate", TINY)
async def test_a_partner_with_a_tiny_rate_stops_no_other_partners_polls(database_url: str, rate: str) -> None:
    """All partners of a process share one exchange: a bad row affects its own partner only."""

    async def ask(_poll: Poll) -> Answer:
        return Answer("moving")

    async with running_consumer(database_url, functions={"slow": ask, "good": ask}) as side:
        slow = await seed(side.pool, 5, name="slow", rate=rate)
        side.contract.permits_of(slow.partner_no).expected = 1  # as if its row had been another one before
        await eventually_async(lambda: side.contract.permits_of(slow.partner_no).why == "paused", 30)
        good = await seed(side.pool, 20, name="good", rate="50/s")
        await eventually_async(lambda: all_done(side.pool, good), 30)
        assert not await done_times(side.pool, slow)


async def test_a_partner_that_cannot_be_decided_on_stops_no_other(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error in the decision on one row leaves that row as it is; the others are decided on."""
    decide, broken = model.decide, set[int]()

    def decide_or_raise(shared: Any, report: Any, settings: Any, context: Any) -> Any:
        if settings.concurrency == 7:
            broken.add(context.session)
            raise ValueError("cannot convert float NaN to integer")
        return decide(shared, report, settings, context)

    monkeypatch.setattr(model, "decide", decide_or_raise)
    async with running_contract(database_url) as side:
        bad = await set_partner(side.pool, "bad", concurrency=7)
        good = await set_partner(side.pool, "good", rate="100/s")
        side.contract.permits_of(bad).expected = 1
        for _ in range(5):
            permit = await side.contract.permits_of(good).acquire()
            permit.close(ANSWERED)
            await eventually_async(lambda: side.contract.permits_of(bad).why == "paused")
        assert broken
        side.contract.permits_of(bad).expected = 0


async def test_a_task_type_with_a_tiny_rate_stops_no_other_jobs(database_url: str, tmp_path: Path) -> None:
    """The worker goes on with every type, and uses the lowest possible rate instead."""
    ran: Counter[str] = Counter()
    program = Declarations()

    @program.job("slow", rate="1/s")
    async def slow(job: Job) -> None:
        ran[job.type] += 1

    @program.job("good")
    async def good(job: Job) -> None:
        ran[job.type] += 1

    async with running(settings_of(database_url, tmp_path, ""), program, "worker") as node:
        pool = node.installation.pool
        await eventually_async(lambda: pool.fetchval("SELECT count(*) = 2 FROM tickwright.task_types"))
        await pool.execute(
            "UPDATE tickwright.task_types SET rate_per_s = 1e-300, version = version + 1 WHERE name = 'slow'"
        )
        await _add(pool, "slow", 5)
        await eventually_async(lambda: ran["slow"], 30)
        for count in (5, 10):
            await _add(pool, "good", 5)
            await eventually_async(lambda count=count: ran["good"] == count, 30)  # type: ignore[misc]
        restarts = {state.name: state.restarts for state in node.supervisor.states()}
        assert (ran["slow"], restarts["jobs"]) == (1, 0)


async def _add(pool: Any, task_type: str, count: int) -> None:
    sql = """INSERT INTO tickwright.scheduled_tasks (execute_at, task_type, payload)
             SELECT now(), $1, '{}' FROM generate_series(1, $2::integer)"""
    await pool.execute(sql, task_type, count)
