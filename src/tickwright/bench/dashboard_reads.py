"""Every read of the API that the page makes, asked again and again beside everything that the database holds.

One after another, as one viewer asks: what is measured is the way of one answer, not how many fit beside each other.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp

from tickwright.bench.dashboard_world import SQL, Site
from tickwright.bench.report import Figures, quantile
from tickwright.store.pool import connect

PAGE = {"limit": "100"}
READS: tuple[tuple[str, Mapping[str, str]], ...] = (
    ("/v1/session", {}),
    ("/v1/overview", {}),
    ("/v1/jobs", PAGE),
    ("/v1/jobs", {**PAGE, "status": "pending"}),
    ("/v1/jobs", {**PAGE, "status": "failed"}),
    ("/v1/jobs", {**PAGE, "task_type": "screen.3", "status": "completed"}),
    ("/v1/jobs", {**PAGE, "task_type": "unknown"}),
    ("/v1/jobs", {**PAGE, "text": "carrier 7 answers"}),
    ("/v1/jobs", {**PAGE, "text": "is nowhere"}),
    ("/v1/jobs", {**PAGE, "worker": "{worker}"}),
    ("/v1/jobs:counts", {}),
    ("/v1/jobs:counts", {"task_type": "screen.3"}),
    ("/v1/jobs:counts", {"text": "is nowhere"}),
    ("/v1/jobs/{job_id}", {}),
    ("/v1/jobs/{job_id}/explain", {}),
    ("/v1/task-types", {}),
    ("/v1/task-types:figures", {}),
    ("/v1/dead-letters", {**PAGE, "kind": "job", "subject": ""}),
    ("/v1/dead-letters", {**PAGE, "kind": "job", "subject": "screen.3"}),
    ("/v1/dead-letters", {**PAGE, "kind": "outbox", "subject": ""}),
    ("/v1/dead-letters/fanout", {}),
    ("/v1/dead-letters/reports", {}),
    ("/v1/accounts", {**PAGE, "sort": "lag"}),
    ("/v1/accounts", {**PAGE, "sort": "id"}),
    ("/v1/accounts", {**PAGE, "sort": "lag", "text": "a120_7"}),
    ("/v1/accounts/{account_id}", {}),
    ("/v1/accounts/{account_id}/freshness", {"hours": "24"}),
    ("/v1/trackers", PAGE),
    ("/v1/trackers", {**PAGE, "external_id": "{external_id}"}),
    ("/v1/trackers", {**PAGE, "account_id": "{account_id}"}),
    ("/v1/trackers", {**PAGE, "account_id": "{account_id}", "partner": "five"}),
    ("/v1/trackers", {**PAGE, "state": "ended"}),
    ("/v1/trackers/{tracker_id}", {}),
    ("/v1/trackers/{tracker_id}/explain", {}),
    ("/v1/slices:heat", {"step": "5"}),
    ("/v1/slices:heat", {"step": "5", "partner": "{partner}"}),
    ("/v1/partners", {}),
    ("/v1/partners/{name}", {}),
    ("/v1/partners/{name}/figures", {}),
    ("/v1/modules", {}),
    ("/v1/modules/{name}", {}),
    ("/v1/fanout/windows", {"hours": "6"}),
    ("/v1/fanout/windows", {"hours": "24", "module": "LOCATIONS"}),
    ("/v1/fanout/entities", PAGE),
    ("/v1/fanout/entities", {**PAGE, "q": "E49"}),
    ("/v1/fanout/entities", {**PAGE, "module": "LOCATIONS", "enabled": "false"}),
    ("/v1/entities/{code}", {}),
    ("/v1/entities/{code}/explain", {"module": "LOCATIONS"}),
    ("/v1/campaigns", PAGE),
    ("/v1/campaigns/{name}", {}),
    ("/v1/campaigns/{name}/explain", {}),
    ("/v1/campaigns/{name}/versions", {"limit": "50"}),
    ("/v1/campaigns/{name}/versions/{version}", {}),
    ("/v1/batches", PAGE),
    ("/v1/batches/{name}", {}),
    ("/v1/batches/{name}/explain", {}),
    ("/v1/batches/{name}/versions", {"limit": "50"}),
    ("/v1/batches/{name}/versions/{version}", {}),
    ("/v1/executions", PAGE),
    ("/v1/executions/{execution_id}", {}),
    ("/v1/executions/{execution_id}/explain", {}),
    ("/v1/executions/{execution_id}/actions", {"limit": "50"}),
    ("/v1/report-types", PAGE),
    ("/v1/report-types/{name}", {}),
    ("/v1/reports", PAGE),
    ("/v1/reports/{report_id}", {}),
    ("/v1/reports/{report_id}/explain", {}),
    ("/v1/workers", {}),
    ("/v1/workers/{worker}", {}),
    ("/v1/leases", {}),
    ("/v1/outbox", PAGE),
    ("/v1/outbox:destinations", {}),
    ("/v1/outbox/polls", {}),
    ("/v1/outbox/polls/partitions", {}),
    ("/v1/alerts", {**PAGE, "state": "firing"}),
    ("/v1/alerts", {**PAGE, "state": "resolved"}),
    ("/v1/alerts/receivers", {}),
    ("/v1/keys", {}),
    ("/v1/audit", PAGE),
    ("/v1/audit", {**PAGE, "action": "jobs.cancel"}),
)
"""Addresses as the page's source has them, and what the views send along."""

NOT_READS = frozenset({"/v1/stream", "/v1/reports/{report_id}/file"})
"""They end when their viewer leaves, or with the file."""

NAMES = {
    "partners": "one",
    "modules": "LOCATIONS",
    "campaigns": "screen.7",
    "batches": "reconcile",
    "report-types": "screen",
}
"""What ``{name}`` is, by the kind of thing."""

WARM_ROUNDS = 3
_PRINTED = 5

Say = Callable[[str], None]


def read_times(site: Site, rounds: int, say: Say, details: dict[str, Any]) -> Figures:
    """Return the 95th percentile of the slowest read; every one is in the details, slowest first."""
    site.ground.start(keep=False)  # a worker whose slots can be read
    with site.api() as url:
        took_ms = asyncio.run(_ask_all(site, url, rounds))
    site.ground.stop()
    reads = {
        address: {"p50_ms": round(quantile(times, 0.5), 1), "p95_ms": round(quantile(times, 0.95), 1)}
        for address, times in ((address, sorted(times)) for address, times in took_ms.items())
    }
    slowest = sorted(reads, key=lambda address: -reads[address]["p95_ms"])
    details["reads"] = {address: reads[address] for address in slowest}
    details["read_slowest"] = slowest[0]
    for address in slowest[:_PRINTED]:
        say(f"{address}: {reads[address]}")
    return {"read_p95_ms": reads[slowest[0]]["p95_ms"]}


async def _ask_all(site: Site, url: str, rounds: int) -> dict[str, list[float]]:
    connection = await connect(site.ground.url)
    try:
        subjects = {name: str(value) for name, value in (await connection.fetchrow(SQL["subjects"])).items()}
    finally:
        await connection.close()
    asked = [filled(address, query, subjects) for address, query in READS]
    took_ms: dict[str, list[float]] = {_shown(address, query): [] for address, query in READS}
    async with site.client(url) as http:
        for number in range(-WARM_ROUNDS, rounds):
            for (address, query), times in zip(asked, took_ms.values(), strict=True):
                one_ms = await _ask(http, address, query)
                if number >= 0:
                    times.append(one_ms)
    return took_ms


def filled(address: str, query: Mapping[str, str], subjects: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Return a read with the things that it is about."""
    kind = address.split("/")[2]
    known = {**subjects, "name": NAMES.get(kind, ""), "version": "1", "code": "E2500"}
    return address.format(**known), {name: value.format(**known) for name, value in query.items()}


def _shown(address: str, query: Mapping[str, str]) -> str:
    told = "&".join(f"{name}={value}" for name, value in query.items() if name != "limit")
    return f"{address}?{told}" if told else address


async def _ask(http: aiohttp.ClientSession, address: str, query: Mapping[str, str]) -> float:
    began_s = time.perf_counter()
    async with http.get(address, params=query) as answer:
        body = await answer.read()
    took_ms = (time.perf_counter() - began_s) * 1000
    if answer.status != 200:
        raise RuntimeError(f"{address} {dict(query)}: {answer.status} {body[:300].decode(errors='replace')}")
    return took_ms
