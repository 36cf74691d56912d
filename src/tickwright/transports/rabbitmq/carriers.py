"""The queues of capabilities in RabbitMQ, as the ports that capabilities use."""

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
        """Declare the exchange and the queues if they are missing."""
        await prepare(self._url, self._names)

    async def missing(self) -> list[str] | None:
        """Return the missing queues; ``None`` if all are missing."""
        missing = await examine(self._url, self._names)
        return None if len(missing) == len(self._names.queues()) else missing

    def queue(self, slots: int) -> RabbitTaskQueue:
        """Return the queue for one consumer."""
        return RabbitTaskQueue(self._url, self._names, slots=slots)

    def dead_letters(self) -> RabbitDeadLetters:
        """Return the queue's dead letters."""
        return RabbitDeadLetters(self._url, self._names)


class RabbitReportTransport:
    """A :class:`tickwright.ports.transports.ReportTransport`; a listener holds ``slots`` announcements at one time."""

    def __init__(self, url: str, prefix: str, *, slots: int) -> None:
        self._url, self._prefix, self._slots = url, prefix, slots
        self._names = ReportExchanges(prefix)
        self.everyone, self.exchange = f"amqp:{self._names.broadcast}/", self._names.exchange

    async def prepare(self, listeners: Sequence[str]) -> None:
        """Declare the exchanges and the queues of these listeners."""
        await prepare(self._url, self._names, *(ReportNames(self._prefix, name) for name in listeners))

    def queue(self, listener: str) -> RabbitTaskQueue:
        """Return the queue of one listener."""
        return RabbitTaskQueue(self._url, ReportNames(self._prefix, listener), slots=self._slots)

    def dead_letters(self) -> RabbitDeadLetters:
        """Return the dead letters of announcements."""
        return RabbitDeadLetters(self._url, self._names)
