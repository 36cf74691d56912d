"""Mutants of the listener: with a guard taken out, a hostile client holds what it should not."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kit import listeners as checks
from kit.mutants import mutate
from tickwright.domain.hosts import Hosts
from tickwright.runtime.admission import Admission
from tickwright.runtime.listener import BoundedProtocol

Check = Callable[[], Awaitable[None]]
MUTANTS: list[tuple[str, Any, str, str, Check]] = [
    ("no end of an unread body", BoundedProtocol.linger, "self._limits.linger_s", "inf", checks.check_the_unread_body),
    ("no deadline for a head", BoundedProtocol.check, "if now_s < self._due_s", "if True", checks.check_the_silent),
    ("no deadline for reading", BoundedProtocol._watch_reading, "self._limits.unread_s", "inf", checks.check_reading),
    ("nobody is displaced", Admission._displace, "if connection.waits_for_client", "if False", checks.check_the_flood),
    (
        "requests under way are displaced",
        Admission._displace,
        "if connection.waits_for_client",
        "",
        checks.check_the_busy,
    ),
    ("every name is ours", Hosts._judge, "self._all or", "True or", checks.check_the_name),
]
GUARDS = [mutant[1:] for mutant in MUTANTS]


@pytest.mark.parametrize(("function", "guard", "instead", "check"), GUARDS, ids=[mutant[0] for mutant in MUTANTS])
async def test_a_mutant_is_caught(
    monkeypatch: pytest.MonkeyPatch, function: Any, guard: str, instead: str, check: Check
) -> None:
    """Each check passes with the guard, and fails without it."""
    await check()
    mutate(monkeypatch, function, guard, instead)
    with pytest.raises((AssertionError, TimeoutError)):
        await check()
