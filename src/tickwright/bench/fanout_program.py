"""The program of ``bench fanout``'s consumers: providers that take as long as the party document says.

``seconds`` has one number for an entity, and several for the aggregate message of old, whose providers are asked one
after the other. Every answer is one line (what it takes, its end, its beginning, the process), written with one
``write`` to a file opened for appending.
"""

import asyncio
import os
import time

from tickwright import EntityTask, Tickwright

app = Tickwright()
_log = os.open(os.environ["BENCH_LOG"], os.O_WRONLY | os.O_CREAT | os.O_APPEND) if "BENCH_LOG" in os.environ else -1


@app.module("LOCATIONS")
async def locations(task: EntityTask) -> None:
    """Ask as many providers as the document names."""
    for seconds in task.party["seconds"]:
        asked_s = time.time()
        await asyncio.sleep(seconds)
        os.write(_log, f"A {task.entity_code} {seconds} {time.time():.4f} {asked_s:.4f} {os.getpid()}\n".encode())
