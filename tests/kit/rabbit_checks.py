"""What has to hold of fan-out's queue, as checks that a test runs on the product and a mutant's test on less."""

import asyncio
from datetime import timedelta
from time import monotonic

from kit.probes import Stops
from kit.rabbit_tasks import Fanout, nothing_comes, taken
from kit.servers import RabbitServer
from kit.waiting import eventually_async

SECOND = timedelta(seconds=1)


async def alarm(server: RabbitServer, *, on: bool) -> None:
    """Let the node think that its disk is full, or not."""
    await asyncio.to_thread(server.set_disk_alarm, on=on)


async def check_held_holds_up_no_other(fanout: Fanout) -> None:
    """One slot each: while one consumer sits on a slow entity, the rest goes to those who are free."""
    async with fanout.consumer(1) as slow, fanout.consumer(1) as fast:
        await fanout.put("a")
        await fanout.put("b")
        held = [await taken(slow), await taken(fast)]
        await fanout.put("c", "d", "e")
        assert {one.message_id for one in held} == {"a", "b"}
        assert await fast.ack(held[1])
        for name in ("c", "d", "e"):
            task = await taken(fast)
            assert task.message_id == name
            assert await fast.ack(task)
        assert await nothing_comes(slow, 0.1)


async def check_said_once(fanout: Fanout) -> None:
    """A second word about one delivery would close the channel under all others."""
    await fanout.put("a", "b")
    async with fanout.consumer(2) as source:
        first, second = await taken(source), await taken(source)
        assert await source.ack(first)
        assert not await source.ack(first)
        assert not await source.delay(first, SECOND)
        assert not await source.dead_letter(first, "no", "no")
        await source.release(first)
        assert await source.ack(second)
    assert await fanout.ids_in(fanout.names.queue) == []


async def check_deleted_delay_queue(fanout: Fanout) -> None:
    """The copy comes back unroutable, and the original waits for a copy that is confirmed."""
    await fanout.put("a", "b")
    async with fanout.consumer(2) as source:
        first, second = await taken(source), await taken(source)
        assert await source.delay(first, SECOND)
        await fanout.delete(fanout.names.delays[1])
        assert await source.delay(second, SECOND)
        await fanout.count(fanout.names.delays[1])  # it is there again
        assert (await taken(source)).message_id == "b"


async def check_acknowledged_behind_its_copy(fanout: Fanout) -> None:
    """While the copy is on its way, the loss of a consumer brings the task back: two at worst, none never."""
    probe = Stops()
    probe.close("fanout.forwarded_not_acked")
    await fanout.put("a")
    async with fanout.consumer(probe=probe) as source:
        task = await taken(source)
        delaying = asyncio.create_task(source.delay(task, timedelta(seconds=60)))
        await eventually_async(lambda: probe.reached_times["fanout.forwarded_not_acked"] == 1)
        assert await fanout.count(fanout.names.delays[60]) == 1
        await source.stop()
        probe.open("fanout.forwarded_not_acked")
        assert not await delaying
    await fanout.counted(fanout.names.queue, 1)


async def check_parked_and_not_spent(fanout: Fanout, server: RabbitServer) -> None:
    """An alarm of minutes must not turn waiting tasks into dead letters: no delivery is counted, nothing spins."""
    await fanout.put("a")
    async with fanout.consumer(2) as source:
        await alarm(server, on=True)
        try:
            task = await taken(source)
            for number in range(1, 4):
                since = monotonic()
                assert await source.delay(task, SECOND)
                task = await taken(source)
                assert monotonic() - since > 0.9, "it spins"
                assert (task.message_id, task.deliveries, task.delays) == ("a", 1, number)
            assert await source.delay(task, SECOND)
        finally:
            await alarm(server, on=False)
        task = await taken(source)
        assert await source.ack(task)
        assert await fanout.count(fanout.names.queue) == 0
