"""Where messages of capabilities go, as ports: a transport provides what it can carry, a capability asks by type."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from tickwright.ports.dead_letters import DeadMessages
from tickwright.ports.log import PositionedLog
from tickwright.ports.polls import PollRecord, PollSource
from tickwright.ports.service import Service
from tickwright.ports.session import Session
from tickwright.ports.task_queue import TaskQueue


class RunningQueue(TaskQueue, Service, Protocol):
    """A queue as one consumer reads it: run as a service, with its figures."""

    @property
    def queued(self) -> Sequence[int] | None:
        """Messages that no consumer holds, and dead letters, as counted last; ``None`` while they cannot be counted."""
        ...

    def samples(self) -> Sequence[Any]:
        """Return its :class:`tickwright.observe.metrics.Sample` values."""
        ...


class TaskTransport(Protocol):
    """The queue of tasks that a scheduler publishes and competing consumers take.

    Attributes:
        destination: Where tasks are published, such as ``amqp:EXCHANGE/KEY``.
    """

    destination: str

    async def prepare(self) -> None:
        """Make the queue where it is missing.

        Raises:
            Rejected: ``queue_differs``, ``queue_forbidden``. Permanent.
            Unavailable: The transport does not answer. Retry.
        """
        ...

    async def missing(self) -> list[str] | None:
        """Return which of its queues do not exist; ``None`` when none does. Errors as :meth:`prepare`."""
        ...

    def queue(self, slots: int) -> RunningQueue:
        """Return the queue as one consumer reads it, ``slots`` tasks at a time."""
        ...

    def dead_letters(self) -> DeadMessages:
        """Return its dead letters."""
        ...


class ReportTransport(Protocol):
    """The exchanges on which stages of reports are announced to listeners.

    Attributes:
        everyone: The destination that reaches every listener, such as ``amqp:tickwright.reports/``.
        exchange: Whose routing keys are the names of listeners.
    """

    everyone: str
    exchange: str

    async def prepare(self, listeners: Sequence[str]) -> None:
        """Make the exchanges and the queues of these listeners. Errors as :meth:`TaskTransport.prepare`."""
        ...

    def queue(self, listener: str) -> RunningQueue:
        """Return the queue of one listener."""
        ...

    def dead_letters(self) -> DeadMessages:
        """Return announcements that were dead-lettered."""
        ...


class PollLogSource(PollSource, Service, Protocol):
    """Polls from a log, read as a service, with its figures for ``/metrics``."""

    def samples(self) -> Sequence[Any]:
        """Return its :class:`tickwright.observe.metrics.Sample` values."""
        ...


class PollTransport(Protocol):
    """The topic that scheduled polls go to, and the destination of tracker events.

    Attributes:
        topic: The full name of the topic.
        events: Such as ``kafka:tickwright.poll-events``.
    """

    topic: str
    events: str

    def log(self) -> PositionedLog | None:
        """Return a log for one shard of the relay; ``None`` where polls wait in the queue inside PostgreSQL."""
        ...

    def source(self, pool: Any, session: Session, read: Callable[[bytes], PollRecord]) -> PollLogSource | None:
        """Return where a consumer reads polls; ``None`` where they wait in the queue inside PostgreSQL."""
        ...
