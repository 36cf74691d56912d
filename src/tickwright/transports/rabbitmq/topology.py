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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

from aiormq.abc import AbstractChannel
from aiormq.exceptions import (
    ChannelAccessRefused,
    ChannelLockedResource,
    ChannelNotFoundEntity,
    ChannelPreconditionFailed,
)

from tickwright.domain.errors import Rejected
from tickwright.transports.rabbitmq.connection import losses_as_failures, open_channel, short_connection


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


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Topology:
    """Exchanges and queues that must exist, with a queue of dead letters.

    Attributes:
        exchanges: Every exchange with its type.
        queues: Every queue with its arguments.
        dead: The exchange and the queue of dead letters.
        exchange: Requeued messages are published to it.
        key: The routing key of all messages; if empty, each message keeps its own.
        consumed: Matches the queues that consumers read, so that their dead letters arrive in ``dead``.
        broadcast: The exchange for messages to all listeners, with an empty key; empty if there is none.
    """

    prefix: str
    exchanges: Mapping[str, str]
    queues: Mapping[str, Mapping[str, Any]]
    bindings: Sequence[Binding]
    dead: str
    exchange: str
    key: str
    consumed: re.Pattern[str]
    broadcast: str = ""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class QueueTopology(Topology):
    """A queue that consumers read, its delays and its dead letters.

    Attributes:
        capability: Prefix of log events and probes.
        service: Name of the service that consumes.
        delays: The queues that delay a message, by the seconds of the delay, the shortest first.
    """

    queue: str
    capability: str
    service: str
    delays: Mapping[int, str]
    gauges: Gauges | None = None

    def delay(self, by: timedelta) -> str:
        """Return the queue with the longest delay up to ``by``, or else the one with the shortest."""
        shortest, *longer = self.delays
        return self.delays[max((seconds for seconds in longer if seconds <= by.total_seconds()), default=shortest)]


TASK_KEY = "task"
REDELIVERIES_MAX = 10
DELAYS_S = (1, 10, 60)
DECLARE_TIMEOUT_S = 10.0

UNLIMITED_DELIVERIES = 1_000_000_000  # RabbitMQ 4 has a default; peeking must drop nothing
QUORUM = {"x-queue-type": "quorum"}
AT_LEAST_ONCE = {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
T = TypeVar("T")
_DIFFERS = re.compile(r"inequivalent arg '([^']+)'.*?: (received .*)")


def fanout_names(prefix: str = "tickwright") -> QueueTopology:
    """Return fan-out's exchanges and queues; two installations on one RabbitMQ need two prefixes."""
    name, dead = f"{prefix}.fanout", f"{prefix}.fanout.dead"
    delays = {seconds: f"{name}.delay.{seconds}s" for seconds in DELAYS_S}
    return QueueTopology(
        prefix=prefix,
        exchanges={dead: "direct", name: "direct"},
        queues={
            dead: {**QUORUM, "x-delivery-limit": UNLIMITED_DELIVERIES},
            name: {**QUORUM, "x-delivery-limit": REDELIVERIES_MAX, **_dead_lettered_to(dead, TASK_KEY)},
            **{
                queue: {**QUORUM, "x-message-ttl": seconds * 1000, **_dead_lettered_to(name, TASK_KEY)}
                for seconds, queue in delays.items()
            },
        },
        bindings=(Binding(dead, dead, TASK_KEY), Binding(name, name, TASK_KEY)),
        dead=dead,
        exchange=name,
        key=TASK_KEY,
        consumed=re.compile(re.escape(name)),
        queue=name,
        capability="fanout",
        service="fanout-tasks",
        delays=delays,
        gauges=Gauges("tickwright_fanout_parked_tasks", "tickwright_fanout_queued_tasks", "fanout"),
    )


def _dead_lettered_to(exchange: str, key: str) -> dict[str, str]:
    """Return the arguments of a queue whose messages move to an exchange, at least once."""
    return {"x-dead-letter-exchange": exchange, "x-dead-letter-routing-key": key, **AT_LEAST_ONCE}


async def declare(channel: AbstractChannel, *wanted: Topology) -> None:
    """Declare missing exchanges, queues and bindings, within ten seconds. A refusal closes the channel.

    Raises:
        Rejected: ``queue_differs`` (it exists with another argument), ``queue_forbidden``. Permanent.
        One of ``FAILURES``: the connection was lost; retry.
    """
    with losses_as_failures():
        async with asyncio.timeout(DECLARE_TIMEOUT_S):
            for exchange, kind in _all(names.exchanges for names in wanted).items():
                with _refusals("exchange", exchange, "declare the exchange"):
                    await channel.exchange_declare(exchange, exchange_type=kind, durable=True)
            for queue, arguments in _all(names.queues for names in wanted).items():
                await _declare_queue(channel, queue, arguments)
            for binding in dict.fromkeys(binding for names in wanted for binding in names.bindings):
                with _refusals("queue", binding.queue, "bind the queue"):
                    await channel.queue_bind(*binding)


async def prepare(url: str, *wanted: Topology) -> None:
    """Declare over a separate connection, so that a starting process fails at once.

    Raises:
        Rejected: As :func:`declare`. Permanent.
        Unavailable: ``rabbitmq_unavailable``. Retry.
    """
    async with short_connection(url, "tickwright-declare", "declaring queues") as connection:
        await declare(await open_channel(connection), *wanted)


async def examine(url: str, *wanted: Topology) -> list[str]:
    """Return the missing queues, and create none: it declares an existing one again, to compare its arguments.

    Raises:
        Rejected: As :func:`declare`. Permanent.
        Unavailable: ``rabbitmq_unavailable``. Retry.
    """
    missing = []
    async with short_connection(url, "tickwright-examine", "reading queues") as connection:
        with losses_as_failures():
            async with asyncio.timeout(DECLARE_TIMEOUT_S):
                for queue, arguments in _all(names.queues for names in wanted).items():
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


async def _declare_queue(channel: AbstractChannel, name: str, arguments: Mapping[str, Any]) -> None:
    with _refusals("queue", name, "declare the queue, or read it and write to its dead letters,"):
        await channel.queue_declare(name, durable=True, arguments=dict(arguments))


@contextmanager
def _refusals(kind: str, name: str, doing: str) -> Iterator[None]:
    try:
        yield
    except (ChannelPreconditionFailed, ChannelLockedResource) as error:
        raise _differs(kind, name, error) from None
    except ChannelAccessRefused:
        raise _forbidden(doing, name) from None


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
"""The only delay of reports: messages leave a queue in order, so two delays would need two queues."""
MESSAGE_LIFE = timedelta(days=1)
DEAD_LIFE = timedelta(days=7)
DEAD_MAX = 10_000

_LISTENER = re.compile(r"[A-Za-z0-9_]{1,50}", re.ASCII)


def report_exchanges(prefix: str = "tickwright") -> Topology:
    """Return the exchanges and dead letters that all listeners share."""
    everyone, listeners, dead = f"{prefix}.reports", f"{prefix}.reports.listeners", f"{prefix}.reports.dead"
    limits = {"x-delivery-limit": UNLIMITED_DELIVERIES, "x-message-ttl": _ms(DEAD_LIFE), "x-max-length": DEAD_MAX}
    return Topology(
        prefix=prefix,
        exchanges={dead: "fanout", everyone: "fanout", listeners: "direct"},
        queues={dead: {**QUORUM, **limits}},
        bindings=(Binding(dead, dead, ""),),
        dead=dead,
        exchange=listeners,
        key="",
        broadcast=everyone,
        consumed=re.compile(rf"{re.escape(everyone)}\.(?!dead\Z){_LISTENER.pattern}", re.ASCII),
    )


def report_names(prefix: str, listener: str) -> QueueTopology:
    """Return the queue of one listener, and what all listeners share.

    Raises:
        Rejected: ``invalid_listener``: not 1 to 50 letters, digits or ``_``, or ``dead``. Permanent.
    """
    if not _LISTENER.fullmatch(listener) or listener == "dead":
        text = f"A listener's name has 1 to 50 letters, digits or '_', and is not 'dead': {listener!r:.80}"
        raise Rejected("invalid_listener", text)
    shared, queue = report_exchanges(prefix), f"{prefix}.reports.{listener}"
    delay = f"{queue}.delay.{DELAY_S}s"
    limits = {"x-delivery-limit": REDELIVERIES_MAX, "x-message-ttl": _ms(MESSAGE_LIFE)}
    return QueueTopology(
        prefix=prefix,
        exchanges=shared.exchanges,
        queues={
            **shared.queues,
            queue: {**QUORUM, **limits, **_dead_lettered_to(shared.dead, listener)},
            delay: {**QUORUM, "x-message-ttl": DELAY_S * 1000, **_dead_lettered_to(shared.exchange, listener)},
        },
        bindings=(*shared.bindings, Binding(queue, shared.broadcast, ""), Binding(queue, shared.exchange, listener)),
        dead=shared.dead,
        exchange=shared.exchange,
        key=listener,
        broadcast=shared.broadcast,
        consumed=shared.consumed,
        queue=queue,
        capability="reports",
        service=f"reports-messages-{listener}",
        delays={DELAY_S: delay},
    )


def _ms(length: timedelta) -> int:
    return length // timedelta(milliseconds=1)


# Ownership of a prefix: an unused exchange whose immutable argument names the installation.

_CURRENT = re.compile(r"but current is (?:the value )?'[^']*\.installation\.([^']*)'")


async def claim_prefix(url: str, prefix: str, installation: str) -> str:
    """Return the installation that owns ``prefix``. If there is none, this one becomes the owner, atomically.

    Raises:
        Rejected: ``queue_forbidden``: this user may not declare it. Permanent.
        Unavailable: ``rabbitmq_unavailable``. Retry.
    """
    name = f"{prefix}.installation"
    async with short_connection(url, "tickwright-owner", "reading the owner of the prefix") as connection:
        try:
            with losses_as_failures():
                async with asyncio.timeout(DECLARE_TIMEOUT_S):
                    channel = await open_channel(connection)
                    arguments: dict[str, Any] = {"alternate-exchange": f"{name}.{installation}"}  # need not exist
                    await channel.exchange_declare(name, exchange_type="fanout", durable=True, arguments=arguments)
        except ChannelPreconditionFailed as error:
            found = _CURRENT.search(str(error))
            return found[1] if found else "another"
        except ChannelAccessRefused:
            raise _forbidden("declare the exchange", name) from None
    return installation
