"""Where a relay's writing stands, as Kafka says it: the last committed record of the shard's own partition.

Everything here blocks and belongs into a thread; every wait is bounded.
"""

from threading import Event
from typing import Annotated, Any

import msgspec
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition
from msgspec import Meta

from tickwright.domain.errors import Rejected, Unavailable
from tickwright.ports.ids import monotonic
from tickwright.ports.log import POSITION_UNREADABLE
from tickwright.transports.kafka.config import KafkaTerms, log, unavailable
from tickwright.transports.kafka.topics import POSITIONS, translate

BLOCKED = "kafka_position_blocked"
TAIL = 200
POLL_S = 0.25
_SOON = frozenset(
    {
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
    }
)


class _Position(msgspec.Struct):
    """The value of a record; see docs/messages.md. A number beyond the bounds is none that a relay has written."""

    batch_no: Annotated[int, Meta(ge=0, le=2**53)]


_decode = msgspec.json.Decoder(_Position).decode


def read_position(terms: KafkaTerms, shard: int) -> int | None:
    """Return the number of the last batch that is in; ``None`` where the topic says nothing, or there is no topic.

    Reads committed records to the end of the partition. It is the truth about the past only after whoever wrote
    before was fenced; without that it is what an observer sees. What is committed behind an open transaction of
    another program is not readable yet; then the position is not known, and an older one is never returned for it.

    Raises:
        Rejected: ``kafka_not_allowed``, ``kafka_position_unreadable``. Permanent.
        Unavailable: ``kafka_unavailable``, ``kafka_position_blocked``. Retry.
    """
    config = terms.client(
        group_id=terms.transactional_id(shard),
        isolation_level="read_committed",
        enable_partition_eof=True,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    )
    consumer = Consumer(config, logger=log)
    place = TopicPartition(terms.topic(POSITIONS), shard)
    try:
        if place.topic not in consumer.list_topics(timeout=terms.wait_s).topics:
            return None
        low, high = _bounds(consumer, place, terms.wait_s)  # of what is readable
        end = _end(config, place, terms.wait_s)
        start = max(low, high - TAIL)  # nearly always has it; a partition that was not compacted may be long
        found = _last_from(consumer, place, start, end, terms.wait_s)
        if found is not None or start == low:
            return found
        return _last_from(consumer, place, OFFSET_BEGINNING, end, terms.wait_s)
    except KafkaException as error:
        raise translate(error) from error
    finally:
        consumer.close()


def _bounds(consumer: Consumer, place: TopicPartition, wait_s: float) -> tuple[int, int]:
    """Return the first and the next offset; a partition that was just made has its leader a moment later."""
    deadline = monotonic() + wait_s
    while True:
        try:
            return consumer.get_watermark_offsets(place, timeout=wait_s)
        except KafkaException as error:
            if error.args[0].code() not in _SOON or monotonic() > deadline:
                raise
        Event().wait(POLL_S)


def _end(config: dict[str, Any], place: TopicPartition, wait_s: float) -> int:
    """Return the next offset, behind open transactions, too."""
    consumer = Consumer({**config, "isolation.level": "read_uncommitted"}, logger=log)
    try:
        return _bounds(consumer, place, wait_s)[1]
    finally:
        consumer.close()


def _last_from(consumer: Consumer, place: TopicPartition, offset: int, end: int, wait_s: float) -> int | None:
    """Return what the last record from ``offset`` to ``end`` says; those before it say nothing that counts.

    The end that Kafka reports first is that of what is readable; it is below ``end`` while a transaction is open.
    """
    consumer.assign([TopicPartition(place.topic, place.partition, offset)])
    last: Message | None = None
    readable: int | None = None
    deadline = monotonic() + wait_s
    while monotonic() < deadline:
        message = consumer.poll(POLL_S)
        if message is None:
            continue
        error = message.error()
        if error is None:
            last = message
        elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
            if (message.offset() or 0) < end:
                readable = message.offset()
                continue
            return None if last is None else _read(place, last)
    if readable is None:
        raise unavailable("the relay's position could not be read in time")
    where = f"{place.topic}/{place.partition}"
    first = f"--topic {place.topic} --partition {place.partition} --start-offset {readable}"
    text = (
        f"a transaction of another program is open on {where} from offset {readable} on, so the last position (the log "
        f"ends at {end}) cannot be read: end it with kafka-transactions.sh abort {first}, and let only the relay write "
        "to that topic; the relay tries again until then"
    )
    raise Unavailable(BLOCKED, text, topic=place.topic, partition=place.partition)


def _read(place: TopicPartition, record: Message) -> int:
    try:
        found = _decode(record.value() or b"")
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        where = f"{place.topic}/{place.partition}/{record.offset()}"
        text = (
            f"the record {where} is no position, so another than the relay wrote it: see to it that nobody else may "
            f"write to that topic, then let tickwright outbox reconcile write the position again ({error!r:.100})"
        )
        raise Rejected(POSITION_UNREADABLE, text, topic=place.topic, partition=place.partition) from error
    return found.batch_no
