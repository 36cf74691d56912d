"""Jobs whose claim, or whose result, was answered by a connection that broke: nothing hangs, and nothing counts twice."""

from collections import Counter
from typing import Any

import asyncpg
import pytest

from kit.answer_cuts import AnswerCuts, How
from kit.engine import connect, running_engine
from kit.waiting import eventually_async
from tickwright.capabilities.jobs.model import Job, TaskType

CLAIM = "Take due rows of the given lanes"
FILL = "INSERT INTO tickwright.scheduled_tasks (execute_at, task_type) SELECT now(), $2 FROM generate_series(1, $1)"
STATES = "SELECT status, attempts, count(*) AS n FROM tickwright.scheduled_tasks GROUP BY 1, 2 ORDER BY 1, 2"
LIVE = "SELECT count(*) FROM ONLY tickwright.scheduled_tasks"


async def _states(connection: asyncpg.Connection) -> list[tuple[str, int, int]]:
    return [tuple(row) for row in await connection.fetch(STATES)]


async def _none_left(connection: asyncpg.Connection) -> bool:
    return bool(await connection.fetchval(LIVE) == 0)


@pytest.mark.parametrize("how", ["unsent", "unheard", "late"])
@pytest.mark.parametrize("kind", [{}, {"rate_per_s": 400.0}, {"concurrency": 7}], ids=["free", "rate", "limited"])
async def test_a_claim_that_is_cut_costs_no_job_and_no_attempt(
    database_url: str, how: How, kind: dict[str, Any]
) -> None:
    """J1: each job runs once as its first attempt, whatever became of the answers of its claims."""
    runs: Counter[int] = Counter()

    async def work(job: Job) -> None:
        runs[job.id] += 1

    other = await connect(database_url)
    kinds = {"work": TaskType("work", "python:work", **kind)}
    async with AnswerCuts(database_url) as cuts, running_engine(cuts.url, {"work": work}, kinds=kinds):
        cuts.cut(CLAIM, how, times=3, rows_min=2)
        await other.execute(FILL, 200, "work")
        await eventually_async(lambda: cuts.made == 3, 60, what="three cuts")
        await cuts.send_late()
        await eventually_async(lambda: _none_left(other), 60, what="all jobs done")
        states = await _states(other)
    await other.close()
    assert states == [("completed", 1, 200)]
    assert len(runs) == 200
    assert set(runs.values()) == {1}
