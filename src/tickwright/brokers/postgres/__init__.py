"""The transport inside PostgreSQL; README.md has the promise, the outcomes and the limits."""

from tickwright.brokers.postgres.broker import PostgresBroker
from tickwright.brokers.postgres.consumer import Delivery, PostgresConsumer
from tickwright.brokers.postgres.tasks import PostgresDeadTasks, PostgresTasks

__all__ = ["Delivery", "PostgresBroker", "PostgresConsumer", "PostgresDeadTasks", "PostgresTasks"]
