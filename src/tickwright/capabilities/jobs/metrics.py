"""The metrics of jobs and their workers."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from tickwright.observe.metrics import LATENESS_BUCKETS_S, HistogramSample, MetricSpec, Sample, Source, busiest

if TYPE_CHECKING:
    from tickwright.capabilities.jobs.enqueue import Enqueuer
    from tickwright.capabilities.jobs.remote.claims import RemoteClaimer
    from tickwright.capabilities.jobs.schedules.producer import ScheduleSource
    from tickwright.capabilities.jobs.worker.worker import JobWorker

TYPES_BYTES_MAX = 20_000

METRICS: tuple[MetricSpec, ...] = (
    MetricSpec("tickwright_schedule_jobs_total", "counter", (), "Jobs that this producer made for occurrences."),
    MetricSpec(
        "tickwright_schedule_skips_total",
        "counter",
        ("reason",),
        "Occurrences that this producer recorded without a job.",
    ),
    MetricSpec(
        "tickwright_job_unique_conflicts_total",
        "counter",
        ("task_type", "outcome"),
        "Requests of this process that an existing unique job answered: kept as it was, or replaced in part.",
    ),
    MetricSpec("tickwright_job_attempts_total", "counter", ("task_type", "outcome"), "Attempts that ended here."),
    MetricSpec("tickwright_job_lateness_seconds", "histogram", ("task_type",), "Start minus due, database clock."),
    MetricSpec("tickwright_job_held", "gauge", ("task_type",), "Attempts claimed and not ended, in this worker."),
    MetricSpec("tickwright_worker_busy_slots", "gauge", (), "Attempts that run now, in this worker."),
    MetricSpec("tickwright_worker_slots", "gauge", (), "Attempts that may run at once, in this worker."),
    MetricSpec("tickwright_worker_queued_jobs", "gauge", (), "Attempts held and not started, in this worker."),
    MetricSpec("tickwright_worker_stuck_threads", "gauge", (), "Threads of stopped handlers that still run."),
    MetricSpec("tickwright_worker_result_backlog", "gauge", (), "Results that are not written yet."),
    MetricSpec("tickwright_worker_lost_results_total", "counter", (), "Results dropped after a lost lease."),
    MetricSpec("tickwright_worker_reclaimed_jobs_total", "counter", (), "Released jobs of lost sessions."),
    MetricSpec("tickwright_remote_results_total", "counter", ("outcome",), "Results of remote workers, here."),
    MetricSpec("tickwright_remote_waiting_claims", "gauge", (), "Claims of remote workers that wait here."),
    MetricSpec(
        "tickwright_remote_calls_total", "counter", ("kind", "outcome"), "Handed over from here to remote workers."
    ),
    MetricSpec("tickwright_remote_pending_calls", "gauge", (), "Handed over from here, and not answered yet."),
    MetricSpec("tickwright_jobs_due", "gauge", ("task_type",), "Due and pending, counted up to 10,000."),
    MetricSpec("tickwright_jobs_processing", "gauge", ("task_type",), "Processing, counted up to 10,000."),
    MetricSpec("tickwright_jobs_upcoming", "gauge", ("task_type",), "Not due yet, counted up to 10,000."),
    MetricSpec("tickwright_jobs_oldest_due_seconds", "gauge", ("task_type",), "How long the oldest due one waits."),
    MetricSpec("tickwright_jobs_waiting", "gauge", (), "Jobs that wait for others of their workflow."),
    MetricSpec("tickwright_workflows_running", "gauge", (), "Workflows that have not ended."),
    MetricSpec("tickwright_workflows_ended", "gauge", ("state",), "Workflows that ended within the last hour."),
    MetricSpec("tickwright_jobs_partial", "gauge", (), "1 while unregistered task types may be missing from those."),
)


def schedule_source(schedules: "ScheduleSource") -> Source:
    """Return a source for the jobs and skips of a producer."""

    def read() -> Sequence[Sample]:
        counts = schedules.counts
        skips = [Sample("tickwright_schedule_skips_total", counts[why], (why,)) for why in ("misfire", "overlap")]
        return [Sample("tickwright_schedule_jobs_total", counts["jobs"]), *skips]

    return read


def enqueue_source(enqueuers: "Sequence[Enqueuer]") -> Source:
    """Return a source for the requests that unique jobs answered in this process."""

    def read() -> list[Sample]:
        total: Counter[tuple[str, str]] = Counter()
        for enqueuer in enqueuers:
            total.update(enqueuer.conflicts)
        return [Sample("tickwright_job_unique_conflicts_total", count, labels) for labels, count in total.items()]

    return read


def worker_source(worker: "JobWorker") -> Source:
    """Return a source for a worker's counters: its slots, and each task type's attempts and lateness."""

    def read() -> list[Sample]:
        runner = worker.runner
        samples = [
            Sample("tickwright_worker_busy_slots", runner.busy),
            Sample("tickwright_worker_slots", runner.slots),
            Sample("tickwright_worker_queued_jobs", runner.queued),
            Sample("tickwright_worker_stuck_threads", runner.threads_stuck),
            Sample("tickwright_worker_result_backlog", worker.backlog()),
            Sample("tickwright_worker_lost_results_total", worker.lost_results),
            Sample("tickwright_worker_reclaimed_jobs_total", worker.reclaimed),
        ]
        for name, state in list(worker.types().items()):
            labels, late, counts = (name,), state.late_sum_s, state.late_counts
            samples.append(Sample("tickwright_job_held", state.held, labels))
            for outcome, count in list(state.counts.items()):
                samples.append(Sample("tickwright_job_attempts_total", count, (name, outcome)))
            lateness = "tickwright_job_lateness_seconds"
            samples.append(HistogramSample(lateness, late, labels, bounds=LATENESS_BUCKETS_S, counts=counts))
        return samples

    return read


def remote_source(claimer: "RemoteClaimer") -> Source:
    """Return a source for the calls of remote workers to this process."""

    def read() -> list[Sample]:
        results = [
            Sample("tickwright_remote_results_total", count, (outcome,))
            for outcome, count in sorted((claimer.results.counts + claimer.calls.counts).items())
        ]
        return [Sample("tickwright_remote_waiting_claims", claimer.waiting), *results]

    return read


class WorkerCounters:
    """The counters of a worker for its heartbeat: of all jobs, and of the busiest task types as far as they fit.

    All numbers only rise, except ``running`` and ``queued``, which are current, and ``slots``, the number of jobs that
    the worker runs at once. ``late`` has a number per bucket of ``LATENESS_BUCKETS_S``, without zeros at the end. A
    task type that is deleted, or set up again, restarts at zero; the totals do not.
    """

    def __init__(self, worker: "JobWorker") -> None:
        self._worker = worker
        self._before: dict[str, tuple[list[int], float, dict[str, int]]] = {}
        self._late: list[int] = []
        self._late_s = 0.0
        self._ended: Counter[str] = Counter()

    def jobs(self) -> dict[str, Any]:
        """Return the current numbers of all jobs."""
        self._sum_up(self._worker.types())
        runner = self._worker.runner
        total = _counted(self._late, self._late_s, self._ended, runner.busy, runner.queued)
        return {**total, "slots": runner.slots, "threads": runner.threads, "threads_busy": runner.threads_busy}

    def types(self) -> dict[str, Any]:
        """Return the current numbers of task types."""
        found = {
            name: {
                **_counted(entry.late_counts, entry.late_sum_s, entry.counts, entry.held, 0),
                **({} if entry.is_async else {"threads": entry.threads}),
            }
            for name, entry in list(self._worker.types().items())
            if entry.counts or entry.held or entry.late_sum_s
        }
        return busiest(found, lambda counters: int(counters["starts"]), TYPES_BYTES_MAX)

    def _sum_up(self, entries: Mapping[str, Any]) -> None:
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


def _counted(late: Sequence[int], late_s: float, ended: Mapping[str, int], running: int, queued: int) -> dict[str, Any]:
    found = {
        "starts": sum(late),
        "late": _short(late),
        "late_s": round(late_s, 3),
        "ended": {outcome: count for outcome, count in ended.items() if count},
        "running": running,
    }
    return {**found, "queued": queued} if queued else found


def _short(late: Iterable[int]) -> list[int]:
    """Remove the zeros at the end."""
    kept = list(late)
    while kept and not kept[-1]:
        kept.pop()
    return kept
