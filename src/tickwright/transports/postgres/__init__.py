"""The transport inside PostgreSQL; README.md has the promise, the outcomes and the limits."""

from tickwright.transports.postgres.broker import PostgresBroker
from tickwright.transports.postgres.consumer import Delivery, PostgresConsumer
from tickwright.transports.postgres.tasks import PostgresDeadTasks, PostgresTasks

__all__ = ["Delivery", "PostgresBroker", "PostgresConsumer", "PostgresDeadTasks", "PostgresTasks"]
