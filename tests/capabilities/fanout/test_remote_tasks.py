"""Tasks of entities by remote workers: message, claim, permit and retries stay with the consumer."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kit.api import ADMIN
from kit.remote import POOL, RemoteSite, RemoteWorker, ended, of, register, remote_site
from kit.waiting import eventually_async
from tickwright.capabilities.fanout.entities.schemas import EntityRequest, ModuleRequest
from tickwright.capabilities.fanout.service import FanoutService
from tickwright.domain.errors import Rejected

MODULE = "SITES"
CURSOR = (
    "SELECT last_success_at, failures, last_error, fence, owner FROM tickwright.fanout_cursors WHERE entity_code = $1"
)


@pytest.fixture
async def site(database_url: str, tmp_path: Path) -> AsyncIterator[RemoteSite]:
    """An api, a scheduler and a consumer of tasks, which are in PostgreSQL."""
    async with remote_site(database_url, tmp_path, "fanout-consumer", "scheduler", "relay") as site:
        yield site


async def entity(site: RemoteSite, code: str = "HUB-1", *, timeout: str = "60s", partner: str | None = None) -> None:
    """Set up a module for remote workers with one entity, which is polled at once."""
    service = site.node.installation.context.ports.get(FanoutService)
    request = ModuleRequest(every="1h", timeout=timeout, target=f"remote:{POOL}")
    await service.modules.put(MODULE, request, caller=ADMIN)
    party = {"url": "https://hub.example", "token": "${env:HUB_TOKEN}"}
    wanted = EntityRequest(party=party, is_polling_enabled=True, polling_enabled_modules=MODULE, partner=partner)
    await service.entities.put(code, wanted, caller=ADMIN)


async def cursor(site: RemoteSite, code: str = "HUB-1") -> Any:
    """Return the ledger's row of an entity."""
    return await site.pool.fetchrow(CURSOR, code)


async def succeeded(site: RemoteSite) -> bool:
    """Whether the task's success is written."""
    row = await cursor(site)
    return row is not None and row["last_success_at"] is not None and row["owner"] is None


async def worker_of(site: RemoteSite, **more: Any) -> RemoteWorker:
    """Register a worker for the module."""
    return await register(site.client, modules=[MODULE], **more)


async def test_a_remote_worker_runs_a_task(site: RemoteSite) -> None:
    """It gets the party as the message has it, secrets as references; its success is written once."""
    worker = await worker_of(site)
    await entity(site)
    [task] = await worker.claim_calls(wait="60s")
    assert (task["kind"], task["name"], task["timeout_ms"]) == ("task", MODULE, 60_000)
    assert task["payload"]["party"] == {"url": "https://hub.example", "token": "${env:HUB_TOKEN}"}
    assert (task["payload"]["entity_code"], task["payload"]["last_executed_at"]) == ("HUB-1", None)
    assert await worker.said("progress", {"jobs": [{**of(task), "progress": {"pages": 3}}]}) == {"done": 1, "stale": []}
    result = ended(task, result={"locations": 12})
    assert await worker.results(result) == {"done": 1, "stale": [], "locked": []}
    await eventually_async(lambda: succeeded(site), 30)
    assert await worker.results(result) == {"done": 0, "stale": [task["id"]], "locked": []}


async def test_a_failed_task_is_retried_and_a_snoozed_one_costs_nothing(site: RemoteSite) -> None:
    """The failure is written with its code; a snooze is none."""
    worker = await worker_of(site)
    await entity(site)
    [task] = await worker.claim_calls(wait="60s")
    await worker.results(ended(task, "snooze", wait="100ms"))
    [again] = await worker.claim_calls(wait="60s")
    assert again["payload"]["task_id"] == task["payload"]["task_id"]
    assert (await cursor(site))["failures"] == 0
    await worker.results(ended(again, "fail", code="unreachable", message="no route"))
    [third] = await worker.claim_calls(wait="60s")
    row = await cursor(site)
    assert (row["failures"], row["last_error"]) == (1, "unreachable: no route")
    await worker.results(ended(third))
    await eventually_async(lambda: succeeded(site), 30)


async def test_a_module_for_remote_workers_is_checked(site: RemoteSite) -> None:
    """Its target is a pool, and an empty one is the program's function again."""
    modules = site.node.installation.context.ports.get(FanoutService).modules
    with pytest.raises(Rejected, match="remote:POOL"):
        await modules.set(MODULE, {"every": "1h", "target": "kafka:x"}, caller=ADMIN)
    stored = await modules.set(MODULE, {"every": "1h", "target": "remote:hubs"}, caller=ADMIN)
    assert stored.module.target == "remote:hubs"
    assert (await modules.set(MODULE, {"timeout": "5s"}, caller=ADMIN)).module.target == "remote:hubs"
    assert (await modules.set(MODULE, {"target": ""}, caller=ADMIN)).module.target is None
