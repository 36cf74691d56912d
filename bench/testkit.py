"""What tests with tickwright.testing cost: one ``perform``, one test on a database, the start of the server.

Start it with ``python bench/testkit.py``; it prints one JSON line. ``schedule_ms`` is the same work on an app that
stays open: the rest is what the fixture costs each test. ``committed_ms`` is mostly the creation of some 300 files, a
measure of the file system: compare with ``TMPDIR=/dev/shm``.
"""

import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from tickwright import Job, Tickwright
from tickwright.testing import AppUnderTest, ScratchServer, assert_scheduled, open_scratch_server, perform
from tickwright.testing.opening import SharedPool

app = Tickwright()
ROUNDS = 50


@app.job("invoice.remind")
async def remind(_job: Job, invoice_id: int) -> str:
    return f"reminded of {invoice_id}"


async def schedule_and_drain(opened: Tickwright) -> None:
    await remind.options(delay="3d").schedule(invoice_id=42)
    await assert_scheduled(opened, remind, invoice_id=42)
    assert (await opened.drain(until="3d")).counts == {"completed": 1}


async def median_ms(work: Callable[[], Awaitable[object]], rounds: int = ROUNDS) -> float:
    took = []
    for _ in range(rounds):
        began = time.perf_counter()
        await work()
        took.append(1000 * (time.perf_counter() - began))
    return round(statistics.median(took), 3)


async def measure(server: ScratchServer) -> dict[str, float]:
    shared = server.create()
    found = {"perform_ms": await median_ms(lambda: perform(remind, invoice_id=42), 1000)}

    async def isolated() -> None:
        async with AppUnderTest(app, SharedPool(shared, isolated=True), isolated=True) as opened:
            await schedule_and_drain(opened)

    async def committed() -> None:
        own = server.create()
        async with AppUnderTest(app, SharedPool(own, isolated=False), isolated=False) as opened:
            await schedule_and_drain(opened)
        server.drop(own)

    await isolated()
    found["isolated_ms"] = await median_ms(isolated)
    found["committed_ms"] = await median_ms(committed, 10)
    async with AppUnderTest(app, SharedPool(shared, isolated=True), isolated=True) as opened:
        found["schedule_ms"] = await median_ms(lambda: schedule_and_drain(opened))
    return found


def main() -> None:
    starts = []
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        for _ in range(4):
            began = time.perf_counter()
            with open_scratch_server(home=Path(folder) / "server") as server:
                server.create()
                starts.append(round(1000 * (time.perf_counter() - began)))
                figures = asyncio.run(measure(server))
    print(json.dumps({"first_start_ms": starts[0], "later_start_ms": min(starts[1:]), **figures}))


if __name__ == "__main__":
    main()
