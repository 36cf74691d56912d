"""Looks at claims that come while an end is told: what claiming.KEEP_S makes rare happens in every test that asks."""

from typing import Any

import pytest

from kit.waiting import eventually_async
from tickwright.engine import claimed_work as claiming
from tickwright.store.pool import Pool

OWNERS = (
    "INSERT INTO tickwright.workers (id, name, roles, version, lease_until) "
    "SELECT n, 'nobody', '{}', '0', 'infinity' FROM generate_series(1, 9) AS n ON CONFLICT DO NOTHING"
)
AFTER_OWNERS = "SELECT setval('tickwright.fence_seq', greatest(100, nextval('tickwright.fence_seq')))"
PASS = 3
"""The first one may have read before the end; the others cannot have."""


async def open_owners(pool: Pool) -> None:
    """Open the sessions 1 to 9, under which a test claims by hand."""
    await pool.execute(OWNERS)
    await pool.execute(AFTER_OWNERS)


class Looks:
    """Looks fifty times a second, and counts.

    Args:
        store: The ledger's class.
        look: Its method that says which claims are still ours.

    Attributes:
        made: Answers so far.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, store: type[Any], look: str) -> None:
        self._monkeypatch, self._store, self.made = monkeypatch, store, 0
        monkeypatch.setattr(claiming, "KEEP_S", 0.02)
        ask = getattr(store, look)

        async def looked(*asked: Any) -> Any:
            answer = await ask(*asked)
            self.made += 1
            return answer

        monkeypatch.setattr(store, look, looked)

    def beside(self, end: str) -> None:
        """Let looks pass between the commit of an end and its answer."""
        write = getattr(self._store, end)

        async def written(*said: Any, **words: Any) -> Any:
            answer = await write(*said, **words)
            await self.passed()
            return answer

        self._monkeypatch.setattr(self._store, end, written)

    async def passed(self) -> None:
        """Wait until they have."""
        before = self.made
        await eventually_async(lambda: self.made >= before + PASS, what=f"{PASS} looks")
