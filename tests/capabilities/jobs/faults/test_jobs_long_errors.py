"""Errors as long as payloads: what they cost the worker, and how much of them is kept."""

from collections.abc import Iterator
from enum import Enum
from typing import Any, Literal

import pytest

from kit.engine import policy, running_engine
from tickwright import Job
from tickwright.capabilities.jobs.model import ERROR_MESSAGE_MAX
from tickwright.observe import logs

LONG = 1_000_000
SECRET = "known-s3cret-of-a-user"


class Colour(Enum):
    """The values that a handler accepts."""

    RED = "red"


async def literal(_job: Job, kind: Literal["a", "b"]) -> None:
    """Take one of two texts."""


async def colour(_job: Job, kind: Colour) -> None:
    """Take a member of an enum."""


async def quoting(_job: Job, kind: str) -> None:
    """Fail with the payload in the error."""
    raise ValueError(kind)


class Counting:
    """A pattern that records the longest text that it is used on."""

    def __init__(self, pattern: Any) -> None:
        self._pattern = pattern
        self.longest = 0

    def sub(self, mask: str, text: str) -> str:
        """Replace, and record."""
        self.longest = max(self.longest, len(text))
        return str(self._pattern.sub(mask, text))


@pytest.fixture
def shapes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counting]:
    """Count the text that is searched for the shapes of secrets."""
    counting = Counting(logs._SECRET_SHAPE)
    monkeypatch.setattr(logs, "_SECRET_SHAPE", counting)
    logs.know_secret(SECRET)
    yield counting
    logs.forget_secrets()


@pytest.mark.parametrize("function", [literal, colour, quoting], ids=lambda function: str(function.__name__))
async def test_an_error_as_long_as_its_payload_is_cut_before_it_is_masked(
    database_url: str, shapes: Counting, function: Any
) -> None:
    """Masking runs in the event loop: 64 errors of 1 MB blocked it until the session was lost."""
    async with running_engine(database_url, {"t": function}, kinds={"t": policy("t", max_attempts=1)}) as engine:
        text = f"{SECRET} tw_{'k' * 40} " + "x" * LONG
        row = await engine.until(await engine.insert("t", payload={"kind": text}), "failed")
    error = row["error_message"]
    assert shapes.longest <= 17_000
    assert len(error) <= ERROR_MESSAGE_MAX
    assert SECRET not in error
    assert "kkk" not in error
    if function is not quoting:
        assert error.startswith("payload_invalid: Invalid enum value '*** *** xxx")
        assert error.endswith("xxx… - at `$.kind`")
