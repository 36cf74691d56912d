"""The exchanges and queues of reports: everybody hears of a report, or one listener alone.

::

    tickwright.reports ──everybody─────┐
                                       ▼
    tickwright.reports.listeners ──▶ tickwright.reports.<listener> ──limit, rejected, old──▶ tickwright.reports.dead
        ▲                     its name    │ delay(): a copy, confirmed
        │                                 ▼
        └──after 10 s── tickwright.reports.<listener>.delay.10s

The record in PostgreSQL says what is expected of whom; a message only says so sooner. So a queue that nobody reads may
forget: a message lives for a day, while what is missing is announced again at least once in an hour. Dead letters live
for a week, and the oldest make room for the ten thousandth. All are quorum queues, and moves are at least once.
"""

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar

from tickwright.domain.errors import Rejected
from tickwright.transports.rabbitmq.queue_names import Binding
from tickwright.transports.rabbitmq.topology import AT_LEAST_ONCE, NEVER, REDELIVERIES_MAX

DELAY_S = 10
MESSAGE_LIFE = timedelta(days=1)
DEAD_LIFE = timedelta(days=7)
DEAD_MAX = 10_000

_LISTENER = re.compile(r"[A-Za-z0-9_]{1,50}", re.ASCII)


@dataclass(frozen=True, slots=True)
class ReportExchanges:
    """What all listeners share.

    Attributes:
        prefix: 1 to 100 characters; two installations on one RabbitMQ need two.
    """

    prefix: str = "tickwright"
    key: ClassVar[str] = ""

    @property
    def everybody(self) -> str:
        """Where the beginning of a stage is published, under an empty key."""
        return f"{self.prefix}.reports"

    @property
    def exchange(self) -> str:
        """Where one listener is told again, under its name."""
        return f"{self.prefix}.reports.listeners"

    @property
    def dead(self) -> str:
        """The exchange and the queue of dead letters."""
        return f"{self.prefix}.reports.dead"

    def exchanges(self) -> dict[str, str]:
        """Return the three exchanges."""
        return {self.dead: "fanout", self.everybody: "fanout", self.exchange: "direct"}

    def queues(self) -> dict[str, dict[str, Any]]:
        """Return the queue of dead letters."""
        bounds = {"x-message-ttl": _ms(DEAD_LIFE), "x-max-length": DEAD_MAX}
        return {self.dead: {"x-queue-type": "quorum", "x-delivery-limit": NEVER, **bounds}}

    def bindings(self) -> list[Binding]:
        """Return its binding, which takes letters under every key."""
        return [Binding(self.dead, self.dead, "")]

    def reads(self, queue: str) -> bool:
        """Whether it is a listener's queue."""
        name = queue.removeprefix(f"{self.everybody}.")
        return queue not in {name, self.dead} and _LISTENER.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class ReportNames:
    """One listener's queue, in the words of :class:`~tickwright.transports.rabbitmq.topology.QueueNames`.

    Attributes:
        prefix: See :class:`ReportExchanges`.
        listener: 1 to 50 letters, digits or ``_``, and not ``dead``.

    Raises:
        Rejected: ``invalid_listener``. Permanent.
    """

    prefix: str
    listener: str
    capability: ClassVar[str] = "reports"
    gauges: ClassVar[None] = None  # dead letters are of all listeners, and the ledger says what is expected of each

    def __post_init__(self) -> None:
        if not _LISTENER.fullmatch(self.listener) or self.listener == "dead":
            text = f"A listener's name has 1 to 50 letters, digits or '_', and is not 'dead': {self.listener!r:.80}"
            raise Rejected("invalid_listener", text)

    @property
    def shared(self) -> ReportExchanges:
        """What all listeners share."""
        return ReportExchanges(self.prefix)

    @property
    def service(self) -> str:
        """One for each listener of a process."""
        return f"reports-messages-{self.listener}"

    @property
    def key(self) -> str:
        """The listener's name."""
        return self.listener

    @property
    def queue(self) -> str:
        """What the listener's processes read."""
        return f"{self.prefix}.reports.{self.listener}"

    @property
    def dead(self) -> str:
        """As of all listeners."""
        return self.shared.dead

    @property
    def delay_queue(self) -> str:
        """The one queue that delays, by ten seconds."""
        return f"{self.queue}.delay.{DELAY_S}s"

    def delay(self, by: timedelta) -> str:  # noqa: ARG002  there is one
        """Return the delay queue, however long: messages of one queue with one life leave it in their order."""
        return self.delay_queue

    def exchanges(self) -> dict[str, str]:
        """Return the three exchanges."""
        return self.shared.exchanges()

    def queues(self) -> dict[str, dict[str, Any]]:
        """Return the listener's queue, its delay, and where both kinds of letters end."""
        dead_letters = {"x-dead-letter-exchange": self.dead, "x-dead-letter-routing-key": self.key, **AT_LEAST_ONCE}
        back = {"x-dead-letter-exchange": self.shared.exchange, "x-dead-letter-routing-key": self.key, **AT_LEAST_ONCE}
        limits = {"x-delivery-limit": REDELIVERIES_MAX, "x-message-ttl": _ms(MESSAGE_LIFE)}
        return {
            **self.shared.queues(),
            self.queue: {"x-queue-type": "quorum", **limits, **dead_letters},
            self.delay_queue: {"x-queue-type": "quorum", "x-message-ttl": DELAY_S * 1000, **back},
        }

    def bindings(self) -> list[Binding]:
        """Return what lets the listener hear what is said to everybody, and what is said to it."""
        own = [Binding(self.queue, self.shared.everybody, ""), Binding(self.queue, self.shared.exchange, self.key)]
        return [*self.shared.bindings(), *own]


def _ms(length: timedelta) -> int:
    return length // timedelta(milliseconds=1)
