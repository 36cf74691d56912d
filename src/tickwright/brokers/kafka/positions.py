"""Where a relay's writing stands, as Kafka says it: the last committed record of the shard's own partition.

Everything here blocks and belongs into a thread; every wait is bounded.
"""

from threading import Event

import msgspec
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from tickwright.brokers.kafka.terms import KafkaTerms, log, unavailable
from tickwright.brokers.kafka.topics import POSITIONS, translate
from tickwright.domain.errors import Rejected
from tickwright.ports.ids import monotonic
from tickwright.ports.log import POSITION_UNREADABLE

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
    """The value of a record; see docs/messages.md."""

    batch_no: int


_decode = msgspec.json.Decoder(_Position).decode


def read_position(terms: KafkaTerms, shard: int) -> int | None:
    """Return the number of the last batch that is in; ``None`` where the topic says nothing, or there is no topic.

    Reads committed records to the end of the partition. It is the truth about the past only after whoever wrote
    before was fenced; without that it is what an observer sees.

    Raises:
        Rejected: ``kafka_not_allowed``, ``kafka_position_unreadable``. Permanent.
        Unavailable: ``kafka_unavailable``. Retry.
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
        low, high = _bounds(consumer, place, terms.wait_s)
        start = max(low, high - TAIL)  # nearly always has it; a partition that was not compacted may be long
        found = _last_from(consumer, place, start, terms.wait_s)
        return (
            found if found is not None or start == low else _last_from(consumer, place, OFFSET_BEGINNING, terms.wait_s)
        )
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


def _last_from(consumer: Consumer, place: TopicPartition, offset: int, wait_s: float) -> int | None:
    """Return what the last record from ``offset`` on says; those before it say nothing that counts."""
    consumer.assign([TopicPartition(place.topic, place.partition, offset)])
    last: Message | None = None
    deadline = monotonic() + wait_s
    while monotonic() < deadline:
        message = consumer.poll(POLL_S)
        if message is None:
            continue
        error = message.error()
        if error is None:
            last = message
        elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
            return None if last is None else _read(place, last)
    raise unavailable("the relay's position could not be read in time")


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
