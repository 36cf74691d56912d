"""Handlers that misbehave: each case is a failed attempt of its own job, and every slot continues."""

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any, NamedTuple

import pytest
from structlog.testing import capture_logs

from kit.engine import Engine, policy, running_engine
from kit.mutants import mutate
from kit.waiting import eventually_async
from tickwright.capabilities.jobs.model import Fail, Job, Retry, Snooze, TaskType
from tickwright.capabilities.jobs.worker.result_writer import (
    OutcomeRecorder,
    ResultWriter,
    outcome_of_raised,
    outcome_of_result,
)
from tickwright.capabilities.jobs.worker.runner import Runner
from tickwright.capabilities.jobs.worker.worker import WorkerLimits
from tickwright.ports.broker import Message, Outcome, Refused

ATTEMPTS = 2
SLOTS = 2


class _Base(BaseException):
    """Not an ``Exception``, like a panic of native code."""


class _Nameless(Exception):
    """Raises when it is shown."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


class _NamelessFail(Fail):
    """Final, and raises when it is shown."""

    def __str__(self) -> str:
        raise _Base


async def _cancelled(_job: Job) -> None:
    waited_for: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waited_for.cancel()
    await waited_for


async def _cancels_itself(_job: Job) -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.Event().wait()


async def _base(_job: Job) -> None:
    raise _Base("x")


async def _exit(_job: Job) -> None:
    sys.exit(3)


async def _interrupt(_job: Job) -> None:
    raise KeyboardInterrupt


async def _closed(_job: Job) -> None:
    raise GeneratorExit


async def _group(_job: Job) -> None:
    raise BaseExceptionGroup("all of it", [_Base()])


async def _nameless(_job: Job) -> None:
    raise _Nameless


async def _nameless_fail(_job: Job) -> None:
    raise _NamelessFail


async def _soon(_job: Job) -> None:
    raise Retry(after="soon")


async def _later(_job: Job) -> None:
    raise Snooze("soon")


async def _unwritable(_job: Job) -> None:
    raise ValueError("a\0b\ud800")


async def _unwritable_fail(_job: Job) -> None:
    raise Fail("caf\udce9")


async def _nan(_job: Job) -> dict[str, list[float]]:
    """A number that JSON would have as null."""
    return {"rates": [1.0, float("nan")]}


async def _cyclic(_job: Job) -> Any:
    result: list[Any] = []
    result.append(result)
    return result


def _exit_in_a_thread(_job: Job) -> None:
    sys.exit(3)


def _base_in_a_thread(_job: Job) -> None:
    raise _Base("x")


def _cancelled_in_a_thread(_job: Job) -> None:
    raise asyncio.CancelledError


def _stop_in_a_thread(_job: Job) -> None:
    next(iter(()))


class Strange(NamedTuple):
    """A handler, the attempts that its job takes, and the error of its dead letter."""

    handler: Callable[..., Any]
    attempts: int
    error: str
    is_logged: bool = False


STRANGE = {
    "cancelled": Strange(_cancelled, ATTEMPTS, "asyncio.exceptions.CancelledError", is_logged=True),
    "cancels_itself": Strange(_cancels_itself, ATTEMPTS, "asyncio.exceptions.CancelledError", is_logged=True),
    "base": Strange(_base, ATTEMPTS, "test_misbehaving_handlers._Base: x", is_logged=True),
    "exit": Strange(_exit, ATTEMPTS, "SystemExit: 3", is_logged=True),
    "interrupt": Strange(_interrupt, ATTEMPTS, "KeyboardInterrupt", is_logged=True),
    "closed": Strange(_closed, ATTEMPTS, "GeneratorExit", is_logged=True),
    "group": Strange(_group, ATTEMPTS, "BaseExceptionGroup: all of it (1 sub-exception)", is_logged=True),
    "nameless": Strange(_nameless, ATTEMPTS, "test_misbehaving_handlers._Nameless: <exception str() failed>"),
    "nameless_fail": Strange(_nameless_fail, 1, "_NamelessFail: _Base: ", is_logged=True),
    "retry_soon": Strange(_soon, ATTEMPTS, "Retry: TypeError: a wait is a timedelta, not str", is_logged=True),
    "snooze_soon": Strange(_later, ATTEMPTS, "Snooze: TypeError: a wait is a timedelta, not str", is_logged=True),
    "unwritable": Strange(_unwritable, ATTEMPTS, "ValueError: a b?"),
    "unwritable_fail": Strange(_unwritable_fail, 1, "caf?"),
    "cyclic": Strange(_cyclic, 1, "result_invalid: the handler's result is not JSON: RecursionError", is_logged=True),
    "nan": Strange(_nan, 1, "result_invalid: the handler's result is not JSON: ValueError: NaN", is_logged=True),
    "exit_in_a_thread": Strange(_exit_in_a_thread, ATTEMPTS, "SystemExit: 3", is_logged=True),
    "base_in_a_thread": Strange(_base_in_a_thread, ATTEMPTS, "test_misbehaving_handlers._Base: x", is_logged=True),
    "cancelled_in_a_thread": Strange(
        _cancelled_in_a_thread, ATTEMPTS, "asyncio.exceptions.CancelledError", is_logged=True
    ),
    "stop_in_a_thread": Strange(_stop_in_a_thread, ATTEMPTS, "StopIteration"),
}


async def _sound(_job: Job) -> None:
    return


@asynccontextmanager
async def _engine(url: str, handler: Callable[..., Any], *, slots: int = SLOTS, **kind: Any) -> AsyncIterator[Engine]:
    kinds = {"strange": policy("strange", **{"max_attempts": ATTEMPTS, **kind})}
    limits = WorkerLimits(concurrency=slots, threads=slots)
    handlers = {"strange": handler, "sound": _sound}
    async with running_engine(url, handlers, kinds=kinds, limits=limits) as engine:
        yield engine


async def _sound_ones_end(engine: Engine) -> None:
    for job in [await engine.insert("sound") for _ in range(3)]:
        await engine.until(job, "completed")


def _check_slots(engine: Engine) -> None:
    """Every slot lives and is free, and nothing is held, queued or unwritten."""
    runner = engine.worker.runner
    assert [task for task in runner._slots if task.done()] == []
    assert (runner.busy, runner.queued, runner.threads_stuck, engine.worker.backlog()) == (0, 0, 0, 0)
    assert {name: entry.held for name, entry in engine.worker.types().items() if entry.held} == {}


async def check_strange(url: str, strange: Strange, *, within_s: float = 10.0) -> None:
    """The job ends as a dead letter after its attempts; others run beside it and after it."""
    with capture_logs() as lines:
        async with _engine(url, strange.handler) as engine:
            job = await engine.insert("strange", max_attempts=ATTEMPTS)
            await _sound_ones_end(engine)
            row = await engine.until(job, "failed", within_s=within_s)
            assert (row["attempts"], row["fence"]) == (strange.attempts, strange.attempts)
            assert strange.error in row["error_message"]
            await _sound_ones_end(engine)
            await eventually_async(lambda: not engine.worker.runner.busy, what="no attempt runs")
            _check_slots(engine)
    logged = [line["event"] for line in lines if line.get("task_type") == "strange"]
    assert len(logged) == (strange.attempts if strange.is_logged else 0), logged


@pytest.mark.matrix
@pytest.mark.parametrize("name", STRANGE)
async def test_a_misbehaving_handler_is_a_failed_attempt_of_its_job(database_url: str, name: str) -> None:
    """It counts and is tried again, it ends, its slot takes the next job, and nothing else is affected."""
    await check_strange(database_url, STRANGE[name])


class _Broker:
    """Answers with a given outcome, or raises a given error."""

    def __init__(self, answer: Outcome | BaseException) -> None:
        self.answer = answer

    def check(self, _destination: str) -> None:
        """Accept every destination."""

    async def publish(self, _message: Message) -> Outcome:
        """Answer or raise."""
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (Refused("http_503", "a\0b\ud800"), "http_503: a b?"),
        (asyncio.CancelledError(), "asyncio.exceptions.CancelledError"),
        (SystemExit(3), "SystemExit: 3"),
    ],
    ids=["unwritable", "cancelled", "exit"],
)
async def test_a_misbehaving_delivery_is_a_failed_attempt_of_its_job(
    database_url: str, answer: Outcome | BaseException, error: str
) -> None:
    """A receiver's text may hold anything, and a delivery runs in the same slots as a handler."""
    kind = TaskType("out", "https://example.com/hook", retry=policy("out").retry)
    brokers: Any = {"https": _Broker(answer)}
    limits = WorkerLimits(concurrency=SLOTS)
    async with running_engine(
        database_url, {"sound": _sound}, kinds={"out": kind}, brokers=brokers, limits=limits
    ) as engine:
        job = await engine.insert("out", max_attempts=ATTEMPTS)
        row = await engine.until(job, "failed")
        assert (row["attempts"], row["error_message"]) == (ATTEMPTS, error)
        await _sound_ones_end(engine)
        _check_slots(engine)


REFUSES = """
CREATE FUNCTION tickwright.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'not with this text: %', NEW.error_message USING ERRCODE = '22P05';
END $$;
CREATE TRIGGER refuse BEFORE INSERT ON tickwright.scheduled_tasks_dead
  FOR EACH ROW WHEN (NEW.error_message LIKE '%luck%') EXECUTE FUNCTION tickwright.refuse()
"""


async def check_refused_failure(url: str, *, within_s: float = 10.0) -> None:
    """The failure is written although the database refuses its text."""

    async def fails(_job: Job) -> None:
        raise ValueError("no luck")

    async with _engine(url, fails) as engine:
        await engine.pool.execute(REFUSES)
        job = await engine.insert("strange", max_attempts=ATTEMPTS)
        row = await engine.until(job, "failed", within_s=within_s)
        assert row["attempts"] == ATTEMPTS
        assert row["error_message"].startswith("result_refused: ")
        _check_slots(engine)


async def test_a_failure_whose_text_the_database_refuses_is_written_without_it(database_url: str) -> None:
    """Otherwise its job would be ``processing`` for as long as its worker lives."""
    await check_refused_failure(database_url)


async def check_swallowed(url: str, *, waits: bool) -> None:
    """The next handler in the slot is not cancelled, neither at its start nor by its own ``TaskGroup``."""
    cancelling: list[int] = []

    async def swallows(job: Job) -> None:
        task = asyncio.current_task()
        assert task is not None
        cancelling.append(task.cancelling())
        if job.payload.get("next"):
            with pytest.raises(ExceptionGroup):
                async with asyncio.TaskGroup() as group:
                    group.create_task(_fails())
        elif waits:
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
        else:
            task.cancel()

    async def _fails() -> None:
        raise ValueError

    async with _engine(url, swallows, slots=1, timeout=timedelta(milliseconds=100)) as engine:
        first = await engine.insert("strange", max_attempts=1)
        await engine.until(first, "failed" if waits else "completed")
        following = await engine.insert("strange", payload={"next": True}, max_attempts=1)
        await engine.until(following, "completed")
        _check_slots(engine)
    assert cancelling == [0, 0]


@pytest.mark.parametrize("waits", [True, False], ids=["its_timeout", "its_own"])
async def test_a_cancellation_that_a_handler_swallows_does_not_reach_the_next_one(
    database_url: str, *, waits: bool
) -> None:
    """A handler may swallow its timeout, or cancel itself as it ends."""
    await check_swallowed(database_url, waits=waits)


async def test_a_worker_that_stops_counts_no_attempt_of_a_handler_that_cleans_up(database_url: str) -> None:
    """The stop's cancellation is not the handler's failure, whatever the handler raises last."""
    running = asyncio.Event()

    async def cleans_up(_job: Job) -> None:
        running.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)

    async with _engine(database_url, cleans_up) as engine:
        job = await engine.insert("strange", max_attempts=ATTEMPTS)
        await asyncio.wait_for(running.wait(), 30)
        await engine.worker.stop()
        row = await engine.job(job)
        assert (row["status"], row["attempts"]) == ("pending", 0)
        assert all(task.done() for task in engine.worker.runner._slots)


@pytest.mark.parametrize("in_thread", [True, False])
async def test_a_stop_after_a_timeout_ends_the_attempt_once(database_url: str, *, in_thread: bool) -> None:
    """A handler that continues after its timeout is cancelled again by the stop: one attempt ends, and its slot."""
    timed_out, over = asyncio.Event(), threading.Event()

    def uncancellable(_job: Job) -> None:
        over.wait(30)

    async def slow(_job: Job) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            timed_out.set()
            await asyncio.Event().wait()

    handler = uncancellable if in_thread else slow
    async with _engine(database_url, handler, timeout=timedelta(milliseconds=100), max_attempts=1) as engine:
        runner = engine.worker.runner
        await engine.insert("strange", max_attempts=1)
        await eventually_async(lambda: runner.threads_stuck or timed_out.is_set(), what="it goes on")
        await engine.worker.stop()
        assert all(task.done() for task in runner._slots)
        assert engine.worker.types()["strange"].held == 0
        assert engine.worker.types()["strange"].counts == {"failed": 1}
        over.set()


async def test_an_internal_error_after_an_attempt_costs_no_slot(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is logged with its trace, and the slot takes the next job."""

    def broken(_outcomes: OutcomeRecorder, _job: Job, _outcome: Any) -> None:
        raise RuntimeError("ours")

    with capture_logs() as lines:
        async with _engine(database_url, _base, slots=1) as engine:
            monkeypatch.setattr(OutcomeRecorder, "record_ended", broken)
            job = await engine.insert("strange", max_attempts=ATTEMPTS)
            await engine.until(job, "processing")
            await _sound_ones_end(engine)
            assert not [task for task in engine.worker.runner._slots if task.done()]
    [event] = [line for line in lines if line["event"] == "jobs.attempt_broken"]
    assert (event["job"], event["exc_info"]) == (job, True)


LEAVES = "if job.stop_reason is None:\n            raise\n        if False:"
MUTANTS = {
    "cancelled": (Runner._attempt, "if job.stop_reason is None:", LEAVES),
    "base": (Runner._attempt, "except BaseException as error:", "except Exception as error:"),
    "nameless_fail": (outcome_of_raised, "except BaseException as failure:", "except ZeroDivisionError as failure:"),
    "cyclic": (outcome_of_result, "except BaseException as error:", "except (TypeError, ValueError) as error:"),
    "unwritable": (OutcomeRecorder._errored, "_storable_text(error.message)", "error.message"),
    "refused": (ResultWriter._refused, 'self.add("fail", batch.ids[0], "failed", why)', "pass"),
    "swallowed": (Runner._slot, "if me.cancelling():", "if False:"),
}


@pytest.mark.parametrize("name", MUTANTS)
async def test_the_suite_notices_a_missing_guard_around_a_handler(
    database_url: str, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Mutants of each: the job or its slot hangs, or the next job is affected."""
    checks: dict[str, Callable[[], Awaitable[None]]] = {
        "refused": lambda: check_refused_failure(database_url, within_s=3),
        "swallowed": lambda: check_swallowed(database_url, waits=True),
    }
    check = checks.get(name, lambda: check_strange(database_url, STRANGE[name], within_s=3))
    mutate(monkeypatch, *MUTANTS[name])
    with pytest.raises(AssertionError):
        await check()
