"""The program of the other benches with a type whose jobs have groups, which costs a worker idle claims."""

import os
import time

from tickwright import Job
from tickwright.bench.program import app

__all__ = ["app"]
_log = os.open(os.environ["BENCH_LOG"], os.O_WRONLY | os.O_CREAT | os.O_APPEND) if "BENCH_LOG" in os.environ else -1


@app.job("noop.grouped", group_limit=1, keep_history=False)
async def grouped(job: Job, shipment_id: int) -> None:  # noqa: ARG001  a typed argument, as of noop
    """Do nothing for the group with the backlog; say how late the others start."""
    if job.group != "backlog":
        os.write(_log, b"G %d %.3f\n" % (job.id, (time.time() - job.due_s) * 1000))
