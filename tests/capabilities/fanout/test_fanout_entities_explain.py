"""Why an entity is polled for a module, or is not: every reason once, the deciding one first."""

from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any

import pytest

from kit.api import RunningApi, running_api
from kit.polling import Ground

WORKER = """INSERT INTO tickwright.workers (id, name, roles, version, lease_until, facts)
            VALUES ($1, 'w', $2, '0', clock_timestamp() + interval '1 minute', $3::jsonb)"""


class Explained:
    """One entity, ``a``, with the partner ``dhl``, a live scheduler and a live consumer."""

    def __init__(self, api: RunningApi) -> None:
        self.api, self.pool = api, api.pool

    async def reasons(self, module: str = "LOCATIONS") -> tuple[str, list[str]]:
        """Return the status and the codes of the reasons."""
        said = (await self.api.viewer.get(f"/v1/entities/a/explain?module={module}")).json
        assert (said["entity"], said["module"]) == ("a", module.upper())
        assert said["summary"] == said["reasons"][0]["text"]
        return said["status"], [reason["code"] for reason in said["reasons"]]

    async def text(self, code: str, module: str = "LOCATIONS") -> str:
        """Return the text of one reason."""
        said = (await self.api.viewer.get(f"/v1/entities/a/explain?module={module}")).json
        return str(next(reason["text"] for reason in said["reasons"] if reason["code"] == code))

    async def cursor(self, **columns: str) -> None:
        """Set columns of the entity's cursor to SQL expressions."""
        names, values = ", ".join(columns), ", ".join(columns.values())
        await self.pool.execute("DELETE FROM tickwright.fanout_cursors")
        into = f"tickwright.fanout_cursors (entity_code, task_type, {names})"
        await self.pool.execute(f"INSERT INTO {into} VALUES ('a', 'LOCATIONS', {values})")

    async def shown(self) -> dict[str, Any]:
        """Return the module's part of the entity."""
        found = (await self.api.viewer.get("/v1/entities/a")).json["modules"]
        return dict(next(module for module in found if module["name"] == "LOCATIONS"))


WINDOW = "date_bin('1 day', clock_timestamp(), 'epoch')"
STATE = "INSERT INTO tickwright.partner_states (partner_no, {}) SELECT partner_no, {} FROM tickwright.partners"
QUIET = '{"quiet": ["mon,tue,wed,thu,fri,sat,sun 00:00-24:00 UTC"]}'
LATER = "now() + interval '1 hour'"


@pytest.fixture
async def one(database_url: str) -> AsyncIterator[Explained]:
    """See :class:`Explained`."""
    async with running_api(database_url) as api:
        await Ground(api.pool).partner()
        body = {"polling_enabled_modules": "LOCATIONS,SESSIONS", "partner": "dhl"}
        assert (await api.admin.send("PUT", "/v1/entities/a", body)).status == 201
        for name in ("LOCATIONS", "SESSIONS"):  # no test reaches the end of a window
            gated = name == "SESSIONS"
            assert (await api.admin.send("PUT", f"/v1/modules/{name}", {"every": "1d", "gated": gated})).status == 200
        await api.pool.execute(WORKER, 101, ["scheduler"], '{"gates": {}}')
        await api.pool.execute(WORKER, 102, ["fanout-consumer"], '{"modules": ["LOCATIONS", "SESSIONS"]}')
        yield Explained(api)


async def test_a_window_that_has_not_run_is_due(one: Explained) -> None:
    """Nothing blocks it; the text says until when it can run."""
    assert await one.reasons() == ("due", ["window_open", "never_succeeded"])
    assert await one.reasons("locations") == ("due", ["window_open", "never_succeeded"])
    shown = await one.shown()
    begins, ends = (datetime.fromisoformat(shown[name]) for name in ("window_at", "next_window_at"))
    assert ends - begins == timedelta(days=1)
    assert begins.timestamp() % 86_400 == 0


async def test_a_window_that_ran_waits_for_the_next(one: Explained) -> None:
    """The current window has run; a run of an earlier window does not count."""
    await one.cursor(last_window_at=WINDOW, last_success_at="now()")
    assert await one.reasons() == ("ran", ["window_ran", "succeeded"])
    shown = await one.shown()
    assert (shown["last_window_at"], shown["failures"], shown["running_since"]) == (shown["window_at"], 0, None)
    await one.cursor(last_window_at=f"{WINDOW} - interval '1 day'", last_success_at="now()")
    assert await one.reasons() == ("due", ["window_open", "succeeded"])


async def test_a_run_under_way_and_its_failures_are_shown(one: Explained) -> None:
    """Since when, for which window, how often it failed, and the last error; a run without an owner is none."""
    running = {"owner": "102", "running_window_at": WINDOW, "running_since": "now()", "fence": "3"}
    failed = {"failures": "2", "last_error": "'hub says 500'", "last_error_at": "now()"}
    await one.cursor(**running, **failed)
    assert await one.reasons() == ("running", ["running", "failing", "window_open", "never_succeeded"])
    assert "2 times" in await one.text("failing")
    assert "hub says 500" in await one.text("failing")
    shown = await one.shown()
    assert (shown["failures"], shown["last_error"], shown["running_window_at"]) == (
        2,
        "hub says 500",
        shown["window_at"],
    )
    await one.cursor(**{**running, "owner": "NULL"}, **failed)
    assert await one.reasons() == ("failing", ["failing", "window_open", "never_succeeded"])
    assert (await one.shown())["running_since"] is None


async def test_an_entity_that_timed_out_is_explained_as_slow(one: Explained) -> None:
    """Its next run needs one of the slots that slow entities share, for five windows after its last time-out."""
    await one.cursor(failures="1", last_error="'timeout'", last_error_at="now()")
    assert await one.reasons() == ("failing", ["failing", "slow", "window_open", "never_succeeded"])
    assert "TICKWRIGHT_FANOUT_SLOW_PERCENT" in await one.text("slow")
    await one.cursor(failures="0", last_error="'timeout'", last_error_at="now() - interval '4 days'")
    assert await one.reasons() == ("due", ["slow", "window_open", "never_succeeded"])
    await one.cursor(failures="0", last_error="'timeout'", last_error_at="now() - interval '6 days'")
    assert await one.reasons() == ("due", ["window_open", "never_succeeded"])


async def test_an_entity_that_is_not_polled_has_every_reason(one: Explained) -> None:
    """Paused, not listed, a module that is unknown or paused."""
    await one.api.admin.post("/v1/entities/a/pause")
    await one.api.admin.post("/v1/modules/TARIFFS/pause")
    wanted = ["entity_paused", "module_not_listed", "module_paused", "never_succeeded"]
    assert await one.reasons("TARIFFS") == ("not_polled", wanted)
    await one.pool.execute("UPDATE tickwright.entities SET polling_enabled_modules = ' locations, NoSuch '")
    assert await one.reasons("NOSUCH") == ("not_polled", ["entity_paused", "module_unknown"])
    assert (await one.reasons())[1] == ["entity_paused", "never_succeeded"]
    found = (await one.api.viewer.get("/v1/entities/a")).json["modules"]
    assert [(module["name"], module["known"], module["every"]) for module in found] == [
        ("LOCATIONS", True, "1d"),
        ("NOSUCH", False, None),
    ]


async def test_a_gate_is_in_the_environment_of_each_scheduler(one: Explained) -> None:
    """A gated module needs true, any other one publishes without false; all, some or none may be open."""

    async def says(scheduler: int, gates: str) -> None:
        facts = f'{{"gates": {gates}}}'
        await one.pool.execute("UPDATE tickwright.workers SET facts = $2::jsonb WHERE id = $1", scheduler, facts)

    assert await one.reasons("SESSIONS") == ("not_polled", ["module_closed", "never_succeeded"])
    assert "ENABLE_SESSIONS_POLLING=true" in await one.text("module_closed", "SESSIONS")
    await says(101, '{"SESSIONS": true, "LOCATIONS": false}')
    assert await one.reasons("SESSIONS") == ("due", ["window_open", "never_succeeded"])
    assert await one.reasons("LOCATIONS") == ("not_polled", ["module_closed", "never_succeeded"])
    assert "ENABLE_LOCATIONS_POLLING=false" in await one.text("module_closed")
    await one.pool.execute(WORKER, 103, ["scheduler"], '{"gates": {}}')
    assert (await one.reasons("SESSIONS"))[1][0] == "module_closed_in_part"
    assert (await one.reasons("LOCATIONS"))[1][0] == "module_closed_in_part"
    await one.pool.execute("UPDATE tickwright.workers SET lost_at = now() WHERE id = 101")
    assert await one.reasons("SESSIONS") == ("not_polled", ["module_closed", "never_succeeded"])
    assert await one.reasons("LOCATIONS") == ("due", ["window_open", "never_succeeded"])


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("sql", "code"),
    [
        ("UPDATE tickwright.partners SET paused_at = now()", "partner_paused"),
        (STATE.format("breaker, open_until, last_error", f"'open', {LATER}, 'refused'"), "breaker_open"),
        (STATE.format("breaker", "'half_open'"), "breaker_half_open"),
        (STATE.format("blocked_until", LATER), "partner_asked_to_wait"),
        (f"UPDATE tickwright.partners SET settings = '{QUIET}'", "partner_quiet"),
        ("""UPDATE tickwright.partners SET settings = '{"rate": "fast"}'""", "settings_invalid"),
        ("UPDATE tickwright.workers SET lost_at = now() WHERE id = 101", "no_scheduler"),
        ("UPDATE tickwright.workers SET facts = '{}' WHERE id = 101", "no_scheduler"),
        ("UPDATE tickwright.workers SET lease_until = now() WHERE id = 102", "no_consumer"),
        ('UPDATE tickwright.workers SET facts = \'{"modules": ["CDRS"]}\' WHERE id = 102', "no_handler"),
    ],
)
async def test_the_reason_that_blocks_a_due_window_is_first(one: Explained, sql: str, code: str) -> None:
    """The partner's state, or no process to publish or to run it."""
    await one.pool.execute(sql)
    assert await one.reasons() == ("due", [code, "window_open", "never_succeeded"])
    await one.cursor(last_window_at=WINDOW, last_success_at="now()")
    assert await one.reasons() == ("ran", ["window_ran", code, "succeeded"])
