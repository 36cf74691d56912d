"""Any sequence of requests, claims, ends, retries and passing time, compared with a model of unique jobs."""

import asyncio
import json
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import asyncpg
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as some

from kit.engine import connect
from tickwright.capabilities.jobs.admin.dead_letters import revive
from tickwright.capabilities.jobs.worker import claims

PERIOD_S = 100
SEVEN_DAYS_S = 7 * 86400
PUT = "SELECT * FROM tickwright.schedule_unique('t', CAST($1::text AS jsonb), CAST($2::text AS jsonb))"
CLAIM = "UPDATE tickwright.scheduled_tasks SET status = 'processing', owner = 1, fence = fence + 1 WHERE id = $1"
RELEASE = "UPDATE tickwright.scheduled_tasks SET status = 'pending', owner = NULL WHERE id = $1"
END = "UPDATE tickwright.scheduled_tasks SET status = $2, owner = NULL WHERE id = $1"
PASS = """
WITH passed AS (UPDATE tickwright.job_uniques SET held_from = held_from - $1::interval, until = until - $1::interval)
UPDATE tickwright.job_unique_ends SET until = until - $1::interval
"""
EMPTY = """
TRUNCATE tickwright.job_uniques, tickwright.job_unique_ends;
DELETE FROM tickwright.scheduled_tasks;
"""
STATES = ("pending", "processing", "completed", "failed", "cancelled")
ENDS = ("completed", "failed", "cancelled")
OVERS = [
    ("pending", "processing"), ("pending",), ("pending", "processing", "completed"), ("processing", "failed"), STATES,
]  # fmt: skip


@dataclass
class Row:
    """A job of the model."""

    over: tuple[str, ...]
    period: bool
    from_s: float
    status: str = "pending"
    gone: bool = False
    noted_until_s: float | None = None
    """Up to when it holds as ended; ``None`` if it does not."""
    value: int = 0


@dataclass
class Model:
    """What the documentation says, for one set of arguments."""

    now_s: float = 0
    rows: dict[int, Row] = field(default_factory=dict)
    holder: int | None = None

    def state(self) -> str | None:
        """The state in which the last job of these arguments holds them."""
        row = None if self.holder is None else self.rows[self.holder]
        if row is None or row.gone or (row.period and self.now_s >= row.from_s + PERIOD_S):
            return None
        if row.status in ENDS:
            return row.status if row.noted_until_s is not None and self.now_s < row.noted_until_s else None
        return row.status if row.status in row.over else None

    def end(self, job_id: int, status: str) -> None:
        """End a job: it holds as ended if it still has the arguments and its rule has the state."""
        row = self.rows[job_id]
        holds = self.holder == job_id and status in row.over
        until = row.from_s + PERIOD_S if row.period else self.now_s + SEVEN_DAYS_S
        row.noted_until_s = until if holds and self.now_s < until else None
        row.status = status


_REQUEST = some.tuples(
    some.just("request"), some.sampled_from(OVERS), some.booleans(), some.sampled_from([[], ["payload"]])
)
_STEP = some.one_of(
    _REQUEST,
    some.tuples(some.sampled_from(["claim", "release", "delete", "retry"]), some.integers(0, 5)),
    some.tuples(some.sampled_from(["end", "end by a worker"]), some.integers(0, 5), some.sampled_from(ENDS)),
    some.tuples(some.just("pass"), some.sampled_from([40, 60, SEVEN_DAYS_S])),
)

_THROTTLE: tuple[Any, ...] = ("request", ("pending", "processing", "completed"), True, [])
_ALWAYS: tuple[Any, ...] = ("request", STATES, False, [])
_ONE_PENDING: tuple[Any, ...] = ("request", ("pending",), False, ["payload"])
_UNTIL_RETRIED: tuple[Any, ...] = ("request", ("pending", "failed"), False, [])
SCRIPTS: list[list[tuple[Any, ...]]] = [
    [_THROTTLE, ("claim", 0), ("end by a worker", 0, "completed"), _THROTTLE, ("pass", 60), ("pass", 40), _THROTTLE],
    [_THROTTLE, ("end", 0, "cancelled"), _THROTTLE],
    [_THROTTLE, ("pass", 60), _THROTTLE, ("pass", 40), _THROTTLE, _THROTTLE],
    [_ALWAYS, ("delete", 0), _ALWAYS],
    [_ALWAYS, ("end", 0, "failed"), _ALWAYS, ("retry", 0), _ALWAYS, ("pass", SEVEN_DAYS_S), _ALWAYS],
    [_UNTIL_RETRIED, ("end", 0, "failed"), ("retry", 0), ("end", 0, "cancelled"), _UNTIL_RETRIED],
    [
        _ONE_PENDING,
        ("end", 0, "failed"),
        _ONE_PENDING,
        ("retry", 1),
        _ONE_PENDING,
        ("end", 0, "completed"),
        ("retry", 1),
    ],
    [_ONE_PENDING, ("claim", 0), _ONE_PENDING, _ONE_PENDING, ("release", 1), _ONE_PENDING, ("end", 0, "completed")],
]
"""One for each rule: what a mutant of it does."""


class Checked:
    """The database and the model side by side."""

    def __init__(self, connection: asyncpg.Connection, model: Model) -> None:
        self.connection, self.model, self.count = connection, model, 0

    async def step(self, name: str, *arguments: Any) -> None:
        """Do one step in both, and compare."""
        match name:
            case "request":
                await self.request(*arguments)
            case "pass":
                await self.connection.execute(PASS, timedelta(seconds=arguments[0]))
                self.model.now_s += arguments[0]
            case _:
                ids = [one for one, row in self.model.rows.items() if not row.gone]
                if ids:
                    await self.act(name, ids[-1 - arguments[0] % len(ids)], *arguments[1:])

    async def request(self, over: tuple[str, ...], period: bool, replaces: list[str]) -> None:
        """Schedule a job."""
        self.count += 1
        rule = {"by": [], "over": over, "period": f"{PERIOD_S}s" if period else None, "on_conflict": replaces}
        row = await self.connection.fetchrow(PUT, json.dumps({"n": self.count}), json.dumps(rule))
        state, model = self.model.state(), self.model
        if state is None:
            assert row["outcome"] == "inserted", "model: free"
            model.rows[row["job_id"]] = Row(over, period, model.now_s, value=self.count)
            model.holder = row["job_id"]
            return
        wanted = "replaced" if replaces and state == "pending" else "existing"
        assert (row["outcome"], row["job_id"], row["status"]) == (wanted, model.holder, state), "model: held"
        if wanted == "replaced" and model.holder is not None:
            model.rows[model.holder].value = self.count

    async def act(self, name: str, job_id: int, status: str = "") -> None:
        """Claim, release, end, delete or retry a job, where its state allows that."""
        row = self.model.rows[job_id]
        match name, row.status:
            case "claim", "pending":
                await self.connection.execute(CLAIM, job_id)
                row.status = "processing"
            case "release", "processing":
                await self.connection.execute(RELEASE, job_id)
                row.status = "pending"
            case "delete", "pending":
                await self.connection.execute("DELETE FROM tickwright.scheduled_tasks WHERE id = $1", job_id)
                row.gone = True
            case "end", "pending" | "processing":
                if row.status == "processing":
                    await self.connection.execute(RELEASE, job_id)
                await self.connection.execute(END, job_id, status)
                self.model.end(job_id, status)
            case "end by a worker", "processing":
                await self.by_a_worker(job_id, status)
                self.model.end(job_id, status)
            case "retry", "failed":
                async with self.connection.transaction():
                    revived = await revive(self.connection, [job_id], None, 1)
                free = self.model.holder == job_id or self.model.state() is None
                assert (revived.unique_held == []) is free, "model: retry"
                if free:
                    self.model.holder = job_id
                    row.status, row.from_s, row.noted_until_s = "pending", self.model.now_s, None

    async def by_a_worker(self, job_id: int, status: str) -> None:
        """Write the result of a worker's attempt."""
        history = await self.connection.fetchval("SELECT tickwright.ensure_history(clock_timestamp())")
        name, more = {
            "completed": ("complete", []),
            "failed": ("fail", [["failed"], ["no"]]),
            "cancelled": ("cancel_held", [["no"]]),
        }[status]
        sql = claims._RESULTS[name].format(history=history, **claims._FRAGMENTS)
        await self.connection.execute(sql, 1, [job_id] if more else f"{{{job_id}}}", *more)

    async def compare(self) -> None:
        """Every job has the payload that the model has."""
        for job_id, row in self.model.rows.items():
            if not row.gone:
                sql = "SELECT status, payload ->> 'n' AS n FROM tickwright.scheduled_tasks WHERE id = $1"
                found = await self.connection.fetchrow(sql, job_id)
                assert (found["status"], int(found["n"])) == (row.status, row.value), "model: payloads"


def check_the_model(url: str, *phases: Phase) -> None:
    """Compare any sequence of steps."""
    with asyncio.Runner() as runner:
        connection = runner.run(connect(url))

        async def check(steps: list[tuple[Any, ...]]) -> None:
            await connection.execute(EMPTY)
            checked = Checked(connection, Model())
            for step in steps:
                await checked.step(*step)
            await checked.compare()

        @settings(
            max_examples=150, phases=phases, suppress_health_check=list(HealthCheck), deadline=None, database=None
        )
        @given(some.lists(_STEP, min_size=1, max_size=25))
        def run(steps: list[tuple[Any, ...]]) -> None:
            runner.run(check(steps))

        for script in SCRIPTS:
            run = example(script)(run)
        run()
        runner.run(connection.close())


def test_unique_jobs_do_what_the_model_does(database_url: str) -> None:
    """UNQ-1: requests, claims, ends by users and workers, deletions, retries and passing time, in any order."""
    check_the_model(database_url, *Phase)


@pytest.mark.parametrize(
    ("function", "guard", "instead"),
    [
        ("unique_state", "RETURN CASE WHEN live.over ? live.status THEN live.status END", "RETURN live.status"),
        ("unique_state", "IF holder.until <= clock_timestamp() THEN", "IF false THEN"),
        ("end_unique_job", "IF job.uniqueness -> 'over' ? ended THEN", "IF true THEN"),
        ("end_unique_job", "OR (job.owner IS NULL AND pg_trigger_depth() = 1)", ""),
        ("hold_unique", "DELETE FROM tickwright.job_unique_ends e WHERE e.job_id = wanted_by;", ""),
        ("hold_unique", "AND tickwright.unique_state(holder) IS NOT NULL", "AND false"),
    ],
)
@pytest.mark.mutant
async def test_the_model_notices_a_rule_that_is_missing(
    database_url: str, function: str, guard: str, instead: str
) -> None:
    """Mutants of the functions of migration 0040."""
    connection = await connect(database_url)
    [source] = await connection.fetch(
        "SELECT pg_get_functiondef(oid) AS text FROM pg_proc WHERE proname = $1", function
    )
    assert source["text"].count(guard) == 1
    await connection.execute(source["text"].replace(guard, instead))
    await connection.close()
    with pytest.raises((AssertionError, asyncpg.PostgresError, ExceptionGroup)):
        await asyncio.to_thread(check_the_model, database_url, Phase.explicit)
