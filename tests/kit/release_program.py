"""A program with a handler for every role, in the API of any release; each run logs one line."""

import os
from collections.abc import AsyncIterator

from tickwright import Answer, BatchChunk, BatchRun, EntityTask, Job, Poll, ReportRequest, Tickwright

app = Tickwright()
_LOG = os.open(os.environ["RELEASE_LOG"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def _log(*values: object) -> None:
    os.write(_LOG, f"{' '.join(map(str, values))}\n".encode())


@app.job("work")
async def work(job: Job) -> None:
    """Log the attempt."""
    _log("job", job.id, job.fence)


@app.module("LOCATIONS", every="1s")
async def locations(task: EntityTask) -> None:
    """Log that the entity was polled."""
    _log("entity", task.entity_code, task.fence)


@app.partner("acme", rate="1000/s", concurrency=10)
async def acme(poll: Poll) -> Answer:
    """Log that the tracker was polled."""
    _log("poll", poll.tracker_id, poll.due_at.isoformat())
    return Answer("moving")


@app.listener("numbers")
async def numbers(_request: ReportRequest) -> AsyncIterator[dict[str, object]]:
    """Yield one row."""
    _log("part", os.getpid())
    yield {"n": 1}


@app.report("numbers", listeners=["numbers"])
def numbers_report() -> str:
    """Return the merge's SQL."""
    return "SELECT n FROM numbers"


async def months(_run: BatchRun) -> AsyncIterator[dict[str, int]]:
    """Yield three chunks."""
    for month in range(3):
        yield {"month": month}


@app.batch("months.close", plan=months)
async def close(chunk: BatchChunk) -> None:
    """Log the chunk."""
    _log("chunk", chunk.run.execution_id, chunk.number)
