"""Whose prefix it is: the first record of a topic that keeps everything, so that Kafka decides who was first.

Everything here blocks and belongs into a thread; every wait is bounded.
"""

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tickwright.ports.ids import monotonic
from tickwright.transports.kafka.config import KafkaTerms, log, unavailable
from tickwright.transports.kafka.topics import NEVER_GONE, PLAIN, make_missing, translate

OWNER = "installation"
POLL_S = 0.25


def owner(terms: KafkaTerms, installation: str) -> str:
    """Return which installation has the prefix; from now on this one where none had it.

    Raises:
        Rejected: ``kafka_not_allowed``, ``kafka_replication_unsafe``. Permanent.
        Unavailable: ``kafka_unavailable``. Retry.
    """
    topic = terms.topic(OWNER)
    try:
        make_missing(AdminClient(terms.client(), logger=log), terms, {topic: (1, {**NEVER_GONE, **PLAIN})})
        first = _first_record(terms, topic)
        if first is None:
            _write(terms, topic, installation)
            first = _first_record(terms, topic)
    except KafkaException as error:
        raise translate(error) from error
    if first is None:
        raise unavailable(f"the topic {topic} is empty although it was written")
    return first


def _write(terms: KafkaTerms, topic: str, installation: str) -> None:
    errors: list[KafkaError | None] = []
    producer = Producer(terms.producer(), logger=log)
    producer.produce(topic, installation, partition=0, on_delivery=lambda error, _: errors.append(error))
    if producer.flush(terms.wait_s) or errors != [None]:
        raise unavailable(errors[0] if errors else f"the topic {topic} could not be written in time")


def _first_record(terms: KafkaTerms, topic: str) -> str | None:
    config = terms.client(group_id=topic, enable_partition_eof=True, enable_auto_commit=False)
    consumer = Consumer(config, logger=log)
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        deadline = monotonic() + terms.wait_s
        while monotonic() < deadline:
            message = consumer.poll(POLL_S)
            if message is None:
                continue
            error = message.error()
            if error is None:
                return (message.value() or b"").decode(errors="replace")[:100]
            if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
                return None
        raise unavailable(f"the topic {topic} could not be read in time")
    finally:
        consumer.close()
