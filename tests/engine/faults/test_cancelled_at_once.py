"""Tasks that are cancelled before their first step: what they own is released, and the work is done.

A stop, a lost session or a check of claims can cancel a task this early. asyncio then never starts its coroutine.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from kit.batches import BatchWorld, Numbers
from kit.consumers import LONG, all_done, done_times, running_consumer, seed
from kit.fanout import MODULE, Hub, fanout_world
from kit.report_faults import ask, functions, is_made
from kit.reports import report_world
from kit.servers import RabbitServer
from kit.waiting import eventually_async
from tickwright import Answer, Poll
from tickwright.capabilities.batches.executions.consumer import BatchConsumer
from tickwright.capabilities.fanout.consumer import consumer as fanout_consumer
from tickwright.capabilities.fanout.consumer.consumer import FanoutConsumer
from tickwright.capabilities.polling.consumer import dispatcher as partner_dispatcher
from tickwright.capabilities.polling.consumer.dispatcher import PartnerDispatcher
from tickwright.capabilities.reports.merge.supervisor import ReportSupervisor
from tickwright.capabilities.reports.parts.listeners import PartWorker
from tickwright.engine.claimed_work import ClaimedWork
from tickwright.engine.tasks import end_task


class CancelledAtOnce:
    """Cancels the first task that runs ``work`` before its first step; only for a service of the type ``of``.

    Attributes:
        made: How many tasks of ``work`` were made.
    """

    def __init__(self, work: Callable[..., Coroutine[Any, Any, None]], of: type = object) -> None:
        self._name, self._of, self.made = work.__qualname__, of, 0
        asyncio.get_running_loop().set_task_factory(self._make)

    def _make(self, loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> "asyncio.Task[Any]":
        task = asyncio.Task(work, loop=loop, **options)
        if work.__qualname__ == self._name and isinstance(_service_of(work), self._of):
            self.made += 1
            if self.made == 1:
                end_task(task)
        return task

    async def again(self) -> None:
        """Wait until a second task of ``work`` is made."""
        await eventually_async(lambda: self.made > 1, what=f"{self._name} begins again")


def _service_of(begun: Any) -> object:
    """Return the ``self`` of the method that ``cancel_safe`` wraps, or of the bare method that a mutant runs."""
    return begun.cr_frame.f_locals.get("work", begun).cr_frame.f_locals["self"]


@pytest.mark.parametrize("service", [ReportSupervisor, PartWorker], ids=["step", "part"])
async def test_a_report_is_made_though_its_work_was_cancelled_before_its_first_step(
    database_url: str, tmp_path: Path, service: type
) -> None:
    """G1: step and part are released; the part's attempt does not count."""
    async with report_world(database_url, tmp_path) as world, world.process(functions()):
        cancelled = CancelledAtOnce(ClaimedWork._try, service)
        row = await is_made(world, await ask(world))
        parts = await world.pool.fetch("SELECT attempts, owner FROM tickwright.report_parts")
    assert cancelled.made > 1
    assert [tuple(part) for part in parts] == [(1, None)] * 2
    assert row["owner"] is None


async def test_an_execution_ends_though_its_work_was_cancelled_before_its_first_step(batches: BatchWorld) -> None:
    """C2: no try is counted, and each chunk is worked once."""
    work = Numbers()
    await batches.process(work)
    cancelled = CancelledAtOnce(ClaimedWork._try)
    execution_id = await batches.start(await batches.put())
    row = await batches.over(execution_id)
    assert cancelled.made > 1
    assert (row["status"], row["tries"], row["lost"]) == ("FINISHED", 0, 0)
    assert Counter(work.log) == {(execution_id, number): 1 for number in range(3)}


async def test_a_claim_that_is_lost_before_its_task_starts_frees_its_slot(
    batches: BatchWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CLW-1: the slot belongs to the process, also when another session holds the claim by now."""
    begin, begun = BatchConsumer._begin, asyncio.Event()

    def lost(self: BatchConsumer, *claim: Any) -> None:
        begin(self, *claim)
        self._lose_all()
        begun.set()

    monkeypatch.setattr(BatchConsumer, "_begin", lost)
    process = await batches.process(Numbers())
    await batches.start(await batches.put())
    await begun.wait()
    await eventually_async(lambda: process.consumer.running == 0, what="its slot is free")


async def check_a_message_is_redelivered(database_url: str, amqp_url: str) -> None:
    """The message returns to the queue; the only slot of the process is free for it."""
    hub = Hub()
    async with fanout_world(database_url, amqp_url, None) as world:
        await world.put_module()
        async with world.consumer({MODULE: hub}) as consumer:
            cancelled = CancelledAtOnce(FanoutConsumer._handle)
            task = await world.put_task("A")
            await cancelled.again()
            await eventually_async(lambda: consumer.counts["succeeded"] == 1, what="it is done")
    assert hub.ended == [task]


async def test_a_message_whose_work_was_cancelled_before_its_first_step_is_redelivered(
    database_url: str, rabbit_server: RabbitServer
) -> None:
    """FAN-6: as with a task that is cancelled later."""
    await check_a_message_is_redelivered(database_url, rabbit_server.url)


async def check_a_cancelled_poll_closes_its_permit(database_url: str) -> None:
    """The partner allows one call at a time, so a permit that stays open would be the last one."""

    async def answers(_poll: Poll) -> Answer:
        return Answer("moving")

    async with running_consumer(database_url, functions={"acme": answers}, terms=LONG) as consumer:
        cancelled = CancelledAtOnce(PartnerDispatcher._poll)
        trackers = await seed(consumer.pool, 3, concurrency=1)
        await cancelled.again()
        await eventually_async(lambda: all_done(consumer.pool, trackers), what="every poll is made")
        assert await done_times(consumer.pool, trackers) == Counter(trackers.ids)


async def test_a_poll_that_was_cancelled_before_its_first_step_closes_its_permit(database_url: str) -> None:
    """POL-1: each poll is made once."""
    await check_a_cancelled_poll_closes_its_permit(database_url)


# ---------------------------------------------------------------------- without the guard


async def test_the_suite_notices_a_message_whose_coroutine_never_starts(
    database_url: str, rabbit_server: RabbitServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mutant: a task as asyncio makes it."""
    monkeypatch.setattr(fanout_consumer, "cancel_safe", lambda work: work)
    with pytest.raises(AssertionError, match="_handle begins again"):
        await check_a_message_is_redelivered(database_url, rabbit_server.url)


async def test_the_suite_notices_a_poll_whose_coroutine_never_starts(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mutant: a task as asyncio makes it."""
    monkeypatch.setattr(partner_dispatcher, "cancel_safe", lambda work: work)
    with pytest.raises(AssertionError, match="_poll begins again"):
        await check_a_cancelled_poll_closes_its_permit(database_url)
