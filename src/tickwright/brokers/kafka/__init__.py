"""Kafka: topics as destinations, and the log that polls reach exactly once; see README.md."""

from tickwright.brokers.kafka.broker import KafkaBroker
from tickwright.brokers.kafka.owner import owner
from tickwright.brokers.kafka.poll_source import KafkaPollSource
from tickwright.brokers.kafka.terms import KafkaTerms
from tickwright.brokers.kafka.transactions import KafkaLog

__all__ = ["KafkaBroker", "KafkaLog", "KafkaPollSource", "KafkaTerms", "owner"]
