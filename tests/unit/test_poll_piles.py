"""What a consumer read of a partition: piles of a turn each, and offsets that wait for the first unfinished record."""

from datetime import UTC, datetime
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from tickwright.brokers.kafka.poll_piles import PILE_MAX, Pile, Piles, Progress, Waiting
from tickwright.ports.polls import PollRecord

DUE = datetime(2026, 11, 21, 10, tzinfo=UTC)


def poll(tracker_id: int = 1, *, slot_id: int = 0, due_at: datetime = DUE, partner: str = "acme") -> PollRecord:
    """Return a poll."""
    return PollRecord(tracker_id, slot_id, due_at, partner, "shop", f"T{tracker_id}")


def put(piles: Piles, *polls: PollRecord) -> list[Pile]:
    """Put them in, at offsets from 0 on; return the piles that were made."""
    return [pile for offset, one in enumerate(polls) if (pile := piles.put(offset, one, 0.0)) is not None]


def test_polls_of_one_slot_second_and_partner_are_one_pile() -> None:
    """A turn is of one slot, second and partner; what differs in any of them is another one."""
    later = DUE.replace(second=1)
    made = put(Piles(0), poll(1), poll(2, partner="dhl"), poll(3), poll(4, slot_id=7), poll(5, due_at=later), poll(6))
    assert [[one.tracker_id for one in pile.polls] for pile in made] == [[1, 3, 6], [2], [4], [5]]
    assert made[0].offsets == [0, 2, 5]


def test_a_pile_has_at_most_a_thousand_polls() -> None:
    """The next one begins a new pile."""
    made = put(Piles(0), *map(poll, range(PILE_MAX + 1)))
    assert [len(pile.polls) for pile in made] == [PILE_MAX, 1]


def test_nothing_is_added_to_a_pile_that_was_taken() -> None:
    """Whoever took it has counted it."""
    piles = Piles(0)
    [first] = put(piles, poll(1))
    piles.close(first)
    [second] = put(piles, poll(2))
    assert len(first.polls) == len(second.polls) == 1


def test_a_record_that_was_read_before_is_not_counted_again() -> None:
    """After a seek, or from an old assignment, records may come twice."""
    progress = Progress()
    assert [progress.read(offset) for offset in (4, 5, 4, 7)] == [True, True, False, True]


@given(st.sets(st.integers(0, 60)), st.randoms(use_true_random=False))
def test_the_position_is_the_first_record_that_is_not_finished(offsets: set[int], order: Random) -> None:
    """KFK-5: whatever is finished in whatever order; behind the last one when nothing is open."""
    assert Progress().position is None
    progress, left = Progress(), sorted(offsets)
    for offset in left:
        progress.read(offset)
    finished = list(left)
    order.shuffle(finished)
    for offset in finished:
        assert progress.position == left[0]
        left.remove(offset)
        progress.finish([offset])
    assert progress.position == (max(offsets) + 1 if offsets else None)
    assert (progress.open, progress.span) == (0, 0)


def test_what_passes_one_open_record_takes_no_memory() -> None:
    """A poll that waits for hours is remembered, and the millions behind it that are done are not."""
    progress = Progress()
    for offset in range(100_000):
        progress.read(offset)
        if offset:
            progress.finish([offset])
    assert (progress.position, progress.open, progress.span) == (0, 1, 100_000)
    progress.finish([0])
    assert (progress.position, progress.open, progress.span) == (100_000, 0, 0)


def test_a_partners_piles_are_taken_oldest_first_and_only_of_partitions_that_are_ours() -> None:
    """What is not ours by its row waits on, and is there when it is."""
    ours, others, waiting = Piles(0), Piles(1), Waiting()
    [late] = put(ours, poll(1, due_at=DUE.replace(second=9)))
    [early] = put(ours, poll(2))
    [foreign] = put(others, poll(3, due_at=DUE.replace(hour=1)))
    for pile in (late, foreign, early):
        waiting.put(7, pile)
    assert waiting.take(7, 1, among={ours}) == [early]
    assert waiting.take(7, 5, among={ours}) == [late]
    assert waiting.take(7, 5, among={ours, others}) == [foreign]
    assert list(waiting) == []
