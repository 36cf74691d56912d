"""A remote worker by hand, for tests of the worker protocol: each call as a client makes it."""

import itertools
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from kit.api import ADMIN, Answer, Client
from kit.nodes import running, settings_of
from tickwright.app.declarations import Declarations
from tickwright.capabilities.jobs.admin.service import JobService
from tickwright.capabilities.jobs.remote.workers import RemoteWorkers
from tickwright.capabilities.jobs.requests import TaskTypeRequest
from tickwright.capabilities.operations.listings import Operations
from tickwright.engine.remote.calls import RemoteCalls
from tickwright.ports.caller import Role
from tickwright.process.node import Node

POOL = "shop"


class RemoteWorker:
    """One session; ``jobs`` and ``results`` are those of the protocol."""

    def __init__(self, client: Client, session: str, registered: Mapping[str, Any]) -> None:
        self.client, self.session, self.registered = client, session, registered
        self.id: int = registered["id"]
        self._numbers = itertools.count(1)

    async def call(self, name: str, body: Any) -> Answer:
        """Make one call."""
        return await self.client.post(f"/v1/worker/{name}", body, headers={"Tickwright-Session": self.session})

    async def said(self, name: str, body: Any) -> Any:
        """Make one call that succeeds, and return its answer."""
        answer = await self.call(name, body)
        assert answer.status == 200, answer.body
        return answer.json

    def claim_body(self, most: int = 10, wait: str = "0s", **more: Any) -> dict[str, Any]:
        """Return the body of the next claim."""
        return {"claim": next(self._numbers), "max": most, "wait": wait, **more}

    async def claim(self, most: int = 10, wait: str = "0s", **more: Any) -> list[dict[str, Any]]:
        """Claim, and return the jobs."""
        jobs: list[dict[str, Any]] = (await self.said("claim", self.claim_body(most, wait, **more)))["jobs"]
        return jobs

    async def claim_calls(self, most: int = 10, wait: str = "0s", **more: Any) -> list[dict[str, Any]]:
        """Claim, and return the polls, tasks and chunks."""
        calls: list[dict[str, Any]] = (await self.said("claim", self.claim_body(most, wait, **more)))["calls"]
        return calls

    async def results(self, *results: Mapping[str, Any]) -> Any:
        """Report results."""
        return await self.said("results", {"results": list(results)})

    def through(self, client: Client) -> "RemoteWorker":
        """Return the same worker behind another api process."""
        return RemoteWorker(client, self.session, self.registered)


def of(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attempt of a claimed job, poll, task or chunk."""
    return {name: job[name] for name in ("id", "fence", "kind") if name in job}


def ended(job: Mapping[str, Any], outcome: str = "complete", **more: Any) -> dict[str, Any]:
    """Return the result of a claimed job."""
    return {"outcome": outcome, **of(job), **more}


async def register(client: Client, *types: str, lease: str | None = None, **more: Any) -> RemoteWorker:
    """Register a worker for some types, or for partners, modules or batches; then its lease is long by default."""
    others = more.keys() & {"partners", "modules", "batches"}
    named = list(types) or ([] if others else ["work"])
    body = {
        "name": "test:1",
        "pool": POOL,
        "types": named,
        "lease": lease or ("5m" if others else "8s"),
        "client": "kit",
        **more,
    }
    answer = await client.post("/v1/worker/register", body)
    assert answer.status == 201, answer.body
    return RemoteWorker(client, answer.json["session"], answer.json)


class RemoteSite:
    """An api process in this one, with its services.

    Attributes:
        client: Sends with the key of an operator.
    """

    def __init__(self, node: Node, client: Client) -> None:
        self.node, self.client = node, client
        self.service = node.installation.context.ports.get(JobService)
        self.keys, self.admin = node.installation.context.ports.get(Operations).keys, ADMIN
        self.workers = node.installation.context.ports.get(RemoteWorkers)
        self.pool = node.installation.context.pool

    @property
    def calls(self) -> RemoteCalls:
        """The remote calls of this process's consumers."""
        [found] = [one.service for one in self.node.supervisor._runners if isinstance(one.service, RemoteCalls)]
        return found

    async def type(self, name: str = "work", **settings: Any) -> None:
        """Set up a type for remote workers."""
        wanted = {"target": f"remote:{POOL}", "retry_base": "0s", **settings}
        await self.service.types.put(name, TaskTypeRequest(**wanted), caller=ADMIN)

    async def add(self, name: str = "work", count: int = 1, **more: Any) -> list[int]:
        """Schedule jobs; return their ids."""
        made = [
            await self.client.post("/v1/jobs", {"task_type": name, "payload": {"n": n}, **more}) for n in range(count)
        ]
        assert all(answer.status == 201 for answer in made), made[0].body
        return [answer.json["id"] for answer in made]

    async def job(self, job_id: int) -> Any:
        """Return a job as users see it."""
        return (await self.client.get(f"/v1/jobs/{job_id}")).json


@asynccontextmanager
async def remote_site(
    url: str, folder: Path, *roles: str, config: str = "", program: Declarations | None = None, **settings: Any
) -> AsyncIterator[RemoteSite]:
    """Run an api process in this one, with a task type ``work`` for remote workers."""
    given = settings_of(url, folder, config, **settings)
    async with running(given, program or Declarations(), "api", *roles) as node, aiohttp.ClientSession() as http:
        await node.supervisor.started()
        assert node.api is not None
        keys = node.installation.context.ports.get(Operations).keys
        key = (await keys.create("operator", Role.OPERATOR, caller=ADMIN)).key
        site = RemoteSite(node, Client(http, node.api.url, key))
        await site.type()
        yield site
