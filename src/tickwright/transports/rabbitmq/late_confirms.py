"""Destinations whose confirms are late, and the connection that their messages go over.

RabbitMQ stops reading a connection on which one queue owes too many confirms, so such a queue shares neither a channel
nor a connection with healthy ones. docs/adr/0028-silent-queues.md has the reasons.
"""

from collections import deque
from collections.abc import Set as AbstractSet
from itertools import repeat

import structlog

from tickwright.ports.broker import Refused
from tickwright.transports.rabbitmq.channel import Letter, Route
from tickwright.transports.rabbitmq.connection import RabbitLink

SILENT_WINDOW = 16
"""Messages that wait for a confirm in one silent destination: half of what makes RabbitMQ stop reading the channel."""
SILENT_ROUTES_MAX = 1000
SILENT_MAX = 10_000
SILENT_S = 10.0
"""How long messages wait for a place behind a late one; then others are refused at once."""
RENEW_S = 60.0
"""A channel whose confirms are late for longer is replaced: they might never come, though the queue works again."""

BLOCKED = Refused("broker_blocked", "RabbitMQ takes nothing now (memory or disk alarm); nothing was sent.")
SILENT = Refused("broker_silent", "RabbitMQ has not confirmed earlier messages to this destination; nothing was sent.")
_log = structlog.get_logger("tickwright.rabbitmq")


class SilentDestinations:
    """Sends to them on a connection of its own, with a channel for each, until they confirm again.

    Invariants:
        RMQ-12: at most 16 messages to one silent destination wait for a confirm on one channel, those whose callers
            gave up included; while one of them is late for ten seconds, others are refused at once.
    """

    def __init__(self, url: str) -> None:
        self._keys: dict[tuple[str, str], None] = {}
        self._link = RabbitLink(url, self, name="tickwright-publish-silent", routes_max=SILENT_ROUTES_MAX, full=SILENT)

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self._keys)

    def has(self, exchange: str, routing_key: str) -> bool:
        """Whether this destination is one of them."""
        return (exchange, routing_key) in self._keys

    def add(self, exchange: str, routing_keys: AbstractSet[str]) -> None:
        """Send what goes there over the other connection from now on."""
        for key in routing_keys:
            if (exchange, key) not in self._keys:
                _log.warning("rabbitmq.destination_silent", destination=f"amqp:{exchange}/{key}")
                self._keys[exchange, key] = None
        while len(self._keys) > SILENT_MAX:
            del self._keys[next(iter(self._keys))]

    def late(self, route: Route, routing_keys: set[str]) -> None:
        """Nothing: the route counts them."""

    def confirmed(self, route: Route, routing_key: str) -> None:
        """Take it back among the healthy ones, unless others are late still."""
        if not route.late_count and (route.exchange, routing_key) in self._keys:
            del self._keys[route.exchange, routing_key]
            _log.info("rabbitmq.destination_confirms", destination=f"amqp:{route.exchange}/{routing_key}")

    async def send(self, exchange: str, routing_key: str, letters: deque[Letter]) -> None:
        """Send as fast as the small window allows, or say in each of the others why it was not sent.

        What is left in ``letters`` may go the ordinary way: the destination confirms again.
        """
        while letters and self.has(exchange, routing_key):
            route = await self._link.route(exchange, routing_key)
            refused = await self._refused(route)
            if refused is not None or isinstance(route, Refused):
                for letter in letters:
                    letter.refused = refused
                letters.clear()
                return
            if route.late_for_s >= RENEW_S:
                self._link.drop(exchange, routing_key)
                continue
            some = route.next_of(letters, SILENT_WINDOW - route.unconfirmed_count)
            if not some:
                await route.room()
                continue
            await route.send(some, _nothing)
            for _ in repeat(None, sum(letter.answer is not None for letter in some)):
                letters.popleft()

    async def aclose(self) -> None:
        """Close the connection within two seconds. Twice is harmless."""
        await self._link.aclose()

    async def _refused(self, route: Route | Refused) -> Refused | None:
        if isinstance(route, Refused):
            return route
        if await self._link.blocked():
            return BLOCKED
        return SILENT if SILENT_S <= route.late_for_s < RENEW_S else None


def _nothing() -> None:
    """Nothing waits for a place."""
