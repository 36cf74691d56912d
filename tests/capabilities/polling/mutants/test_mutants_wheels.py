"""Mutants of the wheels' SQL: without a guard, the check of its invariant has to fail."""

from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from kit.wheels import (
    Wheels,
    check_a_turn_is_selected_once,
    check_caps_take_turns,
    check_ending_waits_for_no_lock,
    check_every_tracker_is_polled,
    check_following_waits_for_no_lock,
    check_levelling_waits_for_no_lock,
    check_move_waits_for_a_turn,
    check_nothing_is_selected_after_its_end,
    check_selector_waits_for_a_move,
)
from tickwright.capabilities.polling import service as polling_service
from tickwright.capabilities.polling.wheels import loops

Check = Callable[[Wheels], Awaitable[None]]

MUTANTS: list[tuple[str, str, str, str, Check]] = [
    (
        "a minute that was selected is selected again",
        "select_slot",
        " AND next_due_at = $2",
        "",
        check_a_turn_is_selected_once,
    ),
    ("the selector does not wait", "lock_slot", "FOR UPDATE", "", check_selector_waits_for_a_move),
    ("a move locks nothing", "level_bucket", "FOR SHARE", "", check_move_waits_for_a_turn),
    (
        "a move goes to a slot that is due later",
        "level_bucket",
        "AND goal.next_due_at > source.prev_due_at AND goal.next_due_at <= source.next_due_at",
        "",
        check_move_waits_for_a_turn,
    ),
    (
        "a capped account's window stays where it is",
        "select_slot",
        "(t.place, t.id) <= (mark.after_place, mark.after_id), ",
        "",
        check_caps_take_turns,
    ),
    ("ending waits for locked rows", "end_aged", " SKIP LOCKED", "", check_ending_waits_for_no_lock),
    ("levelling waits for locked rows", "level_bucket", " SKIP LOCKED", "", check_levelling_waits_for_no_lock),
    ("a move waits for locked rows", "move_to_wheel", " SKIP LOCKED", "", check_following_waits_for_no_lock),
    (
        "a move does not look for locked rows",
        "move_to_wheel",
        "FOR UPDATE OF t SKIP LOCKED",
        "",
        check_following_waits_for_no_lock,
    ),
    ("a cap is not kept", "select_slot", "line.nth > share.polls", "false", check_caps_take_turns),
    ("an ended tracker keeps its place", "end_placed", " place = NULL,", "", check_nothing_is_selected_after_its_end),
    (
        "tracking times do not end",
        "select_slot",
        "t.tracking_until >",
        "'infinity' >",
        check_nothing_is_selected_after_its_end,
    ),
    (
        "every other minute is left out",
        "select_slot",
        "make_interval(mins => s.interval_minutes)",
        "make_interval(mins => 2 * s.interval_minutes)",
        partial(check_every_tracker_is_polled, seed=1),
    ),
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant[0] for mutant in MUTANTS])
async def test_a_missing_guard_is_found(
    wheels: Wheels, monkeypatch: pytest.MonkeyPatch, mutant: tuple[str, str, str, str, Check]
) -> None:
    """The check passes with the guard (see test_polling_wheels.py, test_polling_moves.py) and fails without it."""
    _, query, guard, instead, check = mutant
    module, name = (loops, "SQL") if query in loops.SQL else (polling_service, "SQL")
    statements = getattr(module, name)
    assert guard in statements[query]
    monkeypatch.setattr(module, name, {**statements, query: statements[query].replace(guard, instead)})
    with pytest.raises(AssertionError, match="broken"):
        await check(wheels)
