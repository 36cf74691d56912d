"""Kafka: topics as destinations, and the log that polls reach exactly once; see README.md."""

from tickwright.transports.kafka.broker import KafkaBroker
from tickwright.transports.kafka.config import KafkaSettings
from tickwright.transports.kafka.poll_source import KafkaPollSource
from tickwright.transports.kafka.topics import owner
from tickwright.transports.kafka.transactions import KafkaLog

__all__ = ["KafkaBroker", "KafkaLog", "KafkaPollSource", "KafkaSettings", "owner"]
