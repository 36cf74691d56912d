"""Retention: deletes rows that are older than the rules of a capability, in bounded batches, under a lease.

One process does it at a time. Each batch is a transaction of its own that carries the lease's fence. So other work
does not wait for a long transaction, and a process whose lease is lost deletes nothing.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from tickwright.domain.leases import LeaseTerms
from tickwright.ports.session import HeldLease
from tickwright.store.queries import load

LEASE = "upkeep"
TERMS = LeaseTerms(ttl=timedelta(seconds=90), margin=timedelta(seconds=10))
"""Terms of every retention lease: a round may take long, and the next one is not urgent."""
EVERY_S = 60.0
"""The pause when nothing is left to delete."""
BATCH = 1000
BATCHES_MAX = 100


class RetentionRule(NamedTuple):
    """A query that deletes at most ``$2`` rows older than ``$1``, and the age. The query's name is its counter's."""

    query: str
    age: timedelta


class Retention:
    """Deletes what is older than its rules allow; ``round`` is the round of a leased loop.

    ``counts`` has the deleted rows by query.

    Invariants:
        RET-1: a round runs at most ``BATCHES_MAX`` batches of each rule.
        RET-2: nothing is deleted once the lease is lost.
    """

    def __init__(self, queries: Mapping[str, str], rules: Sequence[RetentionRule] = ()) -> None:
        self._queries, self._rules = queries, rules
        self.counts: Counter[str] = Counter()

    async def round(self, lease: HeldLease) -> float:
        """Apply every rule once; return in how many seconds to call it again, 0 when more is left."""
        more = [await self.delete_old(lease, query, age) for query, age in self._rules]
        return 0.0 if any(more) else EVERY_S

    async def delete_old(self, lease: HeldLease, query: str, *arguments: object) -> bool:
        """Run a query (last argument: the batch size) until a batch is not full; return whether more is left."""
        for _ in range(BATCHES_MAX):
            if await self.execute(lease, query, *arguments, BATCH) < BATCH or not lease.holds():
                return False
        return True

    async def execute(self, lease: HeldLease, query: str, *arguments: object) -> int:
        """Write in a separate transaction; return the number of rows, 0 when the lease is lost."""
        async with lease.transaction() as connection:
            if connection is None:
                return 0
            tag = await connection.execute(self._queries[query], *arguments)
        rows = int(tag.rsplit(" ", 1)[1])
        self.counts[query] += rows
        return rows

    async def fetch(self, lease: HeldLease, query: str, *arguments: object) -> Sequence[Any]:
        """Read in a separate transaction; return nothing when the lease is lost."""
        if not lease.holds():
            return ()
        async with lease.transaction() as connection:
            return () if connection is None else await connection.fetch(self._queries[query], *arguments)


class RetentionRounds:
    """The retentions of all capabilities under the lease ``upkeep``, one after the other; ``parts`` may grow."""

    def __init__(self, parts: Sequence[Retention]) -> None:
        self.parts = parts

    async def round(self, lease: HeldLease) -> float:
        """Run every part once; return in how many seconds to call it again, 0 when more is left."""
        return min([await part.round(lease) for part in self.parts])


def engine_retention() -> Retention:
    """Return the retention of outbox dead letters and of lost worker sessions."""
    rules = [
        RetentionRule("delete_dead_messages", timedelta(days=30)),
        RetentionRule("delete_workers", timedelta(days=1)),
    ]
    return Retention(load("tickwright.engine.sql", "upkeep.sql"), rules)
