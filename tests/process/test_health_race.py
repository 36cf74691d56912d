"""Concurrent probes of the database share one check, and each gets its answer."""

import asyncio

import pytest

from tickwright.process import health
from tickwright.process.health import DatabaseCheck
from tickwright.store.pool import Pool


async def test_each_probe_gets_the_answer_of_its_own_check(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while the next check is under way: a wrong answer could take a healthy process out of its balancer."""
    monkeypatch.setattr(health, "REMEMBER_S", 0.0)
    check = DatabaseCheck(pool)

    async def ask() -> None:
        for _ in range(30):
            assert await check.answers()

    await asyncio.gather(*(ask() for _ in range(20)))
