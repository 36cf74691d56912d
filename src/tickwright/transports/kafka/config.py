"""Settings of a Kafka connection: address, names, and the options that users must not change.

Exactly-once delivery depends on what this module fixes: idempotence, acknowledgement by all replicas, the transactional
id, three replicas. Users can set options for transport and authentication (TLS, SASL). Any other option is refused
before anything is sent.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from tickwright.domain.errors import Rejected, TickwrightError, Unavailable

REPLICATION_SAFE = 3
SHARDS_MAX = 16
TRANSACTION_TIMEOUT_MS = 15_000
"""Kafka aborts an open transaction after this time. Until then the transaction blocks readers of committed records."""
BATCH_BYTES = 65_536
"""The library's default is 1 MB. A topic with a lower limit refuses a whole batch, even if its records are small."""

_ALLOWED = ("security.", "sasl.", "ssl.", "socket.", "https.ca.")
_ALLOWED_NAMES = frozenset({"client.rack", "broker.address.family", "api.version.request"})
_NOTHING: Mapping[str, str] = MappingProxyType({})

log = logging.getLogger("tickwright.kafka")
"""Log of the client library, which otherwise writes to standard error."""


@dataclass(frozen=True, slots=True)
class KafkaConfig:
    """One Kafka cluster, and the names that Tickwright uses in it.

    Attributes:
        bootstrap: ``HOST:PORT``, several with commas.
        prefix: Of topics and transactional ids; two installations on one Kafka need two.
        replication: Replicas of new topics, and the minimum for existing ones.
        allow_single_broker: Accept fewer than three replicas, for a laptop: records then depend on one disk.
        partitions: Of the polls' topic when it is created. 1 to 1,000.
        options: For the connection: names that start with ``security.``, ``sasl.``, ``ssl.``, ``socket.``.
        wait_s: Bound of one operation: a commit, an answer of the coordinator, reading the position.
    """

    bootstrap: str
    prefix: str = "tickwright"
    replication: int = REPLICATION_SAFE
    allow_single_broker: bool = False
    partitions: int = 12
    options: Mapping[str, str] = field(default_factory=lambda: _NOTHING, repr=False)
    wait_s: float = 14.0

    def check_options(self) -> None:
        """Refuse an option that can break a promise. Raises ``Rejected`` (``kafka_unsafe_option``): permanent."""
        for name in self.options:
            if not name.startswith(_ALLOWED) and name not in _ALLOWED_NAMES:
                text = f"the Kafka option {name!r} cannot be set: Tickwright's promises depend on it"
                raise Rejected("kafka_unsafe_option", text, option=name)

    def check(self) -> None:
        """Refuse settings that break exactly-once delivery.

        Raises:
            Rejected: ``kafka_unsafe_option``, ``kafka_replication_unsafe``. Permanent.
        """
        self.check_options()
        if self.replication < REPLICATION_SAFE and not self.allow_single_broker:
            text = (
                f"{self.replication} replicas lose acknowledged records with a broker; use {REPLICATION_SAFE}, "
                "or set TICKWRIGHT_KAFKA_ALLOW_SINGLE_BROKER=true for a test system"
            )
            raise Rejected("kafka_replication_unsafe", text, replication=self.replication)

    def topic(self, name: str) -> str:
        """Return the full name of one of our topics."""
        return f"{self.prefix}.{name}"

    def transactional_id(self, shard: int) -> str:
        """Return the fixed transactional id of a shard's relay. A new owner uses it to fence the previous one."""
        return f"{self.prefix}.relay.{shard}"

    def client(self, **more: Any) -> dict[str, Any]:
        """Return the configuration of a client."""
        ours = {name.replace("_", "."): value for name, value in more.items()}
        return {
            **self.options,
            "bootstrap.servers": self.bootstrap,
            "client.id": self.prefix,
            "reconnect.backoff.max.ms": 2000,
            **ours,
        }

    def producer(self, **more: Any) -> dict[str, Any]:
        """Return the configuration of an idempotent producer that waits for all replicas.

        It uses the partitioner of Kafka's own clients, so that every writer maps a key to the same partition.
        """
        fixed = {"enable_idempotence": True, "acks": "all", "linger_ms": 5, "partitioner": "murmur2_random"}
        return {"compression.type": "lz4", **self.client(**fixed, batch_size=BATCH_BYTES, **more)}


def unavailable(error: object) -> TickwrightError:
    """Return the error of a Kafka that does not answer. Retry."""
    return Unavailable("kafka_unavailable", f"Kafka does not answer: {error}")
