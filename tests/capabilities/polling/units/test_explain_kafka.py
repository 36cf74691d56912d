"""The reasons that explain gives for a poll in Kafka: what is known, and what is unknown."""

from datetime import UTC, datetime
from typing import Any

import pytest

from tickwright.capabilities.polling.relay.batches import poll_key
from tickwright.capabilities.polling.trackers.explain import TopicPosition, in_kafka, locate, partition_of

AT = datetime(2030, 1, 1, tzinfo=UTC)
TRACKER = 42
PARTITION = partition_of(poll_key(TRACKER), 4)


def batch(number: int, first: int, last: int, **other: Any) -> dict[str, Any]:
    """Return a row of a batch with records in the tracker's partition and in another one."""
    return {
        "batch_no": number, "topic": "polls", "published_at": AT, "partition_count": 4, "fits": True,
        "partitions": [PARTITION, PARTITION + 1], "first_offsets": [first, 0], "last_offsets": [last, 9],
        "first_batch_no": 70, "last_batch_no": 79, **other,
    }  # fmt: skip


def test_batches_that_hold_its_second_come_before_those_of_its_minute() -> None:
    """A normal poll is released at its second; only one of a catch-up may be anywhere in the minute."""
    found = [batch(77, 1200, 1330), batch(70, 5, 9, fits=False)]
    assert locate(found, TRACKER) == TopicPosition(77, 77, AT, "polls", PARTITION, 1200, 1330)
    others = [batch(70, 5, 9, fits=False), batch(77, 1200, 1330, fits=False)]
    assert locate(others, TRACKER) == TopicPosition(70, 77, AT, "polls", PARTITION, 5, 1330)


def test_a_batch_without_a_record_in_its_partition_has_no_offsets() -> None:
    """One that only the position proved has no partition either; nor have batches with different partition counts."""
    assert locate([batch(77, 0, 0, partitions=[], first_offsets=[], last_offsets=[])], TRACKER).first_offset is None
    assert locate([batch(77, 0, 0, partition_count=0)], TRACKER) == TopicPosition(77, 77, AT, "polls")
    assert locate([batch(77, 0, 0), batch(78, 1, 1, partition_count=8)], TRACKER) == TopicPosition(77, 78, AT, "polls")


@pytest.mark.parametrize(
    ("position", "read_to", "reader", "code"),
    [
        (None, None, None, "not_read"),
        (1180, 1190, None, "not_read"),
        (1180, 1200, "host-a", "in_partition"),
        (1180, 1201, "host-a", "in_flight"),
        (1180, 1400, "host-a", "in_flight"),
        (1330, 1400, "host-a", "in_flight"),
        (1331, 1400, "host-a", "passed"),
        (1331, 1331, None, "passed"),
    ],
)
def test_the_reason_follows_from_the_position_of_the_group(
    position: int | None, read_to: int | None, reader: str | None, code: str
) -> None:
    """Not read yet: in the partition; before the position: passed; between them: in flight with the reader."""
    group = {"position": position, "read_to": read_to, "reader_name": reader, "seen_at": AT}
    published, then = in_kafka(TopicPosition(77, 77, AT, "polls", 3, 1200, 1330, group), "2030-01-01T00:00:00Z")
    assert published.text.endswith("in batch 77, to partition 3 of polls, between the offsets 1200 and 1330")
    assert then.code == code
    assert reader is None or code == "passed" or reader in then.text
