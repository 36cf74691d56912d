"""Reports for tests: a world, an API on it, and report types to request."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from kit.api import Answer, Client, RunningApi, made, running_api
from kit.reports import ReportWorld
from tickwright import ReportRequest
from tickwright.capabilities.reports.parts.deliveries import BODY_BYTES_MAX
from tickwright.capabilities.reports.service import ReportResources
from tickwright.ports.objects import ObjectStore
from tickwright.ports.service import NO_PROBE, Probe

USERS = {"parameters": {"country": "text"}, "listeners": {"users": {}}}
"""One function; its rows are the file."""


FINISH = """
UPDATE tickwright.reports
   SET status = 'finished', step_at = NULL, finished_at = clock_timestamp(), rows = 1, file_key = $2,
       file_address = $3, bytes = $4, checksum = $5, file_expires_at = clock_timestamp() + make_interval(secs => $6)
 WHERE id = $1
"""


async def users(request: ReportRequest) -> AsyncIterator[dict[str, Any]]:
    """Yield two rows of the requested country."""
    for number in (1, 2):
        yield {"id": number, "country": request.conditions["country"]}


@dataclass(frozen=True)
class ReportApi:
    """An API on a world; no part is fetched unless ``world.process`` runs."""

    world: ReportWorld
    api: RunningApi

    async def put(self, name: str, definition: dict[str, Any]) -> None:
        """Set up a report type."""
        answer = await self.api.admin.send("PUT", f"/v1/report-types/{name}", definition)
        assert answer.status in {200, 201}, answer.body

    async def ask(self, kind: str = "users", *, client: Client | None = None, **body: Any) -> Answer:
        """Request a report."""
        return await (client or self.api.operator).post("/v1/reports", {"type": kind, **body})

    async def asked(self, kind: str = "users", **body: Any) -> int:
        """Request a new report and return its id."""
        answer = await self.ask(kind, **body)
        assert answer.status == 201, answer.body
        return int(answer.json["id"])

    async def get(self, path: str, **more: Any) -> Any:
        """Return a viewer's answer of a path below ``/v1/reports``."""
        answer = await self.api.viewer.get(f"/v1/reports{path}", **more)
        assert answer.status == 200, answer.body
        return answer.json

    async def finished(self, **body: Any) -> int:
        """Request a report of users and wait for its file."""
        report_id = await self.asked(**body)
        async with self.world.process({"users": users}):
            await self.world.finished(report_id)
        return report_id

    async def given_file(
        self, data: bytes, *, keep_s: float = 3600, store: ObjectStore | None = None, **body: Any
    ) -> int:
        """Request a report and set its file, as the last step of a supervisor would."""
        report_id = await self.asked(**{"conditions": {"country": "NL"}, **body})
        key, path = f"reports/{report_id}/1-1/users-{report_id}.csv", self.world.folder / "given.csv"
        await asyncio.to_thread(path.write_bytes, data)
        objects = store or self.world.objects
        await objects.put_file(key, path)
        checksum, address = hashlib.sha256(data).hexdigest(), objects.address(key)
        await self.world.pool.execute(FINISH, report_id, key, address, len(data), checksum, keep_s)
        return report_id

    async def link(self, report_id: int) -> dict[str, Any]:
        """Return the link to a report's file."""
        found: dict[str, Any] = await self.get(f"/{report_id}/file", headers={"Accept": "application/json"})
        return found

    def path_of(self, report_id: int) -> Path:
        """Return the path of a file on the disk."""
        return self.world.folder / "objects" / f"reports/{report_id}/1-1/users-{report_id}.csv"


@asynccontextmanager
async def report_api(
    world: ReportWorld,
    *,
    objects: ObjectStore | None = None,
    part_bytes_max: int = BODY_BYTES_MAX,
    probe: Probe = NO_PROBE,
) -> AsyncIterator[ReportApi]:
    """Run an API that keeps reports where ``world`` does, with the type ``users``."""
    spool, kept = world.folder / "spool", objects or world.objects
    routes, folder = world.records.routes, partial(made, spool)
    keeping = ReportResources(routes, world.shared, kept, folder, part_bytes_max=part_bytes_max, probe=probe)
    async with running_api(world.url, keeping=keeping) as api:
        asking = ReportApi(world, api)
        await asking.put("users", USERS)
        yield asking
