"""What the parts of this broker have to know of a capability's queues: their names, and what has to be there."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple, Protocol


class Binding(NamedTuple):
    """What comes to an exchange under a key goes to a queue."""

    queue: str
    exchange: str
    key: str


class Gauges(NamedTuple):
    """What a consumer's gauges are called: messages parked in it, messages waiting, and the kind of dead letters."""

    parked: str
    waiting: str
    dead_kind: str


class Topology(Protocol):
    """What has to be there."""

    def exchanges(self) -> Mapping[str, str]:
        """Return every exchange with its type."""
        ...

    def queues(self) -> Mapping[str, Mapping[str, Any]]:
        """Return every queue with its arguments."""
        ...

    def bindings(self) -> Sequence[Binding]:
        """Return what binds them."""
        ...


class QueueNames(Topology, Protocol):
    """A queue that consumers read, its delays and its dead letters."""

    @property
    def capability(self) -> str:
        """Whose messages these are: the first word of log lines and probes."""
        ...

    @property
    def service(self) -> str:
        """What the service is called that reads it."""
        ...

    @property
    def gauges(self) -> Gauges | None:
        """What is shown of it; ``None`` for nothing."""
        ...

    @property
    def queue(self) -> str:
        """What consumers read."""
        ...

    @property
    def key(self) -> str:
        """The routing key of its messages, also of its dead letters."""
        ...

    @property
    def dead(self) -> str:
        """The exchange and the queue of dead letters."""
        ...

    def delay(self, by: timedelta) -> str:
        """Return the queue that a message waits in."""
        ...


class DeadNames(Topology, Protocol):
    """A queue of dead letters, and the way back."""

    @property
    def dead(self) -> str:
        """The exchange and the queue of dead letters."""
        ...

    @property
    def exchange(self) -> str:
        """Where messages are published to be read."""
        ...

    @property
    def key(self) -> str:
        """The routing key of all of them; empty: each has the one that it died under."""
        ...

    def reads(self, queue: str) -> bool:
        """Whether consumers read this queue, so that what died there is a dead letter."""
        ...
