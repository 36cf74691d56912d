"""The types of jobs that a process knows: read beside the calls that use them."""

import asyncio
import gc
from typing import Any

import pytest

from tickwright.capabilities.jobs import enqueue
from tickwright.capabilities.jobs.enqueue import TypeCatalog
from tickwright.store.pool import Pool


async def test_a_database_that_is_lost_while_types_are_read_costs_no_traceback(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is read beside a call has no caller to hear its error: it is one line, and the old types serve."""
    unheard: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: unheard.append(context))
    monkeypatch.setattr(enqueue, "TYPES_FRESH_S", -1.0)
    await pool.execute("INSERT INTO tickwright.task_types (name, target) VALUES ('mail', 'python:mail')")
    catalog = TypeCatalog(pool)
    known = await catalog.get("mail")
    pool.terminate()
    assert await catalog.get("mail") is known
    assert catalog._reading is not None
    await asyncio.wait({catalog._reading})
    assert await catalog.get("mail") is known
    await asyncio.wait({catalog._reading})
    del catalog
    gc.collect()
    assert unheard == []
