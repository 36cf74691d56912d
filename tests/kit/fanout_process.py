"""A scheduler or a consumer of fan-out for kill tests, as a separate process, until a SIGTERM.

Its log has a JSON object a line, with the time by the system's monotonic clock: the witness that depends on no store.
``FANOUT_KILL_AT`` and ``FANOUT_STOP_AT`` name the probe where it kills or stops itself.
"""

import asyncio
import json
import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.remove(str(Path(__file__).resolve().parent))  # its redis.py would hide the library
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from kit.fanout import MODULE, FanoutWorld
from kit.probes import KillAt
from kit.rabbit_tasks import Fanout
from kit.waiting import eventually_async
from tickwright.capabilities.fanout.consumer.consumer import Ack
from tickwright.capabilities.fanout.handlers import EntityTask
from tickwright.capabilities.fanout.messages import message_id
from tickwright.capabilities.fanout.scheduler.scheduler import ModuleLoop
from tickwright.capabilities.fanout.windows import Window
from tickwright.store.pool import open_pool
from tickwright.transports.rabbitmq.topology import fanout_names


def tell(what: str, which: str, /, **facts: Any) -> None:
    """Write one line in one write, so that lines of several processes do not mix."""
    line = json.dumps({what: which, "pid": os.getpid(), "at_s": time.monotonic(), **facts})
    os.write(1, f"{line}\n".encode())


class Witness:
    """A probe that logs the points reached, and that kills or stops its own process at one of them."""

    def __init__(self) -> None:
        self._kill = KillAt(os.environ.get("FANOUT_KILL_AT", ""), int(os.environ.get("FANOUT_KILL_TIMES", "1")))
        self._stop_at = os.environ.get("FANOUT_STOP_AT")

    async def reached(self, name: str, /, **facts: Any) -> None:
        """Log the point."""
        if name == "fanout.decided":
            if isinstance(facts["disposition"], Ack):
                tell("acked", facts["message_id"], why=facts["disposition"].why)
        else:
            tell("reached", name, task=facts.get("task"), fence=facts.get("fence"), places=facts.get("places"))
        await self._kill.reached(name)
        if name == self._stop_at:
            self._stop_at = None
            os.kill(os.getpid(), signal.SIGSTOP)


async def handler(task: EntityTask) -> None:
    """Log that the run begins, take the time of the environment, and fail as often as it says."""
    tell("run", task.id, fence=task.fence)
    await asyncio.sleep(float(os.environ.get("FANOUT_TAKES_S", "0")))
    if random.random() < float(os.environ.get("FANOUT_FAILS", "0")):
        raise ValueError("by chance")
    tell("done", task.id, fence=task.fence)


def log_misses() -> None:
    """Let a scheduler log the entities that it has not seen published in a window that is over."""
    real = ModuleLoop._note_missed

    def note(self: ModuleLoop, window: Window, left: Sequence[str]) -> None:
        for code in left:
            tell("missed", message_id(code, self.name, window))
        real(self, window, left)

    ModuleLoop._note_missed = note  # type: ignore[method-assign]


async def either(stopping: asyncio.Event, over: asyncio.Event) -> None:
    """Wait until a stop is requested, or until the service ends by itself: then this process ends with its error."""
    await eventually_async(lambda: not over.is_set() or stopping.is_set(), what="it has begun")
    waiting = [asyncio.create_task(event.wait()) for event in (stopping, over)]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()


async def main() -> None:
    """Run until stopped."""
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    queues = Fanout(os.environ["FANOUT_AMQP"])
    queues.names = fanout_names(os.environ["FANOUT_PREFIX"])
    url = os.environ["FANOUT_DATABASE"]
    world = FanoutWorld(await open_pool(url), url, queues, os.environ["FANOUT_REDIS"] or None)
    probe = Witness()
    if os.environ["FANOUT_ROLE"] == "scheduler":
        log_misses()
        async with world.scheduler(probe=probe) as scheduler:
            await either(stopping, scheduler._run_ended)
    else:
        slots = int(os.environ.get("FANOUT_SLOTS", "1"))
        modules = os.environ.get("FANOUT_MODULES", MODULE).split(",")
        async with world.consumer(dict.fromkeys(modules, handler), slots=slots, probe=probe) as consumer:
            await either(stopping, consumer._run_ended)


asyncio.run(main())
