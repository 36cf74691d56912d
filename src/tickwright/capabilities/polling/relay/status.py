"""What a relay of polls says of itself: what it has done, and why it stands, for metrics and, in its row, for others.

The row decides nothing. It is opened when a relay takes over, so that one which has not published anything yet is seen,
and it is written under the lease, so that whoever was overtaken does not speak for his heir.
"""

from dataclasses import dataclass

import structlog

from tickwright.capabilities.polling.relay import store
from tickwright.domain.errors import TickwrightError
from tickwright.engine.leases import Lease
from tickwright.store.pool import AWAY

_log = structlog.get_logger("tickwright.poll_relay")


@dataclass(slots=True)
class PollRelayCounters:
    """What this process's relay has done.

    Attributes:
        published: Polls that are on the topic and marked.
        batches: Of them.
        doubts: Batches of which nobody could tell whether they were in; the position told.
        aborted: Batches that were certainly not in, and were sent again.
        superseded: Polls dropped, because their trackers' next turn was due before they could be published or taken.
        fenced: How often another relay took over while this one believed to be the one.
        opened: How often a log was opened, with a new producer: once, and again after each doubt or refusal.
    """

    published: int = 0
    batches: int = 0
    doubts: int = 0
    aborted: int = 0
    superseded: int = 0
    fenced: int = 0
    opened: int = 0


class Standing:
    """What keeps one shard's relay from going on.

    Attributes:
        refusal: Why it stands; ``None`` while it goes on.
    """

    def __init__(self, shard: int) -> None:
        self._shard = shard
        self.refusal: TickwrightError | None = None
        self._told: tuple[str, str] | None = None

    async def open(self, lease: Lease) -> None:
        """Open the shard's row. Why a predecessor stood stays there until this one goes on, or stands itself."""
        self.refusal, self._told = None, ("", "")
        try:
            async with lease.transaction() as connection:
                if connection is not None:
                    await store.open_shard(connection, self._shard)
        except AWAY as error:  # whoever reads the numbers opens it, too
            _log.warning("poll_relay.database_away", shard=self._shard, error=repr(error))

    async def stand(self, lease: Lease, error: TickwrightError) -> None:
        """Keep why it stands; where the row cannot be written it still is in the log and in the metrics."""
        self.refusal = error
        if self._told != (error.code, error.message):
            await self._tell(lease, (error.code, error.message))

    async def go_on(self, lease: Lease) -> None:
        """Take it away."""
        self.refusal = None
        if self._told is not None:
            await self._tell(lease, None)

    async def _tell(self, lease: Lease, reason: tuple[str, str] | None) -> None:
        try:
            async with lease.transaction() as connection:
                if connection is None:
                    return
                if reason is None:
                    await store.go_on(connection, self._shard)
                else:
                    await store.stand(connection, self._shard, *reason)
        except AWAY as error:
            _log.warning("poll_relay.database_away", shard=self._shard, error=repr(error))
            return
        self._told = reason
