"""Whether an error is the payload's, and so final, or the handler's."""

import json
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from tickwright.capabilities.jobs.handlers import Function, make_handler
from tickwright.capabilities.jobs.model import Errored, TaskType
from tickwright.capabilities.jobs.worker.result_writer import outcome_of_error
from tickwright.domain.errors import Rejected


class Given:
    """A job with only the fields that a handler's arguments need."""

    def __init__(self, payload: Any) -> None:
        self.row = SimpleNamespace(payload=json.dumps(payload))


def read(_job: object, number: int) -> Any:
    """A handler that reads an answer from elsewhere, which is no JSON."""
    return msgspec.json.decode(b"<html>", type=int) + number


@pytest.mark.parametrize(
    ("payload", "code", "final"),
    [
        ({"number": "seven"}, "payload_invalid", True),
        ([], "payload_invalid", True),
        ({}, "payload_invalid", True),
        ({"number": 7}, "handler_error", False),
    ],
)
def test_only_a_payload_that_does_not_fit_is_final(payload: Any, code: str, final: bool) -> None:
    """A failed read of the handler itself may succeed at the next attempt."""
    handler = make_handler(TaskType("read", "python:read"), read)
    with pytest.raises(Exception) as raised:
        handler.call(Given(payload))  # type: ignore[arg-type]
    outcome = outcome_of_error(raised.value)
    assert isinstance(outcome, Errored)
    assert (outcome.code, outcome.final) == (code, final)


def for_type_checkers(_job: object, _when: "Missing") -> None:  # type: ignore[name-defined]  # noqa: F821
    """A handler with an annotation that is not imported when the program runs."""


async def yielding(_job: object) -> Any:
    """A handler that yields, so that a call of it runs nothing."""
    yield 1


def named_only(*, _job: object) -> None:
    """A handler that does not take the job by its place."""


def rest_only(**_rest: object) -> None:
    """Another one."""


def two(_one: object, _job: object, n: int) -> None:
    """A function, of which a part is fixed."""


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (for_type_checkers, "for_type_checkers: its annotations cannot be read: name 'Missing' is not defined"),
        (yielding, "yielding: a handler returns its result"),
        (named_only, "named_only must take the job as its first argument"),
        (rest_only, "rest_only must take the job as its first argument"),
        (dict, "dict: a handler is a function"),
        (cast("Function", 7), "7: a handler is a function"),
        (partial(two, "one"), "write a function that calls it"),
    ],
)
def test_a_function_that_no_job_can_call_is_refused_where_it_is_registered(function: Function, text: str) -> None:
    """With its name and the code invalid_handler."""
    with pytest.raises(Rejected) as refused:
        make_handler(TaskType("read", "python:read"), function)
    assert refused.value.code == "invalid_handler"
    assert text in refused.value.message
