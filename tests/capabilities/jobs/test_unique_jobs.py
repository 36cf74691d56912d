"""Unique jobs: what is equal, for how long, what an equal request does, and every way in."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from kit.engine import running_engine
from tickwright import Job, Rejected, Tickwright, Unique

COUNT = "SELECT count(*) FROM ONLY tickwright.scheduled_tasks"


def program(url: str, **options: Any) -> Tickwright:
    """Return an app with one handler."""
    app = Tickwright(url)

    @app.job("sync", **options)
    async def sync(job: Job, customer: int = 0, n: Any = None) -> None: ...

    return app


@pytest.fixture
async def app(database_url: str) -> AsyncIterator[Tickwright]:
    """An open app on a fresh database."""
    async with program(database_url) as app:
        yield app


async def test_an_equal_job_is_kept_and_another_one_inserted(app: Tickwright) -> None:
    """The answer says what happened, and to which job."""
    rule = Unique(by=("customer",))
    first = await app.schedule("sync", {"customer": 1}, unique=rule)
    second = await app.schedule("sync", {"customer": 1, "n": 2}, unique=rule)
    other = await app.schedule("sync", {"customer": 2}, unique=rule)
    assert (first.outcome, second.outcome, other.outcome) == ("inserted", "existing", "inserted")
    assert (second.id, second.created, second.status) == (first.id, False, "pending")
    assert await app.pool.fetchval(COUNT) == 2


async def test_one_call_with_equal_jobs_inserts_one(app: Tickwright) -> None:
    """In bulk there is an answer for each, in order."""
    rule = Unique(by=("customer",), on_conflict=("payload",))
    jobs = [app.new_job("sync", {"customer": n % 3, "n": n}, unique=rule) for n in range(7)]
    made = await app.schedule_many([*jobs, app.new_job("sync")])
    assert [one.outcome for one in made] == ["inserted"] * 3 + ["replaced"] * 4 + ["inserted"]
    assert made[6].id == made[0].id
    assert (await app.get(made[0].id)).payload == {"customer": 0, "n": 6}
