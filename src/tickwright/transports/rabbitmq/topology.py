"""Exchanges and queues: what must exist, its declaration, and the names of fan-out's and reports' task queues.

Arguments of a queue cannot be changed afterwards. Fan-out:

::

    tickwright.fanout ──task──▶ tickwright.fanout ──limit, rejected──▶ tickwright.fanout.dead ──▶ tickwright.fanout.dead
        ▲                            │ delay(): a copy, confirmed
        └──after 1, 10 or 60 s── tickwright.fanout.delay.1s .10s .60s

All queues are quorum queues, and the broker moves messages *at least once*: it keeps a message until the next queue has
confirmed it. That needs ``x-overflow=reject-publish`` and RabbitMQ 3.10 or newer.
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
from tickwright.transports.rabbitmq.connection import losses_as_failures
from tickwright.transports.rabbitmq.raw_connection import open_channel, short_connection


class Binding(NamedTuple):
    """Routes messages of an exchange with a key to a queue."""

    queue: str
    exchange: str
    key: str


class Gauges(NamedTuple):
    """Names of a consumer's gauges: parked messages, waiting messages, and the kind of dead letters."""

    parked: str
    waiting: str
    dead_kind: str


class Topology(Protocol):
    """What must exist."""

    def exchanges(self) -> Mapping[str, str]:
        """Return every exchange with its type."""

    def queues(self) -> Mapping[str, Mapping[str, Any]]:
        """Return every queue with its arguments."""

    def bindings(self) -> Sequence[Binding]:
        """Return every binding."""


class QueueNames(Topology, Protocol):
    """A queue that consumers read, its delays and its dead letters."""

    @property
    def capability(self) -> str:
        """Prefix of log events and probes."""

    @property
    def service(self) -> str:
        """Name of the service that consumes."""

    @property
    def gauges(self) -> Gauges | None:
        """Gauges of the consumer, or ``None``."""

    @property
    def queue(self) -> str:
        """Name of the queue that consumers read."""

    @property
    def key(self) -> str:
        """The routing key of its messages and of its dead letters."""

    @property
    def dead(self) -> str:
        """The exchange and the queue of dead letters."""

    def delay(self, by: timedelta) -> str:
        """Return the queue that delays a message."""


class DeadNames(Topology, Protocol):
    """A queue of dead letters, and the exchange for requeuing them."""

    @property
    def dead(self) -> str:
        """The exchange and the queue of dead letters."""

    @property
    def exchange(self) -> str:
        """The exchange that requeued messages are published to."""

    @property
    def key(self) -> str:
        """The routing key of all messages; if empty, each message keeps its own."""

    def reads(self, queue: str) -> bool:
        """Whether consumers read this queue, so that its dead letters arrive here."""


TASK_KEY = "task"
REDELIVERIES_MAX = 10
DELAYS_S = (1, 10, 60)
DECLARE_TIMEOUT_S = 10.0

UNLIMITED_DELIVERIES = 1_000_000_000  # RabbitMQ 4 has a default; peeking must drop nothing
AT_LEAST_ONCE = {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
T = TypeVar("T")
_DIFFERS = re.compile(r"inequivalent arg '([^']+)'.*?: (received .*)")


@dataclass(frozen=True, slots=True)
class FanoutNames:
    """Names of fan-out's exchanges and queues.

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
        """The exchange to which tasks are published, under ``task``."""
        return f"{self.prefix}.fanout"

    @property
    def queue(self) -> str:
        """Name of the queue that consumers read."""
        return f"{self.prefix}.fanout"

    @property
    def dead(self) -> str:
        """The exchange and the queue of dead letters."""
        return f"{self.prefix}.fanout.dead"

    def delay(self, by: timedelta) -> str:
        """Return the delay queue with the longest delay up to ``by``; the shortest is one second."""
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
            self.dead: {"x-delivery-limit": UNLIMITED_DELIVERIES},
            self.queue: {"x-delivery-limit": REDELIVERIES_MAX, **dead_letters},
            **{self.delay_queue(seconds): {"x-message-ttl": seconds * 1000, **back} for seconds in DELAYS_S},
        }
        return {name: {"x-queue-type": "quorum", **arguments} for name, arguments in own.items()}

    def exchanges(self) -> dict[str, str]:
        """Return both exchanges with their types."""
        return {self.dead: "direct", self.exchange: "direct"}

    def bindings(self) -> list[Binding]:
        """Return both bindings."""
        return [Binding(self.dead, self.dead, TASK_KEY), Binding(self.queue, self.exchange, TASK_KEY)]

    def reads(self, queue: str) -> bool:
        """Whether it is the queue of tasks."""
        return queue == self.queue


async def declare(channel: AbstractChannel, *wanted: Topology) -> None:
    """Declare missing exchanges, queues and bindings, within ten seconds. A refusal closes the channel.

    Raises:
        Rejected: ``queue_differs`` (it exists with another argument), ``queue_forbidden``. Permanent.
        One of ``FAILURES``: the connection was lost; retry.
    """
    with losses_as_failures():
        async with asyncio.timeout(DECLARE_TIMEOUT_S):
            for exchange, kind in _all(one.exchanges() for one in wanted).items():
                await _declare_exchange(channel, exchange, kind)
            for queue, arguments in _all(one.queues() for one in wanted).items():
                await _declare_queue(channel, queue, arguments)
            for binding in dict.fromkeys(binding for one in wanted for binding in one.bindings()):
                await _bind(channel, binding)


async def prepare(url: str, *wanted: Topology) -> None:
    """Declare over a separate connection, so that a starting process fails at once.

    Raises:
        Rejected: As :func:`declare`. Permanent.
        Unavailable: ``rabbitmq_unavailable``. Retry.
    """
    async with short_connection(url, "tickwright-declare", "declaring queues") as connection:
        await declare(await open_channel(connection), *wanted)


async def examine(url: str, *wanted: Topology) -> list[str]:
    """Return the missing queues. Declares nothing.

    Raises:
        Rejected: As :func:`declare`. Permanent.
        Unavailable: ``rabbitmq_unavailable``. Retry.
    """
    missing = []
    async with short_connection(url, "tickwright-examine", "reading queues") as connection:
        with losses_as_failures():
            async with asyncio.timeout(DECLARE_TIMEOUT_S):
                for queue, arguments in _all(one.queues() for one in wanted).items():
                    channel = await open_channel(connection)
                    try:
                        await channel.queue_declare(queue, passive=True)
                    except ChannelNotFoundEntity:
                        missing.append(queue)
                    else:
                        await _declare_queue(channel, queue, arguments)
    return missing


def _all(parts: Iterable[Mapping[str, T]]) -> dict[str, T]:
    """Merge the items of several topologies."""
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


# Reports: a message goes to all listeners or to one.
#
# ::
#
#     tickwright.reports ──empty key─────┐
#                                        ▼
#     tickwright.reports.listeners ──▶ tickwright.reports.<listener> ──limit, rejected, old──▶ tickwright.reports.dead
#         ▲                     its name    │ delay(): a copy, confirmed
#         │                                 ▼
#         └──after 10 s── tickwright.reports.<listener>.delay.10s
#
# The record in PostgreSQL decides; a message only reduces latency. So a queue without a consumer can lose messages: a
# message lives for a day, and missing reports are announced again at least once an hour. Dead letters live for a week,
# and above ten thousand the oldest are dropped. All queues are quorum queues, and moves are at least once.

DELAY_S = 10
MESSAGE_LIFE = timedelta(days=1)
DEAD_LIFE = timedelta(days=7)
DEAD_MAX = 10_000

_LISTENER = re.compile(r"[A-Za-z0-9_]{1,50}", re.ASCII)


@dataclass(frozen=True, slots=True)
class ReportExchanges:
    """Exchanges and dead letters that all listeners share.

    Attributes:
        prefix: 1 to 100 characters; two installations on one RabbitMQ need two.
    """

    prefix: str = "tickwright"
    key: ClassVar[str] = ""

    @property
    def broadcast(self) -> str:
        """The exchange for messages to all listeners, with an empty key."""
        return f"{self.prefix}.reports"

    @property
    def exchange(self) -> str:
        """The exchange for messages to one listener; its name is the key."""
        return f"{self.prefix}.reports.listeners"

    @property
    def dead(self) -> str:
        """The exchange and the queue of dead letters."""
        return f"{self.prefix}.reports.dead"

    def exchanges(self) -> dict[str, str]:
        """Return the three exchanges with their types."""
        return {self.dead: "fanout", self.broadcast: "fanout", self.exchange: "direct"}

    def queues(self) -> dict[str, dict[str, Any]]:
        """Return the queue of dead letters."""
        bounds = {"x-message-ttl": _ms(DEAD_LIFE), "x-max-length": DEAD_MAX}
        return {self.dead: {"x-queue-type": "quorum", "x-delivery-limit": UNLIMITED_DELIVERIES, **bounds}}

    def bindings(self) -> list[Binding]:
        """Return the binding of dead letters, for every key."""
        return [Binding(self.dead, self.dead, "")]

    def reads(self, queue: str) -> bool:
        """Whether it is a listener's queue."""
        name = queue.removeprefix(f"{self.broadcast}.")
        return queue not in {name, self.dead} and _LISTENER.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class ReportNames:
    """One listener's queue; a :class:`QueueNames`.

    Attributes:
        prefix: See :class:`ReportExchanges`.
        listener: 1 to 50 letters, digits or ``_``, and not ``dead``.

    Raises:
        Rejected: ``invalid_listener``. Permanent.
    """

    prefix: str
    listener: str
    capability: ClassVar[str] = "reports"
    gauges: ClassVar[None] = None  # all listeners share the dead letters

    def __post_init__(self) -> None:
        if not _LISTENER.fullmatch(self.listener) or self.listener == "dead":
            text = f"A listener's name has 1 to 50 letters, digits or '_', and is not 'dead': {self.listener!r:.80}"
            raise Rejected("invalid_listener", text)

    @property
    def shared(self) -> ReportExchanges:
        """The exchanges and dead letters that all listeners share."""
        return ReportExchanges(self.prefix)

    @property
    def service(self) -> str:
        """Name of the service; one per listener."""
        return f"reports-messages-{self.listener}"

    @property
    def key(self) -> str:
        """The listener's name."""
        return self.listener

    @property
    def queue(self) -> str:
        """The queue that the listener consumes."""
        return f"{self.prefix}.reports.{self.listener}"

    @property
    def dead(self) -> str:
        """The exchange and the queue of dead letters."""
        return self.shared.dead

    @property
    def delay_queue(self) -> str:
        """The queue that delays by ten seconds."""
        return f"{self.queue}.delay.{DELAY_S}s"

    def delay(self, by: timedelta) -> str:  # noqa: ARG002  the queue is always the same
        """Return the only delay queue, whatever the delay, because messages leave a queue in order."""
        return self.delay_queue

    def exchanges(self) -> dict[str, str]:
        """Return the three exchanges."""
        return self.shared.exchanges()

    def queues(self) -> dict[str, dict[str, Any]]:
        """Return the listener's queue, its delay queue and the dead letters."""
        dead_letters = {"x-dead-letter-exchange": self.dead, "x-dead-letter-routing-key": self.key, **AT_LEAST_ONCE}
        back = {"x-dead-letter-exchange": self.shared.exchange, "x-dead-letter-routing-key": self.key, **AT_LEAST_ONCE}
        limits = {"x-delivery-limit": REDELIVERIES_MAX, "x-message-ttl": _ms(MESSAGE_LIFE)}
        return {
            **self.shared.queues(),
            self.queue: {"x-queue-type": "quorum", **limits, **dead_letters},
            self.delay_queue: {"x-queue-type": "quorum", "x-message-ttl": DELAY_S * 1000, **back},
        }

    def bindings(self) -> list[Binding]:
        """Return the bindings for broadcasts and for messages to this listener."""
        own = [Binding(self.queue, self.shared.broadcast, ""), Binding(self.queue, self.shared.exchange, self.key)]
        return [*self.shared.bindings(), *own]


def _ms(length: timedelta) -> int:
    return length // timedelta(milliseconds=1)


# Ownership of a prefix: an unused exchange whose immutable argument names the installation.

_CURRENT = re.compile(r"but current is (?:the value )?'[^']*\.installation\.([^']*)'")


def owner_exchange(prefix: str) -> str:
    """Return the name of the exchange that records the owner of ``prefix``."""
    return f"{prefix}.installation"


async def owner(url: str, prefix: str, installation: str) -> str:
    """Return the installation that owns ``prefix``. If there is none, this one becomes the owner, atomically.

    Raises:
        Rejected: ``queue_forbidden``: this user may not declare it. Permanent.
        Unavailable: ``rabbitmq_unavailable``. Retry.
    """
    name = owner_exchange(prefix)
    async with short_connection(url, "tickwright-owner", "reading the owner of the prefix") as connection:
        try:
            with losses_as_failures():
                async with asyncio.timeout(DECLARE_TIMEOUT_S):
                    channel = await open_channel(connection)
                    arguments: dict[str, Any] = {
                        "alternate-exchange": f"{name}.{installation}"
                    }  # the alternate exchange need not exist
                    await channel.exchange_declare(name, exchange_type="fanout", durable=True, arguments=arguments)
        except ChannelPreconditionFailed as error:
            found = _CURRENT.search(str(error))
            return found[1] if found else "another"
        except ChannelAccessRefused:
            raise _forbidden("declare the exchange", name) from None
    return installation
