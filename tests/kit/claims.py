"""Checks of claims while an attempt's end is written: rare with ``claiming.CHECK_S``, certain with this module."""

from typing import Any

import pytest

from kit.waiting import eventually_async
from tickwright.engine import claimed_work as claiming
from tickwright.store.pool import Pool

OWNERS = (
    "INSERT INTO tickwright.workers (id, name, roles, version, lease_until) "
    "SELECT n, 'test', '{}', '0', 'infinity' FROM generate_series(1, 9) AS n ON CONFLICT DO NOTHING"
)
AFTER_OWNERS = "SELECT setval('tickwright.fence_seq', greatest(100, nextval('tickwright.fence_seq')))"
PASS = 3
"""The first check may have read before the end; the others cannot have."""


async def open_owners(pool: Pool) -> None:
    """Open the sessions 1 to 9, which a test uses as owners of claims."""
    await pool.execute(OWNERS)
    await pool.execute(AFTER_OWNERS)


class ClaimChecks:
    """Checks claims fifty times a second, and counts.

    Args:
        store: The ledger's class.
        look: Its method that returns which claims are still held.

    Attributes:
        made: Checks answered so far.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, store: type[Any], look: str) -> None:
        self._monkeypatch, self._store, self.made = monkeypatch, store, 0
        monkeypatch.setattr(claiming, "CHECK_S", 0.02)
        check = getattr(store, look)

        async def checked(*arguments: Any) -> Any:
            answer = await check(*arguments)
            self.made += 1
            return answer

        monkeypatch.setattr(store, look, checked)

    def beside(self, end: str) -> None:
        """Let checks pass between the commit of an end and its answer."""
        write = getattr(self._store, end)

        async def written(*positional: Any, **named: Any) -> Any:
            answer = await write(*positional, **named)
            await self.passed()
            return answer

        self._monkeypatch.setattr(self._store, end, written)

    async def passed(self) -> None:
        """Wait until so many checks have passed."""
        before = self.made
        await eventually_async(lambda: self.made >= before + PASS, what=f"{PASS} looks")
