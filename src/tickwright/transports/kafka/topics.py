"""Our topics: made when they are missing, and refused where they are not safe.

Everything here blocks and belongs into a thread; every wait is bounded.
"""

from collections.abc import Collection, Mapping
from concurrent.futures import Future
from threading import Event
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from tickwright.domain.errors import Rejected, TickwrightError
from tickwright.ports.ids import monotonic
from tickwright.transports.kafka.config import REPLICATION_SAFE, SHARDS_MAX, KafkaConfig, log, unavailable

IN_SYNC_SAFE = 2
LOOK_S = 0.05
POSITIONS = "relay-position"
EVENTS = "poll-events"
_BROKERS_CLOCK = {"message.timestamp.type": "LogAppendTime"}
"""A record carries its broker's clock: ours may be wrong by hours, and such records a broker would refuse."""

NEVER_GONE = {"retention.ms": "-1", "retention.bytes": "-1"}
PLAIN = {"compression.type": "uncompressed"}
"""Of what we read: the broker refuses records that are too large once they are unpacked. Of 4 KB a reader would have
to make 120 MB, and fail at it each time."""

_POSITION_CONFIG = {**NEVER_GONE, **PLAIN, "cleanup.policy": "compact", "segment.ms": "3600000"}


def prepare_topics(settings: KafkaConfig, topic: str) -> int:
    """Make sure that the topics of polls, of their news and of positions are there and keep what they are given.

    Args:
        settings: Checked.
        topic: Full name of the polls' topic.

    Returns:
        How many partitions the polls' topic has.

    Raises:
        Rejected: ``kafka_replication_unsafe``, ``kafka_position_topic_unsafe``, ``kafka_topic_compressed``,
            ``kafka_not_allowed``. Permanent.
        Unavailable: Kafka does not answer. Retry.
    """
    admin = AdminClient(settings.client(), logger=log)
    try:
        positions = settings.topic(POSITIONS)
        wanted = {
            topic: (settings.partitions, PLAIN),
            settings.topic(EVENTS): (settings.partitions, {}),
            positions: (SHARDS_MAX, _POSITION_CONFIG),
        }
        known = make_missing(admin, settings, wanted)
        if not settings.allow_single_broker:
            for name in wanted:
                _check_replicas(name, known.topics[name])
        _check_configs(admin, settings, topic, positions)
        if len(known.topics[positions].partitions) < SHARDS_MAX:
            raise _unsafe_positions(positions, f"it needs {SHARDS_MAX} partitions, one for each shard")
        return len(known.topics[topic].partitions)
    except KafkaException as error:
        raise translate(error) from error


def make_missing(admin: AdminClient, settings: KafkaConfig, wanted: Mapping[str, tuple[int, Mapping[str, str]]]) -> Any:
    """Make the topics that are missing, of so many partitions and with this configuration; return the cluster.

    Raises:
        KafkaException: As the brokers say. See :func:`translate`.
        Unavailable: Kafka does not answer in time. Retry.
    """
    known = admin.list_topics(timeout=settings.wait_s)
    missing = {name: shape for name, shape in wanted.items() if name not in known.topics}
    if not missing:
        return known
    replicas = min(settings.replication, len(known.brokers)) if settings.allow_single_broker else settings.replication
    _make(admin, settings, missing, replicas)
    return _await(admin, settings, missing)


def translate(error: KafkaException) -> TickwrightError:
    """Return our error for one of the client library's."""
    cause: KafkaError = error.args[0]
    if cause.code() == KafkaError.INVALID_TRANSACTION_TIMEOUT:
        text = "the brokers' transaction.max.timeout.ms is below our 15 seconds; raise it"
        return Rejected("kafka_transaction_timeout", text)
    if cause.code() == KafkaError.INVALID_REPLICATION_FACTOR:
        text = "Kafka has fewer brokers than the replicas that are wanted (TICKWRIGHT_KAFKA_REPLICATION)"
        return Rejected("kafka_replication_unsafe", text)
    if cause.code() in _FORBIDDEN:
        return Rejected("kafka_not_allowed", f"Kafka does not allow it: {cause.str()}")
    return unavailable(cause.str())


_FORBIDDEN = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.SASL_AUTHENTICATION_FAILED,
    }
)


_NOT_TO_BE = frozenset({KafkaError.POLICY_VIOLATION, KafkaError.INVALID_CONFIG})
"""A setting that whoever runs the brokers has ruled out."""


def _make(
    admin: AdminClient, settings: KafkaConfig, missing: Mapping[str, tuple[int, Mapping[str, str]]], replicas: int
) -> None:
    in_sync = {"min.insync.replicas": str(IN_SYNC_SAFE)} if replicas >= REPLICATION_SAFE else {}
    topics = [
        NewTopic(
            name, num_partitions=partitions, replication_factor=replicas, config={**_BROKERS_CLOCK, **config, **in_sync}
        )
        for name, (partitions, config) in missing.items()
    ]
    made: dict[str, Future[None]] = admin.create_topics(topics, operation_timeout=settings.wait_s)
    for name, future in made.items():
        try:
            future.result(settings.wait_s)
        except TimeoutError as error:
            raise unavailable("topics could not be made in time") from error
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
        log.info("topic %s is made: %d replicas", name, replicas)


def _await(admin: AdminClient, settings: KafkaConfig, names: Collection[str]) -> Any:
    """Return the cluster as it is when the broker that we ask has heard of the new topics."""
    deadline = monotonic() + settings.wait_s
    while True:
        known = admin.list_topics(timeout=settings.wait_s)
        if all(name in known.topics and known.topics[name].partitions for name in names):
            return known
        if monotonic() > deadline:
            raise unavailable("new topics did not become known in time")
        Event().wait(LOOK_S)


def _check_replicas(name: str, topic: Any) -> None:
    fewest = min((len(partition.replicas) for partition in topic.partitions.values()), default=0)
    if fewest < REPLICATION_SAFE:
        text = f"the topic {name} has a partition with {fewest} replicas; {REPLICATION_SAFE} are needed"
        raise Rejected("kafka_replication_unsafe", text, topic=name, replication=fewest)


def _check_configs(admin: AdminClient, settings: KafkaConfig, topic: str, positions: str) -> None:
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in (topic, positions)]
    try:
        found = {
            asked.name: {name: entry.value for name, entry in future.result(settings.wait_s).items()}
            for asked, future in admin.describe_configs(resources, request_timeout=settings.wait_s).items()
        }
    except TimeoutError as error:
        raise unavailable("the topics' settings could not be read in time") from error
    if found[positions]["cleanup.policy"] != "compact":
        raise _unsafe_positions(
            positions, "its cleanup.policy must be compact and nothing else: a position must never go"
        )
    for name, config in found.items():
        if config["compression.type"] != PLAIN["compression.type"]:
            _make_plain(admin, settings, name)
        in_sync = int(config["min.insync.replicas"] or 1)
        if in_sync < IN_SYNC_SAFE and not settings.allow_single_broker:
            text = f"the topic {name} has min.insync.replicas={in_sync}; {IN_SYNC_SAFE} are needed"
            raise Rejected("kafka_replication_unsafe", text, topic=name)


def _make_plain(admin: AdminClient, settings: KafkaConfig, name: str) -> None:
    """Let a topic take no compressed records any more: it was made by an earlier release, or by somebody else."""
    entries = [ConfigEntry(*item, incremental_operation=AlterConfigOpType.SET) for item in PLAIN.items()]
    resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
    (done,) = admin.incremental_alter_configs([resource], request_timeout=settings.wait_s).values()
    try:
        done.result(settings.wait_s)
    except TimeoutError as error:
        raise unavailable(f"the topic {name} could not be altered in time") from error
    except KafkaException as error:
        if error.args[0].code() not in _FORBIDDEN | _NOT_TO_BE:
            raise
        setting = "=".join(*PLAIN.items())
        text = f"the topic {name} takes compressed records, and we may not alter it: set its {setting}"
        raise Rejected("kafka_topic_compressed", text, topic=name) from error
    log.info("topic %s: compression.type=uncompressed", name)


def _unsafe_positions(name: str, problem: str) -> Rejected:
    return Rejected("kafka_position_topic_unsafe", f"the topic {name} is not safe: {problem}", topic=name)


# Whose prefix it is: the first record of a topic that keeps everything, so that Kafka decides who was first.
#
# Everything here blocks and belongs into a thread; every wait is bounded.

OWNER = "installation"
POLL_S = 0.25


def owner(settings: KafkaConfig, installation: str) -> str:
    """Return which installation has the prefix; from now on this one where none had it.

    Raises:
        Rejected: ``kafka_not_allowed``, ``kafka_replication_unsafe``. Permanent.
        Unavailable: ``kafka_unavailable``. Retry.
    """
    topic = settings.topic(OWNER)
    try:
        make_missing(AdminClient(settings.client(), logger=log), settings, {topic: (1, {**NEVER_GONE, **PLAIN})})
        first = _first_record(settings, topic)
        if first is None:
            _write(settings, topic, installation)
            first = _first_record(settings, topic)
    except KafkaException as error:
        raise translate(error) from error
    if first is None:
        raise unavailable(f"the topic {topic} is empty although it was written")
    return first


def _write(settings: KafkaConfig, topic: str, installation: str) -> None:
    errors: list[KafkaError | None] = []
    producer = Producer(settings.producer(), logger=log)
    producer.produce(topic, installation, partition=0, on_delivery=lambda error, _: errors.append(error))
    if producer.flush(settings.wait_s) or errors != [None]:
        raise unavailable(errors[0] if errors else f"the topic {topic} could not be written in time")


def _first_record(settings: KafkaConfig, topic: str) -> str | None:
    config = settings.client(group_id=topic, enable_partition_eof=True, enable_auto_commit=False)
    consumer = Consumer(config, logger=log)
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        deadline = monotonic() + settings.wait_s
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
