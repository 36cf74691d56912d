"""A program that records its calls by the machine's monotonic clock, which no jump of the wall clock affects."""

import os
import time
from collections.abc import AsyncIterator
from typing import Any

from tickwright import BatchChunk, BatchRun, EntityTask, ReportRequest, Tickwright

PIECES = 20
app = Tickwright()
_LOG = os.open(os.environ["CLOCK_LOG"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def _record(*values: object) -> None:
    os.write(_LOG, f"{' '.join(map(str, values))} {time.monotonic()}\n".encode())


@app.module("NEWS", every="1s")
async def poll(task: EntityTask) -> None:
    """Record the window."""
    _record("entity", task.window_at.timestamp(), task.drop_dead_at.timestamp())


@app.listener("numbers")
async def numbers(_request: ReportRequest) -> AsyncIterator[dict[str, object]]:
    """Yield one row."""
    yield {"n": 1}


@app.report("numbers", listeners=["numbers"])
def numbers_report() -> str:
    """Return the merge's SQL."""
    return "SELECT n FROM numbers"


async def pieces(_run: BatchRun) -> AsyncIterator[Any]:
    """Yield the value of each chunk."""
    for number in range(PIECES):
        yield number


@app.batch("pieces", plan=pieces, date_time_execution=os.environ["CLOCK_BATCH_AT"])
async def piece(chunk: BatchChunk) -> None:
    """Record the chunk."""
    _record("chunk", chunk.value)
