"""Metrics: the contract of docs/metrics.md, read from plain counters and a bounded question."""

import asyncio
import re
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
import pytest
from prometheus_client.parser import text_string_to_metric_families
from pydantic import SecretStr

from kit.alerts import RULES
from kit.batches import Numbers, batch_world
from kit.consumers import all_done, running_consumer, seed
from kit.fanout import MODULE, Hub, registry_of
from kit.prometheus import METRICS
from kit.relays import RelayWorld, relay_world
from kit.reports import ReportWorld, plan_of, report_world
from kit.waiting import eventually_async
from tickwright import Answer, Poll, ReportRequest
from tickwright.capabilities.batches.executions.consumer import consumer_source as batch_source
from tickwright.capabilities.jobs.enqueue import Enqueuer
from tickwright.capabilities.jobs.metrics import enqueue_source, remote_source, worker_source
from tickwright.capabilities.jobs.remote.workers import RemoteWorkers
from tickwright.capabilities.polling.relay.relay import PollRelay
from tickwright.capabilities.reports.plugin import source_of as report_source
from tickwright.domain.leases import LeaseTerms
from tickwright.engine.leases import Leases, leases_source
from tickwright.engine.outbox.relay import relay_source
from tickwright.engine.remote.calls import RemoteCalls
from tickwright.engine.session import WorkerSession
from tickwright.engine.wakeup.connection import DirectConnection
from tickwright.observe.metrics import Sample, Source
from tickwright.observe.metrics_page import MetricsPage, TickwrightCollector
from tickwright.plugin import Registrations
from tickwright.plugin.settings import Bind, Settings
from tickwright.process.installation import lease_purposes, overview_parts
from tickwright.process.node import open_node
from tickwright.process.supervisor import ServiceState
from tickwright.process.watching import (
    DatabaseReadings,
    services_source,
)
from tickwright.transports.kafka.poll_source import SourceCounts, samples_of
from tickwright.transports.rabbitmq.tasks import RabbitTaskQueue
from tickwright.transports.rabbitmq.topology import fanout_names

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[RelayWorld]:
    """A database and a receiver."""
    async with relay_world(database_url) as world:
        yield world


class Entry:
    """What a worker counts for one type."""

    def __init__(self) -> None:
        self.held = 2
        self.late_counts = [3, 1, *[0] * 14, 1]
        self.late_sum_s = 2.5
        self.counts = {"completed": 4, "retried": 1}


class Slots:
    """The worker's slots."""

    slots, busy, queued, threads_stuck = 8, 1, 5, 0


class Worker:
    """What the collector reads of a worker."""

    lost_results, reclaimed = 6, 7
    runner = Slots()

    def types(self) -> dict[str, Entry]:
        """One type."""
        return {"mail": Entry()}

    def backlog(self) -> int:
        """Not written yet."""
        return 9


WORKER: Any = Worker()


def values(page: bytes) -> dict[str, float]:
    """Return every sample of a page by name and labels."""
    found = {}
    for family in text_string_to_metric_families(page.decode()):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}"] = sample.value
    return found


def test_the_document_lists_exactly_the_metrics() -> None:
    """A metric that is not documented, or that is gone, fails here."""
    lines = re.findall(
        r"^\| `(tickwright_\w+)` \| (\w+) \| (.*?) \| (.*) \|$", (ROOT / "docs/metrics.md").read_text(), re.MULTILINE
    )
    wanted = [
        (spec.name, spec.kind, ", ".join(f"`{label}`" for label in spec.labels) or "–", spec.help) for spec in METRICS
    ]
    assert sorted(lines) == sorted(wanted)


def test_prometheus_rules_use_metrics_that_exist() -> None:
    """A rule on a metric that is not there would never fire."""
    text = (ROOT / "deploy/prometheus/tickwright.rules.yml").read_text()
    used = {re.sub(r"_(bucket|count)$", "", name) for name in re.findall(r"\btickwright_\w+", text)}
    assert used <= {spec.name for spec in METRICS}
    named = set(re.findall(r"\w+", " ".join(re.findall(r'rule!?[=~]+"([^"]+)"', text))))
    assert named <= {rule.name for rule in RULES}
    firing = text[text.index("- alert: TickwrightFiring") :]
    assert "labels:" not in firing  # it would overwrite the rule's own severity


def test_the_page_names_every_lease() -> None:
    """A loop under a lease that a plugin declares is a value of the label ``lease``."""
    said = (ROOT / "docs/metrics.md").read_text().partition("The lease's label is")[2].partition("How upkeep fares")[0]
    named = {name.partition(":")[0] for name in re.findall(r"`([a-z:<>-]+)`", said)}
    assert named - {"scheduler"} == {name.partition(":")[0] for name in lease_purposes()}


async def test_the_workers_counters_are_read_at_scrape_time() -> None:
    """Lateness is a cumulative histogram; attempts are counted by type and outcome."""
    page = MetricsPage(TickwrightCollector([worker_source(WORKER)], METRICS))
    found = values(await page.render())
    assert found["tickwright_job_lateness_seconds_bucket{le=0.001,task_type=mail}"] == 3
    assert found["tickwright_job_lateness_seconds_bucket{le=1.0,task_type=mail}"] == 4
    assert found["tickwright_job_lateness_seconds_count{task_type=mail}"] == 5
    assert found["tickwright_job_lateness_seconds_sum{task_type=mail}"] == 2.5
    assert found["tickwright_job_attempts_total{outcome=completed,task_type=mail}"] == 4
    assert found["tickwright_worker_busy_slots{}"] == 1
    assert found["tickwright_worker_result_backlog{}"] == 9


async def _samples_of_a_consumer(url: str) -> list[Sample]:
    """Return what a consumer counts that has carried out one poll."""

    async def ask(_poll: Poll) -> Answer:
        return Answer("moving")

    async with running_consumer(url, functions={"acme": ask}) as side:
        trackers = await seed(side.pool, 1)
        await eventually_async(lambda: all_done(side.pool, trackers))
        return [*side.consumer.samples(), *side.contract.samples()]


async def _page_of_fan_out(url: str) -> bytes:
    """Return the page of a process that has polled one entity, served as Prometheus gets it."""
    settings = Settings(database_url=SecretStr(url), metrics_bind=Bind("127.0.0.1", 0))
    hub = Hub()
    opened = open_node(
        settings,
        ["scheduler", "fanout-consumer"],
        registrations=Registrations(registry_of({MODULE: hub})),
        any_port=True,
    )
    async with opened as node, aiohttp.ClientSession() as client:
        running = asyncio.create_task(node.run(signals=False))
        await eventually_async(lambda: hub.ended, what="it was polled")

        async def page() -> bytes:
            async with client.get(f"http://{node.health_bind}/metrics") as answer:
                found = await answer.read()
            return found if b'tasks_total{outcome="succeeded"}' in found else b""

        found = await eventually_async(page, what="its end is counted")
        node.supervisor.request_stop()
        await running
    return found


async def _samples_of_reports(world: ReportWorld) -> list[Sample]:
    """Return what a process counts that has fetched a part and made a file."""

    async def one(_request: ReportRequest) -> AsyncIterator[dict[str, int]]:
        yield {"id": 1}

    async with world.process({"one": one}) as process:
        await world.finished(await world.request(plan_of("one")))
        counted = report_source(process.listener, process.supervisor)
        names = {"tickwright_report_parts_total", "tickwright_report_steps_total"}

        await eventually_async(lambda: names <= {sample.name for sample in counted()}, what="both are counted")
        return list(counted())


async def _samples_of_batches(url: str) -> list[Sample]:
    """Return what a consumer counts that has worked on an execution."""
    async with batch_world(url) as world:
        process = await world.process(Numbers(members=10))
        await world.over(await world.start(await world.put()))
        counted = batch_source(process.consumer)
        names = {"tickwright_batch_chunks_total", "tickwright_batch_running_chunks"}
        await eventually_async(lambda: names <= {sample.name for sample in counted()}, what="both are counted")
        return list(counted())


async def test_every_metric_of_the_contract_appears_on_some_page(
    world: RelayWorld, database_url: str, tmp_path: Path
) -> None:
    """Every metric of the table has a value somewhere."""
    await world.pool.execute(
        "INSERT INTO tickwright.scheduled_tasks (execute_at, task_type) VALUES (now() - interval '5 s', 't'), "
        "(now() + interval '1 day', 't');"
        "INSERT INTO tickwright.outbox (destination, payload) VALUES ('pg:x', '{}'), ('evil_scheme:x', '{}');"
        "INSERT INTO tickwright.alerts (rule, subject, severity, summary, state) "
        "VALUES ('r', 's', 'info', '', 'firing');"
        "INSERT INTO tickwright.poll_ends VALUES "
        "('polls', 4, 0, 100, now(), '{90,100}', ARRAY[now() - interval '60 s', now()]);"
        "INSERT INTO tickwright.poll_reads VALUES ('polls', 4, 95, 100, now());"
        "INSERT INTO tickwright.polling_schedule_config (account_id) VALUES ('a');"
        "INSERT INTO tickwright.account_lags (account_no, interval_minutes, due_at, polls, fresh, lag) "
        "VALUES (1, 120, now(), 10, 9, 2);"
        "INSERT INTO tickwright.entities (code, polling_enabled_modules) VALUES ('A', 'LOCATIONS')"
    )
    fan_out = await _page_of_fan_out(database_url)
    async with report_world(database_url, tmp_path) as reports:
        counted = [*await _samples_of_reports(reports), *await _samples_of_batches(database_url)]
    relay = world.relay()
    relay.lease = await Leases(world.pool, owner="test").take("relay:outbox")
    readings = DatabaseReadings(world.pool, overview_parts())
    state = ServiceState("s", running=True, tick_age_s=1.0, tick_within_s=5, restarts=1, last_error="")
    session = [Sample("tickwright_session_token", 1), Sample("tickwright_session_held", 1)]
    consumer = await _samples_of_a_consumer(database_url)
    tasks = RabbitTaskQueue("amqp://nowhere.invalid", fanout_names(), slots=1)
    tasks.queued = [0, 0]
    remote = RemoteWorkers(world.pool, lease=timedelta(seconds=8)).claims
    remote.results.counts["completed"] = 1
    terms = LeaseTerms(timedelta(seconds=8), timedelta(seconds=1))
    session_of = WorkerSession(world.pool, name="test", roles=[], version="0", terms=terms)
    calls = RemoteCalls(world.pool, session_of, DirectConnection(None))
    calls.counts["poll", "complete"] = 1
    enqueuer = Enqueuer(world.pool)
    enqueuer.conflicts["t", "existing"] = 1
    sources: list[Source] = [
        lambda: consumer,
        readings,
        relay_source(relay),
        PollRelay(Leases(world.pool, owner="test"), None).samples,
        lambda: samples_of(SourceCounts(), 0),
        leases_source([relay]),
        services_source(lambda: [state]),
        lambda: session,
        lambda: counted,
        tasks.samples,
        remote_source(remote),
        calls.samples,
        enqueue_source([enqueuer]),
    ]
    collector = TickwrightCollector([*sources, worker_source(WORKER)], METRICS)
    page = await MetricsPage(collector, readings.refresh).render()
    assert set(re.findall(rb"# TYPE (tickwright_\w+)", page + fan_out)) == {spec.name.encode() for spec in METRICS}
    found = values(page)
    assert found["tickwright_jobs_due{task_type=t}"] == 1
    assert found["tickwright_jobs_upcoming{task_type=t}"] == 1
    assert found["tickwright_jobs_oldest_due_seconds{task_type=t}"] >= 5
    assert found["tickwright_poll_lag_records{partition=4,topic=polls}"] == 5
    assert 0 <= found["tickwright_poll_oldest_seconds{partition=4,topic=polls}"] < 60
    assert "tickwright_outbox_oldest_seconds{scheme=other}" in found, "labels are bounded, whatever users write"


async def test_without_the_database_metrics_are_served_and_marked_as_stale(world: RelayWorld) -> None:
    """A scrape never hangs; what is stale is marked."""
    readings = DatabaseReadings(world.pool, overview_parts())
    page = MetricsPage(TickwrightCollector([readings], METRICS), readings.refresh)
    locked = await asyncpg.connect(world.url)
    transaction = locked.transaction()
    await transaction.start()
    await locked.execute("LOCK TABLE tickwright.outbox")
    async with asyncio.timeout(30):
        found = values(await page.render())
    assert found["tickwright_readings_ok{}"] == 0
    await transaction.rollback()
    await locked.close()
