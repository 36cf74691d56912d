"""What a loop of a capability knows of the lease that it works under."""

from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol


class HeldLease(Protocol):
    """The right to be the only one, for now; every write goes through ``transaction``, so it carries the fence."""

    @property
    def fence(self) -> int:
        """The version under which the lease was taken."""
        ...

    def holds(self) -> bool:
        """Whether the lease may be relied on now, by the monotonic clock and with a margin."""
        ...

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        """Open a protected transaction; its connection, or ``None`` when the lease is lost."""
        ...
