"""What a capability knows of the worker session that it works under."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

Beat = Callable[[Any], Awaitable[Callable[[], None]]]
"""Work of a renewal's transaction; what it returns is called behind the commit."""

Reclaim = Callable[[Any, Sequence[int]], Awaitable[None]]


class Session(Protocol):
    """A leased identity; its token fences everything that is claimed under it.

    After a lost lease ``token`` is a new one: what was held under the old token is no longer ours.
    """

    @property
    def token(self) -> int:
        """Fencing token of this session."""
        ...

    def holds(self) -> bool:
        """Whether the lease may be relied on now, by the monotonic clock and with a margin."""
        ...

    def on_beat(self, beat: Beat) -> None:
        """Call ``beat(connection)`` with every renewal, in the same transaction."""
        ...

    def on_reclaim(self, reclaim: Reclaim) -> None:
        """Call ``reclaim(connection, tokens)`` in the transaction that declares other sessions lost."""
        ...

    def on_lost(self, lost: Callable[[], None]) -> None:
        """Call ``lost()`` when this session's lease is gone, before a new token is there."""
        ...
