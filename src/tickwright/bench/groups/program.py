"""The program of the other benches with a type whose jobs have groups, which costs a worker idle claims."""

import os
import time

from tickwright import Job
from tickwright.bench.program import EVENTS, app

__all__ = ["app"]


@app.job("noop.grouped", group_limit=1, keep_history=False)
async def grouped(job: Job, shipment_id: int) -> None:  # noqa: ARG001  a typed argument, as of noop
    """Do nothing for the group with the backlog; say how late the others start."""
    if job.group != "backlog":
        os.write(EVENTS, b"G %d %.3f\n" % (job.id, (time.time() - job.due_s) * 1000))
