"""Fixtures: the loops that turn the wheels of polling."""

from collections.abc import AsyncIterator

import pytest

from kit.wheels import Wheels, open_wheels


@pytest.fixture
async def wheels(database_url: str) -> AsyncIterator[Wheels]:
    """The loops on an empty database."""
    async with open_wheels(database_url) as wheels:
        yield wheels
