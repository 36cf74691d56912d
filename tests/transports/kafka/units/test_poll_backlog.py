"""Records that a consumer read of a partition: bundles of polls, and offsets that wait for the first unfinished one."""

from datetime import UTC, datetime
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.mutants import mutate
from tickwright.ports.polls import PollRecord
from tickwright.transports.kafka.poll_source import BUNDLE_MAX, Bundle, Bundles, Progress, Waiting

DUE = datetime(2026, 11, 21, 10, tzinfo=UTC)


def poll(tracker_id: int = 1, *, slot_id: int = 0, due_at: datetime = DUE, partner: str = "acme") -> PollRecord:
    """Return a poll."""
    return PollRecord(tracker_id, slot_id, due_at, partner, "shop", f"T{tracker_id}")


def put(bundles: Bundles, *polls: PollRecord) -> list[Bundle]:
    """Put polls in, numbered from 0; return the new bundles."""
    return [bundle for number, one in enumerate(polls) if (bundle := bundles.put(number, one, 0.0)) is not None]


def test_polls_of_one_slot_second_and_partner_are_one_bundle() -> None:
    """Polls that differ in any of them are in another bundle."""
    later = DUE.replace(second=1)
    made = put(Bundles(0), poll(1), poll(2, partner="dhl"), poll(3), poll(4, slot_id=7), poll(5, due_at=later), poll(6))
    assert [[one.tracker_id for one in bundle.polls] for bundle in made] == [[1, 3, 6], [2], [4], [5]]
    assert made[0].numbers == [0, 2, 5]


def test_a_bundle_has_at_most_a_thousand_polls() -> None:
    """The next one begins a new bundle."""
    made = put(Bundles(0), *map(poll, range(BUNDLE_MAX + 1)))
    assert [len(bundle.polls) for bundle in made] == [BUNDLE_MAX, 1]


def test_nothing_is_added_to_a_bundle_that_was_taken() -> None:
    """Its consumer has counted it."""
    bundles = Bundles(0)
    [first] = put(bundles, poll(1))
    bundles.close(first)
    [second] = put(bundles, poll(2))
    assert len(first.polls) == len(second.polls) == 1


@given(st.sets(st.integers(0, 60)), st.randoms(use_true_random=False))
def test_the_position_is_the_first_record_that_is_not_finished(offsets: set[int], order: Random) -> None:
    """KFK-5: in whatever order records are finished; after the last one when none is open."""
    assert Progress().position is None
    progress, left = Progress(), sorted(offsets)
    numbers = {offset: progress.read(offset) for offset in left}
    finished = list(left)
    order.shuffle(finished)
    for offset in finished:
        assert progress.position == left[0]
        left.remove(offset)
        progress.finish([numbers[offset]])
    assert progress.position == (max(offsets) + 1 if offsets else None)
    assert (len(progress._open), progress.span) == (0, 0)


LOGS = st.lists(st.sets(st.integers(0, 60), min_size=1), min_size=1, max_size=4)
"""Offsets of a partition that is created again up to three times."""


def _check_a_log_that_begins_again(logs: list[set[int]], order: Random) -> None:
    """Read some logs one after another; finish open records in any order meanwhile, and all of them at the end."""
    progress, open_numbers, of_the_last = Progress(), list[int](), dict[int, int]()
    for log in logs:
        of_the_last = {}
        for offset in sorted(log):
            number = progress.read(offset)
            open_numbers.append(number)
            of_the_last[number] = offset
            while open_numbers and order.random() < 0.4:
                done = open_numbers.pop(order.randrange(len(open_numbers)))
                progress.finish([done])
                of_the_last.pop(done, None)
            assert len(progress._open) == len(open_numbers), "each record is one of its own, whatever its offset"
            assert progress.position is not None
            assert progress.position <= min(of_the_last.values(), default=offset + 1), "passed an unfinished record"
            assert 0 <= progress.position <= offset + 1, "beyond what was read of this log"
    progress.finish(open_numbers)
    assert (progress.position, len(progress._open), progress.span) == (max(logs[-1]) + 1, 0, 0)


@given(LOGS, st.randoms(use_true_random=False))
def test_the_position_follows_a_partition_whose_log_begins_again(logs: list[set[int]], order: Random) -> None:
    """KFK-5: an offset below the last one is a record like any other; no unfinished one of the new log is passed."""
    _check_a_log_that_begins_again(logs, order)


def test_the_suite_notices_open_records_of_the_old_log_that_keep_their_offsets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Mutant: the committed offset would be one of a log that is gone."""
    mutate(monkeypatch, Progress.read, "min(first, offset)", "first")
    with pytest.raises(AssertionError, match="passed an unfinished record"):
        given(LOGS, st.randoms(use_true_random=False))(_check_a_log_that_begins_again)()


def test_finished_records_after_an_open_one_take_no_memory() -> None:
    """A poll that waits for hours is kept, and millions of finished ones after it are not."""
    progress = Progress()
    first = progress.read(0)
    for offset in range(1, 100_000):
        progress.finish([progress.read(offset)])
    assert (progress.position, len(progress._open), progress.span) == (0, 1, 100_000)
    progress.finish([first])
    assert (progress.position, len(progress._open), progress.span) == (100_000, 0, 0)


def test_a_partners_bundles_are_taken_oldest_first_and_only_of_own_partitions() -> None:
    """Bundles of other partitions wait, and are taken once the partition is ours."""
    ours, others, waiting = Bundles(0), Bundles(1), Waiting()
    [late] = put(ours, poll(1, due_at=DUE.replace(second=9)))
    [early] = put(ours, poll(2))
    [foreign] = put(others, poll(3, due_at=DUE.replace(hour=1)))
    for bundle in (late, foreign, early):
        waiting.put(7, bundle)
    assert waiting.take(7, 1, among={ours}) == [early]
    assert waiting.take(7, 5, among={ours}) == [late]
    assert waiting.take(7, 5, among={ours, others}) == [foreign]
    assert list(waiting) == []
