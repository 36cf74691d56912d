"""Kafka: topics as destinations, and the log that polls reach exactly once; see README.md."""
