"""The queues of capabilities in RabbitMQ, as the ports that capabilities ask for."""

from collections.abc import Sequence

from tickwright.transports.rabbitmq.dead_letters import RabbitDeadLetters
from tickwright.transports.rabbitmq.tasks import RabbitTaskQueue
from tickwright.transports.rabbitmq.topology import (
    TASK_KEY,
    FanoutNames,
    ReportExchanges,
    ReportNames,
    examine,
    prepare,
)


class RabbitTaskTransport:
    """A :class:`tickwright.ports.transports.TaskTransport`."""

    def __init__(self, url: str, prefix: str) -> None:
        self._url, self._names = url, FanoutNames(prefix)
        self.destination = f"amqp:{self._names.exchange}/{TASK_KEY}"

    async def prepare(self) -> None:
        """Make the exchange and the queues where they are missing."""
        await prepare(self._url, self._names)

    async def missing(self) -> list[str] | None:
        """Return which queues do not exist; ``None`` when none does."""
        missing = await examine(self._url, self._names)
        return None if len(missing) == len(self._names.queues()) else missing

    def queue(self, slots: int) -> RabbitTaskQueue:
        """Return the queue as one consumer reads it."""
        return RabbitTaskQueue(self._url, self._names, slots=slots)

    def dead_letters(self) -> RabbitDeadLetters:
        """Return its dead letters."""
        return RabbitDeadLetters(self._url, self._names)


class RabbitReportTransport:
    """A :class:`tickwright.ports.transports.ReportTransport`.

    Args:
        slots: Announcements that one listener takes at a time.
    """

    def __init__(self, url: str, prefix: str, *, slots: int) -> None:
        self._url, self._prefix, self._slots = url, prefix, slots
        self._names = ReportExchanges(prefix)
        self.everyone, self.exchange = f"amqp:{self._names.broadcast}/", self._names.exchange

    async def prepare(self, listeners: Sequence[str]) -> None:
        """Make the exchanges and the queues of these listeners."""
        await prepare(self._url, self._names, *(ReportNames(self._prefix, name) for name in listeners))

    def queue(self, listener: str) -> RabbitTaskQueue:
        """Return the queue of one listener."""
        return RabbitTaskQueue(self._url, ReportNames(self._prefix, listener), slots=self._slots)

    def dead_letters(self) -> RabbitDeadLetters:
        """Return announcements that were dead-lettered."""
        return RabbitDeadLetters(self._url, self._names)
