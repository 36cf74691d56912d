"""Fixtures: a world of batches."""

from collections.abc import AsyncIterator

import pytest

from kit.batches import BatchWorld, batch_world


@pytest.fixture
async def batches(database_url: str) -> AsyncIterator[BatchWorld]:
    """A world of the test's own."""
    async with batch_world(database_url) as world:
        yield world
