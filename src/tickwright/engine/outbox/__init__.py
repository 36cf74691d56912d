"""The outbox: its table, its relay, and dead letters that brokers keep."""
