"""What the relay and the consumer share: the id of a poll, and the names of accounts."""

from collections.abc import Iterable, Mapping
from datetime import datetime

from tickwright.store.pool import Connection, Pool
from tickwright.store.queries import load

ACCOUNTS_MAX = 100_000
_SQL = load("tickwright.capabilities.polling.sql", "accounts.sql")


def poll_id(tracker_id: int, due_at: datetime) -> str:
    """Return the id of a poll, which never repeats; ``write_results`` in ``consumer.sql`` builds the same."""
    return f"poll_{tracker_id}_{int(due_at.timestamp())}"


class AccountNames:
    """The names of accounts by their numbers, as far as this process has needed them."""

    def __init__(self) -> None:
        self._names: Mapping[int, str] = {}

    async def read(self, connection: Connection | Pool, numbers: Iterable[int]) -> Mapping[int, str]:
        """Return the names of these accounts, and of others; a deleted account has none. The mapping never changes."""
        wanted = set(numbers)
        if len(self._names) > ACCOUNTS_MAX:
            self._names = {number: name for number, name in self._names.items() if number in wanted}
        if unknown := wanted - self._names.keys():
            self._names = {**self._names, **dict(await connection.fetch(_SQL["account_names"], sorted(unknown)))}
        return self._names
