"""A program with something for every role, in words of any release; each run writes one line that stays."""

import os
from collections.abc import AsyncIterator

from tickwright import Answer, BatchChunk, BatchRun, EntityTask, Job, Poll, ReportRequest, Tickwright

app = Tickwright()
_LOG = os.open(os.environ["RELEASE_LOG"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def _note(*words: object) -> None:
    os.write(_LOG, f"{' '.join(map(str, words))}\n".encode())


@app.job("work")
async def work(job: Job) -> None:
    """Say which attempt it is."""
    _note("job", job.id, job.fence)


@app.module("LOCATIONS", every="1s")
async def locations(task: EntityTask) -> None:
    """Say that the entity was polled."""
    _note("entity", task.entity_code, task.fence)


@app.partner("acme", rate="1000/s", concurrency=10)
async def acme(poll: Poll) -> Answer:
    """Say that the tracker was polled."""
    _note("poll", poll.tracker_id, poll.due_at.isoformat())
    return Answer("moving")


@app.listener("numbers")
async def numbers(_request: ReportRequest) -> AsyncIterator[dict[str, object]]:
    """Give one row."""
    _note("part", os.getpid())
    yield {"n": 1}


@app.report("numbers", listeners=["numbers"])
def numbers_report() -> str:
    """Return the merge."""
    return "SELECT n FROM numbers"


async def months(_run: BatchRun) -> AsyncIterator[dict[str, int]]:
    """Give three chunks."""
    for month in range(3):
        yield {"month": month}


@app.batch("months.close", plan=months)
async def close(chunk: BatchChunk) -> None:
    """Say which chunk it is."""
    _note("chunk", chunk.run.execution_id, chunk.number)
