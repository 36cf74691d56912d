"""Actions on batches and executions: one rule for any facts, and the promised outcomes, written by hand."""

import re
from collections.abc import Sequence
from enum import StrEnum
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import tickwright
from tickwright.capabilities.batches.executions.states import (
    BATCH_RULES,
    EXECUTION_RULES,
    OPEN,
    TRANSITIONS,
    BatchAction,
    BatchEffect,
    BatchFacts,
    BatchStatus,
    BatchType,
    ExecutionAction,
    ExecutionEffect,
    ExecutionFacts,
    ExecutionStatus,
    Overlap,
    Refused,
    Rule,
    batch_effect,
    execution_effect,
)

BOTH = (False, True)
ALL_BATCHES = [BatchFacts(*facts) for facts in product(BatchType, BatchStatus, Overlap, BOTH, BOTH, BOTH, BOTH)]
ALL_EXECUTIONS = [ExecutionFacts(*facts) for facts in product(ExecutionStatus, BOTH, BOTH)]
CASES: list[tuple[type[StrEnum], Sequence[Rule[Any]], Sequence[Any]]] = [
    (BatchAction, BATCH_RULES, ALL_BATCHES),
    (ExecutionAction, EXECUTION_RULES, ALL_EXECUTIONS),
]
MIGRATION = Path(tickwright.__file__).parent / "store/migrations/versions/0009_batches.sql"


@pytest.mark.parametrize(("actions", "rules", "all_facts"), CASES, ids=["batches", "executions"])
def test_exactly_one_rule_of_an_action_holds_for_any_facts(
    actions: type[StrEnum], rules: Sequence[Rule[Any]], all_facts: Sequence[Any]
) -> None:
    """No gap and no overlap."""
    for action, facts in product(actions, all_facts):
        found = [rule for rule in rules if rule.action is action and rule.holds(facts)]
        assert len(found) == 1, (action, facts, found)


@pytest.mark.parametrize(("rules", "all_facts"), [case[1:] for case in CASES], ids=["batches", "executions"])
def test_every_rule_holds_for_some_facts(rules: Sequence[Rule[Any]], all_facts: Sequence[Any]) -> None:
    """The table has no rule that never applies."""
    assert [rule for rule in rules if not any(rule.holds(facts) for facts in all_facts)] == []


AUTOMATIC, MANUAL = BatchType.AUTOMATIC, BatchType.MANUAL
SCHEDULED, IDLE = BatchStatus.SCHEDULED, BatchStatus.IDLE
SKIP, QUEUE, REPLACE = Overlap
PROMISED: list[tuple[BatchAction, BatchFacts, tuple[Any, ...] | str]] = [
    # (outcome, status, the new status of open executions, a version, an execution) or the code of the refusal
    (BatchAction.CREATE, BatchFacts(AUTOMATIC), ("created", "IDLE", None, True, False)),
    (BatchAction.CREATE, BatchFacts(MANUAL), ("created", "IDLE", None, True, False)),
    (BatchAction.EDIT, BatchFacts(AUTOMATIC, SCHEDULED, is_open=True), ("edited", None, None, True, False)),
    (BatchAction.EDIT, BatchFacts(MANUAL, SCHEDULED), ("edited", "IDLE", None, True, False)),
    (BatchAction.EDIT, BatchFacts(AUTOMATIC, SCHEDULED, is_same=True), ("unchanged", None, None, False, False)),
    (BatchAction.ACTIVATE, BatchFacts(AUTOMATIC, IDLE), ("activated", "SCHEDULED", None, False, False)),
    (BatchAction.ACTIVATE, BatchFacts(AUTOMATIC, IDLE, is_open=True), ("activated", "SCHEDULED", None, False, False)),
    (BatchAction.ACTIVATE, BatchFacts(AUTOMATIC, SCHEDULED), ("unchanged", None, None, False, False)),
    (BatchAction.ACTIVATE, BatchFacts(AUTOMATIC, IDLE, has_next=False), "no_occurrence"),
    (BatchAction.ACTIVATE, BatchFacts(MANUAL, IDLE), "{noun}_is_manual"),
    (BatchAction.DEACTIVATE, BatchFacts(AUTOMATIC, SCHEDULED), ("deactivated", "IDLE", "DISABLED", False, False)),
    (BatchAction.DEACTIVATE, BatchFacts(MANUAL, is_open=True), ("deactivated", "IDLE", "DISABLED", False, False)),
    (BatchAction.DEACTIVATE, BatchFacts(MANUAL, is_releasing=True), ("deactivated", "IDLE", "DISABLED", False, False)),
    (BatchAction.DEACTIVATE, BatchFacts(MANUAL), ("unchanged", None, None, False, False)),
    (BatchAction.START, BatchFacts(MANUAL), ("started", None, None, False, True)),
    (BatchAction.START, BatchFacts(AUTOMATIC, SCHEDULED), ("started", None, None, False, True)),
    (BatchAction.START, BatchFacts(AUTOMATIC, IDLE, SKIP, is_open=True), "execution_open"),
    (BatchAction.START, BatchFacts(AUTOMATIC, IDLE, QUEUE, is_open=True), ("started", None, None, False, True)),
    (BatchAction.START, BatchFacts(MANUAL, IDLE, REPLACE, is_open=True), ("started", None, "STOPPED", False, True)),
    (BatchAction.STOP, BatchFacts(AUTOMATIC, SCHEDULED, is_open=True), ("stopped", None, "STOPPED", False, False)),
    (BatchAction.STOP, BatchFacts(MANUAL, is_releasing=True), ("stopped", None, "STOPPED", False, False)),
    (BatchAction.START, BatchFacts(MANUAL, is_releasing=True), ("started", None, None, False, True)),
    (BatchAction.STOP, BatchFacts(AUTOMATIC, SCHEDULED), "nothing_to_stop"),
]


@pytest.mark.parametrize(("action", "facts", "promised"), PROMISED)
def test_an_action_on_a_batch_does_what_is_promised(
    action: BatchAction, facts: BatchFacts, promised: tuple[Any, ...] | str
) -> None:
    """The rules of issue and design, one by one."""
    comes = batch_effect(action, facts)
    if isinstance(comes, Refused):
        assert comes.code == promised
    else:
        got = (comes.outcome, comes.status, comes.ends_open, comes.is_versioned, comes.is_starting)
        assert got == promised


ENDED = [ExecutionStatus.EXCEPTION_OCCURRED, ExecutionStatus.STOPPED, ExecutionStatus.DISABLED]
GOING = [ExecutionFacts(status) for status in OPEN] + [ExecutionFacts(ExecutionStatus.FINISHED, is_releasing=True)]
OVER = [ExecutionFacts(status) for status in (*ENDED, ExecutionStatus.FINISHED)]
ON_ONE: list[tuple[ExecutionAction, list[ExecutionFacts], tuple[Any, ...] | str]] = [
    # (outcome, status, paused) or the code of the refusal
    (ExecutionAction.PAUSE, GOING, ("paused", None, True)),
    (ExecutionAction.PAUSE, [one._replace(is_paused=True) for one in GOING], ("unchanged", None, None)),
    (ExecutionAction.PAUSE, OVER, "execution_ended"),
    (ExecutionAction.RESUME, [one._replace(is_paused=True) for one in GOING], ("resumed", None, False)),
    (ExecutionAction.RESUME, GOING, "not_paused"),
    (ExecutionAction.RESUME, OVER, "execution_ended"),
    (ExecutionAction.STOP, GOING, ("stopped", "STOPPED", False)),
    (ExecutionAction.STOP, OVER, "execution_ended"),
    (ExecutionAction.RETRY, [ExecutionFacts(ExecutionStatus.EXCEPTION_OCCURRED)], ("retried", "NEW", None)),
    (ExecutionAction.RETRY, [one for one in (*GOING, *OVER) if one.status != "EXCEPTION_OCCURRED"], "not_failed"),
]


@pytest.mark.parametrize(("action", "all_facts", "promised"), ON_ONE)
def test_an_action_on_an_execution_does_what_is_promised(
    action: ExecutionAction, all_facts: list[ExecutionFacts], promised: tuple[Any, ...] | str
) -> None:
    """In every status, paused and not."""
    for facts in all_facts:
        comes = execution_effect(action, facts)
        if isinstance(comes, Refused):
            assert comes.code == promised
        else:
            assert (comes.outcome, comes.status, comes.is_paused) == promised


def test_every_effect_of_a_rule_is_in_the_diagram() -> None:
    """Each change of status by an action is an arrow of the diagram, from every status in which it may be done."""
    for facts, action in product(ALL_EXECUTIONS, ExecutionAction):
        comes = execution_effect(action, facts)
        if isinstance(comes, ExecutionEffect) and comes.status is not None:
            assert comes.status in TRANSITIONS[facts.status], (action, facts)
    for batch, act in product(ALL_BATCHES, BatchAction):
        found = batch_effect(act, batch)
        if isinstance(found, BatchEffect) and found.ends_open is not None:
            assert all(found.ends_open in TRANSITIONS[status] for status in OPEN)


def test_a_stopped_or_disabled_execution_never_goes_on() -> None:
    """An operator has decided its end."""
    for status in (ExecutionStatus.STOPPED, ExecutionStatus.DISABLED):
        assert TRANSITIONS[status] == {}
        assert not any(
            isinstance(execution_effect(action, ExecutionFacts(status)), ExecutionEffect) for action in ExecutionAction
        )


def test_a_manual_batch_is_never_scheduled() -> None:
    """No rule activates one, and an edit that makes a batch manual removes it from the calendar."""
    for facts, action in product(ALL_BATCHES, BatchAction):
        comes = batch_effect(action, facts)
        if facts.type is BatchType.MANUAL and isinstance(comes, BatchEffect):
            assert comes.status is not BatchStatus.SCHEDULED
            if comes.outcome == "edited":
                assert comes.status is BatchStatus.IDLE


def test_a_refusal_is_a_conflict_that_says_what_to_do() -> None:
    """409, with the noun of the kind of batch."""
    refused = batch_effect(BatchAction.ACTIVATE, BatchFacts(BatchType.MANUAL))
    assert isinstance(refused, Refused)
    error = refused.error("loans is MANUAL", noun="campaign", state="IDLE")
    assert (error.code, error.http_status, error.details["state"]) == ("campaign_is_manual", 409, "IDLE")
    assert error.message == "loans is MANUAL: it runs when an operator starts it; make it AUTOMATIC to activate it"


@pytest.mark.parametrize(
    ("column", "members"),
    [
        ("type", BatchType),
        ("status", BatchStatus),
        ("overlap", Overlap),
        ("status", ExecutionStatus),
    ],
)
def test_the_tables_accept_the_same_values(column: str, members: type[StrEnum]) -> None:
    """A status that is added in Python and not in SQL is found before anything is written."""
    checks = re.findall(rf"CHECK \({column} IN \(([^)]+)\)\)", MIGRATION.read_text(encoding="utf-8"))
    assert {f"'{member}'" for member in members} in [set(check.split(", ")) for check in checks]
