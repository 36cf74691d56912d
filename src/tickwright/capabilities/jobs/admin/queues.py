"""Queues, as operators see, pause and enable them."""

from datetime import datetime

import msgspec

from tickwright.capabilities.jobs.queries import with_claim_ranges
from tickwright.ports.caller import Caller
from tickwright.ports.views import view
from tickwright.store.audit import AuditedRows
from tickwright.store.pool import Pool
from tickwright.store.queries import load

_SQL = with_claim_ranges(load("tickwright.capabilities.jobs.sql", "queues.sql"))


class QueueView(msgspec.Struct, kw_only=True):
    """A queue: a name that task types share.

    ``due`` counts up to 1,000 jobs of each type and priority. ``running`` is the sum of the living workers' last
    heartbeats, ``workers`` how many of them run a type of the queue, as far as their limits say.
    """

    name: str
    types: list[str]
    paused_at: datetime | None
    due: int
    running: int
    workers: int
    version: int
    updated_at: datetime | None


class Queues(AuditedRows[QueueView]):
    """The queues that task types name. A paused queue starts no jobs; running ones continue.

    Raises:
        Rejected: ``queue_not_found`` (404) from every method with a name: no task type belongs to it, and it is not
            paused. Permanent.
    """

    def __init__(self, pool: Pool) -> None:
        super().__init__(
            pool, "queue", lambda row: view(QueueView, row), lock=_SQL["lock"], read=_SQL["list"], switches=_SQL
        )

    async def switch(self, name: str, action: str, *, caller: Caller) -> QueueView:
        """Pause or enable a queue. Twice is harmless."""
        async with self.changing(action, name, caller) as change:
            await change.connection.execute(_SQL[action], name)
            after = await self.get(name, change.connection)
            change.audited = {"paused_at": change.before.paused_at}, {"paused_at": after.paused_at}
        return change.after
