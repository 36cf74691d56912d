"""The line about an execution: how far it is, and why it failed."""

from msgspec.structs import replace

from tickwright.capabilities.batches.overview import ExecutionNow, line_of

ONE = ExecutionNow(7, "loans", "IN_PROGRESS", False, 20, 8, 50_000, 20_000, 1500, 1500, 0, 4.04, None)


def test_the_line_says_how_far_an_execution_is() -> None:
    """Chunks, clients, how many are selected, and how many actions have left."""
    assert line_of(ONE) == (
        "batch loans 7: IN_PROGRESS for 4.0 s · chunks 8/20, seen 20000/50000, selected 1500 · released 0/1500"
    )
    assert line_of(replace(ONE, status="FINISHED", paused=True)).startswith(
        "batch loans 7: FINISHED, paused in 4.0 s · chunks"
    )


def test_what_has_not_begun_says_no_more_than_that() -> None:
    """Nothing is known of its audience yet."""
    new = replace(ONE, status="NEW", chunks=0, chunks_done=0, members=0, seen=0, actions=0, took_s=None)
    assert line_of(new) == "batch loans 7: NEW"


def test_a_failure_says_why_in_one_line() -> None:
    """However long its text is."""
    failed = replace(ONE, status="EXCEPTION_OCCURRED", actions=0, error_message="first\nsecond " + "x" * 500)
    line = line_of(failed)
    assert line.endswith("· first second " + "x" * 107)
