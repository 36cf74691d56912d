"""A rolling upgrade under load: processes of the release before beside processes of this one, on the new schema."""

import tarfile
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kit.cli import tickwright
from kit.fleets import DECLARED, DOERS, MAKERS, SETTINGS, TESTS, Fleet, Load, all_over, are_done, has
from kit.waiting import eventually_async
from tickwright.store.pool import open_pool

pytestmark = pytest.mark.storm

BEFORE = TESTS / "releases" / "schema-0011.tar.xz"
"""The package of the release before, without the files of its page; its newest migration is 0011.

Made with ``git archive REVISION src/tickwright | tar -x`` and ``tar -cJ src``; the next release takes its place.
"""


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The release before, unpacked."""
    folder = tmp_path_factory.mktemp("before")
    # Python 3.11.2, which Debian 12 has, knows no filter
    filters: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    with tarfile.open(BEFORE) as archive:
        archive.extractall(folder, **filters)
    return folder


@pytest.fixture
async def fleet(empty_database_url: str, tmp_path: Path, before: Path) -> AsyncIterator[Fleet]:
    """No process yet."""
    fleet = Fleet(empty_database_url, tmp_path, before)
    yield fleet
    fleet.kill()


@pytest.mark.timeout(900)  # it waits for polls of every phase, the first ones for two minutes
async def test_both_releases_work_side_by_side_in_both_orders_and_nothing_is_lost_or_done_twice(fleet: Fleet) -> None:
    """One release makes work that the other one does, in both directions; each effect is there once."""
    assert tickwright("migrate", env=fleet.environment("old")).code == 0
    key = tickwright("keys", "create", "loader", "--role", "operator", env=fleet.environment("old")).out.strip()
    old_makers, old_doers = fleet.start("old", MAKERS), fleet.start("old", DOERS)
    async with await open_pool(fleet.url, max_size=4) as pool:
        await eventually_async(lambda: has(pool, DECLARED, 2), 60, what="the program is declared")
        await pool.execute(SETTINGS)
        load = Load(pool, fleet, key)
        async with load.running():
            await are_done(fleet, "old", "before the migration")
            assert tickwright("migrate", env=fleet.environment("new")).code == 0
            await are_done(fleet, "old", "the release before, on the new schema")

            new_doers = fleet.start("new", DOERS)
            await are_done(fleet, "new", "both beside each other")
            await fleet.drain(old_doers)
            await are_done(fleet, "new", "old makers, new doers")

            old_doers, new_makers = fleet.start("old", DOERS), fleet.start("new", MAKERS)
            await fleet.drain(old_makers)
            await fleet.drain(new_doers)
            await are_done(fleet, "old", "new makers, old doers")

            new_doers = fleet.start("new", DOERS)
            await fleet.drain(old_doers)
            await are_done(fleet, "new", "nothing of the release before")
        await eventually_async(load.none_open, 60, what="every job is over")
        await eventually_async(lambda: all_over(pool), 60, what="every report and execution is over")
        await fleet.drain(new_makers)
        await fleet.drain(new_doers)
        reports = {row["id"]: row["status"] for row in await pool.fetch("SELECT id, status FROM tickwright.reports")}
    assert load.unexpected == []
    runs = fleet.runs()
    jobs = Counter(int(run[1]) for run in runs if run[0] == "job")
    assert set(jobs) == load.jobs, "a job was lost, or one ran that was not scheduled"
    assert set(jobs.values()) == {1}, "a drain costs no attempt"
    for kind in ("entity", "poll", "chunk"):
        twice = [run for run, times in Counter(run for run in runs if run[0] == kind).items() if times > 1]
        assert not twice, twice[:3]
    assert {reports[report] for report in load.reports} == {"finished"}
    assert fleet.complaints() == []
