"""The plugin of Kafka."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from pydantic import Field, SecretStr

from tickwright.plugin import Context, Ownership, Plugin, Settings, SettingsPart
from tickwright.plugin.findings import Finding, server_finding
from tickwright.plugin.settings import NAME_PATTERN, text
from tickwright.ports.broker import Broker
from tickwright.ports.polls import PollRecord, PositionedLog
from tickwright.ports.session import Session
from tickwright.ports.transports import PollLogSource, PollTransport

if TYPE_CHECKING:
    from tickwright.transports.kafka.config import KafkaConfig

OWNERSHIP_WAIT_S = 3.0
"""How long a start waits for a Kafka that does not answer."""


def parse_options(value: str) -> dict[str, str]:
    """Parse a JSON object of strings. Raises ``ValueError`` without the value, which can hold a password: permanent."""
    try:
        return msgspec.json.decode(value, type=dict[str, str])
    except msgspec.MsgspecError:
        raise ValueError('write a JSON object of texts, such as {"security.protocol": "SSL"}') from None


class KafkaSettings(SettingsPart):
    """Where Kafka is.

    Attributes:
        kafka_bootstrap: Kafka, ``HOST:PORT`` with commas. Without it ``kafka:`` destinations wait, and polls use the
            queue inside PostgreSQL.
        kafka_prefix: Of our topics and transactional ids; two installations on one Kafka need two.
        kafka_replication: Replicas of our topics, 1 to 9; fewer than 3 only with ``kafka_allow_single_broker``.
        kafka_allow_single_broker: Accept a Kafka with fewer than three replicas, even one broker: for a laptop.
        kafka_partitions: Of the polls' topic when it is created, 1 to 1,000.
        kafka_options: A JSON object of connection options (``security. sasl. ssl. socket.``).
    """

    kafka_bootstrap: str | None = None
    kafka_prefix: Annotated[str, Field(pattern=NAME_PATTERN)] = "tickwright"
    kafka_replication: Annotated[int, Field(ge=1, le=9)] = 3
    kafka_allow_single_broker: bool = False
    kafka_partitions: Annotated[int, Field(ge=1, le=1000)] = 12
    kafka_options: Annotated[SecretStr, text(parse_options, keep=True)] = SecretStr("{}")


def kafka_config(settings: Settings) -> "KafkaConfig | None":
    """Return how this process connects to Kafka; ``None`` if Kafka is not configured.

    Raises:
        Rejected: ``kafka_unsafe_option``, ``kafka_replication_unsafe``. Permanent.
    """
    mine = settings.part(KafkaSettings)
    if mine.kafka_bootstrap is None:
        return None
    from tickwright.transports.kafka.config import KafkaConfig

    config = KafkaConfig(
        mine.kafka_bootstrap,
        mine.kafka_prefix,
        replication=mine.kafka_replication,
        allow_single_broker=mine.kafka_allow_single_broker,
        partitions=mine.kafka_partitions,
        options=parse_options(mine.kafka_options.get_secret_value()),
    )
    config.check()
    return config


class KafkaPolls:
    """A :class:`tickwright.ports.transports.PollTransport` on Kafka. Without Kafka it has the names for PostgreSQL."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        mine = settings.part(KafkaSettings)
        self.topic = f"{mine.kafka_prefix}.polls"
        scheme = "pg" if mine.kafka_bootstrap is None else "kafka"
        self.events = f"{scheme}:{mine.kafka_prefix}.poll-events"

    def log(self) -> PositionedLog | None:
        """Return a log for one shard of the relay; ``None`` if Kafka is not configured."""
        config = kafka_config(self._settings)
        if config is None:
            return None
        from tickwright.transports.kafka.transactions import KafkaLog

        return KafkaLog(config, self.topic)

    def source(self, pool: Any, session: Session, read: Callable[[bytes], PollRecord]) -> PollLogSource | None:
        """Return the source from which a consumer reads polls; ``None`` if Kafka is not configured."""
        config = kafka_config(self._settings)
        if config is None:
            return None
        from tickwright.transports.kafka.poll_source import KafkaPollSource

        return KafkaPollSource(pool, session, config, self.topic, read)


class KafkaPlugin(Plugin):
    """Delivers to ``kafka:`` destinations, and provides the topic of polls."""

    name = "kafka"
    settings = KafkaSettings

    def provide(self, context: Context) -> None:
        """Offer the topic of polls."""
        context.ports.offer(PollTransport, lambda: KafkaPolls(context.settings))

    def brokers(self, context: Context) -> Sequence[Broker]:
        """Return the broker, if Kafka is configured."""
        config = kafka_config(context.settings)
        if config is None:
            return ()
        from tickwright.transports.kafka.broker import KafkaBroker

        return (KafkaBroker(config),)

    def reserved_prefixes(self, settings: Settings) -> Sequence[str]:
        """Return the prefix of our topics."""
        return (settings.part(KafkaSettings).kafka_prefix,)

    def ownerships(self, context: Context) -> Sequence[Ownership]:
        """Return the ownership of the prefix of topics and transactional ids."""
        mine = context.settings.part(KafkaSettings)
        if mine.kafka_bootstrap is None:
            return ()

        async def claim(installation: str) -> str:
            from tickwright.transports.kafka.topics import claim_prefix

            config = kafka_config(context.settings)
            if config is None:
                return installation
            return await asyncio.to_thread(claim_prefix, replace(config, wait_s=OWNERSHIP_WAIT_S), installation)

        return (
            Ownership(
                place="Kafka",
                roles=frozenset({"relay", "poll-consumer"}),
                prefix=mine.kafka_prefix,
                setting="TICKWRIGHT_KAFKA_PREFIX",
                mark=f"the topic {mine.kafka_prefix}.installation",
                claim=claim,
            ),
        )

    async def examine(self, context: Context, alive: Mapping[str, int]) -> Sequence[Finding]:
        """Return whether Kafka answers, if it is configured."""
        brokers = self.brokers(context)
        return [await server_finding(broker, self.name, "TICKWRIGHT_KAFKA_BOOTSTRAP") for broker in brokers]


PLUGIN = KafkaPlugin()
