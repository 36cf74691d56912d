"""Which broker carries which scheme, by what the settings name.

Brokers are imported where one is needed: a command that only looks at jobs needs none of their clients.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING

from tickwright.domain.errors import Rejected
from tickwright.domain.targets import OUR_PREFIX, is_internal, parse_target
from tickwright.ports.broker import Broker
from tickwright.ports.session import Session
from tickwright.process.settings import Settings, parse_options
from tickwright.store.pool import Pool

if TYPE_CHECKING:
    from tickwright.ports.dead_letters import DeadMessages
    from tickwright.transports.http import HttpBroker
    from tickwright.transports.kafka import KafkaLog, KafkaPollSource, KafkaSettings
    from tickwright.transports.rabbitmq import FanoutNames
    from tickwright.transports.websocket import WebSocketBroker

POLLS = "polls"
POLL_EVENTS = "poll-events"


def build_brokers(settings: Settings, pool: Pool) -> dict[str, Broker]:
    """Return a broker per scheme. A scheme without a server is missing, and what goes there waits."""
    from tickwright.transports.http import HttpBroker, ReceiverBroker
    from tickwright.transports.postgres import PostgresBroker
    from tickwright.transports.rabbitmq import RabbitBroker
    from tickwright.transports.websocket import WebSocketBroker

    callbacks = HttpBroker(allow=settings.targets)
    brokers: list[Broker] = [
        callbacks,
        ReceiverBroker(callbacks, pool),
        WebSocketBroker(allow=settings.targets),
        PostgresBroker(pool),
    ]
    if settings.amqp_url is not None:
        brokers.append(RabbitBroker(settings.amqp_url.get_secret_value()))
    if (kafka := kafka_terms(settings)) is not None:
        from tickwright.transports.kafka import KafkaBroker

        brokers.append(KafkaBroker(kafka))
    return {scheme: broker for broker in brokers for scheme in broker.schemes}


def fanout_names(settings: Settings) -> "FanoutNames":
    """Return what fan-out's exchanges and queues are called in RabbitMQ."""
    from tickwright.transports.rabbitmq import FanoutNames

    return FanoutNames(settings.amqp_prefix)


def fanout_topic(settings: Settings) -> str:
    """Return what fan-out's queue is called inside PostgreSQL: as in RabbitMQ, whose client is not needed for it."""
    return f"{settings.amqp_prefix}.fanout"


def dead_tasks(settings: Settings, pool: Pool) -> "DeadMessages":
    """Return the dead letters of fan-out, which are where its queue is: in RabbitMQ, or in PostgreSQL without one."""
    if settings.amqp_url is None:
        from tickwright.transports.postgres import PostgresDeadLetters

        return PostgresDeadLetters(pool, fanout_topic(settings))
    from tickwright.transports.rabbitmq import RabbitDeadLetters

    return RabbitDeadLetters(settings.amqp_url.get_secret_value(), fanout_names(settings))


def dead_calls(settings: Settings) -> "DeadMessages | None":
    """Return the dead letters of reports' calls; ``None`` without RabbitMQ, where nobody is called."""
    if settings.amqp_url is None:
        return None
    from tickwright.transports.rabbitmq import RabbitDeadLetters, ReportExchanges

    return RabbitDeadLetters(settings.amqp_url.get_secret_value(), ReportExchanges(settings.amqp_prefix))


def kafka_terms(settings: Settings) -> "KafkaSettings | None":
    """Return where Kafka is and what we are called there; ``None`` without one.

    Raises:
        Rejected: ``kafka_unsafe_option``, ``kafka_replication_unsafe``. Permanent.
    """
    if settings.kafka_bootstrap is None:
        return None
    from tickwright.transports.kafka import KafkaSettings

    terms = KafkaSettings(
        settings.kafka_bootstrap,
        settings.kafka_prefix,
        replication=settings.kafka_replication,
        allow_single_broker=settings.kafka_allow_single_broker,
        partitions=settings.kafka_partitions,
        options=parse_options(settings.kafka_options.get_secret_value()),
    )
    terms.check()
    return terms


def polls_topic(settings: Settings) -> str:
    """Return the full name of the topic that polls go to."""
    return f"{settings.kafka_prefix}.{POLLS}"


def poll_events(settings: Settings) -> str:
    """Return where news of trackers go: to Kafka where one is named, else to the topic inside PostgreSQL."""
    scheme = "pg" if settings.kafka_bootstrap is None else "kafka"
    return f"{scheme}:{settings.kafka_prefix}.{POLL_EVENTS}"


def poll_log(settings: Settings) -> "KafkaLog | None":
    """Return the log that one shard's polls go to; ``None`` for the queue inside PostgreSQL."""
    terms = kafka_terms(settings)
    if terms is None:
        return None
    from tickwright.transports.kafka import KafkaLog

    return KafkaLog(terms, polls_topic(settings))


def poll_source(settings: Settings, pool: Pool, session: Session) -> "KafkaPollSource | None":
    """Return where a consumer finds polls in Kafka; ``None`` for the queue inside PostgreSQL."""
    terms = kafka_terms(settings)
    if terms is None:
        return None
    from tickwright.capabilities.polling.relay.messages import read_poll
    from tickwright.transports.kafka import KafkaPollSource

    return KafkaPollSource(pool, session, terms, polls_topic(settings), read_poll)


async def close_brokers(brokers: Mapping[str, Broker]) -> None:
    """Release every broker's connections, once each."""
    for broker in {id(broker): broker for broker in brokers.values()}.values():
        await broker.aclose()


def target_check(settings: Settings) -> Callable[[str], None]:
    """Return what refuses, when it is set, a target that could never be sent to, or is ours alone. No I/O."""

    @cache
    def brokers() -> tuple["HttpBroker", "WebSocketBroker"]:
        from tickwright.transports.http import HttpBroker
        from tickwright.transports.websocket import WebSocketBroker

        return HttpBroker(allow=settings.targets), WebSocketBroker(allow=settings.targets)

    def check(target: str) -> None:
        parsed = parse_target(target)
        if is_internal(parsed, {OUR_PREFIX, settings.amqp_prefix, settings.kafka_prefix}):
            text = f"only Tickwright itself sends to {target}; use an exchange, a queue or a topic without its prefix"
            raise Rejected("destination_reserved", text, field="target")
        scheme = parsed.scheme
        for broker in brokers():
            if scheme in broker.schemes:
                broker.check(target)

    return check
