"""The plugin of the transport inside PostgreSQL."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tickwright.plugin import Context, Plugin
from tickwright.plugin.lazy_broker import LazyBroker
from tickwright.ports.broker import Broker
from tickwright.ports.transports import TaskTransport

if TYPE_CHECKING:
    from tickwright.ports.session import Session
    from tickwright.store.pool import Pool
    from tickwright.transports.postgres.broker import PostgresDeadLetters, PostgresTaskQueue


class PostgresTaskTransport:
    """A :class:`tickwright.ports.transports.TaskTransport` inside PostgreSQL."""

    def __init__(self, pool: "Pool", topic: str, session: "Callable[[], Session]") -> None:
        self._pool, self._topic, self._session = pool, topic, session
        self.destination = f"pg:{topic}"

    async def prepare(self) -> None:
        """Do nothing: a topic inside PostgreSQL always exists."""

    def queue(self, slots: int) -> "PostgresTaskQueue":
        """Return the queue for one consumer."""
        from tickwright.transports.postgres.broker import PostgresTaskQueue

        return PostgresTaskQueue(self._pool, self._topic, slots=slots, session=self._session())

    def dead_letters(self) -> "PostgresDeadLetters":
        """Return the queue's dead letters."""
        from tickwright.transports.postgres.broker import PostgresDeadLetters

        return PostgresDeadLetters(self._pool, self._topic)


class PostgresPlugin(Plugin):
    """Delivers to ``pg:`` destinations, and provides the task queue if no broker does."""

    name = "postgres"

    def provide(self, context: Context) -> None:
        """Offer the task queue, under the name that it has in RabbitMQ."""
        prefix = context.settings.amqp_prefix

        def session() -> "Session":
            from tickwright.engine.session import WorkerSession

            return context.ports.get(WorkerSession)

        topic = f"{prefix}.fanout"
        context.ports.offer(TaskTransport, lambda: PostgresTaskTransport(context.pool, topic, session))

    def brokers(self, context: Context) -> Sequence[Broker]:
        """Return the broker of ``pg:`` destinations."""

        def broker() -> Broker:
            from tickwright.transports.postgres.broker import PostgresBroker

            return PostgresBroker(context.pool)

        return (LazyBroker(frozenset({"pg"}), broker),)


PLUGIN = PostgresPlugin()
