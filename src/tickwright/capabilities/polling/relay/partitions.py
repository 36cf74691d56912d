"""What operators see of the polls' topic: per partition where it ends, how far the consumers are, and who reads it.

Read from the database alone: the relays write where their polls end, the consumers every two seconds how far they are.
So it is there when neither Kafka nor a consumer answers.
"""

from datetime import datetime

import msgspec

from tickwright.capabilities.polling.relay.store import list_partitions
from tickwright.ports.views import view
from tickwright.store.pool import Pool


class PollPartitionView(msgspec.Struct, kw_only=True):
    """One partition that polls went to within a week.

    Attributes:
        end_offset: One behind the last poll that a relay published.
        position: The first poll without an effect; what lies before is over. Null before the group has begun.
        lag: From the position to the end, in offsets.
        read_to: What lies between the position and this is in the reader's memory.
        unfinished_since: Since when the oldest unfinished poll has been on the topic; 10 s too late at most.
        reader: Name of the session that reads it; null where nobody does.
        seen_at: When its reader said so last.
    """

    topic: str
    partition: int
    end_offset: int
    position: int | None
    lag: int
    read_to: int | None
    unfinished_since: datetime | None
    reader: str | None
    seen_at: datetime | None


async def poll_partitions(pool: Pool) -> list[PollPartitionView]:
    """Return every partition that polls went to within a week; none where they stay inside PostgreSQL."""
    return [view(PollPartitionView, row) for row in await list_partitions(pool)]
