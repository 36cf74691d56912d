"""The alerts of reports fire during faults and clear after them, with the real services of the role."""

import re
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from kit.alerts import RULES
from kit.leases import LONG
from kit.reports import ReportWorld, plan_of
from kit.waiting import eventually_async
from tickwright.capabilities.operations.alerts.alerting import Alerting
from tickwright.capabilities.reports.handlers import ReportRequest
from tickwright.capabilities.reports.plan import Listener
from tickwright.domain.errors import Rejected
from tickwright.engine.leases import Lease, Leases
from tickwright.observe.alerts import AlertRule

SERVICE = Listener(name="outside", kind="service")
QUERY = Listener(name="users", kind="sql", source="plt_user", sql="SELECT 1 AS id")


def without_hold(rule: AlertRule) -> AlertRule:
    """Return a rule that fires at its first finding; its bounds stay."""
    return replace(rule, hold=timedelta())


class Watch:
    """The alerts of one world, evaluated when a test asks."""

    def __init__(self, world: ReportWorld, lease: Lease) -> None:
        self._pool, self._lease = world.pool, lease
        rules = [without_hold(rule) for rule in RULES if rule.name.startswith("report_")]
        self._loop = Alerting(Leases(world.pool, owner="test"), rules=rules)

    async def firing(self, rule: str) -> dict[str, str]:
        """Return the subjects of a rule that fire now, with their summaries."""
        await self._loop.round(self._lease)
        asked = "SELECT subject, summary FROM tickwright.alerts WHERE rule = $1 AND state = 'firing'"
        found = {row["subject"]: row["summary"] for row in await self._pool.fetch(asked, rule)}
        assert not any("?" in summary for summary in found.values()), found
        return found


@pytest.fixture
async def watch(alone: ReportWorld) -> Watch:
    """The alerts of the world ``alone``."""
    lease = await Leases(alone.pool, owner="test", terms=LONG).take("alerting")
    assert lease is not None
    return Watch(alone, lease)


async def good(_: ReportRequest) -> AsyncIterator[dict[str, Any]]:
    """Yield a row."""
    yield {"id": 1}


async def bad(request: ReportRequest) -> AsyncIterator[dict[str, Any]]:
    """Raise a permanent error."""
    if request.attempt:
        raise Rejected("no_such_table", "there is no table of users")
    yield {}


async def test_report_failed_names_the_type_and_the_last_error(alone: ReportWorld, watch: Watch) -> None:
    """Each type once, however many failed; finished reports and those that failed long ago do not count."""
    async with alone.process({"good": good, "bad": bad}):
        await alone.finished(await alone.request(plan_of("good"), kind="fine"))
        assert await watch.firing("report_failed") == {}
        await alone.over(await alone.request(plan_of("bad"), {"n": 1}, kind="sales"))
        last = await alone.request(plan_of("bad"), {"n": 2}, kind="sales")
        await alone.over(last)
    summaries = await watch.firing("report_failed")
    assert set(summaries) == {"sales"}
    assert summaries["sales"].startswith(f"2 reports of sales failed within 15 minutes, the last one {last}: bad: ")
    assert "there is no table of users" in summaries["sales"]
    await alone.pool.execute("UPDATE tickwright.reports SET finished_at = finished_at - interval '16 minutes'")
    assert await watch.firing("report_failed") == {}


async def test_report_overdue_fires_until_the_report_ends(alone: ReportWorld, watch: Watch) -> None:
    """Whether its step is unclaimed or its holder hangs; after a minute of tolerance."""
    report = await alone.request(plan_of("good"), kind="sales")
    late = "UPDATE tickwright.reports SET step_at = {}, deadline_at = now() - interval '{} seconds'"
    await alone.pool.execute(late.format("now() - interval '59 seconds'", 59))
    assert await watch.firing("report_overdue") == {}
    for step_at in ("now() - interval '75 seconds'", "'infinity'"):
        await alone.pool.execute(late.format(step_at, 75))
        summaries = await watch.firing("report_overdue")
        assert set(summaries) == {"sales"}
        shown = rf"1 reports of sales are unfinished after their deadline, {report} for \d+ s \(dead-man\)\."
        assert re.fullmatch(shown, summaries["sales"]), summaries
    await alone.pool.execute("UPDATE tickwright.reports SET step_at = now()")
    async with alone.process({"good": good}):
        assert (await alone.over(report))["error_code"] == "deadline_passed"
        assert await watch.firing("report_overdue") == {}


async def test_report_unserved_fires_until_a_process_serves_the_part(alone: ReportWorld, watch: Watch) -> None:
    """By function or source, and by role where steps are due; services are external and are not checked."""
    report = await alone.request(plan_of("good", QUERY, SERVICE), kind="sales")
    waits = f"parts of reports wait, first report {report}."
    assert await watch.firing("report_unserved") == {
        "function:good": f"No live process serves function:good: 1 {waits}",
        "source:plt_user": f"No live process serves source:plt_user: 1 {waits}",
    }
    await alone.pool.execute("UPDATE tickwright.reports SET step_at = now()")
    role = (await watch.firing("report_unserved"))["report-listener"]
    assert role == f"No live process serves report-listener: 1 steps of reports wait, first report {report}."
    async with alone.process({"good": good}) as process:
        process.session.facts["serves"] = ["function:good"]

        async def only_the_source() -> bool:
            return set(await watch.firing("report_unserved")) == {"source:plt_user"}

        await eventually_async(only_the_source, what="the session has reported what it serves")
        process.session.facts["serves"] = ["function:good", "source:plt_user"]

        async def none_unserved() -> bool:
            return await watch.firing("report_unserved") == {}

        await eventually_async(none_unserved, what="both are served")
    await alone.cancel(report)
    assert await watch.firing("report_unserved") == {}


def test_report_unserved_does_not_fire_during_a_deploy_of_a_minute() -> None:
    """``report_unserved`` fires only after it was found for its hold, round after round."""
    [rule] = [rule for rule in RULES if rule.name == "report_unserved"]
    assert rule.hold >= timedelta(minutes=1)
