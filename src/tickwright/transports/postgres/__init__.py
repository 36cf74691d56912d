"""The transport inside PostgreSQL; README.md has the promise, the outcomes and the limits."""

from tickwright.transports.postgres.broker import Delivery, PostgresBroker, PostgresConsumer
from tickwright.transports.postgres.tasks import PostgresDeadLetters, PostgresTaskQueue

__all__ = ["Delivery", "PostgresBroker", "PostgresConsumer", "PostgresDeadLetters", "PostgresTaskQueue"]
