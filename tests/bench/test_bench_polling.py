"""The parts of the benches of polling: their couriers, their records, their crew; on real servers, in small."""

import argparse
import json
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
import pytest

from kit.waiting import eventually, eventually_async
from tickwright.bench import end_to_end
from tickwright.bench.couriers import running_couriers
from tickwright.bench.end_to_end import SQL, Crew, Window, fallen_behind
from tickwright.bench.ground import Ground
from tickwright.bench.poll_consumers import consumer_rates
from tickwright.bench.poll_world import World
from tickwright.domain.errors import Rejected

SLOTS = """
INSERT INTO tickwright.poll_wheels VALUES (120, 0);
INSERT INTO tickwright.poll_slots (slot_id, interval_minutes, next_due_at)
SELECT n, 120, %(begin)s + n * interval '1 minute' FROM generate_series(0, 119) AS n;
INSERT INTO tickwright.trackers (id, created_at, tracking_until, account_no, place, partner_no, status, external_id)
SELECT n, now(), now() + interval '1 day', 1, n %% 3 * 60, 1, 'registered', 'X' || n FROM generate_series(1, 30) AS n;
"""
TURN = """
INSERT INTO tickwright.poll_slices (due_at, slot_id, partner_no, interval_minutes, selected, published, polled)
VALUES (%(due)s, %(slot)s, 1, 120, 10, 10, 10);
INSERT INTO bench_due VALUES (%(slot)s, %(due)s, %(due)s, %(slot)s, 1, 10);
"""
DONE = """
INSERT INTO tickwright.poll_done (slot_id, due_at, partner_no, done_at, ids)
SELECT %(slot)s, %(due)s, 1, %(due)s + %(late)s, array_agg(n) FROM generate_series(1, %(polls)s::integer) AS n;
"""


# ---------------------------------------------------------------------- couriers


async def test_a_courier_takes_its_time_and_logs_every_call(tmp_path: Path) -> None:
    """An answer comes after 50 ms; one tracker in 25 has moved each time; the log has a line for each call."""
    with running_couriers(tmp_path, 1) as couriers:
        started_s, wall_s = time.perf_counter(), time.time()
        async with aiohttp.ClientSession(f"http://127.0.0.1:{couriers.ports[0]}") as session:
            answers = [await _ask(session, name) for name in ("AWB1", "AWB1", "AWB25", "AWB25")]
        assert time.perf_counter() - started_s >= 4 * 0.05
        assert answers[:2] == [{"status": "in_transit"}] * 2
        assert answers[2] != answers[3]
        await eventually_async(lambda: couriers.calls_by_second(wall_s - 1, wall_s + 60).total() == 4)
        assert couriers.calls_by_second(wall_s + 60, wall_s + 120) == {}


async def _ask(session: aiohttp.ClientSession, name: str) -> Any:
    async with session.get(f"/track/{name}") as response:
        return json.loads(await response.read())


# ---------------------------------------------------------------------- one consumer


def test_a_consumer_is_measured_by_what_the_ledger_says(bench_ground: Ground) -> None:
    """Every poll that was put in is done once, by the real programs, and the couriers' settings came from the file."""
    said: list[str] = []
    figures = consumer_rates(bench_ground, None, 400, said.append)
    assert figures["polls_per_s"] == figures["polls_per_s_pg"] > 0
    done = bench_ground.row("SELECT count(*), count(DISTINCT id) FROM tickwright.poll_done, unnest(ids) AS id")
    assert done[0] == done[1] >= 400
    assert bench_ground.one("SELECT count(*) FROM tickwright.trackers WHERE status LIKE 'at hub %'") > 0


# ---------------------------------------------------------------------- records


@pytest.fixture
def window(bench_ground: Ground) -> Window:
    """Three minutes, in each of which ten trackers are due; the bench's own tables are there."""
    begin: datetime = bench_ground.one("SELECT date_trunc('minute', now()) - interval '1 hour'")
    bench_ground.connection.execute(SLOTS, {"begin": begin})
    bench_ground.run(SQL["make_records"])
    return Window(begin, begin + timedelta(minutes=3), fresh_s=720.0)


def _turn(ground: Ground, window: Window, slot: int, *done: tuple[int, float]) -> None:
    """Let a slot's ten polls be selected, and so many of them be done so many seconds late."""
    due = window.begin + timedelta(minutes=slot)
    ground.connection.execute(TURN, {"due": due, "slot": slot})
    for polls, late_s in done:
        values = {"slot": slot, "due": due, "late": timedelta(seconds=late_s), "polls": polls}
        ground.connection.execute(DONE, values)


def _figures(ground: Ground, window: Window) -> dict[str, float]:
    return end_to_end._figures(ground, window, [], lambda _: None)


def test_everything_in_time_is_fresh_and_nothing_lags(bench_ground: Ground, window: Window) -> None:
    """The good case: all that was due was done, late by what it was late."""
    for slot in range(3):
        _turn(bench_ground, window, slot, (9, 1.0), (1, 5.0))
    figures = _figures(bench_ground, window)
    assert (figures["fresh_share"], figures["undone"], figures["turns_missed"], figures["lag_end_s"]) == (1, 0, 0, 0)
    assert (figures["late_p50_s"], figures["late_p99_s"], figures["late_max_s"]) == (1, 5, 5)
    assert figures["polls_due_per_s"] == figures["polls_done_per_s"] == pytest.approx(30 / 180)


def test_a_poll_that_is_done_too_late_or_never_is_not_fresh(bench_ground: Ground, window: Window) -> None:
    """Late beyond a tenth of the interval, or without an effect: neither counts."""
    _turn(bench_ground, window, 0, (10, 1.0))
    _turn(bench_ground, window, 1, (9, 1.0), (1, 721.0))
    _turn(bench_ground, window, 2, (7, 1.0))
    figures = _figures(bench_ground, window)
    assert figures["fresh_share"] == pytest.approx(26 / 30)
    assert figures["undone"] == 3
    assert figures["lag_end_s"] == 120, "the oldest without an effect at the end is of the second minute"


def test_a_poll_that_was_not_selected_counts_as_due(bench_ground: Ground, window: Window) -> None:
    """A poll that the selector misses counts like one that the consumer misses."""
    _turn(bench_ground, window, 0, (10, 1.0))
    _turn(bench_ground, window, 2, (10, 1.0))
    figures = _figures(bench_ground, window)
    assert (figures["turns_missed"], figures["undone"], figures["lag_end_s"]) == (1, 10, 120)
    assert figures["fresh_share"] == pytest.approx(20 / 30)


def test_a_call_before_its_second_is_counted(bench_ground: Ground, window: Window) -> None:
    """No poll reaches a courier before its own second; the figure shows when one does."""
    _turn(bench_ground, window, 0, (10, -0.5))
    assert _figures(bench_ground, window)["early"] == 10


@pytest.mark.parametrize(
    ("waiting", "behind"),
    [([0, 9, 4, 4, 4, 4, 3, 4], 0), ([0, 5, 90, 5, 7, 80, 90, 8], 0), ([0, 9, 5, 9, 15, 25, 35, 45], 20), ([1, 2], 0)],
)
def test_falling_behind_is_a_low_mark_that_rises(waiting: list[int], behind: int) -> None:
    """A backlog that comes back to its low mark keeps up, however high it went; a second's polls are no growth."""
    assert fallen_behind(waiting, per_s=10.0) == behind


def test_a_run_beyond_what_the_ledger_remembers_is_refused(bench_ground: Ground) -> None:
    """The ledger keeps three due minutes of a slot: polls of earlier ones would look undone."""
    options = argparse.Namespace(minutes=5, interval_minutes=2, trackers=1, kill_every=0)
    with pytest.raises(Rejected, match="three turns"):
        end_to_end.end_to_end(bench_ground, None, options, lambda _: None)


# ---------------------------------------------------------------------- crew


def test_the_crew_kills_one_role_after_the_other_and_notices_other_ends(bench_ground: Ground) -> None:
    """A killed process runs again; a process that ends by itself ends the measurement."""
    crew = Crew(bench_ground, {"TICKWRIGHT_LOG_LEVEL": "error"}, replicas=1)
    for role in end_to_end.ROLES:
        crew.start(role)
    sessions = "SELECT count(*) FROM tickwright.workers WHERE roles = ARRAY[%s] AND lost_at IS NULL"
    eventually(lambda: [bench_ground.one(sessions, role) for role in end_to_end.ROLES] == [1, 1, 1], 60)
    before = list(bench_ground.workers)
    for _ in end_to_end.ROLES:
        crew.kill_next()
    assert [process.returncode for process in before] == [-9, -9, -9]
    crew.check()
    bench_ground.workers[0].kill()
    bench_ground.workers[0].wait()
    with pytest.raises(RuntimeError, match="ended by itself"):
        crew.check()


# ---------------------------------------------------------------------- the simulated world


async def test_polls_are_selected_round_by_round_and_growth_is_measured_by_table(database_url: str) -> None:
    """Every time slot is selected again and again, results are written, sizes are listed for each table and index."""
    async with asyncpg.create_pool(database_url, min_size=1, max_size=2) as pool:
        world = World(pool, ((2, 1),))
        await world.prepare()
        await world.add(600)
        seconds, wal_bytes = await world.select_minutes(1)
        assert seconds > 0
        assert wal_bytes > 0
        said: list[str] = []
        figures = await world.grow(4, said.append)
        assert figures["disk_settled_bytes"] == pytest.approx(await world.disk_bytes(), rel=0.5)
        assert any("trackers_place=" in line for line in said)
        assert await pool.fetchval("SELECT count(DISTINCT slot_id) FROM tickwright.poll_done") == 2
        assert len(world.steps_ms) > 0
