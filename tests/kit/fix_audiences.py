"""Fixtures: audiences, once in each kind of place, and once in each kind of database."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kit.audiences import DATABASES, KINDS, AudienceWorld, audience_world


@pytest.fixture(params=KINDS)
async def audiences(
    request: pytest.FixtureRequest, tmp_path: Path, empty_database_url: str
) -> AsyncIterator[AudienceWorld]:
    """Each kind of place in turn, empty."""
    async with audience_world(request.param, tmp_path, empty_database_url) as made:
        yield made


@pytest.fixture(params=DATABASES)
async def audience_bases(
    request: pytest.FixtureRequest, tmp_path: Path, empty_database_url: str
) -> AsyncIterator[AudienceWorld]:
    """Each kind of database in turn, empty."""
    async with audience_world(request.param, tmp_path, empty_database_url) as made:
        yield made
