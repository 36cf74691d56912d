"""The Kafka of a bench: names of its own there, and nothing of it left, there and in the database."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

from confluent_kafka.admin import AdminClient

from tickwright.bench.ground import Ground
from tickwright.transports.kafka.config import KafkaConfig

TIMEOUT_S = 10.0
_numbers = count(1)


@contextmanager
def borrowed_kafka(ground: Ground, bootstrap: str) -> Iterator[KafkaConfig]:
    """Lend unused names on a Kafka; remove their topics, and delete what relays recorded of them."""
    prefix = f"tickwright-bench-{os.getpid()}-{next(_numbers)}"
    try:
        yield KafkaConfig(bootstrap, prefix=prefix, replication=1, allow_single_broker=True)
    finally:
        ground.stop()
        _remove_topics(bootstrap, prefix)
        ground.run("TRUNCATE tickwright.poll_relays, tickwright.poll_partitions")


def kafka_environment(terms: KafkaConfig) -> dict[str, str]:
    """Return the settings of a process whose polls go through Kafka."""
    return {
        "TICKWRIGHT_KAFKA_BOOTSTRAP": terms.bootstrap,
        "TICKWRIGHT_KAFKA_PREFIX": terms.prefix,
        "TICKWRIGHT_KAFKA_REPLICATION": str(terms.replication),
        "TICKWRIGHT_KAFKA_ALLOW_SINGLE_BROKER": "true",
    }


def _remove_topics(bootstrap: str, prefix: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    ours = [name for name in admin.list_topics(timeout=TIMEOUT_S).topics if name.startswith(f"{prefix}.")]
    for gone in admin.delete_topics(ours).values() if ours else ():
        gone.result(TIMEOUT_S)
