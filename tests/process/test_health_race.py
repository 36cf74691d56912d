"""Many ask at once whether the database answers: one question, and its answer for all of them."""

import asyncio

import pytest

from tickwright.process import health
from tickwright.process.health import DatabaseCheck
from tickwright.store.pool import Pool


async def test_whoever_asks_gets_the_answer_to_his_own_question(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the next question is under way already: a stranger could take a sound process out of its balancer."""
    monkeypatch.setattr(health, "REMEMBER_S", 0.0)
    check = DatabaseCheck(pool)

    async def ask() -> None:
        for _ in range(30):
            assert await check.answers()

    await asyncio.gather(*(ask() for _ in range(20)))
