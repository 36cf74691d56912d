"""The worker session and the lease of a loop, as far as capabilities need them."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple, Protocol

Beat = Callable[[Any], Awaitable[Callable[[], None]]]
"""Work of a renewal's transaction; the returned function is called after the commit."""

Reclaim = Callable[[Any, Sequence[int]], Awaitable[None]]


class Holdings(tuple[str, ...]):
    """SQL of every plugin: what the session $1 holds, at most $2 rows of a kind.

    Columns: ``kind id name number since_at fence count``.
    """

    __slots__ = ()


class Place(NamedTuple):
    """A session's place in a group that takes turns, as its last heartbeat has read it.

    Attributes:
        others: Other live sessions of the group.
        before: Those that come before this one in the order of turns.
        rank: How many of them come first in the round of the heartbeat: the one with rank 0 listens.
        rank_next: The same in the round after that.
        round: The number of the heartbeat's round, counted since 1970.
    """

    others: int
    before: int
    rank: int
    rank_next: int
    round: int


class Gate(Protocol):
    """The claims of one kind under a session; ``unsure`` if it may own claims that its process does not know of."""

    unsure: bool
    owns_any_sql: str | None
    """Whether the session $1 owns any. ``None``: it may own some."""

    async def settle(self) -> None:
        """Release claims that the process does not know of, if there may be any."""


class Session(Protocol):
    """A leased identity; its token fences every claim under it.

    After a lost lease ``token`` is new: what was held under the old token is no longer ours.
    """

    @property
    def token(self) -> int:
        """The fencing token of this session."""

    def holds(self) -> bool:
        """Return whether the lease is valid now, by the monotonic clock and with a margin."""

    def on_beat(self, beat: Beat) -> None:
        """Call ``beat(connection)`` after every renewal, in a transaction during which the session cannot be lost."""

    def on_reclaim(self, reclaim: Reclaim) -> None:
        """Call ``reclaim(connection, tokens)`` in the transaction that declares sessions lost, or ends this one."""

    def on_lost(self, lost: Callable[[], None]) -> None:
        """Call ``lost()`` when this session's lease is lost, before it gets a new token."""

    @property
    def claim_number(self) -> int:
        """The number that every claim carries; the session may refuse lower ones."""

    def next_claim_number(self) -> int:
        """Raise ``claim_number`` and return it."""

    def join(self, group: str, joins: Callable[[], bool]) -> Callable[[], Place | None]:
        """Take turns in ``group`` while ``joins()`` is true at the heartbeat; return a function for the place."""

    def add_gate(self, gate: Gate) -> None:
        """Settle ``gate`` with the heartbeat when it is unsure, and before the session closes."""


class HeldLease(Protocol):
    """A loop's temporary exclusive right.

    Every write is in a ``transaction``, whose first statement locks the lease's row under its fence.
    """

    @property
    def fence(self) -> int:
        """The version under which the lease was taken."""

    def holds(self) -> bool:
        """Return whether the lease is valid now, by the monotonic clock and with a margin."""

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        """Open a protected transaction; yields its connection, or ``None`` when the lease is lost."""
