"""The audit trail, searched by actor, by action and its prefix, and by subject; a filtered page has a bound."""

from collections.abc import AsyncIterator

import pytest

from kit.api import RunningApi, running_api
from tickwright.capabilities.operations import listings as operations

LINE = "INSERT INTO tickwright.audit (actor, action, subject) VALUES ($1, $2, $3)"


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[RunningApi]:
    """A running API."""
    async with running_api(database_url) as running:
        yield running


async def subjects(api: RunningApi, query: str) -> list[str]:
    """Return the subjects of the entries of a listing."""
    return [line["subject"] for line in (await api.viewer.get(f"/v1/audit?{query}")).json["items"]]


async def test_entries_are_found_by_actor_and_by_prefix_of_the_action(api: RunningApi) -> None:
    """Each filter alone, and together; signs of patterns are taken literally."""
    for line in (
        ("ann", "jobs.cancel", "a"),
        ("ann", "jobs_x", "b"),
        ("bob", "jobs.retry", "c"),
        ("Ann", "keys.put", "d"),
    ):
        await api.pool.execute(LINE, *line)
    assert await subjects(api, "actor=ann") == ["b", "a"]
    assert await subjects(api, "action_prefix=jobs.") == ["c", "a"]
    assert await subjects(api, "action_prefix=jobs&actor=bob") == ["c"]
    assert await subjects(api, "action_prefix=%25") == []
    assert await subjects(api, "action=jobs") == []
    assert await subjects(api, "action=jobs.cancel&subject=a&actor=ann") == ["a"]


async def test_a_page_that_finds_nothing_has_a_cursor(api: RunningApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads a bounded number of entries, and its cursor continues with older ones, under this filter only."""
    monkeypatch.setattr(operations, "AUDIT_ROWS_SEARCHED_MAX", 5)
    await api.pool.execute(LINE, "bob", "jobs.cancel", "old")
    for number in range(7):
        await api.pool.execute(LINE, "ann", "jobs.cancel", f"{number}")
    first = (await api.viewer.get("/v1/audit?actor=bob")).json
    assert first["items"] == []
    second = (await api.viewer.get(f"/v1/audit?actor=bob&cursor={first['next']}")).json
    assert [line["subject"] for line in second["items"]] == ["old"]
    (await api.viewer.get(f"/v1/audit?actor=ann&cursor={first['next']}")).says(400, "invalid_cursor")
    page = (await api.viewer.get("/v1/audit?actor=ann&limit=2")).json
    assert [line["subject"] for line in page["items"]] == ["6", "5"]
