"""Tags and metadata: every way in stores them, handlers see them, searches find by them."""

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest

from kit.engine import insert, job_row
from tickwright import Job, Rejected, Tickwright
from tickwright.capabilities.jobs.admin.search import JobFilter, ListQuery

DUE = datetime(2031, 5, 1, 9, tzinfo=UTC)
TAGS, METADATA = ("nightly", "eu"), {"tenant": "a", "n": 5}


def program(url: str, seen: list[Any]) -> Tickwright:
    """Return an app with one handler."""
    app = Tickwright(url)

    @app.job("mail")
    async def mail(job: Job, to: str = "") -> None:
        seen.append((job.tags, job.metadata))

    return app


@pytest.fixture
def seen() -> list[Any]:
    """What the handler saw."""
    return []


@pytest.fixture
async def app(database_url: str, seen: list[Any]) -> AsyncIterator[Tickwright]:
    """An open app on a fresh database."""
    async with program(database_url, seen) as app:
        yield app


async def stored(app: Tickwright, job_id: int) -> tuple[Any, Any]:
    """Return the tags and metadata in a job's row."""
    async with app._pool.acquire() as connection:
        row = await job_row(connection, job_id)
    return row["tags"], row["metadata"] and json.loads(row["metadata"])


async def test_slice(app: Tickwright) -> None:
    made = await app.schedule("mail", {"to": "x"}, at=DUE, tags=TAGS, metadata=METADATA)
    plain = await app.schedule("mail", {"to": "x"}, at=DUE)
    keyed = await app.schedule("mail", {"to": "x"}, at=DUE, key="k", tags=["eu"])
    job = await app.get(made.id)
    assert (job.tags, job.metadata, job.version) == (["nightly", "eu"], METADATA, 1)
    job = await app.get(plain.id)
    assert (job.tags, job.metadata, job.version) == ([], None, 1)
    page = await app.service.list(ListQuery(tags=("eu",)))
    assert [j.id for j in page.items] == [keyed.id, made.id]
    page = await app.service.list(ListQuery(metadata=("n=5",)))
    assert [j.id for j in page.items] == [made.id]
    page = await app.service.list(ListQuery(metadata=("n=6",)))
    assert [j.id for j in page.items] == []
    assert (await app.service.count(JobFilter(tags=("eu",)))).counts["pending"] == 2
    done = await app.edit(made.id, version=1, priority=3, tags=["x"])
    assert done.version == 2
    with pytest.raises(Rejected, match="version 2 now"):
        await app.edit(made.id, version=1, priority=3, tags=["x"])
