"""Metrics: the contract of docs/metrics.md, read from plain counters and a bounded question."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest
from prometheus_client.parser import text_string_to_metric_families

from kit.relays import RelayWorld, relay_world
from tickwright.observe.metrics import METRICS, MetricsPage, Sample, Source, TickwrightCollector
from tickwright.runtime.leases import Leases
from tickwright.runtime.readings import DatabaseReadings, leases_source, relay_source, services_source
from tickwright.runtime.supervisor import ServiceState

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
        self.late_counts = [3, 1, 1]
        self.late_sum_s = 2.5
        self.counts = {"completed": 4, "retried": 1}


class Slots:
    """The worker's slots."""

    slots, busy, queued = 8, 1, 5


class Worker:
    """What the collector reads of a worker."""

    lost_results, reclaimed = 6, 7
    runner = Slots()

    def entries(self) -> dict[str, Entry]:
        """One type."""
        return {"mail": Entry()}

    def backlog(self) -> int:
        """Not written yet."""
        return 9


def values(page: bytes) -> dict[str, float]:
    """Return every sample of a page by name and labels."""
    found = {}
    for family in text_string_to_metric_families(page.decode()):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}"] = sample.value
    return found


def test_the_document_lists_exactly_the_metrics() -> None:
    """A metric that nobody wrote down, or that is gone, fails here."""
    lines = re.findall(
        r"^\| `(tickwright_\w+)` \| (\w+) \| (.*?) \| (.*) \|$", (ROOT / "docs/metrics.md").read_text(), re.MULTILINE
    )
    wanted = [
        (spec.name, spec.kind, ", ".join(f"`{label}`" for label in spec.labels) or "–", spec.help) for spec in METRICS
    ]
    assert lines == wanted


def test_prometheus_rules_use_metrics_that_exist() -> None:
    """A rule on a metric that is not there would never fire."""
    text = (ROOT / "deploy/prometheus/tickwright.rules.yml").read_text()
    used = {re.sub(r"_bucket$", "", name) for name in re.findall(r"\btickwright_\w+", text)}
    assert used <= {spec.name for spec in METRICS}


async def test_the_workers_counters_are_read_at_scrape_time() -> None:
    """Lateness is a cumulative histogram; attempts are counted by type and outcome."""
    page = MetricsPage(TickwrightCollector(worker=Worker(), lateness_buckets_s=(0.001, 1.0)))
    found = values(await page.render())
    assert found["tickwright_job_lateness_seconds_bucket{le=0.001,task_type=mail}"] == 3
    assert found["tickwright_job_lateness_seconds_bucket{le=1.0,task_type=mail}"] == 4
    assert found["tickwright_job_lateness_seconds_count{task_type=mail}"] == 5
    assert found["tickwright_job_lateness_seconds_sum{task_type=mail}"] == 2.5
    assert found["tickwright_job_attempts_total{outcome=completed,task_type=mail}"] == 4
    assert found["tickwright_worker_busy_slots{}"] == 1
    assert found["tickwright_worker_result_backlog{}"] == 9


async def test_every_metric_of_the_contract_appears_on_some_page(world: RelayWorld) -> None:
    """Nothing in the table is a promise without a value."""
    await world.pool.execute(
        "INSERT INTO tickwright.scheduled_tasks (execute_at, task_type) VALUES (now() - interval '5 s', 't'), "
        "(now() + interval '1 day', 't');"
        "INSERT INTO tickwright.outbox (destination, payload) VALUES ('pg:x', '{}'), ('evil_scheme:x', '{}');"
        "INSERT INTO tickwright.alerts (rule, subject, severity, summary, state) "
        "VALUES ('r', 's', 'info', '', 'firing')"
    )
    relay = world.relay()
    relay._service.lease = await Leases(world.pool, owner="test").take("relay:outbox")
    readings = DatabaseReadings(world.pool)
    state = ServiceState("s", running=True, tick_age_s=1.0, tick_within_s=5, restarts=1, last_error="")
    session = [Sample("tickwright_session_token", 1), Sample("tickwright_session_held", 1)]
    sources: list[Source] = [
        readings,
        relay_source(relay),
        leases_source([relay]),
        services_source(lambda: [state]),
        lambda: session,
    ]
    collector = TickwrightCollector(sources, worker=Worker(), lateness_buckets_s=(0.001, 1.0))
    page = await MetricsPage(collector, readings.refresh).render()
    assert set(re.findall(rb"# TYPE (tickwright_\w+)", page)) == {spec.name.encode() for spec in METRICS}
    found = values(page)
    assert found["tickwright_jobs_due{task_type=t}"] == 1
    assert found["tickwright_jobs_upcoming{task_type=t}"] == 1
    assert found["tickwright_jobs_oldest_due_seconds{task_type=t}"] >= 5
    assert "tickwright_outbox_oldest_seconds{scheme=other}" in found, "labels are bounded, whatever users write"


async def test_without_the_database_the_page_is_still_there_and_says_so(world: RelayWorld) -> None:
    """A scrape never hangs; what is stale is marked."""
    readings = DatabaseReadings(world.pool)
    page = MetricsPage(TickwrightCollector([readings]), readings.refresh)
    locked = await asyncpg.connect(world.url)
    transaction = locked.transaction()
    await transaction.start()
    await locked.execute("LOCK TABLE tickwright.outbox")
    async with asyncio.timeout(3):
        found = values(await page.render())
    assert found["tickwright_readings_ok{}"] == 0
    await transaction.rollback()
    await locked.close()
