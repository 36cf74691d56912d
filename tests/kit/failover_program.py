"""A program with something for every role; each run writes one line that survives ``kill -9``."""

import os
from collections.abc import AsyncIterator

from tickwright import EntityTask, Job, ReportRequest, Tickwright

app = Tickwright()
_LOG = os.open(os.environ["FAILOVER_LOG"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def _note(*words: object) -> None:
    os.write(_LOG, f"{' '.join(map(str, words))}\n".encode())


@app.job("work", max_attempts=50, retry={"base": "100ms", "cap": "1s"})
async def work(job: Job) -> None:
    """Say which attempt it is."""
    _note("job", job.id, job.fence)


@app.module("LOCATIONS", every="1s")
async def locations(task: EntityTask) -> None:
    """Say that the entity was polled."""
    _note("entity", task.fence)


@app.listener("numbers")
async def numbers(_request: ReportRequest) -> AsyncIterator[dict[str, object]]:
    """Give one row."""
    yield {"n": 1}


@app.report("numbers", listeners=["numbers"])
def numbers_report() -> str:
    """Return the merge."""
    return "SELECT n FROM numbers"
