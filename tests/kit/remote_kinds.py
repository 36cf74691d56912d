"""Polls, tasks and chunks alike: for each kind, work for a remote worker and a view of what has become of it."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kit.api import ADMIN
from kit.consumers import seed
from kit.remote import POOL, RemoteSite, remote_site
from tickwright.capabilities.batches.executions.states import BatchAction
from tickwright.capabilities.batches.service import CampaignsService
from tickwright.capabilities.fanout.entities.schemas import EntityRequest, ModuleRequest
from tickwright.capabilities.fanout.service import FanoutService

TARGET = f"remote:{POOL}"


@dataclass(frozen=True)
class WorkKind:
    """One kind of work that consumers hand over.

    Attributes:
        roles: Of the process that hands it over.
        works: The registration of a worker for it.
        begin: Makes one piece of it due.
        result: What completes it, by a text that ``done`` then shows where the kind keeps one.
        done: Returns how often it is done, and what is kept of the result.
    """

    kind: str
    roles: tuple[str, ...]
    works: dict[str, list[str]]
    begin: Callable[[RemoteSite], Awaitable[None]]
    result: Callable[[str], Any]
    done: Callable[[RemoteSite], Awaitable[tuple[int, str]]]

    @property
    def registration(self) -> dict[str, Any]:
        """The arguments of ``register``."""
        return dict(self.works)


async def _begin_poll(site: RemoteSite) -> None:
    await seed(site.pool, 1, target=TARGET, timeout="60s")


async def _polled(site: RemoteSite) -> tuple[int, str]:
    sql = """SELECT (SELECT coalesce(sum(cardinality(ids)), 0) FROM tickwright.poll_done),
                    (SELECT status FROM tickwright.trackers)"""
    count, status = await site.pool.fetchrow(sql)
    return int(count), status if count else ""


async def _begin_task(site: RemoteSite) -> None:
    service = site.node.installation.context.ports.get(FanoutService)
    await service.modules.put("SITES", ModuleRequest(every="1h", target=TARGET), caller=ADMIN)
    wanted = EntityRequest(party={"url": "https://x"}, is_polling_enabled=True, polling_enabled_modules="SITES")
    await service.entities.put("HUB-1", wanted, caller=ADMIN)


async def _ran(site: RemoteSite) -> tuple[int, str]:
    return int(await site.pool.fetchval("SELECT coalesce(sum(succeeded), 0) FROM tickwright.fanout_windows")), ""


async def _begin_chunk(site: RemoteSite) -> None:
    batches = site.node.installation.context.ports.get(CampaignsService)
    await batches.put_remote("export", {"target": TARGET, "action": "pg:exported"}, caller=ADMIN)
    await batches.programs.act(BatchAction.START, "export", caller=ADMIN)


async def _worked(site: RemoteSite) -> tuple[int, str]:
    sql = """SELECT count(*) FILTER (WHERE status = 'FINISHED'),
                    (SELECT coalesce(string_agg(client_id, ','), '') FROM tickwright.execution_actions)
               FROM tickwright.executions"""
    count, clients = await site.pool.fetchrow(sql)
    return count, clients


KINDS = {
    "poll": WorkKind(
        "poll", ("poll-consumer",), {"partners": ["acme"]}, _begin_poll, lambda text: {"status": text}, _polled
    ),
    "task": WorkKind(
        "task", ("fanout-consumer", "scheduler", "relay"), {"modules": ["SITES"]}, _begin_task, lambda _: None, _ran
    ),
    "chunk": WorkKind(
        "chunk",
        ("campaign-consumer",),
        {"batches": ["export"]},
        _begin_chunk,
        lambda text: {"actions": [{"client_id": text}]},
        _worked,
    ),
}


@asynccontextmanager
async def kind_site(url: str, folder: Path, kind: str) -> AsyncIterator[tuple[RemoteSite, WorkKind]]:
    """Run an api and the consumer of a kind."""
    found = KINDS[kind]
    async with remote_site(url, folder, *found.roles) as site:
        yield site, found


def shown(kind: WorkKind, text: str) -> tuple[int, str]:
    """Return what ``done`` shows after one result with this text."""
    return 1, "" if kind.kind == "task" else text
