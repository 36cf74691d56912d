"""The exchange and the queues of fan-out: their names, and their arguments, which cannot be changed afterwards.

::

    tickwright.fanout ──task──▶ tickwright.fanout ──limit, rejected──▶ tickwright.fanout.dead ──▶ tickwright.fanout.dead
        ▲                            │ delay(): a copy, confirmed
        └──after 1, 10 or 60 s── tickwright.fanout.delay.1s .10s .60s

All queues are quorum queues and all moves by the broker are *at least once*: it keeps a message until the next queue
has confirmed it. That needs ``x-overflow=reject-publish``, and a RabbitMQ of 3.10 or newer.
"""

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

from aiormq.abc import AbstractChannel
from aiormq.exceptions import (
    ChannelAccessRefused,
    ChannelLockedResource,
    ChannelNotFoundEntity,
    ChannelPreconditionFailed,
)

from tickwright.domain.errors import Rejected
from tickwright.transports.rabbitmq.connection import FAILURES, lost_is_a_failure
from tickwright.transports.rabbitmq.raw_connection import away, dial, hang_up, open_channel

# What the parts of this broker have to know of a capability's queues: their names, and what has to be there.


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


TASK_KEY = "task"
REDELIVERIES_MAX = 10
DELAYS_S = (1, 10, 60)
DECLARE_TIMEOUT_S = 10.0

NEVER = 1_000_000_000  # RabbitMQ 4 has a limit where none is named; looking at dead letters must not drop them
AT_LEAST_ONCE = {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
T = TypeVar("T")
_DIFFERS = re.compile(r"inequivalent arg '([^']+)'.*?: (received .*)")


@dataclass(frozen=True, slots=True)
class FanoutNames:
    """What things are called.

    Attributes:
        prefix: 1 to 100 characters; two installations on one RabbitMQ need two.
    """

    prefix: str = "tickwright"
    capability: ClassVar[str] = "fanout"
    service: ClassVar[str] = "fanout-tasks"
    key: ClassVar[str] = TASK_KEY
    gauges: ClassVar[Gauges] = Gauges("tickwright_fanout_parked_tasks", "tickwright_fanout_queued_tasks", "fanout")

    @property
    def exchange(self) -> str:
        """Where tasks are published, under ``task``."""
        return f"{self.prefix}.fanout"

    @property
    def queue(self) -> str:
        """What consumers read."""
        return f"{self.prefix}.fanout"

    @property
    def dead(self) -> str:
        """The exchange and the queue of dead letters."""
        return f"{self.prefix}.fanout.dead"

    def delay(self, by: timedelta) -> str:
        """Return the queue whose delay is the longest that is not longer than ``by``; the shortest is one second."""
        fitting = [one for one in DELAYS_S if one <= by.total_seconds()]
        return self.delay_queue(max(fitting, default=DELAYS_S[0]))

    def delay_queue(self, seconds: int) -> str:
        """Return the name of the queue that delays by ``seconds``."""
        return f"{self.prefix}.fanout.delay.{seconds}s"

    def queues(self) -> dict[str, dict[str, Any]]:
        """Return every queue with its arguments."""
        dead_letters = {"x-dead-letter-exchange": self.dead, "x-dead-letter-routing-key": TASK_KEY, **AT_LEAST_ONCE}
        back = {"x-dead-letter-exchange": self.exchange, "x-dead-letter-routing-key": TASK_KEY, **AT_LEAST_ONCE}
        own: dict[str, dict[str, Any]] = {
            self.dead: {"x-delivery-limit": NEVER},
            self.queue: {"x-delivery-limit": REDELIVERIES_MAX, **dead_letters},
            **{self.delay_queue(seconds): {"x-message-ttl": seconds * 1000, **back} for seconds in DELAYS_S},
        }
        return {name: {"x-queue-type": "quorum", **arguments} for name, arguments in own.items()}

    def exchanges(self) -> dict[str, str]:
        """Return both exchanges."""
        return {self.dead: "direct", self.exchange: "direct"}

    def bindings(self) -> list[Binding]:
        """Return the two bindings."""
        return [Binding(self.dead, self.dead, TASK_KEY), Binding(self.queue, self.exchange, TASK_KEY)]

    def reads(self, queue: str) -> bool:
        """Whether it is the queue."""
        return queue == self.queue


async def declare(channel: AbstractChannel, *wanted: Topology) -> None:
    """Make what is missing, within ten seconds; what is there stays. A refusal costs the channel.

    Raises:
        Rejected: ``queue_differs`` (it exists with another argument), ``queue_forbidden``. Permanent.
        One of ``FAILURES``: RabbitMQ went away; retry.
    """
    with lost_is_a_failure():
        async with asyncio.timeout(DECLARE_TIMEOUT_S):
            for exchange, kind in _all(one.exchanges() for one in wanted).items():
                await _declare_exchange(channel, exchange, kind)
            for queue, arguments in _all(one.queues() for one in wanted).items():
                await _declare_queue(channel, queue, arguments)
            for binding in dict.fromkeys(binding for one in wanted for binding in one.bindings()):
                await _bind(channel, binding)


async def prepare(url: str, *wanted: Topology) -> None:
    """Do the same on a connection of its own, so that who starts hears at once what is wrong.

    Raises:
        Rejected: As :func:`declare`. Permanent.
        Unavailable: ``rabbitmq_unavailable``. Retry.
    """
    try:
        connection = await dial(url, "tickwright-declare")
    except FAILURES:
        raise away("connecting") from None
    try:
        await declare(await open_channel(connection), *wanted)
    except FAILURES:
        raise away("declaring queues") from None
    finally:
        await hang_up(connection)


async def examine(url: str, *wanted: Topology) -> list[str]:
    """Return which of the queues are missing; those that are there are as they should be. Makes nothing.

    Raises:
        Rejected: As :func:`declare`. Permanent.
        Unavailable: ``rabbitmq_unavailable``. Retry.
    """
    try:
        connection = await dial(url, "tickwright-examine")
    except FAILURES:
        raise away("connecting") from None
    missing = []
    try:
        with lost_is_a_failure():
            async with asyncio.timeout(DECLARE_TIMEOUT_S):
                for queue, arguments in _all(one.queues() for one in wanted).items():
                    channel = await open_channel(connection)
                    try:
                        await channel.queue_declare(queue, passive=True)
                    except ChannelNotFoundEntity:
                        missing.append(queue)
                    else:
                        await _declare_queue(channel, queue, arguments)
    except FAILURES:
        raise away("looking at queues") from None
    finally:
        await hang_up(connection)
    return missing


def _all(parts: Iterable[Mapping[str, T]]) -> dict[str, T]:
    """Return what several topologies have, what they share once."""
    return {name: value for part in parts for name, value in part.items()}


async def _declare_exchange(channel: AbstractChannel, name: str, kind: str) -> None:
    try:
        await channel.exchange_declare(name, exchange_type=kind, durable=True)
    except ChannelPreconditionFailed as error:
        raise _differs("exchange", name, error) from None
    except ChannelAccessRefused:
        raise _forbidden("declare the exchange", name) from None


async def _declare_queue(channel: AbstractChannel, name: str, arguments: Mapping[str, Any]) -> None:
    try:
        await channel.queue_declare(name, durable=True, arguments=dict(arguments))
    except (ChannelPreconditionFailed, ChannelLockedResource) as error:
        raise _differs("queue", name, error) from None
    except ChannelAccessRefused:
        raise _forbidden("declare the queue, or read it and write to its dead letters,", name) from None


async def _bind(channel: AbstractChannel, binding: Binding) -> None:
    try:
        await channel.queue_bind(*binding)
    except ChannelAccessRefused:
        raise _forbidden("bind the queue", binding.queue) from None


def _differs(kind: str, name: str, error: Exception) -> Rejected:
    found = _DIFFERS.search(str(error))
    argument, how = (found[1], found[2].strip('"')) if found else ("?", "it is exclusive to another connection")
    text = (
        f"The {kind} {name!r} exists with another {argument} ({how[:200]}). Delete it once it is empty "
        f"(rabbitmqctl delete_queue), or set another TICKWRIGHT_AMQP_PREFIX."
    )
    return Rejected("queue_differs", text, name=name, argument=argument)


def _forbidden(doing: str, name: str) -> Rejected:
    text = f"This user of RabbitMQ may not {doing} {name!r}; give it the rights to configure, write and read."
    return Rejected("queue_forbidden", text, name=name)


# The exchanges and queues of reports: everybody hears of a report, or one listener alone.
#
# ::
#
#     tickwright.reports ──everybody─────┐
#                                        ▼
#     tickwright.reports.listeners ──▶ tickwright.reports.<listener> ──limit, rejected, old──▶ tickwright.reports.dead
#         ▲                     its name    │ delay(): a copy, confirmed
#         │                                 ▼
#         └──after 10 s── tickwright.reports.<listener>.delay.10s
#
# The record in PostgreSQL decides; a message only speeds things up. So a queue without a consumer may forget: a message
# lives for a day, and what is missing is announced again at least once in an hour. Dead letters live for a week, and
# above ten thousand the oldest are dropped. All are quorum queues, and moves are at least once.

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
