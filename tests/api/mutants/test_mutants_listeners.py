"""Mutants of the listener: without a guard a hostile client holds more than its share."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kit import listeners as checks
from kit.mutants import mutate
from tickwright.domain.admission import Hosts
from tickwright.rest.admission import Admission
from tickwright.rest.listener import BoundedProtocol

Check = Callable[[], Awaitable[None]]
MUTANTS: list[tuple[str, Any, str, str, Check]] = [
    ("no end of an unread body", BoundedProtocol.linger, "self._limits.linger_s", "inf", checks.check_the_unread_body),
    ("no deadline for a head", BoundedProtocol.check, "if now_s < self._due_s", "if True", checks.check_the_silent),
    ("no deadline for reading", BoundedProtocol._watch_reading, "self._limits.unread_s", "inf", checks.check_reading),
    (
        "clients may leave everything unread",
        Admission.note_unread,
        "while self.unread_bytes >",
        "while 0 >",
        checks.check_the_unread,
    ),
    (
        "answered before the last answer is read",
        BoundedProtocol._may_begin,
        "not self.flow.write_paused",
        "True",
        checks.check_the_next,
    ),
    (
        "no connection is displaced",
        Admission._displace,
        "if connection.waits_for_client",
        "if False",
        checks.check_the_flood,
    ),
    (
        "requests under way are displaced",
        Admission._displace,
        "if connection.waits_for_client",
        "",
        checks.check_the_busy,
    ),
    ("an upgrade ends a request", BoundedProtocol._parse, "line = ", "return; line = ", checks.check_upgrades),
    ("trailers are fields", BoundedProtocol._is_of_head, "return self._in_head", "return True", checks.check_trailers),
    ("trailers have no end", BoundedProtocol.data_received, "> HEAD_BYTES_MAX", "> inf", checks.check_trailers),
    (
        "any number of requests may wait",
        BoundedProtocol._check_pipeline,
        ">= PIPELINED_MAX",
        ">= inf",
        checks.check_the_pipeline,
    ),
    (
        "a refused connection is still read",
        BoundedProtocol._refuse,
        "self._is_deaf = True",
        "",
        checks.check_the_fields,
    ),
    ("any number of fields", BoundedProtocol._count, "> FIELDS_MAX", "> inf", checks.check_the_fields),
    ("a segment has no bound", BoundedProtocol._count, "> HEAD_BYTES_MAX", "> inf", checks.check_the_fields),
    (
        "a closing connection is still read",
        BoundedProtocol._reads_no_more,
        "return closes or",
        "return",
        checks.check_the_end_of_parsing,
    ),
    (
        "a request outlives its client",
        BoundedProtocol._let_go,
        "if cycle is not None",
        "if False",
        checks.check_the_end_of_a_stream,
    ),
    ("every host name is accepted", Hosts._is_accepted, "self._all or", "True or", checks.check_the_name),
]
GUARDS = [mutant[1:] for mutant in MUTANTS]


@pytest.mark.parametrize(("function", "guard", "instead", "check"), GUARDS, ids=[mutant[0] for mutant in MUTANTS])
async def test_the_suite_notices_a_missing_guard_of_the_listener(
    monkeypatch: pytest.MonkeyPatch, function: Any, guard: str, instead: str, check: Check
) -> None:
    """Each check passes with the guard, and fails without it."""
    await check()
    mutate(monkeypatch, function, guard, instead)
    with pytest.raises((AssertionError, TimeoutError)):
        await check()
