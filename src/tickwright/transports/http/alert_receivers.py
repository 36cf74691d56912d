"""Destination ``alert:NAME``: a signed callback to a receiver of alerts.

The outbox row names the receiver; url and secrets are looked up when the message leaves. So no secret and no
url is in a row, a rotated secret signs what already waits, and what waits follows a receiver that moved. Rows
to ``https://…`` stay unsigned: nobody gets a receiver's signature for an address of his own choice.
"""

from collections.abc import Sequence
from dataclasses import replace

from tickwright.domain.errors import Rejected
from tickwright.engine.outbox.alert_endpoints import SCHEME, read_endpoints
from tickwright.ports.broker import Broker, Message, Outcome, Refused
from tickwright.store.pool import AWAY, Pool

_SCHEMES = frozenset({SCHEME})


class ReceiverBroker:
    """Sends to receivers by name, through the broker of their urls.

    Args:
        callbacks: Carries ``http`` and ``https``, and keeps its promises; whoever made it closes it.
        pool: Where the receivers are.

    Invariants:
        RCV-1: a message leaves signed, or not at all.
        RCV-2: an address that is not allowed is never connected to (HTTP-1 of ``callbacks``).
    """

    def __init__(self, callbacks: Broker, pool: Pool) -> None:
        self._callbacks, self._pool = callbacks, pool

    @property
    def schemes(self) -> frozenset[str]:
        """``alert``."""
        return _SCHEMES

    def check(self, destination: str) -> None:
        """Raise ``Rejected`` for what names no receiver, now or later."""
        scheme, _, name = destination.partition(":")
        if scheme != SCHEME or not name:
            raise Rejected("invalid_target", "An alert goes to alert:NAME, a receiver's name.")

    async def publish(self, message: Message) -> Outcome:
        """Send one message and return what became of it."""
        return (await self.publish_many([message]))[0]

    async def publish_many(self, messages: Sequence[Message]) -> list[Outcome]:
        """Send several; outcomes in order. Who is no receiver (any more) is refused finally."""
        names = {_name(message) for message in messages}
        try:
            found = await read_endpoints(self._pool, names)
        except AWAY as error:
            return [Refused("receivers_unreadable", repr(error)[:200])] * len(messages)
        outcomes: list[Outcome] = [
            Refused("receiver_not_found", "There is no such receiver of alerts.", final=True) for _ in messages
        ]
        known: list[tuple[int, Message]] = []
        for index, message in enumerate(messages):
            if (endpoint := found.get(_name(message))) is None:
                continue
            if endpoint.secrets:
                addressed = replace(message, destination=endpoint.url, signing_secrets=endpoint.secrets)
                known.append((index, addressed))
            else:
                outcomes[index] = Refused("receiver_without_secret", "Nothing signs for it; rotate its secret.")
        sent = await self._callbacks.publish_many([message for _, message in known])
        for (index, _), outcome in zip(known, sent, strict=True):
            outcomes[index] = outcome
        return outcomes

    async def ready(self) -> bool:
        """As the broker that it sends through."""
        return await self._callbacks.ready()

    async def aclose(self) -> None:
        """Nothing is its own."""


def _name(message: Message) -> str:
    return message.destination.partition(":")[2]
