"""Prometheus metrics: read from plain counters when somebody scrapes, so a job pays nothing for them.

``METRICS`` is the contract (``docs/metrics.md`` is kept equal to it by a test): names do not change
meaning, units are base units, labels are few and bounded. What a metric is read from comes in as
protocols; this package knows neither the worker nor the relay.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

Kind = Literal["counter", "gauge", "histogram"]
LATENESS_BUCKETS_S = (
    0.001,
    0.002,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    60.0,
    600.0,
    3600.0,
)
"""The upper bounds of the buckets in which jobs count how late they start."""


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One line of the contract."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str


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
    MetricSpec("tickwright_worker_reclaimed_jobs_total", "counter", (), "Jobs of lost sessions given back."),
    MetricSpec("tickwright_session_token", "gauge", (), "Fencing token of this session; 0 without one."),
    MetricSpec("tickwright_session_held", "gauge", (), "1 while this session's lease may be relied on."),
    MetricSpec("tickwright_lease_held", "gauge", ("lease",), "1 while this process holds the lease."),
    MetricSpec("tickwright_lease_fence", "gauge", ("lease",), "Fence of a lease that this process holds."),
    MetricSpec("tickwright_lease_age_seconds", "gauge", ("lease",), "Since the last renewal of a held lease."),
    MetricSpec("tickwright_relay_messages_total", "counter", ("outcome",), "Outbox rows settled by this relay."),
    MetricSpec("tickwright_relay_lost_marks_total", "counter", (), "Outcomes dropped after a lost lease."),
    MetricSpec("tickwright_relay_busy_destinations", "gauge", (), "Destinations with a batch under way."),
    MetricSpec("tickwright_relay_failing_destinations", "gauge", (), "Destinations that wait after failures."),
    MetricSpec("tickwright_polls_published_total", "counter", ("shard",), "Polls that this process published."),
    MetricSpec(
        "tickwright_poll_relay_superseded_total",
        "counter",
        ("shard",),
        "Polls dropped by the relay, since the next turn was due.",
    ),
    MetricSpec(
        "tickwright_poll_batches_total", "counter", ("shard", "outcome"), "Batches of polls, by what became of them."
    ),
    MetricSpec(
        "tickwright_poll_relay_stands", "gauge", ("shard",), "1 while the relay of polls cannot or may not go on."
    ),
    MetricSpec(
        "tickwright_poll_relay_opens_total", "counter", ("shard",), "Producers that this relay began to write with."
    ),
    MetricSpec(
        "tickwright_fanout_messages_total", "counter", ("outcome",), "Messages of fan-out, by what became of them."
    ),
    MetricSpec("tickwright_fanout_listed_entities", "gauge", ("module",), "Entities that this scheduler polls."),
    MetricSpec(
        "tickwright_fanout_module_held_back", "gauge", ("module",), "1 while it is paused or its gate is closed."
    ),
    MetricSpec("tickwright_fanout_lists_age_seconds", "gauge", (), "Since the lists were read."),
    MetricSpec("tickwright_fanout_tasks_total", "counter", ("outcome",), "Tasks of fan-out that this consumer took."),
    MetricSpec("tickwright_fanout_running_tasks", "gauge", (), "Tasks that this consumer holds now."),
    MetricSpec("tickwright_fanout_slow_entities", "gauge", (), "Entities, per module, that are slow in this consumer."),
    MetricSpec("tickwright_fanout_slow_running_tasks", "gauge", (), "Tasks of slow entities that this consumer runs."),
    MetricSpec(
        "tickwright_fanout_parked_tasks", "gauge", (), "Tasks that wait here, because RabbitMQ takes no message."
    ),
    MetricSpec("tickwright_fanout_queued_tasks", "gauge", (), "Tasks in the queue that no consumer holds."),
    MetricSpec("tickwright_report_parts_total", "counter", ("outcome",), "Parts of reports that ended here."),
    MetricSpec("tickwright_report_running_parts", "gauge", (), "Parts of reports that are brought here now."),
    MetricSpec("tickwright_report_stuck_calls", "gauge", (), "Calls of listeners here that were stopped and go on."),
    MetricSpec("tickwright_report_steps_total", "counter", ("outcome",), "Steps of reports that were taken here."),
    MetricSpec("tickwright_report_running_steps", "gauge", (), "Steps of reports that run here now."),
    MetricSpec(
        "tickwright_batch_chunks_total", "counter", ("outcome",), "Plans and chunks of executions that ended here."
    ),
    MetricSpec("tickwright_batch_running_chunks", "gauge", (), "Plans and chunks that this consumer has in hand."),
    MetricSpec("tickwright_batch_executions_total", "counter", (), "Executions that this producer made."),
    MetricSpec("tickwright_batch_released_actions_total", "counter", (), "Actions that this checker let leave."),
    MetricSpec("tickwright_polls_done_total", "counter", (), "Polls whose effect this consumer wrote."),
    MetricSpec("tickwright_poll_news_total", "counter", (), "Trackers with news among them."),
    MetricSpec("tickwright_polls_late_total", "counter", (), "Polls among them after a tenth of their interval."),
    MetricSpec(
        "tickwright_polls_superseded_total",
        "counter",
        (),
        "Polls dropped, since the next turn was due or the tracker had ended.",
    ),
    MetricSpec("tickwright_poll_lost_answers_total", "counter", (), "Answers dropped after a lost lease."),
    MetricSpec("tickwright_poll_answer_backlog", "gauge", (), "Answers that are not written yet."),
    MetricSpec("tickwright_polls_held", "gauge", ("partner",), "Polls taken and not ended, in this consumer."),
    MetricSpec("tickwright_poll_records_total", "counter", (), "Records that this consumer read from Kafka."),
    MetricSpec(
        "tickwright_poll_records_over_total", "counter", (), "Polls from Kafka dropped unasked: the next turn was due."
    ),
    MetricSpec("tickwright_poll_records_parked_total", "counter", (), "Polls from Kafka moved into the queue to wait."),
    MetricSpec("tickwright_poll_records_skipped_total", "counter", ("reason",), "Records from Kafka passed over."),
    MetricSpec("tickwright_poll_partitions_held", "gauge", (), "Partitions that this consumer carries out."),
    MetricSpec("tickwright_poll_rebalances_total", "counter", (), "Times that the group gave or took partitions."),
    MetricSpec("tickwright_partner_calls_total", "counter", ("partner", "outcome"), "Calls that ended here."),
    MetricSpec("tickwright_partner_running_calls", "gauge", ("partner",), "Calls that run now, in this process."),
    MetricSpec(
        "tickwright_partner_closed", "gauge", ("partner",), "1 while paused, quiet, silenced or the breaker is open."
    ),
    MetricSpec("tickwright_service_tick_age_seconds", "gauge", ("service",), "Since the loop came round."),
    MetricSpec("tickwright_service_restarts_total", "counter", ("service",), "Starts after a crash."),
    MetricSpec("tickwright_jobs_due", "gauge", ("task_type",), "Due and pending, counted up to 10,000."),
    MetricSpec("tickwright_jobs_processing", "gauge", ("task_type",), "Processing, counted up to 10,000."),
    MetricSpec("tickwright_jobs_upcoming", "gauge", ("task_type",), "Not due yet, counted up to 10,000."),
    MetricSpec("tickwright_jobs_oldest_due_seconds", "gauge", ("task_type",), "How long the oldest due one waits."),
    MetricSpec("tickwright_jobs_partial", "gauge", (), "1 while unregistered task types may be missing from those."),
    MetricSpec("tickwright_executions_waiting", "gauge", (), "Due and not begun, counted up to 10,000."),
    MetricSpec("tickwright_executions_oldest_waiting_seconds", "gauge", (), "How long the oldest of those waits."),
    MetricSpec("tickwright_executions_working", "gauge", (), "In progress, counted up to 10,000."),
    MetricSpec("tickwright_executions_unreleased_actions", "gauge", (), "Actions of executions that have not left."),
    MetricSpec("tickwright_dead_letters", "gauge", ("kind",), "Dead letters, counted up to 10,000."),
    MetricSpec("tickwright_outbox_waiting", "gauge", (), "Outbox rows, counted up to 10,000."),
    MetricSpec("tickwright_outbox_oldest_seconds", "gauge", ("scheme",), "Age of the oldest outbox row."),
    MetricSpec(
        "tickwright_poll_lag_records", "gauge", ("topic", "partition"), "From the group's position to the last poll."
    ),
    MetricSpec(
        "tickwright_poll_oldest_seconds", "gauge", ("topic", "partition"), "How long the oldest unfinished poll waits."
    ),
    MetricSpec(
        "tickwright_polls_fresh_ratio", "gauge", (), "Share of the judged polls of the last hour that were fresh."
    ),
    MetricSpec("tickwright_accounts_judged", "gauge", (), "Accounts with trackers that are judged."),
    MetricSpec("tickwright_accounts_lagging", "gauge", (), "Accounts whose trackers get older than 1.1 intervals."),
    MetricSpec(
        "tickwright_account_lag_ratio", "gauge", ("account",), "Age at the next poll, in intervals; the worst 20."
    ),
    MetricSpec("tickwright_alerts_firing", "gauge", ("rule", "severity"), "Alerts that fire now."),
    MetricSpec("tickwright_readings_ok", "gauge", (), "1 when the database's gauges of this page are fresh."),
    MetricSpec("tickwright_database_full", "gauge", (), "1 while the database says that its disk is full."),
)
_SPECS: Mapping[str, MetricSpec] = {spec.name: spec for spec in METRICS}


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of a counter or gauge of the contract."""

    name: str
    value: float
    labels: tuple[str, ...] = ()


Source = Callable[[], Sequence[Sample]]


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
        ...

    def types(self) -> Mapping[str, Any]:
        """Task types to :class:`TypeCounters`."""
        ...

    def backlog(self) -> int:
        """Results that are not written yet."""
        ...


class TickwrightCollector(Collector):
    """Reads every source at scrape time; register it once per process.

    Args:
        sources: Callables that return samples of the contract's counters and gauges.
        worker: The job worker, where this process has one.
        lateness_buckets_s: Upper bounds of its lateness counters.
    """

    def __init__(
        self,
        sources: Sequence[Source] = (),
        *,
        worker: JobSource | None = None,
        lateness_buckets_s: Sequence[float] = (),
    ) -> None:
        self._sources = list(sources)
        self._worker = worker
        self._bounds = [*(str(bound) for bound in lateness_buckets_s), "+Inf"]

    def add(self, source: Source) -> None:
        """Read one more source."""
        self._sources.append(source)

    def describe(self) -> list[Metric]:
        """Spare the registry a scrape at registration."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Return every metric that has a value."""
        families: dict[str, Metric] = {}
        samples = [sample for source in self._sources for sample in source()]
        if self._worker is not None:
            samples += _worker_samples(self._worker)
        for sample in samples:
            family = families.get(sample.name)
            if family is None:
                family = families[sample.name] = _family(_SPECS[sample.name])
            family.add_metric(list(sample.labels), sample.value)  # type: ignore[attr-defined]
        yield from families.values()
        if self._worker is not None:
            yield self._lateness(self._worker)

    def _lateness(self, worker: JobSource) -> Metric:
        spec = _SPECS["tickwright_job_lateness_seconds"]
        family = HistogramMetricFamily(spec.name, spec.help, labels=spec.labels)
        for name, entry in list(worker.types().items()):
            total, buckets = 0, []
            for bound, count in zip(self._bounds, entry.late_counts, strict=True):
                total += count
                buckets.append((bound, float(total)))
            family.add_metric([name], buckets, sum_value=entry.late_sum_s)
        return family


def _family(spec: MetricSpec) -> Metric:
    if spec.kind == "counter":
        return CounterMetricFamily(spec.name, spec.help, labels=spec.labels)
    return GaugeMetricFamily(spec.name, spec.help, labels=spec.labels)


def _worker_samples(worker: JobSource) -> list[Sample]:
    samples = [
        Sample("tickwright_worker_busy_slots", worker.runner.busy),
        Sample("tickwright_worker_slots", worker.runner.slots),
        Sample("tickwright_worker_queued_jobs", worker.runner.queued),
        Sample("tickwright_worker_stuck_threads", worker.runner.threads_stuck),
        Sample("tickwright_worker_result_backlog", worker.backlog()),
        Sample("tickwright_worker_lost_results_total", worker.lost_results),
        Sample("tickwright_worker_reclaimed_jobs_total", worker.reclaimed),
    ]
    for name, entry in list(worker.types().items()):
        samples.append(Sample("tickwright_job_held", entry.held, (name,)))
        samples += [
            Sample("tickwright_job_attempts_total", count, (name, outcome))
            for outcome, count in list(entry.counts.items())
        ]
    return samples


class MetricsPage:
    """Renders ``/metrics``: refreshes what needs a question to the database, then reads everything.

    Args:
        collector: Reads the process.
        refresh: Called before each page; bounded in time by whoever gives it.
    """

    def __init__(self, collector: TickwrightCollector, *refresh: Callable[[], Awaitable[None]]) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(collector)
        self._refresh = refresh

    async def render(self) -> bytes:
        """Return the page in Prometheus' text format."""
        for refresh in self._refresh:
            await refresh()
        return generate_latest(self._registry)
