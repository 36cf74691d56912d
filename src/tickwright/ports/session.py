"""What a capability knows of the worker session that it works under."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

Beat = Callable[[Any], Awaitable[Callable[[], None]]]
"""Work of a renewal's transaction; what it returns is called behind the commit."""

Reclaim = Callable[[Any, Sequence[int]], Awaitable[None]]


class Gate(Protocol):
    """The claims of one kind under a session.

    Attributes:
        unsure: Something may be owned that its process does not know of.
    """

    unsure: bool

    async def settle(self) -> None:
        """Release what is owned and not known, if there may be such."""
        ...


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
        """Call ``beat(connection)`` after every renewal, in a transaction that the session cannot be lost in."""
        ...

    def on_reclaim(self, reclaim: Reclaim) -> None:
        """Call ``reclaim(connection, tokens)`` in the transaction that declares sessions lost, or ends this one."""
        ...

    def on_lost(self, lost: Callable[[], None]) -> None:
        """Call ``lost()`` when this session's lease is gone, before a new token is there."""
        ...

    @property
    def claim_number(self) -> int:
        """Carried by every claim; the session may refuse lower ones."""
        ...

    def next_claim_number(self) -> int:
        """Raise ``claim_number`` and return it."""
        ...

    def add_gate(self, gate: Gate) -> None:
        """Settle ``gate`` with the heartbeat where it is unsure, and before the session is closed."""
        ...
