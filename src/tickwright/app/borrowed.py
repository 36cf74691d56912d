"""Scheduling with the caller's connection alone: no pool of ours, nothing cached, and no event loop is needed."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from tickwright.capabilities.jobs.enqueue import Enqueuer, Scheduled
from tickwright.capabilities.jobs.requests import NewJob
from tickwright.store.borrowed import Fetching


class _OneConnection:
    """A pool of one connection, so that the enqueuer reads task types on the caller's connection."""

    def __init__(self, connection: Fetching) -> None:
        self._connection = connection

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[Fetching]:
        yield self._connection


async def schedule_through(connection: Fetching, jobs: Sequence[NewJob]) -> list[Scheduled]:
    """Schedule ``jobs`` on ``connection`` and use nothing else."""
    pool: Any = _OneConnection(connection)
    return await Enqueuer(pool).schedule_many(jobs, connection=connection)
