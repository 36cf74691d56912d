"""Fixtures: an app as its user makes it."""

from collections.abc import AsyncIterator

import pytest

from tickwright import Job, Tickwright


@pytest.fixture
async def app(database_url: str) -> AsyncIterator[Tickwright]:
    """An app with the task type ``mail``, open."""
    app = Tickwright(database_url)

    @app.job("mail")
    async def mail(_job: Job, to: str) -> None: ...

    async with app:
        yield app
