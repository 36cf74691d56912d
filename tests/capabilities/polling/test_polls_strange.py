"""Partner functions that break their contract: each fails its own poll, which is tried again."""

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kit.consumers import all_done, queue_empty, running_consumer, seed
from kit.mutants import mutate
from kit.nodes import running, settings_of
from kit.strange import STRANGE, behave
from kit.waiting import eventually_async
from tickwright import Answer, Poll
from tickwright.app.declarations import Declarations
from tickwright.capabilities.polling.consumer.dispatcher import PartnerDispatcher
from tickwright.capabilities.polling.consumer.result_writer import Answers, GroupWork, ResultWriter
from tickwright.engine import tasks
from tickwright.partners.outcomes import Failed, Throttled


class _Base(BaseException):
    """Not an ``Exception``, like a panic of native code."""

    def __repr__(self) -> str:
        sys.exit(4)


class _Nameless:
    """Cannot be converted to text."""

    def __str__(self) -> str:
        raise _Base


def _strange(number: int) -> Any:
    match number:
        case 0:
            raise _Base
        case 1:
            sys.exit(3)
        case 2:
            raise asyncio.CancelledError
        case 3:
            raise GeneratorExit
        case 4:
            raise BaseExceptionGroup("all of it", [_Base()])
        case 5:
            raise TimeoutError
        case 6:
            return Failed(_Nameless())  # type: ignore[arg-type]
        case 7:
            return Failed("a\0b\ud800" + "y" * 3_000_000)
        case 8:
            return Throttled("soon")  # type: ignore[arg-type]
    return object()


async def check_strange_functions_cost_their_poll_only(url: str) -> None:
    """Each of ten polls fails in its own way first, and is done at its second try."""
    tried: dict[int, int] = {}

    async def strange(poll: Poll) -> Answer:
        number = tried.setdefault(poll.tracker_id, len(tried))
        if number >= 0:
            tried[poll.tracker_id] = -1
            return _strange(number)  # type: ignore[no-any-return]
        return Answer("moving")

    async with running_consumer(url, functions={"acme": strange}) as side:
        trackers = await seed(side.pool, 10, breaker={"failures": 1000})
        await eventually_async(lambda: all_done(side.pool, trackers), 60, what="POL-1: a poll is carried out")
        calls = {sample.labels: sample.value for sample in side.contract.samples()}
    assert (calls.get(("acme", "failed")), calls["acme", "answered"]) == (10, 10), "POL-1: a failure counts as one"


async def test_whatever_a_function_does_fails_its_poll_which_is_tried_again(database_url: str) -> None:
    """POL-1: no such failure ends the consumer, keeps a permit, or prevents a second try."""
    await check_strange_functions_cost_their_poll_only(database_url)


async def check_failures_are_counted(url: str) -> None:
    """Each poll fails in its own way first, and is done at its second try."""
    tried: dict[int, str] = {}

    async def strange(poll: Poll) -> Answer:
        if poll.tracker_id not in tried:
            tried[poll.tracker_id] = STRANGE[len(tried)]
            await behave(tried[poll.tracker_id])
        return Answer("moving")

    async with running_consumer(url, functions={"acme": strange}) as side:
        trackers = await seed(side.pool, len(STRANGE), breaker={"failures": 1000})
        await eventually_async(lambda: all_done(side.pool, trackers), 60, what="POL-1: a poll is carried out")
        calls = {sample.labels: sample.value for sample in side.contract.samples()}
    counted = calls.get(("acme", "failed")), calls["acme", "answered"]
    assert counted == (len(STRANGE), len(STRANGE)), "POL-1: a failure counts as one"


async def test_a_function_that_cancels_its_task_or_raises_our_errors_fails_its_poll(database_url: str) -> None:
    """POL-1: the breaker and the pauses between tries act on them as on any other failure."""
    await check_failures_are_counted(database_url)


async def test_the_suite_notices_a_cancelled_task_that_counts_as_ended(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant: a function that cancels its own task does not fail."""
    mutate(monkeypatch, tasks.is_final_cancel, "task in _ENDED", "task is not None and task.cancelling() > 0")
    with pytest.raises(AssertionError, match="POL-1"):
        await check_failures_are_counted(database_url)


async def test_the_suite_notices_a_cancellation_that_is_no_failure(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant: a function that raises a cancellation does not fail, and is tried again at once."""
    mutate(monkeypatch, PartnerDispatcher._call, "if is_final_cancel(error):", "if not isinstance(error, Exception):")
    monkeypatch.setattr(sys.modules[__name__], "_strange", _cancelled)
    with pytest.raises(AssertionError, match="POL-1"):
        await check_strange_functions_cost_their_poll_only(database_url)


def _cancelled(_number: int) -> Any:
    raise asyncio.CancelledError


async def test_a_crash_of_the_consumer_costs_no_poll(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service starts again in its process, under the same session: what it held is released and taken again."""
    write, crashes = ResultWriter._write, list[int]()

    async def write_or_crash(writer: ResultWriter, answers: Mapping[GroupWork, Answers]) -> Any:
        if not crashes and sum(map(len, answers.values())) >= 1:
            crashes.append(1)
            raise RuntimeError("an unexpected error")
        return await write(writer, answers)

    monkeypatch.setattr(ResultWriter, "_write", write_or_crash)
    program = Declarations()

    @program.partner("acme")
    async def acme(_poll: Poll) -> Answer:
        return Answer("moving")

    async with running(settings_of(database_url, tmp_path, ""), program, "poll-consumer") as node:
        trackers = await seed(node.installation.pool, 1)  # no later answer of its group replaces the lost one
        await eventually_async(
            lambda: all_done(node.installation.pool, trackers), 60, what="POL-1: a poll is carried out"
        )
        await eventually_async(lambda: queue_empty(node.installation.pool), 60)
        assert crashes


async def test_a_crashed_consumer_can_stop_although_others_have_its_groups(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of their answers is still to be written here, so a stop does not wait for one."""
    crashes = list[int]()

    async def crash(writer: ResultWriter, answers: Mapping[GroupWork, Answers]) -> Any:
        crashes.append(len(answers))
        async with side.pool.acquire() as connection:
            await connection.execute("DELETE FROM tickwright.poll_queue")
        raise RuntimeError("an unexpected error")

    async def acme(_poll: Poll) -> Answer:
        return Answer("moving")

    monkeypatch.setattr(ResultWriter, "_write", crash)
    async with running_consumer(database_url, functions={"acme": acme}) as side:
        await seed(side.pool, 1)
        await asyncio.wait([side.life])
        again = asyncio.create_task(side.consumer.run())
        await asyncio.wait_for(side.consumer.quiesce(), 60)
        await side.consumer.stop()
        await again


async def test_a_consumer_that_is_drained_after_a_crash_releases_its_groups(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not started again, so nothing writes its answers, and the drain does not wait for them."""

    async def crash(_writer: ResultWriter, _answers: Mapping[GroupWork, Answers]) -> Any:
        raise RuntimeError("a bug")

    async def acme(_poll: Poll) -> Answer:
        return Answer("moving")

    monkeypatch.setattr(ResultWriter, "_write", crash)
    async with running_consumer(database_url, functions={"acme": acme}) as side:
        await seed(side.pool, 1)
        await asyncio.wait([side.life])
        side.consumer.writer.write_soon(next(iter(side.consumer._works)))  # as a call that ends after the crash
        await asyncio.wait_for(side.consumer.quiesce(), 60)
        held = "SELECT count(*) FROM tickwright.poll_queue WHERE owner IS NOT NULL"
        assert await side.pool.fetchval(held) == 0
