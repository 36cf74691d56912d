"""The relay of polls: moves released polls from the outbox to Kafka, each exactly once."""
