"""The next step of a report, for every combination of parts, checks and deadlines."""

from dataclasses import replace
from datetime import UTC, datetime
from itertools import product

from tickwright.capabilities.reports.merge.steps import Announce, Fail, Merge, NextStage, Part, Record, Wait, decide
from tickwright.capabilities.reports.plan import Listener, Plan

STATES = ("waiting", "due", "running", "done", "failed", "dropped")
PLAN = Plan(
    listeners=(
        Listener(name="users", kind="function"),
        Listener(name="withdrawals", kind="function"),
        Listener(name="risk", kind="function", required=False),
    ),
    merge="SELECT 1",
    checks=3,
)
STAGED = Plan(
    listeners=(Listener(name="users", kind="function"), Listener(name="withdrawals", kind="function", stage=2)),
    merge="SELECT 1",
)
RECORD = Record(
    id=1,
    type="t",
    status="querying",
    stage=1,
    epoch=1,
    fence=1,
    restarts=0,
    tries=0,
    checks=0,
    conditions={},
    requester="me",
    feed={},
    plan=PLAN,
    check_due=False,
    overdue=False,
    left_s=100.0,
    deadline_at=datetime(2026, 11, 22, tzinfo=UTC),
    nonce="5f",
)


def parts(users: str = "done", withdrawals: str = "done", risk: str = "done") -> list[Part]:
    """Return three parts in these states; the last one is optional."""
    return [
        Part("users", 1, required=True, state=users),
        Part("withdrawals", 1, required=True, state=withdrawals),
        Part("risk", 1, required=False, state=risk),
    ]


def test_a_report_with_all_parts_is_merged_at_once() -> None:
    """The merge does not wait for the delayed check."""
    assert decide(RECORD, parts()) == Merge(())


def test_an_optional_part_that_failed_is_missing_and_named() -> None:
    """The merge gets the names of missing parts."""
    assert decide(RECORD, parts(risk="failed")) == Merge(("risk",))


def test_a_required_part_that_failed_ends_the_report_with_its_name_and_reason() -> None:
    """Parts that still run are not waited for."""
    broken = [replace(one, error="no such table", attempts=3) for one in parts(users="failed", withdrawals="running")]
    assert decide(RECORD, broken) == Fail("part_failed", "users: no such table after 3 attempts")


def test_a_check_announces_missing_parts_and_the_last_one_gives_up() -> None:
    """As in the source document: each check announces again, and the last one fails the report."""
    missing = parts(users="running", risk="due")
    assert decide(RECORD, missing) == Wait()
    assert decide(replace(RECORD, check_due=True), missing) == Announce(("users", "risk"))
    assert decide(replace(RECORD, check_due=True, checks=1), missing) == Announce(("users", "risk"))
    given_up = decide(replace(RECORD, check_due=True, checks=2), missing)
    assert given_up == Fail("parts_missing", "users did not come within 3 checks of 60 s")


def test_the_last_check_gives_up_on_optional_parts_only() -> None:
    """All required parts are done: the file is made without the others."""
    assert decide(replace(RECORD, check_due=True, checks=2), parts(risk="running")) == Merge(("risk",))


def test_the_deadline_fails_a_report_and_names_its_missing_parts() -> None:
    """Even if all parts are done."""
    late = decide(replace(RECORD, overdue=True), parts(users="due"))
    assert late == Fail("deadline_passed", "it was not finished within 1800 s; it waited for users")
    assert isinstance(decide(replace(RECORD, overdue=True), parts()), Fail)


def test_a_complete_stage_is_followed_by_the_next_one_and_the_last_by_the_merge() -> None:
    """A stage's result feeds the next one's queries."""
    staged = [Part("users", 1, required=True, state="done"), Part("withdrawals", 2, required=True, state="waiting")]
    assert decide(replace(RECORD, plan=STAGED), staged) == NextStage()
    staged = [replace(one, state="done") for one in staged]
    assert decide(replace(RECORD, plan=STAGED, stage=2), staged) == Merge(())


def test_no_combination_merges_without_a_required_part() -> None:
    """RST-1, for every state of every part, with checks and deadlines in every order."""
    for states in product(STATES, repeat=3):
        for check_due, overdue, checks in product((False, True), (False, True), (0, 1, 2)):
            record = replace(RECORD, check_due=check_due, overdue=overdue, checks=checks)
            step = decide(record, parts(*states))
            if isinstance(step, Merge):
                assert states[:2] == ("done", "done")
                assert step.missing == (() if states[2] == "done" else ("risk",))
            if overdue or (check_due and checks == PLAN.checks - 1):
                assert isinstance(step, Merge | Fail), (states, step)
