"""The clock of a test database: what sees its moves, and where there is none."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

import tickwright
from tickwright import Job, Rejected, Tickwright
from tickwright.testing import refute_scheduled, travel, travel_sync
from tickwright.testing.databases import ScratchDatabase, given_database
from tickwright.testing.opening import AppUnderTest, OpenApp, SharedPool

own = Tickwright()
ROOT = Path(tickwright.__file__).parent
KEYWORDS = re.compile(
    r"\b(current_(timestamp|time|date)|localtime(stamp)?|timeofday)\b|'(now|today|tomorrow)'|\bpg_catalog\.real_",
    re.IGNORECASE,
)
BOTH = pytest.mark.parametrize("isolated", [True, False], ids=["isolated", "committed"])


@own.job("report")
async def report(job: Job) -> float:
    """Return when it was due."""
    return job.due_s


@BOTH
async def test_a_moved_clock_makes_jobs_due_and_moves_back(tickwright_app: OpenApp, isolated: bool) -> None:
    """For the rest of the test, or for a block; by a duration, or to an instant."""
    async with tickwright_app(own, isolated=isolated) as app:
        start = await app.pool.fetchval("SELECT now()")
        await report.options(delay="3d").schedule()
        async with travel(app, "3d"):
            assert await app.pool.fetchval("SELECT now()") >= start + timedelta(days=3)
        assert await app.pool.fetchval("SELECT now()") < start + timedelta(days=1)
        assert (await app.drain()).jobs == []
        await travel(app, to=start + timedelta(days=2))
        await travel(app, to=start)  # a past instant moves nothing
        assert (await app.drain()).jobs == []
        await travel(app, timedelta(days=1, minutes=1))
        assert (await app.drain()).counts == {"completed": 1}


@BOTH
async def test_everything_that_the_database_notes_has_the_moved_time(tickwright_app: OpenApp, isolated: bool) -> None:
    """Defaults, triggers, functions with a search path, the tables of a day, sessions: all of a job's life."""
    async with tickwright_app(own, isolated=isolated) as app:
        start = await app.pool.fetchval("SELECT now()")
        day = start + timedelta(days=400)
        await travel(app, to=day)
        handle = await report.options(key="k").schedule()
        [job] = (await app.drain()).jobs
        detail = await app.get(handle.id)
        noted = [detail.created_at, detail.updated_at, detail.execute_at, detail.completed_at, detail.due_at]
        noted.append(await app.pool.fetchval("SELECT created_at FROM tickwright.job_keys"))
        noted.append(await app.pool.fetchval("SELECT max(created_at) FROM tickwright.task_types"))
        assert [at for at in noted[:-1] if at < day] == []
        assert job.result >= day.timestamp()
        in_table = "SELECT tableoid::regclass::text FROM tickwright.scheduled_tasks WHERE id = $1"
        assert f"{day:%Y%m%d}" in await app.pool.fetchval(in_table, handle.id)


def test_other_drivers_see_the_same_clock(tickwright_app: OpenApp, tickwright_database: ScratchDatabase) -> None:
    """A committed move holds for every connection to the database, psycopg's too."""
    with tickwright_app(own, isolated=False) as app, psycopg.connect(tickwright_database.url) as connection:
        report.options(delay="1d").schedule_sync()
        travel_sync(app, "2d")
        row = connection.execute("SELECT now() - execute_at FROM tickwright.scheduled_tasks").fetchone()
        assert row is not None
        assert row[0] > timedelta(hours=23)
        assert app.drain_sync().counts == {"completed": 1}


def test_no_statement_of_the_product_uses_a_clock_that_cannot_be_moved() -> None:
    """Keywords and special literals would keep the server's time, so no SQL of the product has one."""
    found = {
        path.relative_to(ROOT).as_posix()
        for path in ROOT.rglob("*.sql")
        if "testing" not in path.parts and KEYWORDS.search(re.sub(r"--[^\n]*", "", path.read_text("utf-8")))
    }
    assert found == set()


async def test_a_database_that_no_fixture_made_has_no_such_clock(database_url: str, tickwright_app: OpenApp) -> None:
    """Neither an app that opens by itself, nor one on a test database that the user keeps."""
    async with Tickwright(database_url) as plain:
        with pytest.raises(Rejected) as refused:
            await travel(plain, "1d")
        assert refused.value.code == "no_test_clock"
    kept = ScratchDatabase(database_url, is_movable=False)
    async with AppUnderTest(own, SharedPool(kept, isolated=True), isolated=True) as app:
        await report.schedule()
        assert (await app.drain()).counts == {"completed": 1}
        with pytest.raises(Rejected, match="can be moved"):
            await travel(app, "1d")
        with pytest.raises(Rejected, match="can be moved"):
            await app.drain(until="1d")
    async with AppUnderTest(own, SharedPool(kept, isolated=True), isolated=True) as app:
        await refute_scheduled(app, report)


@pytest.mark.parametrize(
    "wrong", [{}, {"by": "1d", "to": datetime(2001, 1, 1, tzinfo=UTC)}, {"by": "x"}, {"by": timedelta(-1)}], ids=str
)
async def test_a_wrong_journey_is_refused(tickwright_app: OpenApp, wrong: dict[str, Any]) -> None:
    """One of the two, and only forward."""
    async with tickwright_app(own) as app:
        with pytest.raises(Rejected) as refused:
            await travel(app, **wrong)
        assert refused.value.code in {"invalid_travel", "invalid_duration"}


async def test_a_drain_to_an_instant_without_a_time_zone_is_refused(tickwright_app: OpenApp) -> None:
    """It could mean any instant of a day."""
    async with tickwright_app(own) as app:
        with pytest.raises(Rejected) as refused:
            await app.drain(until=datetime(2001, 1, 1))  # noqa: DTZ001
        assert refused.value.code == "naive_datetime"


def test_a_database_without_test_in_its_name_is_no_test_database(database_url: str) -> None:
    """``TICKWRIGHT_TEST_DATABASE_URL`` with the URL of production by mistake."""
    with pytest.raises(Rejected) as refused:
        given_database(database_url.rpartition("/")[0] + "/production")
    assert refused.value.code == "not_a_test_database"
