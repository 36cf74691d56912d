"""Where a relay's writing stands, as Kafka says it: the last committed record of the shard's own partition.

Everything here blocks and belongs into a thread; every wait is bounded.
"""

import json
from threading import Event

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from tickwright.brokers.kafka.terms import KafkaTerms, log, unavailable
from tickwright.brokers.kafka.topics import POSITIONS, translate
from tickwright.ports.ids import monotonic

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


def read_position(terms: KafkaTerms, shard: int) -> int | None:
    """Return the number of the last batch that is in; ``None`` where the topic says nothing, or there is no topic.

    Reads committed records to the end of the partition. It is the truth about the past only after whoever wrote
    before was fenced; without that it is what an observer sees.

    Raises:
        Rejected: ``kafka_not_allowed``. Permanent.
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
    consumer.assign([TopicPartition(place.topic, place.partition, offset)])
    last, deadline = None, monotonic() + wait_s
    while monotonic() < deadline:
        message = consumer.poll(POLL_S)
        if message is None:
            continue
        error = message.error()
        if error is None:
            last = int(json.loads(message.value() or b"")["batch_no"])
        elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
            return last
    raise unavailable("the relay's position could not be read in time")
