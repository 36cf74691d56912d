"""Topics: created if missing, refused if unsafe; and the installation that owns a prefix.

All functions block, with bounded waits: call them in a thread.
"""

from collections.abc import Collection, Mapping
from concurrent.futures import Future
from threading import Event
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from tickwright.domain.errors import Rejected, TickwrightError
from tickwright.ports.ids import monotonic
from tickwright.transports.kafka.config import REPLICATION_SAFE, SHARDS_MAX, KafkaConfig, log, unavailable

T = TypeVar("T")
IN_SYNC_SAFE = 2
CHECK_EVERY_S = 0.05
POSITIONS = "relay-position"
EVENTS = "poll-events"
_BROKERS_CLOCK = {"message.timestamp.type": "LogAppendTime"}
"""Records carry the broker's clock: ours can be wrong by hours, and the broker would refuse such records."""

KEPT_FOREVER = {"retention.ms": "-1", "retention.bytes": "-1"}
UNCOMPRESSED = {"compression.type": "uncompressed"}
"""For topics that we read: the broker's size limit then holds for unpacked records.

A compressed record of 4 KB can unpack to 120 MB and fail each time.
"""

_POSITION_CONFIG = {**KEPT_FOREVER, **UNCOMPRESSED, "cleanup.policy": "compact", "segment.ms": "3600000"}


def prepare_topics(settings: KafkaConfig, topic: str) -> int:
    """Create and check the topics of polls, poll events and positions; return the number of partitions of ``topic``.

    Raises:
        Rejected: ``kafka_replication_unsafe``, ``kafka_position_topic_unsafe``, ``kafka_topic_compressed``,
            ``kafka_not_allowed``. Permanent.
        Unavailable: Kafka does not answer. Retry.
    """
    admin = AdminClient(settings.client(), logger=log)
    try:
        positions = settings.topic(POSITIONS)
        wanted = {
            topic: (settings.partitions, UNCOMPRESSED),
            settings.topic(EVENTS): (settings.partitions, {}),
            positions: (SHARDS_MAX, _POSITION_CONFIG),
        }
        metadata = make_missing(admin, settings, wanted)
        if not settings.allow_single_broker:
            for name in wanted:
                replicas = min(
                    (len(partition.replicas) for partition in metadata.topics[name].partitions.values()), default=0
                )
                if replicas < REPLICATION_SAFE:
                    text = f"the topic {name} has a partition with {replicas} replicas; {REPLICATION_SAFE} are needed"
                    raise Rejected("kafka_replication_unsafe", text, topic=name, replication=replicas)
        _check_configs(admin, settings, topic, positions)
        if len(metadata.topics[positions].partitions) < SHARDS_MAX:
            raise _unsafe_positions(positions, f"it needs {SHARDS_MAX} partitions, one for each shard")
        return len(metadata.topics[topic].partitions)
    except KafkaException as error:
        raise translate(error) from error


def make_missing(admin: AdminClient, settings: KafkaConfig, wanted: Mapping[str, tuple[int, Mapping[str, str]]]) -> Any:
    """Create the missing topics, by name with partitions and configuration; return the cluster's metadata.

    Raises:
        KafkaException: The brokers refuse. See :func:`translate`.
        Unavailable: Kafka does not answer in time. Retry.
    """
    metadata = admin.list_topics(timeout=settings.wait_s)
    missing = {name: shape for name, shape in wanted.items() if name not in metadata.topics}
    if not missing:
        return metadata
    replicas = (
        min(settings.replication, len(metadata.brokers)) if settings.allow_single_broker else settings.replication
    )
    _make(admin, settings, missing, replicas)
    return _await_topics(admin, settings, missing)


def translate(error: KafkaException) -> TickwrightError:
    """Return our error for an error of the client library."""
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
_DISALLOWED = frozenset({KafkaError.POLICY_VIOLATION, KafkaError.INVALID_CONFIG})
"""Errors for a setting that the operator of the brokers forbids."""


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
            _result(future, settings, "topics could not be made in time")
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
        log.info("topic %s is made: %d replicas", name, replicas)


def _result(future: Future[T], settings: KafkaConfig, late: str) -> T:
    try:
        return future.result(settings.wait_s)
    except TimeoutError as error:
        raise unavailable(late) from error


def _await_topics(admin: AdminClient, settings: KafkaConfig, names: Collection[str]) -> Any:
    """Return the cluster's metadata once it contains the new topics."""
    deadline = monotonic() + settings.wait_s
    while True:
        metadata = admin.list_topics(timeout=settings.wait_s)
        if all(name in metadata.topics and metadata.topics[name].partitions for name in names):
            return metadata
        if monotonic() > deadline:
            raise unavailable("new topics did not become known in time")
        Event().wait(CHECK_EVERY_S)


def _check_configs(admin: AdminClient, settings: KafkaConfig, topic: str, positions: str) -> None:
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in (topic, positions)]
    late = "the topics' settings could not be read in time"
    found = {
        resource.name: {name: entry.value for name, entry in _result(future, settings, late).items()}
        for resource, future in admin.describe_configs(resources, request_timeout=settings.wait_s).items()
    }
    if found[positions]["cleanup.policy"] != "compact":
        raise _unsafe_positions(
            positions, "its cleanup.policy must be compact and nothing else, or a position could be deleted"
        )
    for name, config in found.items():
        if config["compression.type"] != UNCOMPRESSED["compression.type"]:
            _disable_compression(admin, settings, name)
        in_sync = int(config["min.insync.replicas"] or 1)
        if in_sync < IN_SYNC_SAFE and not settings.allow_single_broker:
            text = f"the topic {name} has min.insync.replicas={in_sync}; {IN_SYNC_SAFE} are needed"
            raise Rejected("kafka_replication_unsafe", text, topic=name)


def _disable_compression(admin: AdminClient, settings: KafkaConfig, name: str) -> None:
    """Forbid compressed records in an existing topic."""
    entries = [ConfigEntry(*item, incremental_operation=AlterConfigOpType.SET) for item in UNCOMPRESSED.items()]
    resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
    (done,) = admin.incremental_alter_configs([resource], request_timeout=settings.wait_s).values()
    try:
        _result(done, settings, f"the topic {name} could not be altered in time")
    except KafkaException as error:
        if error.args[0].code() not in _FORBIDDEN | _DISALLOWED:
            raise
        setting = "=".join(*UNCOMPRESSED.items())
        text = f"the topic {name} takes compressed records, and we may not alter it: set its {setting}"
        raise Rejected("kafka_topic_compressed", text, topic=name) from error
    log.info("topic %s: compression.type=uncompressed", name)


def _unsafe_positions(name: str, problem: str) -> Rejected:
    return Rejected("kafka_position_topic_unsafe", f"the topic {name} is not safe: {problem}", topic=name)


# Ownership of a prefix: the first record of a topic with unlimited retention, so that Kafka decides which was first.

OWNER = "installation"
POLL_S = 0.25


def claim_prefix(settings: KafkaConfig, installation: str) -> str:
    """Claim the prefix for ``installation`` unless another one owns it; return its owner.

    Raises:
        Rejected: ``kafka_not_allowed``, ``kafka_replication_unsafe``. Permanent.
        Unavailable: ``kafka_unavailable``. Retry.
    """
    topic = settings.topic(OWNER)
    try:
        make_missing(
            AdminClient(settings.client(), logger=log), settings, {topic: (1, {**KEPT_FOREVER, **UNCOMPRESSED})}
        )
        first = _first_record(settings, topic)
        if first is None:
            _write(settings, topic, installation)
            first = _first_record(settings, topic)
    except KafkaException as error:
        raise translate(error) from error
    if first is None:
        raise unavailable(f"the topic {topic} is empty although a record was written")
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
