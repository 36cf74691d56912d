"""Stalled destinations, whose confirms are late, and the connection that carries their messages.

RabbitMQ stops reading a connection on which one queue owes too many confirms. So such a queue shares no channel and no
connection with healthy ones. docs/adr/0028-silent-queues.md has the reasons.
"""

from collections import deque
from collections.abc import Set as AbstractSet
from itertools import repeat

import structlog

from tickwright.ports.broker import Refused
from tickwright.transports.rabbitmq.channel import ExchangeChannel, Publication
from tickwright.transports.rabbitmq.connection import Publisher

STALLED_WINDOW = 16
"""Unconfirmed messages per stalled destination: half of the number at which RabbitMQ stops reading the channel."""
STALLED_CHANNELS_MAX = 1000
STALLED_MAX = 10_000
STALLED_WAIT_S = 10.0
"""How long messages wait for a slot behind a late one; then others are refused at once."""
RENEW_S = 60.0
"""A channel whose confirms are late for longer is replaced: they may never arrive, even if the queue recovers."""

BLOCKED = Refused("broker_blocked", "RabbitMQ accepts no messages now (memory or disk alarm); nothing was sent.")
STALLED = Refused("broker_silent", "RabbitMQ has not confirmed earlier messages to this destination; nothing was sent.")
_log = structlog.get_logger("tickwright.rabbitmq")


class StalledDestinations:
    """Publishes to stalled destinations over a separate connection, one channel each, until they confirm again.

    Invariants:
        RMQ-12: at most 16 messages to one stalled destination wait for a confirm on one channel, including those
            whose callers gave up; while one of them is late for ten seconds, others are refused at once.
    """

    def __init__(self, url: str) -> None:
        self._keys: dict[tuple[str, str], None] = {}
        self._publisher = Publisher(
            url, self, name="tickwright-publish-silent", channels_max=STALLED_CHANNELS_MAX, full=STALLED
        )

    def __bool__(self) -> bool:
        """Whether any destination is stalled."""
        return bool(self._keys)

    def has(self, exchange: str, routing_key: str) -> bool:
        """Whether this destination is stalled."""
        return (exchange, routing_key) in self._keys

    def add(self, exchange: str, routing_keys: AbstractSet[str]) -> None:
        """Use the separate connection for these destinations from now on."""
        for key in routing_keys:
            if (exchange, key) not in self._keys:
                _log.warning("rabbitmq.destination_stalled", destination=f"amqp:{exchange}/{key}")
                self._keys[exchange, key] = None
        while len(self._keys) > STALLED_MAX:
            del self._keys[next(iter(self._keys))]

    def late(self, channel: ExchangeChannel, routing_keys: set[str]) -> None:
        """Do nothing: the channel counts late messages."""

    def confirmed(self, channel: ExchangeChannel, routing_key: str) -> None:
        """Return the destination to the ordinary connection, unless other messages are still late."""
        if not channel.late_count and (channel.exchange, routing_key) in self._keys:
            del self._keys[channel.exchange, routing_key]
            _log.info("rabbitmq.destination_confirms", destination=f"amqp:{channel.exchange}/{routing_key}")

    async def send(self, exchange: str, routing_key: str, publications: deque[Publication]) -> None:
        """Send as fast as the small window allows, or set ``refused`` on the rest.

        If any remain in ``publications``, the destination confirms again: send those over the ordinary connection.
        """
        while publications and self.has(exchange, routing_key):
            channel = await self._publisher.channel(exchange, routing_key)
            refused = await self._refused(channel)
            if refused is not None or isinstance(channel, Refused):
                for publication in publications:
                    publication.refused = refused
                publications.clear()
                return
            if channel.late_for_s >= RENEW_S:
                self._publisher.drop(exchange, routing_key)
                continue
            some = channel.next_batch(publications, STALLED_WINDOW - channel.unconfirmed_count)
            if not some:
                await channel.wait_for_room()
                continue
            await channel.send(some, _nothing)
            for _ in repeat(None, sum(publication.answer is not None for publication in some)):
                publications.popleft()

    async def aclose(self) -> None:
        """Close the connection within two seconds. Repeated calls are harmless."""
        await self._publisher.aclose()

    async def _refused(self, channel: ExchangeChannel | Refused) -> Refused | None:
        if isinstance(channel, Refused):
            return channel
        if await self._publisher.blocked():
            return BLOCKED
        return STALLED if STALLED_WAIT_S <= channel.late_for_s < RENEW_S else None


def _nothing() -> None:
    """Do nothing: the stalled window has no slots to free."""
