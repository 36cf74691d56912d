"""Draining: what is due runs here, by the worker's own claims and results, and the clock moves if it may."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from kit.mutants import mutate
from tickwright import Fail, Job, JobChunk, JobFailed, Rejected, Retry, Snooze, Tickwright, Unavailable, resource
from tickwright.app.draining import _Drain
from tickwright.app.scheduling import CALLER
from tickwright.capabilities.jobs.requests import TaskTypeRequest
from tickwright.capabilities.jobs.worker.drain import JobDrain
from tickwright.plugin import contract
from tickwright.process.plugins import PLUGINS
from tickwright.testing import assert_scheduled
from tickwright.testing.opening import OpenApp

BOTH = pytest.mark.parametrize("isolated", [True, False], ids=["isolated", "committed"])


class Shop:
    """A program whose handlers note their calls."""

    def __init__(self) -> None:
        self.app = app = Tickwright()
        self.calls: list[Any] = []
        self.fails = 0

        @app.job("note")
        async def note(job: Job, name: str) -> str:
            self.calls.append(name)
            return name.upper()

        @app.job("chain")
        async def chain(job: Job, left: int, wait: str = "0s") -> int:
            self.calls.append(left)
            if left:
                await self.chain.options(delay=wait).schedule(left=left - 1, wait=wait)
            return left

        @app.job("flaky", max_attempts=3, retry={"base": "1h", "factor": 1, "cap": "1h"})
        def flaky(job: Job) -> int:
            self.calls.append(job.attempt)
            if job.attempt <= self.fails:
                raise ZeroDivisionError("not yet")
            return job.attempt

        self.note, self.chain, self.flaky = note, chain, flaky


@pytest.fixture
def shop() -> Shop:
    """A program of the test."""
    return Shop()


@BOTH
async def test_a_drain_runs_what_is_due_in_order_and_what_that_schedules(
    shop: Shop, tickwright_app: OpenApp, isolated: bool
) -> None:
    """By priority, due time and id; what is due later stays, and the results are stored as a worker stores them."""
    async with tickwright_app(shop.app, isolated=isolated) as app:
        await shop.note.options(delay="1h").schedule(name="later")
        for name in "ab":
            await shop.note.schedule(name=name)
        await shop.note.options(priority=5).schedule(name="first")
        handle = await shop.chain.options(priority=-5).schedule(left=2)
        drained = await app.drain()
        assert shop.calls == ["first", "a", "b", 2, 1, 0]
        assert drained.counts == {"completed": 6}
        assert drained.results == ["FIRST", "A", "B", 2, 1, 0]
        assert [(job.name, job.attempt) for job in drained.jobs[:1]] == [("note", 1)]
        assert await handle.result(timeout="10s") == 2
        detail = await app.get(handle.id)
        assert (detail.status, detail.attempts, detail.fence > 0) == ("completed", 1, True)
        assert (await app.drain()).jobs == []
        assert await app.pool.fetchval("SELECT count(*) FROM tickwright.workers") == 0


@BOTH
async def test_a_drain_with_a_later_end_moves_the_clock_from_due_instant_to_due_instant(
    shop: Shop, tickwright_app: OpenApp, isolated: bool
) -> None:
    """Retries and chains of days pass without waiting; at the end the clock is there."""
    shop.fails = 2
    async with tickwright_app(shop.app, isolated=isolated) as app:
        before = await app.pool.fetchval("SELECT now()")
        await shop.chain.schedule(left=3, wait="2d")
        await shop.flaky.schedule()
        drained = await app.drain(until="5d", raises=False)
        assert shop.calls == [3, 1, 2, 3, 2, 1]
        assert drained.counts == {"completed": 4, "retried": 2}
        assert [type(job.error) for job in drained.errors] == [ZeroDivisionError] * 2
        after = await app.pool.fetchval("SELECT now()")
        assert timedelta(days=5) <= after - before < timedelta(days=5, minutes=5)
        await app.drain(until=before + timedelta(days=7))
        assert shop.calls[-1] == 0


@BOTH
async def test_a_failing_job_raises_after_its_result_is_written(
    shop: Shop, tickwright_app: OpenApp, isolated: bool
) -> None:
    """With the exception itself, and a note of its job; the job is retried later, as in production."""
    shop.fails = 1
    async with tickwright_app(shop.app, isolated=isolated) as app:
        handle = await shop.flaky.schedule()
        with pytest.raises(ZeroDivisionError, match="not yet") as raised:
            await app.drain()
        assert f"job {handle.id} (flaky), attempt 1, retried" in raised.value.__notes__[0]
        detail = await app.get(handle.id)
        assert (detail.status, detail.attempts) == ("pending", 1)
        assert "not yet" in str(detail.error_message)
        assert (await app.drain()).jobs == []
        assert (await app.drain(until="2h")).results == [2]


async def test_a_wish_for_a_later_attempt_is_no_error(tickwright_app: OpenApp) -> None:
    """``Retry`` and ``Snooze`` are outcomes; ``Fail`` and a timeout are errors."""
    own = Tickwright()

    @own.job("later")
    def later(job: Job, how: str) -> None:
        match how:
            case "retry":
                raise Retry(after=timedelta(days=1))
            case "snooze":
                raise Snooze(timedelta(days=1))
        raise Fail("never")

    @own.job("hanging", timeout="10ms", max_attempts=1)
    async def hanging(job: Job) -> None:
        await asyncio.Event().wait()

    async with tickwright_app(own) as app:
        await later.schedule(how="retry")
        await later.schedule(how="snooze")
        assert (await app.drain()).counts == {"retried": 1, "snoozed": 1}
        await later.schedule(how="fail")
        with pytest.raises(Fail, match="never"):
            await app.drain()
        await hanging.schedule()
        with pytest.raises(JobFailed, match="timed out"):
            await app.drain()
        await hanging.schedule()
        [job] = (await app.drain(raises=False)).jobs
        assert (job.outcome, job.error) == ("failed", None)


async def test_the_suite_notices_a_drain_that_writes_no_result(
    shop: Shop, tickwright_app: OpenApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the result left in memory, the next claim finds the same job again, or its row never ends."""
    mutate(monkeypatch, JobDrain._ended, "await self.result_writer.write_now()", "self.result_writer.drop_all()")
    async with tickwright_app(shop.app) as app:
        handle = await shop.note.schedule(name="a")
        await app.drain()
        assert (await app.get(handle.id)).status != "completed"


async def test_the_suite_notices_a_drain_that_does_not_move_the_clock(
    shop: Shop, tickwright_app: OpenApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a clock that jumps to the end at once, a chain of days does not run to its end."""
    mutate(monkeypatch, _Drain.run, "advance_to(next_at)", "advance_to(end)")
    async with tickwright_app(shop.app) as app:
        await shop.chain.schedule(left=3, wait="2d")
        await app.drain(until="5d")
        assert shop.calls != [3, 2, 1]


async def test_an_endless_chain_ends_the_drain(shop: Shop, tickwright_app: OpenApp) -> None:
    """After the given number of attempts, with the names of the jobs that do not end."""
    async with tickwright_app(shop.app) as app:
        await shop.chain.schedule(left=1_000_000)
        with pytest.raises(Rejected, match=r"ran 20 attempts.*chain \(20\)") as refused:
            await app.drain(attempts_max=20)
        assert refused.value.code == "drain_endless"
        assert len(shop.calls) == 20


@BOTH
async def test_a_job_that_a_job_cancels_does_not_run(tickwright_app: OpenApp, isolated: bool) -> None:
    """Each claim comes after all that the jobs before it have written."""
    own, ran = Tickwright(), []

    @own.job("stop")
    async def stop(job: Job, other: int) -> None:
        ran.append("stop")
        await own.cancel(other)

    @own.job("victim")
    async def victim(job: Job) -> None:
        ran.append("victim")

    async with tickwright_app(own, isolated=isolated) as app:
        doomed = await victim.schedule()
        await stop.options(priority=1).schedule(other=doomed.id)
        await app.drain()
        assert ran == ["stop"]
        assert (await app.get(doomed.id)).status == "cancelled"


async def test_limits_delay_nothing_and_a_paused_type_waits(tickwright_app: OpenApp) -> None:
    """A test does not wait for a rate; it sees that an operator's pause holds."""
    own, ran = Tickwright(), []

    @own.job("slow", rate="1/h", concurrency=1)
    async def slow(job: Job) -> None:
        ran.append(job.id)

    async with tickwright_app(own) as app:
        for _ in range(3):
            await slow.schedule()
        await app.drain()
        assert len(ran) == 3
        await slow.schedule()
        await app.pool.execute("UPDATE tickwright.task_types SET paused_at = now()")
        assert (await app.drain()).jobs == []


async def test_a_handler_of_chunks_gets_what_is_due_at_once(tickwright_app: OpenApp) -> None:
    """Up to its size, without a wait; each job has an outcome of its own, and may be asserted by its value."""
    own, chunks = Tickwright(), []

    @own.job("index", batch=3, within="1m")
    async def index(chunk: JobChunk[int]) -> None:
        chunks.append([item.value for item in chunk])
        for item in chunk:
            item.snooze("1d") if item.value == 2 else item.complete({"n": item.value})

    @own.job("other")
    async def other(job: Job) -> None:
        """Do nothing."""

    async with tickwright_app(own) as app:
        for number in range(4):
            await index.schedule(number)
        await other.schedule()
        await assert_scheduled(app, index, 2, count=1)
        drained = await app.drain()
        assert chunks == [[0, 1, 2], [3]]
        assert drained.counts == {"completed": 4, "snoozed": 1}
        assert [job.result for job in drained.jobs if job.outcome == "completed" and job.name == "index"] == [
            {"n": 0}, {"n": 1}, {"n": 3},
        ]  # fmt: skip
        assert (await app.drain(until="2d", attempts_max=3, raises=False)).counts == {"snoozed": 2}


async def test_jobs_of_other_programs_are_left(shop: Shop, tickwright_app: OpenApp) -> None:
    """A drain runs the handlers of its program; it delivers nothing outside."""
    async with tickwright_app(shop.app) as app:
        request = TaskTypeRequest(target="https://example.com/hook")
        await app.service.types.put("outside", request, caller=CALLER)
        outside = await app.schedule("outside")
        await shop.note.schedule(name="a")
        assert (await app.drain()).results == ["A"]
        assert (await app.get(outside.id)).status == "pending"


async def test_a_drain_opens_the_lifespans_once_or_takes_the_given_resources(tickwright_app: OpenApp) -> None:
    """Middleware runs, too; a missing resource ends the drain before the first attempt."""
    own, said = Tickwright(), []

    @own.lifespan
    async def real() -> AsyncIterator[dict[str, Any]]:
        said.append("open")
        yield {"http": "real"}
        said.append("close")

    @own.middleware
    async def around(work: Any, run: Any) -> Any:
        said.append("before")
        return await run()

    @own.job("call")
    async def call(job: Job, http: str = resource()) -> None:
        said.append(http)

    async with tickwright_app(own) as app:
        for _ in range(2):
            await call.schedule()
        await app.drain()
        assert said == ["open", "before", "real", "before", "real", "close"]
    said.clear()
    async with tickwright_app(own, resources={"http": "fake"}) as app:
        await call.schedule()
        await app.drain()
        assert said == ["before", "fake"]
    async with tickwright_app(own, resources={}) as app:
        handle = await call.schedule()
        with pytest.raises(Rejected, match="no lifespan yields 'http'"):
            await app.drain()
        assert (await app.get(handle.id)).attempts == 0


async def test_only_a_clock_of_a_test_database_moves(shop: Shop, database_url: str) -> None:
    """An app on any other database drains what is due; with an end it is refused, and nothing runs."""
    async with Tickwright(database_url) as plain:
        shop.app.using(plain.settings)
    async with shop.app as app:
        await shop.note.schedule(name="a")
        with pytest.raises(Rejected, match="tickwright_app") as refused:
            await app.drain(until="1d")
        assert refused.value.code == "no_test_clock"
        assert shop.calls == []
        assert (await app.drain()).results == ["A"]
    with pytest.raises(Unavailable, match="not open"):
        await shop.app.drain()


def test_a_synchronous_test_drains(shop: Shop, tickwright_app: OpenApp) -> None:
    """The same in ``with``."""
    with tickwright_app(shop.app) as app:
        handle = shop.note.schedule_sync(name="a")
        assert app.drain_sync().results == ["A"]
        assert handle.result_sync(timeout="10s") == "A"


async def test_producers_of_plugins_run_before_each_look(
    shop: Shop, tickwright_app: OpenApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a schedule makes due is made by the drain, at each instant to which the clock moves."""
    made: list[Any] = []

    def producers(plugin: contract.Plugin, context: Any) -> list[contract.Producer]:
        async def produce() -> float | None:
            now = await context.pool.fetchval("SELECT clock_timestamp()")
            while not made or now >= made[-1] + timedelta(days=1):
                made.append(now if not made else made[-1] + timedelta(days=1))
                await shop.note.options(at=made[-1]).schedule(name=f"day {len(made)}")
            return float((made[-1] + timedelta(days=1) - now).total_seconds())

        return [produce]

    monkeypatch.setattr(type(PLUGINS[0]), "producers", producers)
    async with tickwright_app(shop.app) as app:
        drained = await app.drain(until="70h")
        assert shop.calls == ["day 1", "day 2", "day 3"]
        assert drained.counts == {"completed": 3}


async def test_a_drain_makes_and_runs_periodic_jobs(shop: Shop, tickwright_app: OpenApp) -> None:
    """Each occurrence up to the end, at its slot by the test's clock."""
    shop.app.periodic("notes", shop.note.call(name="daily"), cron="0 3 * * *", timezone="Europe/Kyiv")
    async with tickwright_app(shop.app) as app:
        drained = await app.drain(until="72h")
        assert shop.calls == ["daily"] * 3
        assert drained.counts == {"completed": 3}
        assert [one.name for one in (await app.schedules.page()).items] == ["notes"]
        assert (await app.drain(until="24h")).counts == {"completed": 1}
