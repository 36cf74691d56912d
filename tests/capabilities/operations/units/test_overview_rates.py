"""Rates from the facts of processes: differences of rising numbers, and none without two values."""

import json
from types import SimpleNamespace
from typing import Any

from tickwright.capabilities.fanout.consumer.consumer import called
from tickwright.capabilities.jobs.metrics import WorkerCounters
from tickwright.capabilities.jobs.model import TaskType
from tickwright.capabilities.jobs.overview import JobCounters, Trend, caught_up, finished, lateness, quantile
from tickwright.capabilities.jobs.worker.type_state import TypeState
from tickwright.capabilities.polling.plugin import _counted
from tickwright.observe.metrics import LATENESS_BUCKETS_S
from tickwright.partners.contract import counted_calls
from tickwright.plugin.overview import COUNT_MAX, Rates


def counters_of(started: int, *, completed: int = 0, late: list[int] | None = None, running: int = 0) -> JobCounters:
    """Return the counters that a worker reports."""
    return JobCounters(started, late or [], {"completed": completed}, running)


def own(counters: JobCounters) -> JobCounters:
    """Return the counters of jobs."""
    return counters


def starts(counters: JobCounters) -> int:
    """Return the number of starts."""
    return counters.starts


def test_a_rate_is_the_difference_of_two_heartbeats_summed_over_live_workers() -> None:
    """Ten a second here, twenty there; a new worker is counted from its second heartbeat."""
    rates = Rates()
    rates.take(100.0, {1: (100.0, counters_of(50)), 2: (99.0, counters_of(0))})
    assert rates.per_s(starts) is None
    rates.take(103.0, {1: (103.0, counters_of(80)), 2: (102.0, counters_of(60)), 3: (103.0, counters_of(5_000))})
    assert rates.per_s(starts) == 30.0


def test_without_workers_rates_are_zero() -> None:
    """Zero, not unknown: there is no worker whose second heartbeat could follow."""
    rates = Rates()
    assert rates.per_s(starts) == 0
    assert finished(rates, own) is not None
    assert lateness(rates, own) is None


def test_the_rate_of_a_silent_worker_falls_and_that_of_a_lost_one_is_zero() -> None:
    """A killed process's rate falls before it is declared lost, and is zero then."""
    rates = Rates()
    rates.take(100.0, {1: (100.0, counters_of(0))})
    rates.take(103.0, {1: (103.0, counters_of(30))})
    assert rates.per_s(starts) == 10.0
    rates.take(110.0, {1: (103.0, None)})
    assert rates.per_s(starts) == 5.0
    rates.take(111.0, {})
    assert rates.per_s(starts) == 0


def test_after_a_gap_a_rate_is_measured_again() -> None:
    """An average over the gap is not the present rate."""
    rates = Rates()
    rates.take(100.0, {1: (100.0, counters_of(0))})
    rates.take(150.0, {1: (150.0, counters_of(5_000))})
    assert rates.per_s(starts) is None


def test_outcomes_are_summed_as_the_overview_names_them() -> None:
    """A cancelled or expired job is cancelled; a released attempt of any kind does not count."""
    rates = Rates()
    rates.take(100.0, {1: (100.0, JobCounters())})
    ended = {"completed": 20, "cancel": 10, "expired": 10, "released": 5, "shutdown": 5}
    rates.take(110.0, {1: (110.0, JobCounters(ended=ended))})
    found = finished(rates, own)
    assert found is not None
    assert (found.completed, found.failed, found.cancelled, found.given_back) == (2.0, 0, 2.0, 1.0)


def test_lateness_is_of_the_last_minute_and_outlives_its_worker() -> None:
    """Earlier starts do not count as lateness now; starts of a killed worker still count."""
    rates = Rates()
    rates.take(100.0, {1: (100.0, counters_of(1000, late=[0, 0, 0, 0, 1000]))})
    rates.take(103.0, {1: (103.0, counters_of(1100, late=[99, 0, 0, 0, 1000, 1]))})
    rates.take(104.0, {})
    found = lateness(rates, own)
    assert found is not None
    assert (found.p50_s, found.p99_s, found.starts) == (LATENESS_BUCKETS_S[0], LATENESS_BUCKETS_S[0], 100)
    rates.take(164.0, {})
    assert lateness(rates, own) is None


def test_a_quantile_beyond_the_last_bucket_is_not_a_number() -> None:
    """Only "more than an hour late" is known."""
    assert quantile([0] * len(LATENESS_BUCKETS_S) + [1], 0.5) is None
    assert quantile([1, 1], 0.99) == LATENESS_BUCKETS_S[1]


def test_the_backlog_has_an_end_only_where_it_is_known() -> None:
    """Each reason has its code: nothing due, a count at its bound, too early, and not falling."""
    trend = Trend()
    trend.take(100.0, 1_000)
    assert trend.per_s() is None
    trend.take(105.0, 500)
    assert trend.per_s() == -100.0
    assert caught_up(500, -100.0) == (5.0, None)
    assert caught_up(0, -100.0) == (None, "nothing_due")
    assert caught_up(COUNT_MAX, -100.0) == (None, "capped")
    assert caught_up(500, None) == (None, "measuring")
    assert caught_up(500, 0.0) == (None, "not_catching_up")
    trend.take(106.0, COUNT_MAX)
    assert trend.per_s() is None


def fake(**attributes: Any) -> Any:
    """Return an object with these attributes."""
    return SimpleNamespace(**attributes)


def worker_of(entries: dict[str, TypeState]) -> Any:
    """Return a worker with the attributes that its counters need."""
    runner = SimpleNamespace(busy=3, queued=0, slots=4, threads=2, threads_busy=1)
    return SimpleNamespace(types=lambda: entries, runner=runner)


def entry(name: str, starts: int = 0) -> TypeState:
    """Return a worker's state of a type with so many starts."""
    made = TypeState(TaskType(name, f"python:{name}"), lambda _: None, is_async=False)
    for _ in range(starts):
        made.note_start(0.02)
    return made


def test_deleting_a_type_does_not_lower_the_totals() -> None:
    """Totals rise as long as the process lives; a recreated type begins at zero and adds to them."""
    entries = {"a": entry("a", 5), "b": entry("b", 2)}
    counters = WorkerCounters(worker_of(entries))
    assert counters.jobs()["starts"] == 7
    del entries["a"]
    assert counters.jobs()["starts"] == 7
    entries["a"] = entry("a", 3)
    assert counters.jobs()["starts"] == 10
    assert counters.types()["a"]["starts"] == 3


def test_reported_counters_are_bounded_and_include_the_busiest() -> None:
    """A thousand types and partners with the longest names: below 32 kB, at most a hundred of each."""
    entries = {f"{n:050}": entry(f"{n:050}", n % 7) for n in range(1000)}
    entries["busy"] = entry("busy", 50)
    counters = WorkerCounters(worker_of(entries))
    outcomes = {n: SimpleNamespace(name=f"{n:050}", outcomes={"answered": n}) for n in range(1000)}
    partners = counted_calls(fake(all_permits=outcomes))
    jobs, types = counters.jobs(), counters.types()
    assert len(json.dumps({"jobs": jobs, "types": types, "partners": partners})) < 32_000
    assert next(iter(types)) == "busy"
    assert 50 < len(types) <= 100
    assert partners[f"{999:050}"] == {"answered": 999, "throttled": 0, "failed": 0}
    assert jobs["starts"] == sum(n % 7 for n in range(1000)) + 50


def test_numbers_are_those_of_the_counters() -> None:
    """Polls of every shard together, the writer's outcomes, calls of modules; a role that does not run counts none."""
    relays = [fake(counters=fake(published=n)) for n in (2, 3)]
    consumer = fake(writer=fake(polled=4, late=1, superseded=0))
    assert _counted(relays, None) == {"published": 5, "answered": 0, "late": 0, "superseded": 0}
    assert _counted([], consumer) == {"published": 0, "answered": 4, "late": 1, "superseded": 0}
    counts = {"succeeded": 5, "failed": 1, "given_up": 2, "superseded": 9}
    assert called(counts) == {"succeeded": 5, "failed": 3, "throttled": 0}
