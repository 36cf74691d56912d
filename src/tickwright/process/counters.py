"""Counters of a process since its start, written into the row that its heartbeat renews.

All numbers only rise, so two readings give a rate and no query has to count; exceptions are ``running`` and ``queued``,
which are current, and ``slots``, the number of jobs that the worker runs at once. The row stays below 32 kB: it has the
busiest task types and partners, at most a hundred each, as far as they fit::

    {"jobs": JOB with "slots", "types": {"invoice.remind": JOB, ...},
     "polls": {"published": 7, "answered": 7, "late": 0, "superseded": 0},
     "partners": {"dhl": {"answered": 7, "throttled": 0, "failed": 0}, ...},
     "fanout": {"succeeded": 7, "failed": 0, "throttled": 0},
     "relay": {"published": 1, "retried": 0, "dead": 0}}

with ``JOB`` = ``{"starts", "late": [per bucket of LATENESS_BUCKETS_S, zeros at the end left out], "late_s", "ended":
{outcome: n}, "running", "queued"}``. Parts that the process does not have are absent.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import msgspec

from tickwright.capabilities.jobs.worker.type_state import TypeState
from tickwright.capabilities.jobs.worker.worker import JobWorker
from tickwright.observe.metrics import Sample, Source

NAMED_MAX = 100
TYPES_BYTES_MAX = 20_000
PARTNERS_BYTES_MAX = 10_000
_POLLS = {
    "tickwright_polls_published_total": "published",
    "tickwright_polls_done_total": "answered",
    "tickwright_polls_late_total": "late",
    "tickwright_polls_superseded_total": "superseded",
}
_FANOUT = {"succeeded": "succeeded", "failed": "failed", "given_up": "failed", "throttled": "throttled"}
"""Task outcomes that were calls of the module's function, and their names here."""
_RUNS = "tickwright_fanout_tasks_total"
_CALLS, _RELAY = "tickwright_partner_calls_total", "tickwright_relay_messages_total"
Said = dict[str, Any]


class Counters:
    """Collects the counters from the worker and from some ``sources`` of metrics; :meth:`say` is a fact of the session.

    A task type that is deleted, or set up again, restarts at zero; the totals do not.
    """

    def __init__(self, worker: JobWorker | None = None, sources: Sequence[Source] = ()) -> None:
        self._worker, self._sources = worker, sources
        self._before: dict[str, tuple[list[int], float, dict[str, int]]] = {}
        self._late: list[int] = []
        self._late_s = 0.0
        self._ended: Counter[str] = Counter()

    def say(self) -> Said:
        """Return the current numbers."""
        said: Said = {}
        if self._worker is not None:
            entries = self._worker.types()
            self._sum_up(entries)
            runner = self._worker.runner
            total = _job(self._late, self._late_s, self._ended, runner.busy, runner.queued)
            threads = {"threads": runner.threads, "threads_busy": runner.threads_busy}
            said["jobs"] = {**total, "slots": runner.slots, **threads}
            said["types"] = _busiest(_types(entries), lambda one: int(one["starts"]), TYPES_BYTES_MAX)
        self._add_samples(said)
        return said

    def _sum_up(self, entries: Mapping[str, TypeState]) -> None:
        before = {name: seen for name, seen in self._before.items() if name in entries}
        for name, entry in entries.items():
            late, late_s, counts = before.get(name, ([], 0.0, {}))
            if sum(entry.late_counts) < sum(late) or sum(entry.counts.values()) < sum(counts.values()):
                late, late_s, counts = [], 0.0, {}
            new = (now - then for now, then in zip_longest(entry.late_counts, late, fillvalue=0))
            self._late = [total + more for total, more in zip_longest(self._late, new, fillvalue=0)]
            self._late_s += entry.late_sum_s - late_s
            self._ended.update({outcome: count - counts.get(outcome, 0) for outcome, count in entry.counts.items()})
            before[name] = (list(entry.late_counts), entry.late_sum_s, dict(entry.counts))
        self._before = before

    def _add_samples(self, said: Said) -> None:
        partners: dict[str, dict[str, int]] = defaultdict(lambda: {"answered": 0, "throttled": 0, "failed": 0})
        for sample in (one for source in self._sources for one in source()):
            if (name := _POLLS.get(sample.name)) is not None:
                _count(said.setdefault("polls", dict.fromkeys(_POLLS.values(), 0)), name, sample)
            elif sample.name == _RUNS and sample.labels[0] in _FANOUT:
                fanout = said.setdefault("fanout", dict.fromkeys(_FANOUT.values(), 0))
                _count(fanout, _FANOUT[sample.labels[0]], sample)
            elif sample.name == _RELAY:
                _count(said.setdefault("relay", {}), sample.labels[0], sample)
            elif sample.name == _CALLS:
                _count(partners[sample.labels[0]], sample.labels[1], sample)
        if partners:
            said["partners"] = _busiest(partners, lambda one: sum(one.values()), PARTNERS_BYTES_MAX)


def _count(into: dict[str, int], name: str, sample: Sample) -> None:
    into[name] = into.get(name, 0) + int(sample.value)


def _types(entries: Mapping[str, TypeState]) -> dict[str, Said]:
    return {
        name: {**_job(entry.late_counts, entry.late_sum_s, entry.counts, entry.held, 0), **_threads_of(entry)}
        for name, entry in list(entries.items())
        if entry.counts or entry.held or entry.late_sum_s
    }


def _threads_of(entry: TypeState) -> Said:
    return {} if entry.is_async else {"threads": entry.threads}


def _job(late: Sequence[int], late_s: float, ended: Mapping[str, int], running: int, queued: int) -> Said:
    said = {
        "starts": sum(late),
        "late": _short(late),
        "late_s": round(late_s, 3),
        "ended": {outcome: count for outcome, count in ended.items() if count},
        "running": running,
    }
    return {**said, "queued": queued} if queued else said


def _short(late: Iterable[int]) -> list[int]:
    """Remove the zeros at the end."""
    kept = list(late)
    while kept and not kept[-1]:
        kept.pop()
    return kept


def _busiest(named: Mapping[str, Said], how_busy: Callable[[Said], int], bytes_max: int) -> dict[str, Said]:
    """Return the busiest, as many as fit."""
    kept, room = {}, bytes_max
    for name, said in sorted(named.items(), key=lambda item: (-how_busy(item[1]), item[0]))[:NAMED_MAX]:
        room -= len(msgspec.json.encode({name: said}))
        if room < 0:
            break
        kept[name] = said
    return kept
