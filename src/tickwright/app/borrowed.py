"""Scheduling with the caller's connection alone: no pool of ours, nothing cached, and no event loop is needed."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from tickwright.capabilities.jobs.enqueue import Enqueuer, Scheduled
from tickwright.capabilities.jobs.requests import NewJob
from tickwright.engine.payload_keys import PayloadKeys
from tickwright.store.borrowed import Fetching


class _OneConnection:
    """A pool of one connection, so that the enqueuer reads task types on the caller's connection."""

    def __init__(self, connection: Fetching) -> None:
        self._connection = connection

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[Fetching]:
        yield self._connection


def one_connection(connection: Fetching) -> Any:
    """Return ``connection`` as a pool."""
    return _OneConnection(connection)


async def schedule_through(
    connection: Fetching, jobs: Sequence[NewJob], keys: Callable[[], PayloadKeys]
) -> list[Scheduled]:
    """Schedule ``jobs`` on ``connection`` and use nothing else; ``keys`` are read for the first encrypted type."""
    pool = one_connection(connection)
    enqueuer = Enqueuer(pool)
    if any([(await enqueuer.types.get(job.task_type)).encrypted for job in jobs]):
        enqueuer.keys = keys()
    return await enqueuer.schedule_many(jobs, connection=connection)
