"""A program with a handler for every role; each run writes one line that survives ``kill -9``."""

import os
from collections.abc import AsyncIterator

from tickwright import EntityTask, Job, ReportRequest, Tickwright

app = Tickwright()
_LOG = os.open(os.environ["FAILOVER_LOG"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def _log(*values: object) -> None:
    os.write(_LOG, f"{' '.join(map(str, values))}\n".encode())


@app.job("work", max_attempts=50, retry={"base": "100ms", "cap": "1s"})
async def work(job: Job) -> None:
    """Log the attempt."""
    _log("job", job.id, job.fence)


@app.module("LOCATIONS", every="1s")
async def locations(task: EntityTask) -> None:
    """Log that the entity was polled."""
    _log("entity", task.fence)


@app.listener("numbers")
async def numbers(_request: ReportRequest) -> AsyncIterator[dict[str, object]]:
    """Yield one row."""
    yield {"n": 1}


@app.report("numbers", listeners=["numbers"])
def numbers_report() -> str:
    """Return the merge's SQL."""
    return "SELECT n FROM numbers"
