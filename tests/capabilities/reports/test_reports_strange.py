"""Listeners that break their contract: each fails its own part, which is tried again."""

from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

from kit.reports import ReportWorld, plan_of
from kit.strange import FINAL, STRANGE, behave
from tickwright.capabilities.reports.handlers import Function, ReportRequest
from tickwright.capabilities.reports.plan import Listener

TRIES = {how: 1 if how in FINAL else 2 for how in STRANGE}


async def test_a_listener_that_breaks_its_contract_fails_its_own_part(alone: ReportWorld) -> None:
    """RPL-1: each attempt is counted, the last one fails the report, and the process holds no part afterwards."""
    calls: Counter[str] = Counter()

    def listener(how: str) -> Function:
        async def strange(_request: ReportRequest) -> AsyncIterator[dict[str, Any]]:
            calls[how] += 1
            yield {"id": 1}
            await behave(how)

        return strange

    async with alone.process({how: listener(how) for how in STRANGE}) as process:
        asked = {how: await alone.request(_plan(how), {"how": how}) for how in STRANGE}
        rows = {how: await alone.over(report) for how, report in asked.items()}
        assert {row["status"] for row in rows.values()} == {"failed"}
        assert calls == TRIES
        assert process.listener.running == 0
        assert not process.listener.counts["released"]
        parts = {how: await alone.part(report, how) for how, report in asked.items()}
    assert {how: part["attempts"] for how, part in parts.items()} == TRIES
    errors = {how: part["error"] for how, part in parts.items()}
    assert errors["no_text"] == "x (bad)"
    assert errors["nameless"] == "Rejected (bad)"
    assert errors["no_code"] == "None (None)"
    assert errors["unwritable"] == f"x y? (a b?{'c' * 96})"
    assert errors["bare"] == "Bare (exception)"
    assert errors["cancels_itself"] == "CancelledError: "


def _plan(how: str) -> Any:
    return plan_of(Listener(name=how, kind="function", attempts=2), deadline_s=60)
