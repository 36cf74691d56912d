"""The parts of the bench of campaigns: its clients, its killed consumers, its race; on real servers, in small."""

import os
from collections import Counter
from collections.abc import Iterator

import pytest

from tickwright.bench.campaigns import filtering, killing
from tickwright.bench.campaigns_race import Race, race
from tickwright.bench.campaigns_world import SQL, Memory, Tally, World, campaign_world, tally
from tickwright.bench.ground import Ground

CLIENTS, SELECTED = 4_000, 1_316


@pytest.fixture
def world(bench_ground: Ground) -> Iterator[World]:
    """A few thousand clients."""
    with campaign_world(bench_ground, CLIENTS) as world:
        yield world


def test_clients_are_filtered_by_one_and_by_two_and_all_records_are_checked(world: World) -> None:
    """Every way of judging selects the clients that plain SQL selects, and memory is measured."""
    said: list[str] = []
    figures = filtering(world, said.append)
    assert figures.pop("selected") == SELECTED == len(world.expected()), said
    seconds = [figures.pop(name) for name in ("filter_1m_s", "filter_1m_two_s", "row_by_row_s", "all_s")]
    assert all(one > 0 for one in seconds), said
    assert all(0 <= growth < 200_000_000 for growth in figures.values()), said


def test_a_consumer_killed_again_and_again_leaves_each_action_once(world: World) -> None:
    """What is missing, doubled or done again is counted from the rows and from the messages that left."""
    said: list[str] = []
    figures = killing(world, 2, said.append, chunk_rows=100, rate="1000/s")
    assert (figures["kills"], figures["chunks_redone"] <= 4) == (2, True), said
    assert [figures[name] for name in ("actions_missing", "actions_wrong", "actions_twice")] == [0, 0, 0], said


def test_five_producers_race_for_every_occurrence(bench_ground: Ground) -> None:
    """Each has one execution, also when all producers begin again."""
    said: list[str] = []
    figures = race(bench_ground, Race(40, 10), said.append)
    assert figures.pop("race_s") > 0
    assert figures == {"executions": 400, "executions_missing": 0, "executions_twice": 0}, said


def test_a_race_reports_an_occurrence_with_two_executions_or_none(bench_ground: Ground) -> None:
    """The count of rows alone would hide one of each."""
    bench_ground.run("ALTER TABLE tickwright.executions DROP CONSTRAINT executions_batch_id_slot_at_key")
    bench_ground.row(SQL["put_campaigns"], 2, 3)
    bench_ground.run(
        "INSERT INTO tickwright.executions (batch_id, slot_at) "
        "SELECT id, date_time_execution FROM tickwright.batches, generate_series(1, 2)"
    )
    assert bench_ground.row(SQL["slots"]) == (4, 2, 2)


def test_a_tally_counts_what_is_missing_wrong_and_doubled() -> None:
    """Equal numbers are not enough."""
    assert tally({"1", "2", "3"}, Counter(["1", "2", "3"])) == Tally(0, 0, 0)
    assert tally({"1", "2", "3"}, Counter(["1", "1", "4"])) == Tally(2, 1, 1)


def test_messages_that_left_are_counted_by_client(world: World) -> None:
    """A message that left twice is found, whatever the records say."""
    values = [("1", 7), ("2", 7), ("2", 7), ("2", 8)]
    for client_id, execution_id in values:
        world.ground.run("INSERT INTO public.bench_left VALUES (%s, %s)", client_id, execution_id)
    assert world.left(7, {"1", "2"}) == Tally(0, 0, 1)
    assert world.left(8, {"1", "2"}) == Tally(1, 0, 0)


def test_growth_is_that_of_the_process_that_grew_most() -> None:
    """From its first sample to its largest; two processes that grow a little are no leak."""
    memory = Memory({1: 100, 2: 300}, {1: 150, 2: 310})
    assert memory.growth_bytes == 50
    assert Memory().growth_bytes == 0


def test_a_process_is_compared_with_its_first_sample() -> None:
    """Later ones may only raise the most that it held."""
    memory, pid = Memory(), os.getpid()
    memory.early_bytes[pid] = 1
    memory.sample(pid)
    assert memory.early_bytes == {pid: 1}
    assert memory.growth_bytes == memory.peak_bytes[pid] - 1 > 10_000_000
