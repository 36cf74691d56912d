"""The lease that a loop of a capability works under."""

from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol


class HeldLease(Protocol):
    """A temporary exclusive right; every write goes through ``transaction``, so it carries the fence."""

    @property
    def fence(self) -> int:
        """The version under which the lease was taken."""
        ...

    def holds(self) -> bool:
        """Return whether the lease is valid now, by the monotonic clock and with a margin."""
        ...

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        """Open a protected transaction; yields its connection, or ``None`` when the lease is lost."""
        ...
