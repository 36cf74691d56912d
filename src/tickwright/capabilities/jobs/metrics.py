"""The metrics of jobs and their workers."""

from collections.abc import Mapping
from typing import Any, Protocol

from tickwright.observe.metrics import LATENESS_BUCKETS_S, HistogramSample, MetricSpec, Sample, Source

METRICS: tuple[MetricSpec, ...] = (
    MetricSpec("tickwright_job_attempts_total", "counter", ("task_type", "outcome"), "Attempts that ended here."),
    MetricSpec("tickwright_job_lateness_seconds", "histogram", ("task_type",), "Start minus due, database clock."),
    MetricSpec("tickwright_job_held", "gauge", ("task_type",), "Attempts claimed and not ended, in this worker."),
    MetricSpec("tickwright_worker_busy_slots", "gauge", (), "Attempts that run now, in this worker."),
    MetricSpec("tickwright_worker_slots", "gauge", (), "Attempts that may run at once, in this worker."),
    MetricSpec("tickwright_worker_queued_jobs", "gauge", (), "Attempts held and not started, in this worker."),
    MetricSpec("tickwright_worker_stuck_threads", "gauge", (), "Threads of handlers that were stopped and go on."),
    MetricSpec("tickwright_worker_result_backlog", "gauge", (), "Results that are not written yet."),
    MetricSpec("tickwright_worker_lost_results_total", "counter", (), "Results dropped after a lost lease."),
    MetricSpec("tickwright_worker_reclaimed_jobs_total", "counter", (), "Jobs of lost sessions released."),
    MetricSpec("tickwright_jobs_due", "gauge", ("task_type",), "Due and pending, counted up to 10,000."),
    MetricSpec("tickwright_jobs_processing", "gauge", ("task_type",), "Processing, counted up to 10,000."),
    MetricSpec("tickwright_jobs_upcoming", "gauge", ("task_type",), "Not due yet, counted up to 10,000."),
    MetricSpec("tickwright_jobs_oldest_due_seconds", "gauge", ("task_type",), "How long the oldest due one waits."),
    MetricSpec("tickwright_jobs_partial", "gauge", (), "1 while unregistered task types may be missing from those."),
)


class TypeCounters(Protocol):
    """What a worker counts for one task type."""

    held: int
    late_counts: list[int]
    late_sum_s: float
    counts: dict[str, int]


class _Runner(Protocol):
    slots: int
    threads_stuck: int

    @property
    def busy(self) -> int: ...

    @property
    def queued(self) -> int: ...


class JobSource(Protocol):
    """The worker, as far as its metrics go."""

    lost_results: int
    reclaimed: int

    @property
    def runner(self) -> _Runner:
        """Its slots."""

    def types(self) -> Mapping[str, Any]:
        """Task types to :class:`TypeCounters`."""

    def backlog(self) -> int:
        """Results that are not written yet."""


def worker_source(worker: JobSource) -> Source:
    """Return a source for a worker's counters: its slots, and each task type's attempts and lateness."""

    def read() -> list[Sample]:
        types = [sample for name, counted in list(worker.types().items()) for sample in _type(name, counted)]
        return [*_worker(worker), *types]

    return read


def _worker(worker: JobSource) -> list[Sample]:
    return [
        Sample("tickwright_worker_busy_slots", worker.runner.busy),
        Sample("tickwright_worker_slots", worker.runner.slots),
        Sample("tickwright_worker_queued_jobs", worker.runner.queued),
        Sample("tickwright_worker_stuck_threads", worker.runner.threads_stuck),
        Sample("tickwright_worker_result_backlog", worker.backlog()),
        Sample("tickwright_worker_lost_results_total", worker.lost_results),
        Sample("tickwright_worker_reclaimed_jobs_total", worker.reclaimed),
    ]


def _type(name: str, counted: TypeCounters) -> list[Sample]:
    return [
        Sample("tickwright_job_held", counted.held, (name,)),
        *(
            Sample("tickwright_job_attempts_total", count, (name, outcome))
            for outcome, count in list(counted.counts.items())
        ),
        HistogramSample(
            "tickwright_job_lateness_seconds",
            counted.late_sum_s,
            (name,),
            bounds=LATENESS_BUCKETS_S,
            counts=counted.late_counts,
        ),
    ]
