"""The alerts of reports fire in their faults and clear after them: the role's services are real."""

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
    """Return a rule that fires when it finds something for the first time; its bounds stay."""
    return replace(rule, hold=timedelta())


class Watch:
    """Alerts of one world, looked at when a test wants it."""

    def __init__(self, world: ReportWorld, lease: Lease) -> None:
        self._pool, self._lease = world.pool, lease
        rules = [without_hold(rule) for rule in RULES if rule.name.startswith("report_")]
        self._loop = Alerting(Leases(world.pool, owner="test"), rules=rules)

    async def firing(self, rule: str) -> dict[str, str]:
        """Return the subjects of a rule that fire now, with what is said of them."""
        await self._loop.round(self._lease)
        asked = "SELECT subject, summary FROM tickwright.alerts WHERE rule = $1 AND state = 'firing'"
        found = {row["subject"]: row["summary"] for row in await self._pool.fetch(asked, rule)}
        assert not any("?" in summary for summary in found.values()), found
        return found


@pytest.fixture
async def watch(alone: ReportWorld) -> Watch:
    """Somebody who looks."""
    lease = await Leases(alone.pool, owner="test", terms=LONG).take("alerting")
    assert lease is not None
    return Watch(alone, lease)


async def good(_: ReportRequest) -> AsyncIterator[dict[str, Any]]:
    """Bring a row."""
    yield {"id": 1}


async def bad(request: ReportRequest) -> AsyncIterator[dict[str, Any]]:
    """Say that it can never work."""
    if request.attempt:
        raise Rejected("no_such_table", "there is no table of users")
    yield {}


async def test_a_type_whose_reports_failed_lately_is_named_with_the_last_reason(
    alone: ReportWorld, watch: Watch
) -> None:
    """Each type once, however many; what is finished and what failed long ago is no news."""
    async with alone.process({"good": good, "bad": bad}):
        await alone.finished(await alone.request(plan_of("good"), kind="fine"))
        assert await watch.firing("report_failed") == {}
        await alone.over(await alone.request(plan_of("bad"), {"n": 1}, kind="sales"))
        last = await alone.request(plan_of("bad"), {"n": 2}, kind="sales")
        await alone.over(last)
    said = await watch.firing("report_failed")
    assert set(said) == {"sales"}
    assert said["sales"].startswith(f"2 reports of sales failed within 15 minutes, the last one {last}: bad: ")
    assert "there is no table of users" in said["sales"]
    await alone.pool.execute("UPDATE tickwright.reports SET finished_at = finished_at - interval '16 minutes'")
    assert await watch.firing("report_failed") == {}


async def test_a_report_behind_its_deadline_is_named_until_somebody_ends_it(alone: ReportWorld, watch: Watch) -> None:
    """Whether nobody takes its step or somebody holds it and hangs; a minute is allowed for."""
    report = await alone.request(plan_of("good"), kind="sales")
    late = "UPDATE tickwright.reports SET step_at = {}, deadline_at = now() - interval '{} seconds'"
    await alone.pool.execute(late.format("now() - interval '59 seconds'", 59))
    assert await watch.firing("report_overdue") == {}
    for step_at in ("now() - interval '75 seconds'", "'infinity'"):
        await alone.pool.execute(late.format(step_at, 75))
        said = await watch.firing("report_overdue")
        assert set(said) == {"sales"}
        shown = rf"1 reports of sales are unfinished after their deadline, {report} for \d+ s \(dead-man\)\."
        assert re.fullmatch(shown, said["sales"]), said
    await alone.pool.execute("UPDATE tickwright.reports SET step_at = now()")
    async with alone.process({"good": good}):
        assert (await alone.over(report))["error_code"] == "deadline_passed"
        assert await watch.firing("report_overdue") == {}


async def test_what_no_process_serves_is_named_until_one_does(alone: ReportWorld, watch: Watch) -> None:
    """By function or source, and the role where steps are due; services are outside, so nobody knows of them."""
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

        await eventually_async(only_the_source, what="the session has said what it serves")
        process.session.facts["serves"] = ["function:good", "source:plt_user"]

        async def nobody() -> bool:
            return await watch.firing("report_unserved") == {}

        await eventually_async(nobody, what="both are served")
    await alone.cancel(report)
    assert await watch.firing("report_unserved") == {}


def test_a_deploy_of_a_minute_wakes_nobody() -> None:
    """What is unserved fires when it was found for so long, round after round."""
    [rule] = [rule for rule in RULES if rule.name == "report_unserved"]
    assert rule.hold >= timedelta(minutes=1)
