"""Where a poll stands that went to Kafka, and how far its consumers are. No row is kept per poll, so this is reckoned.

The slice ledger knows the batches of a slot's turn, a batch its releases and where it begins and ends in each
partition, and a tracker's partition follows from its id. So what is said is a range of offsets; whether one poll
between the group's position and what its reader has read waits or is in flight only the reader knows: it is said so.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tickwright.capabilities.polling.relay.messages import poll_key
from tickwright.capabilities.polling.relay.store import find_batches, group_at
from tickwright.domain.instants import instant_text
from tickwright.domain.partitions import partition_of
from tickwright.ports.views import Reason
from tickwright.store.pool import Pool

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Stands:
    """Where the poll of a turn stands.

    Attributes:
        first_no: Of the batches that it may have gone with, to ``last_no``; mostly they are one.
        published_at: When the last of them was marked; ``None`` where they are forgotten, as all below then is.
        partition: Of the tracker; ``None`` where the batch was proved by the position alone.
        first_offset: Where these batches begin in the partition, to ``last_offset``; ``None`` where that is not known.
        group: How far the consumers are: ``position read_to seen_at reader_name``.
    """

    first_no: int
    last_no: int
    published_at: datetime | None = None
    topic: str = ""
    partition: int | None = None
    first_offset: int | None = None
    last_offset: int | None = None
    group: Row | None = None


async def look_up(pool: Pool, facts: Row) -> Stands | None:
    """Return where the poll of a tracker's last turn stands; ``None`` where it did not go to Kafka or is done.

    Args:
        pool: To ask.
        facts: The row of the query ``explain``.
    """
    if facts["done_at"] is not None or facts["turn_selected"] is None:
        return None
    found = await find_batches(
        pool, facts["slot_id"], facts["prev_due_at"], facts["partner_no"], release_at=facts["turn_at"]
    )
    if not found:
        return None
    stands = place(found, facts["id"])
    if stands.partition is None:
        return stands
    return Stands(
        stands.first_no,
        stands.last_no,
        stands.published_at,
        stands.topic,
        stands.partition,
        stands.first_offset,
        stands.last_offset,
        await group_at(pool, stands.topic, stands.partition),
    )


def place(found: Sequence[Row], tracker_id: int) -> Stands:
    """Return what the rows of ``find_batches`` say of one tracker. Pure."""
    if found[0]["batch_no"] is None:
        return Stands(found[0]["first_batch_no"], found[0]["last_batch_no"])
    batches = [row for row in found if row["fits"]] or found  # none fits: a catch-up released it, at another second
    first_no, last_no = batches[0]["batch_no"], batches[-1]["batch_no"]
    published_at, topic = batches[-1]["published_at"], batches[-1]["topic"]
    counts = {row["partition_count"] for row in batches}
    if len(counts) != 1 or not min(counts):
        return Stands(first_no, last_no, published_at, topic)
    partition = partition_of(poll_key(tracker_id), counts.pop())
    edges = [
        edge
        for row in batches
        for number, *edge in zip(row["partitions"], row["first_offsets"], row["last_offsets"], strict=True)
        if number == partition
    ]
    if not edges:
        return Stands(first_no, last_no, published_at, topic, partition)
    first, last = min(edge[0] for edge in edges), max(edge[1] for edge in edges)
    return Stands(first_no, last_no, published_at, topic, partition, first, last)


def in_kafka(stands: Stands, turn: str) -> Iterator[Reason]:
    """Say where the poll stands, and then what the group has done of it."""
    one = stands.first_no == stands.last_no
    batch = f"batch {stands.first_no}" if one else f"one of the batches {stands.first_no} to {stands.last_no}"
    if stands.published_at is None:
        yield Reason("published", f"selected for {turn}, published in {batch}; where these stand is no longer known")
        return
    text = f"selected for {turn}, published at {instant_text(stands.published_at)} in {batch}, to "
    if stands.partition is None:
        yield Reason("published", f"{text}{stands.topic}; nobody was told where, since only the position proved it")
        return
    text += f"partition {stands.partition} of {stands.topic}"
    if stands.first_offset is None or stands.last_offset is None:
        yield Reason("published", f"{text}, at an offset that is not known")
        return
    at = f"at offset {stands.first_offset}"
    if stands.first_offset != stands.last_offset:
        at = f"between the offsets {stands.first_offset} and {stands.last_offset}"
    yield Reason("published", f"{text}, {at}")
    yield _group(stands.group, stands.partition, stands.first_offset, stands.last_offset)


def _group(group: Row | None, partition: int, first: int, last: int) -> Reason:
    if group is None or group["position"] is None:
        return Reason("not_read", f"no consumer has read partition {partition} yet")
    position, read_to = group["position"], group["read_to"]
    seen = instant_text(group["seen_at"])
    where = f"the group stands at {position}"
    if position > last:
        text = (
            "its poll was carried out, or dropped: its next turn was due, its tracker had ended, its partner is unknown"
        )
        return Reason("passed", f"{where}, behind it, since {seen} or before: {text}")
    if group["reader_name"] is None:
        return Reason("not_read", f"nobody reads partition {partition} now; {where} since {seen}")
    reader = group["reader_name"]
    if read_to <= first:
        return Reason(
            "in_partition", f"waits in partition {partition}: {where}, and {reader} reads at {read_to}, as of {seen}"
        )
    text = (
        "waits there for its call, or is called, or is done and not yet passed"
        if read_to > last
        else "may have reached it"
    )
    return Reason(
        "in_flight",
        f"in flight on {reader}, which has read partition {partition} to {read_to}: {text}; {where}, as of {seen}",
    )
