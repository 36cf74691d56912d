"""A repeated warning is logged once in ten seconds, with the number of its repeats."""

import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

import tickwright
from tickwright.observe.logs import configure_logging
from tickwright.observe.repeats import REPEATED, Repeats


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """Leave logging as it was."""
    handlers, level = logging.getLogger().handlers[:], logging.getLogger().level
    yield
    structlog.reset_defaults()
    logging.getLogger().handlers[:] = handlers
    logging.getLogger().setLevel(level)


def test_the_first_one_is_logged_and_then_one_in_ten_seconds_with_their_number() -> None:
    """Each kind counts for itself, and a quiet time makes the next one a first one again."""
    now = 100.0
    repeats = Repeats(clock=lambda: now)
    assert [repeats.times("a"), repeats.times("a"), repeats.times("b"), repeats.times("a")] == [1, 0, 1, 0]
    now += 10
    assert [repeats.times("a"), repeats.times("b")] == [3, 1]
    now += 10
    assert repeats.times("a") == 1


def test_only_what_loops_repeat_is_held_back(capsys: pytest.CaptureFixture[str]) -> None:
    """A lost lease is logged each time, and so is the same failure of another lease."""
    configure_logging(json=True)
    log = structlog.get_logger("test")
    for _ in range(3):
        log.warning("lease.not_taken", lease="a", error="refused")
        log.warning("lease.lost", lease="a")
    log.warning("lease.not_taken", lease="b", error="refused")
    events = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    said = [(event["event"], event["lease"]) for event in events]
    assert said == [("lease.not_taken", "a"), *[("lease.lost", "a")] * 3, ("lease.not_taken", "b")]


@pytest.mark.parametrize("library", ["asyncpg", "uvicorn"])
def test_warnings_of_libraries_bring_no_stack(library: str, capsys: pytest.CaptureFixture[str]) -> None:
    """They are one line with the error, once in ten seconds; errors keep everything."""
    configure_logging(json=True)
    log = logging.getLogger(f"{library}.of_this_test")
    for say in (log.warning, log.warning, log.error):
        say("cannot connect", exc_info=OSError("refused"))
    first, second = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    assert (first["event"], "exception" in first) == ("cannot connect: OSError('refused')", False)
    assert (second["event"], "exception" in second) == ("cannot connect", True)


def test_every_repeated_event_is_one_that_the_source_logs() -> None:
    """An event that was renamed is found here, not in a flooded log."""
    source = "\n".join(path.read_text(encoding="utf-8") for path in Path(tickwright.__file__).parent.rglob("*.py"))
    assert set(re.findall(r'_log\.(?:info|warning|error)\(\s*"([a-z_.]+)"', source)) >= REPEATED
