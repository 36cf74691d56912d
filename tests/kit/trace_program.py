"""A program for tests of traces: an order causes a callback and a message of the outbox."""

import asyncio
import os
import signal
from contextlib import suppress

from tickwright import Job, Tickwright

app = Tickwright()
HOOK = os.environ["TICKWRIGHT_TEST_HOOK"]


@app.job("order.placed")
async def placed(_job: Job, order: int) -> None:
    """Send the callback and the message."""
    await app.schedule("order.callback", {"order": order})
    await app.publish(HOOK, {"order": order})


async def _main() -> None:
    me = asyncio.current_task()
    assert me is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, me.cancel)
    with suppress(asyncio.CancelledError):
        async with app:
            await app.run_worker(roles=("worker",))


if __name__ == "__main__":
    asyncio.run(_main())
