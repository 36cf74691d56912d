"""Why a report is not finished: the chain of reasons, for every state that it can be in."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from tickwright.capabilities.reports.plan import Listener, Plan
from tickwright.capabilities.reports.requests.explain import explain

NOW = datetime(2026, 11, 22, 9, 0, tzinfo=UTC)
PLAN = Plan(
    listeners=(Listener(name="users", kind="function"), Listener(name="paid", kind="service", stage=2)), merge=""
)


def facts(**other: Any) -> dict[str, Any]:
    """Return a record that waits for its first stage, with two live processes."""
    plain = {
        "id": 7, "status": "querying", "stage": 1, "epoch": 1, "restarts": 0, "tries": 0, "checks": 0, "held": False,
        "waits_for_slot": False, "check_at": NOW + timedelta(seconds=30), "deadline_at": NOW + timedelta(minutes=10),
        "error_code": None, "error": None, "created_at": NOW - timedelta(minutes=1), "finished_at": None,
        "file_expires_at": None, "has_file": False, "missing": None, "plan": msgspec.json.encode(PLAN).decode(),
        "now": NOW, "listeners": 2,
    }  # fmt: skip
    return {**plain, **other}


def part(**other: Any) -> dict[str, Any]:
    """Return a due part that two processes can fetch."""
    plain = {
        "listener": "users", "stage": 1, "kind": "function", "required": True, "state": "due",
        "served_by": "function:users", "attempts": 0, "error": None, "due_at": NOW - timedelta(seconds=5),
        "began_at": None, "rows": 0, "worker": None, "able": 2,
    }  # fmt: skip
    return {**plain, **other}


def codes(record: dict[str, Any], *parts: dict[str, Any]) -> list[str]:
    """Return the codes of the chain."""
    return [reason.code for reason in explain(record, parts).reasons]


def text(code: str, record: dict[str, Any], *parts: dict[str, Any]) -> str:
    """Return the text of the reason with that code."""
    [found] = [reason.text for reason in explain(record, parts).reasons if reason.code == code]
    return found


def test_explain_names_missing_parts_and_the_next_check() -> None:
    """Which part, since when, and when it is announced again or given up."""
    assert codes(facts(), part()) == ["part_due", "stage", "next_check", "deadline"]
    assert "users is due since 2026-11-22T08:59:55Z; 2 live" in text("part_due", facts(), part())
    assert "announced again at 2026-11-22T09:00:30Z" in text("next_check", facts(), part())
    assert "gives up" in text("next_check", facts(checks=5), part())
    assert "(check 6 of 6)" in text("next_check", facts(checks=5), part())
    assert "2026-11-22T09:10:00Z" in text("deadline", facts(), part())
    assert explain(facts(), [part()]).summary.startswith("users is due")


def test_explain_names_parts_that_no_process_serves() -> None:
    """A function that no live process has, a source that none has, and no process of the role."""
    assert codes(facts(), part(able=0))[0] == "nobody_serves"
    assert '@app.listener("users")' in text("nobody_serves", facts(), part(able=0))
    query = part(able=0, kind="sql", served_by="source:plt_fund")
    assert "[sources.plt_fund]" in text("nobody_serves", facts(), query)
    assert "no_listener" in codes(facts(listeners=0), part(able=0))


def test_explain_has_attempts_and_their_last_error() -> None:
    """Of a part that is tried again later, and of one that failed for good."""
    tried = part(attempts=2, error="timeout", due_at=NOW + timedelta(seconds=25))
    assert "in 26s" in text("part_later", facts(), tried)
    assert "tried 2 times; the last error: timeout" in text("part_later", facts(), tried)
    failed = part(listener="extra", required=False, state="failed", error="gone")
    assert text("part_failed", facts(), part(), failed) == "extra (optional) failed for good: gone"


def test_explain_names_the_process_that_runs_a_part() -> None:
    """Since when, where, and how far."""
    running = part(state="running", began_at=NOW - timedelta(seconds=9), rows=1200, worker="host:17")
    shown = text("part_running", facts(), running)
    assert shown == "users is being fetched by host:17 since 2026-11-22T08:59:51Z, 1200 rows so far"


def test_explain_shows_how_a_service_delivers() -> None:
    """The path, with the epoch that counts."""
    record = facts(stage=2, epoch=3, restarts=2)
    shown = text("service_waited_for", record, part(state="done"), part(listener="paid", stage=2, kind="service"))
    assert "PUT /v1/reports/7/parts/paid?epoch=3" in shown
    assert text("restarted", record, part(stage=2)).endswith("fetched again 2 times")
    assert text("stage", record, part(stage=2)) == "stage 2 of 2 is under way"


def test_explain_shows_a_due_step_or_the_merge_under_way() -> None:
    """All parts are done: the next free process claims the step, or the merge is under way."""
    assert codes(facts(), part(state="done"))[0] == "step_due"
    assert "the next free process claims it" in text("step_due", facts(), part(state="done"))
    assert "is under way" in text("step_due", facts(held=True), part(state="done"))
    assert codes(facts(waits_for_slot=True), part(state="done"))[0] == "place_waited_for"
    merging = facts(status="merging", tries=2)
    assert codes(merging, part(state="done"))[0] == "merging"
    assert "the 2. try" in text("merging", merging, part(state="done"))


def test_explain_of_an_ended_report_says_how_it_ended() -> None:
    """Finished with or without its file, partial, failed with its reason, cancelled."""
    over = {"finished_at": NOW, "now": NOW}
    kept = {"has_file": True, "file_expires_at": NOW + timedelta(days=7), "missing": "[]"}
    assert codes(facts(status="finished", **over, **kept)) == ["finished", "file_kept"]
    partly = {**kept, "missing": '["extra"]'}
    assert codes(facts(status="finished", **over, **partly)) == ["finished", "partial", "file_kept"]
    assert codes(facts(status="finished", **over, **{**kept, "file_expires_at": NOW})) == ["finished", "file_expired"]
    failed = facts(status="failed", error_code="deadline_passed", error="it waited for users", **over)
    assert explain(failed, []).summary == "it failed at 2026-11-22T09:00:00Z: it waited for users"
    assert codes(failed) == ["deadline_passed"]
    assert codes(facts(status="cancelled", **over)) == ["cancelled"]
