"""A broker whose code is loaded with its first use: most processes never call an HTTP receiver."""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from tickwright.ports.broker import Broker, Message, Outcome


class LazyBroker:
    """Implements :class:`tickwright.ports.broker.Broker` by a broker that is made when it is needed.

    Args:
        schemes: Those of the broker.
        make: Makes it, and loads its code, which may take a tenth of a second; connects nowhere.
    """

    def __init__(self, schemes: frozenset[str], make: Callable[[], Broker]) -> None:
        self.schemes = schemes
        self._make = make
        self._made: Broker | None = None

    @property
    def broker(self) -> Broker:
        """The broker itself."""
        self._made = self._made or self._make()
        return self._made

    def check(self, destination: str) -> None:
        """Raise ``Rejected`` if ``destination`` can never be delivered to. No I/O."""
        self.broker.check(destination)

    def publish(self, message: Message) -> Coroutine[Any, Any, Outcome]:
        """Send one message."""
        return self.broker.publish(message)  # no coroutine of our own: this is called for each callback

    async def publish_many(self, messages: Sequence[Message]) -> list[Outcome]:
        """Send several; one outcome per message, in order."""
        return await self.broker.publish_many(messages)

    async def ready(self) -> bool:
        """Return whether a publish may succeed now."""
        return await self.broker.ready()

    async def aclose(self) -> None:
        """Release connections, if there was a use."""
        if self._made is not None:
            await self._made.aclose()
