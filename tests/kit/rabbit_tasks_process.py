"""A consumer of fan-out's queue as a separate process, to be killed: takes tasks and does not run them.

Run as ``python rabbit_tasks_process.py URL PREFIX SLOTS``; prints ``MESSAGE_ID DELIVERIES`` of each.
"""

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tickwright.transports.rabbitmq.tasks import RabbitTaskQueue
from tickwright.transports.rabbitmq.topology import fanout_names


async def main(url: str, prefix: str, slots: int) -> None:
    """Take and hold until killed."""
    source = RabbitTaskQueue(url, fanout_names(prefix), slots=slots)
    running = asyncio.create_task(source.run())
    while not running.done():
        delivery = await source.take()
        sys.stdout.write(f"{delivery.message_id} {delivery.deliveries}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
