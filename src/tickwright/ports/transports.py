"""Transports as ports: a transport provides its queues and topics, and a capability gets them by type."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from tickwright.ports.polls import PollRecord, PollSource, PositionedLog
from tickwright.ports.service import Service
from tickwright.ports.session import Session
from tickwright.ports.task_queue import DeadMessages, TaskQueue


class RunningQueue(TaskQueue, Service, Protocol):
    """The queue of one consumer: a service with metrics."""

    @property
    def queued(self) -> Sequence[int] | None:
        """Counts of unheld messages and of dead letters, as last counted; ``None`` while they cannot be counted."""

    def samples(self) -> Sequence[Any]:
        """Return its :class:`tickwright.observe.metrics.Sample` values."""


class TaskTransport(Protocol):
    """The queue for tasks that a scheduler publishes to ``destination`` and competing consumers take."""

    destination: str

    async def prepare(self) -> None:
        """Create the queue if it is missing.

        Raises:
            Rejected: ``queue_differs``, ``queue_forbidden``. Permanent.
            Unavailable: The transport does not answer. Retry.
        """

    def queue(self, slots: int) -> RunningQueue:
        """Return the queue for one consumer that runs ``slots`` tasks at a time."""

    def dead_letters(self) -> DeadMessages:
        """Return its dead letters."""


class ReportTransport(Protocol):
    """The exchanges that announce stages of reports to listeners.

    ``everyone`` is the destination for all of them; the routing keys of ``exchange`` are the names of listeners.
    """

    everyone: str
    exchange: str

    async def prepare(self, listeners: Sequence[str]) -> None:
        """Create the exchanges and the queues of these listeners. Errors as :meth:`TaskTransport.prepare`."""

    def queue(self, listener: str) -> RunningQueue:
        """Return the queue of one listener."""

    def dead_letters(self) -> DeadMessages:
        """Return dead-lettered announcements."""


class PollLogSource(PollSource, Service, Protocol):
    """Polls from a log: a service with metrics."""

    def samples(self) -> Sequence[Any]:
        """Return its :class:`tickwright.observe.metrics.Sample` values."""


class PollTransport(Protocol):
    """The topic of scheduled polls (its full name), and the destination of tracker events (``kafka:TOPIC``)."""

    topic: str
    events: str

    def log(self) -> PositionedLog | None:
        """Return a log for one shard of the relay; ``None`` if polls wait in the queue in PostgreSQL."""

    def source(self, pool: Any, session: Session, read: Callable[[bytes], PollRecord]) -> PollLogSource | None:
        """Return the source of polls for a consumer; ``None`` if they wait in the queue in PostgreSQL."""
