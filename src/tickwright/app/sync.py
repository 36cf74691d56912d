"""Scheduling with nothing but one borrowed connection: no pool, no catalog, no event loop."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tickwright.app.borrowed import Fetching
from tickwright.capabilities.jobs.enqueue.enqueue import Enqueuer, NewJob, Scheduled


class _OneConnection:
    """A pool of one, so that the enqueuer reads its task types on the caller's own connection."""

    def __init__(self, connection: Fetching) -> None:
        self._connection = connection

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[Fetching]:
        yield self._connection


async def schedule_through(connection: Fetching, job: NewJob) -> Scheduled:
    """Schedule ``job`` on ``connection`` and touch nothing else."""
    pool: Any = _OneConnection(connection)
    return await Enqueuer(pool).schedule(job, connection=connection)
