"""Kafka: topics as destinations, and the log through which polls take effect exactly once; see README.md."""
