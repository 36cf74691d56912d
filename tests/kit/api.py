"""A running API for tests: a real server on a free port, and a client with a key of each role."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import aiohttp
from multidict import CIMultiDict

from tickwright.api.app import Api, create_app
from tickwright.api.context import ApiContext, ApiLimits, Readiness
from tickwright.capabilities.batches.audience.audience import Audiences
from tickwright.capabilities.fanout.service import FanoutService
from tickwright.capabilities.jobs.admin.service import JobService
from tickwright.capabilities.jobs.requests import TaskTypeRequest
from tickwright.capabilities.operations.listings import Operations
from tickwright.capabilities.operations.snapshots import Snapshots
from tickwright.capabilities.polling.service import PollingService
from tickwright.capabilities.reports.requests.store import Routes
from tickwright.capabilities.reports.service import ReportResources, ReportsService
from tickwright.engine.wakeup.on_demand import DirectAccess
from tickwright.plugin import Context, Registrations, Settings
from tickwright.ports.broker import TargetCheck
from tickwright.ports.caller import Caller, Role
from tickwright.ports.task_queue import DeadMessages
from tickwright.process.installation import overview_parts, provide
from tickwright.process.plugins import PLUGINS
from tickwright.process.serving import ApiAndDashboard
from tickwright.rest.admission import ListenerLimits
from tickwright.rest.listener import Listener, bind
from tickwright.sources.named import Sources
from tickwright.store.pool import Pool, open_pool
from tickwright.transports.objectstore.plugin import open_store
from tickwright.transports.postgres.broker import PostgresDeadLetters

ADMIN = Caller("test", Role.ADMIN)


@dataclass(frozen=True)
class Answer:
    """One answer, read to its end."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body, decoded."""
        return json.loads(self.body)

    def says(self, status: int, code: str) -> Self:
        """Check that this is a problem with ``code``, and return it."""
        assert self.status == status, (self.status, self.body)
        assert self.headers["content-type"] == "application/problem+json", self.headers
        assert self.json["code"] == code, self.json
        assert self.json["status"] == status
        assert {"type", "title", "detail"} <= self.json.keys()
        return self


class Client:
    """Sends requests with one key."""

    def __init__(self, session: aiohttp.ClientSession, base: str, key: str | None) -> None:
        self._session, self.base, self.key = session, base, key

    def with_key(self, key: str | None) -> "Client":
        """Return the same client with another key."""
        return Client(self._session, self.base, key)

    async def send(self, method: str, path: str, body: Any = None, **more: Any) -> Answer:
        """Send one request; ``body`` is JSON unless it is bytes or an iterator of bytes."""
        headers = CIMultiDict(more.pop("headers", {}))
        if self.key is not None:
            headers.setdefault("Authorization", f"Bearer {self.key}")
        if body is not None:
            headers.setdefault("Content-Type", "application/json")
            body = json.dumps(body).encode() if isinstance(body, dict | list) else body
        async with self._session.request(
            method, self.base + path, data=body, headers=headers, allow_redirects=False, **more
        ) as answer:
            found = {name.lower(): value for name, value in answer.headers.items()}
            endless = found.get("content-type", "").startswith("text/event-stream")
            return Answer(answer.status, found, b"" if endless else await answer.read())

    async def get(self, path: str, **more: Any) -> Answer:
        """GET."""
        return await self.send("GET", path, **more)

    async def post(self, path: str, body: Any = None, **more: Any) -> Answer:
        """POST."""
        return await self.send("POST", path, body, **more)

    async def bulk(self, body: Any, **headers: str) -> Answer:
        """Import NDJSON."""
        return await self.post("/v1/jobs:bulk", body, headers={"Content-Type": "application/x-ndjson", **headers})


@dataclass(frozen=True)
class RunningApi:
    """The server of one API process.

    Attributes:
        admin: Sends with an admin's key; also ``operator`` and ``viewer``.
        stranger: Sends without a key.
    """

    app: Api
    port: int
    pool: Pool
    service: JobService
    operations: Operations
    polling: PollingService
    overview: Snapshots
    admin: Client
    operator: Client
    viewer: Client
    stranger: Client
    listener: Listener


def allow_all(_: str) -> None:
    """Allow every target."""


def made(folder: Path) -> Path:
    """Make a folder and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def in_a_folder() -> Iterator[ReportResources]:
    """Keep reports in a folder that is removed afterwards, without Redis and RabbitMQ."""
    with TemporaryDirectory() as folder:
        objects = open_store(f"file://{folder}/objects", {})
        try:
            yield ReportResources(Routes(), None, objects, lambda: made(Path(folder, "spool")))
        finally:
            objects.close()


@asynccontextmanager
async def running_api(
    url: str,
    *,
    limits: ApiLimits | None = None,
    allow_target: Callable[[str], None] = allow_all,
    ready: Callable[[], Readiness] = lambda: Readiness(ready=True, checks={"database": "ok"}),
    dead_tasks: DeadMessages | None = None,
    keeping: ReportResources | None = None,
    audiences: Audiences | None = None,
    dead_calls: DeadMessages | None = None,
    path_prefix: str = "",
    payloads_from: Role = Role.VIEWER,
    page: Any = None,
    looks: Mapping[str, Any] | None = None,
    listener: ListenerLimits | None = None,
) -> AsyncIterator[RunningApi]:
    """Run an API with a task type ``noop`` on the database ``url``; ``keeping`` is where reports are kept, a folder.

    Campaigns have the sources of ``audiences``, none by default; ``page`` serves the dashboard beside the API, as in a
    process; ``looks`` are arguments of the overview, ``listener`` the bounds of connections.
    """
    if keeping is None:
        with in_a_folder() as place:
            async with running_api(
                url,
                limits=limits,
                allow_target=allow_target,
                ready=ready,
                dead_tasks=dead_tasks,
                keeping=replace(place, dead_calls=dead_calls),
                audiences=audiences,
                path_prefix=path_prefix,
                payloads_from=payloads_from,
                page=page,
                looks=looks,
                listener=listener,
            ) as api:
                yield api
        return
    pool = await open_pool(url, max_size=6)
    settings = Settings(path_prefix=path_prefix)
    plugin_context = Context(settings, pool, Registrations(), dict)
    ports = plugin_context.ports
    ports.put(DirectAccess, DirectAccess(url))
    ports.put(TargetCheck, allow_target)
    ports.put(FanoutService, FanoutService(pool, dead_tasks or PostgresDeadLetters(pool, "tickwright.fanout")))
    ports.put(ReportsService, ReportsService(pool, keeping))
    ports.put(Audiences, audiences or Audiences(Sources({}, lambda _: None), None))
    overview = ports.put(Snapshots, Snapshots(pool, overview_parts(), version="0.0.0", **(looks or {})))
    provide(plugin_context)
    service, operations, polling = ports.get(JobService), ports.get(Operations), ports.get(PollingService)

    async def readiness() -> Readiness:
        return ready()

    context = ApiContext(
        plugins=PLUGINS,
        plugin_context=plugin_context,
        readiness=readiness,
        metrics=lambda: b"# nothing yet\n",
        version="0.0.0",
        limits=limits or ApiLimits(),
        path_prefix=path_prefix,
        payloads_from=payloads_from,
    )
    app = create_app(context)
    listening = bind("127.0.0.1", 0)
    port = listening.getsockname()[1]
    server = Listener(app if page is None else ApiAndDashboard(app, page, path_prefix), limits=listener)
    looking = asyncio.create_task(overview.run())
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        await service.types.put("noop", TaskTypeRequest(target="python:noop"), caller=ADMIN)
        keys = {role: (await operations.keys.create(role.name.lower(), role, caller=ADMIN)).key for role in Role}
        async with aiohttp.ClientSession() as session:
            keyless = Client(session, f"http://127.0.0.1:{port}", None)
            yield RunningApi(
                app,
                port,
                pool,
                service,
                operations,
                polling,
                overview,
                keyless.with_key(keys[Role.ADMIN]),
                keyless.with_key(keys[Role.OPERATOR]),
                keyless.with_key(keys[Role.VIEWER]),
                keyless,
                server,
            )
    finally:
        server.should_exit = True
        await overview.stop()
        await looking
        await serving
        await ports.aclose()
        await pool.close()
