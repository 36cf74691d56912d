"""Reports under faults: two listeners whose rows have their epoch, the expected file, and worlds."""

import asyncio
import csv
import hashlib
import io
import json
import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from kit.forks import Child
from kit.leases import LONG
from kit.processes import spawn
from kit.reports import ReportWorld, plan_of, report_world
from kit.servers import PostgresServer, RedisServer
from tickwright.capabilities.reports.handlers import Function, ReportRequest
from tickwright.capabilities.reports.plan import Plan
from tickwright.capabilities.reports.retention import ReportRetention
from tickwright.engine.leases import Leases

NO_END = -1  # Redis's answer for a key without a time to live; -2 for no key
PROCESS = Path(__file__).with_name("report_process.py")
JOIN = (
    "SELECT l.id AS id, l.epoch AS left_epoch, r.epoch AS right_epoch, r.value AS value "
    "FROM lefts l JOIN rights r USING (id) ORDER BY id"
)
HEADER = ("id", "left_epoch", "right_epoch", "value")
SMALL, LARGE = 20, 12_000
"""Rows of a part that is kept inline, and of one that is kept in the object store."""
AGAIN_S = 50
"""Enough for a lease of two seconds, the next round, and a busy machine."""
Wait = Callable[[str, ReportRequest], Awaitable[None]]


async def _nothing(_name: str, _request: ReportRequest) -> None:
    """Do not wait."""


def functions(wait: Wait = _nothing) -> dict[str, Function]:
    """Return both listeners; ``wait`` is called before the first row."""

    async def lefts(request: ReportRequest) -> AsyncIterator[dict[str, Any]]:
        await wait("lefts", request)
        for number in range(request.conditions["rows"]):
            yield {"id": number, "epoch": request.epoch, "text": "x" * 20}

    async def rights(request: ReportRequest) -> AsyncIterator[dict[str, Any]]:
        await wait("rights", request)
        for number in range(request.conditions["rows"]):
            yield {"id": number, "epoch": request.epoch, "value": number * request.conditions["seed"]}

    return {"lefts": lefts, "rights": rights}


def plan(**words: Any) -> Plan:
    """Return the definition: both parts, joined."""
    return plan_of("lefts", "rights", merge=JOIN, **words)


def truth(rows: int, seed: int, epoch: int) -> str:
    """Return the SHA-256 that the file must have, computed without the product."""
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\r\n")
    out.writerow(HEADER)
    out.writerows((number, epoch, epoch, number * seed) for number in range(rows))
    return hashlib.sha256(text.getvalue().encode()).hexdigest()


async def ask(world: ReportWorld, rows: int = SMALL, seed: int = 7, *, words: Mapping[str, Any] | None = None) -> int:
    """Request a report."""
    given = {"rows": rows, "seed": seed, "n": secrets.token_hex(4)}
    return await world.request(plan(**(words or {})), given)


async def is_true(world: ReportWorld, row: Any) -> None:
    """G1: the file is exactly the expected one, with the parts of the record's own epoch."""
    given = json.loads(row["conditions"])
    assert row["status"] == "finished", (row["status"], row["error_code"], row["error"])
    found = hashlib.sha256(await world.file(row)).hexdigest()
    assert found == truth(given["rows"], given["seed"], row["epoch"]), f"G1 broken: report {row['id']}"
    assert row["checksum"] == found


async def is_made(world: ReportWorld, report: int, within_s: float = AGAIN_S) -> Any:
    """Wait until it is finished, and check its file."""
    row = await world.over(report, within_s)
    await is_true(world, row)
    return row


async def clean(world: ReportWorld) -> None:
    """Run upkeep as in an hour's time."""
    leases = Leases(world.pool, owner="test", terms=LONG)
    lease = await leases.take(f"report-upkeep-{secrets.token_hex(4)}")
    assert lease is not None
    await ReportRetention(world.objects, objects_kept=timedelta(0)).round(lease)


async def is_clean(world: ReportWorld, report: int) -> None:
    """G2, G3: after upkeep one object if there is a file, none otherwise, no part, and no key without an expiry."""
    await clean(world)
    row = await world.record(report)
    keys = [one.key for one in await world.objects.listing(f"reports/{report}/", 10)]
    assert keys == ([row["file_key"]] if row["status"] == "finished" else []), f"G2 broken: report {report}"
    assert await world.objects.listing(f"parts/{report}/", 10) == []
    assert await world.pool.fetchval("SELECT count(*) FROM tickwright.report_data WHERE report_id = $1", report) == 0
    if world.shared is not None:
        client, key = world.shared._redis._client, world.shared.key(report)  # type: ignore[attr-defined]
        assert await client.pttl(key) != NO_END, f"G3 broken: {key} has no end"


def start(world: ReportWorld, log: Path, redis_url: str | None = None, **words: str) -> Child:
    """Start the role as a separate process; kill it with ``kill_group``."""
    environment = {
        "REPORT_DATABASE": world.url,
        "REPORT_REDIS": redis_url or "",
        "REPORT_PREFIX": world.url.rpartition("/")[2],
        "REPORT_FOLDER": str(world.folder),
        **words,
    }
    return spawn([sys.executable, str(PROCESS)], log, {**os.environ, **environment})


def asleep(child: Child) -> bool:
    """Return whether a process has stopped itself."""
    assert child.poll() is None, f"the process ended with {child.returncode}"
    return Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def wake(child: Child) -> None:
    """Let a stopped process continue."""
    os.kill(child.pid, signal.SIGCONT)


@dataclass
class ReportWorlds:
    """Makes worlds of one test, so that their waits run in parallel."""

    stack: AsyncExitStack
    postgres: PostgresServer
    template: str
    redis: RedisServer
    folder: Path

    async def make(self, kind: str, *, prefix: str | None = None, **words: Any) -> ReportWorld:
        """Make one with Redis, or with PostgreSQL alone; its keys begin with its name, or with ``prefix``."""
        name = f"r{secrets.token_hex(6)}"
        url = await asyncio.to_thread(self.postgres.create_database, name, template=self.template)
        self.stack.push_async_callback(asyncio.to_thread, self.postgres.drop_database, name)
        folder = self.folder / name
        folder.mkdir()
        redis = self.redis.url if kind == "redis" else None
        return await self.stack.enter_async_context(
            report_world(url, folder, redis, redis_prefix=prefix or name, **words)
        )

    async def each(self, *cases: tuple[str, Callable[..., Awaitable[None]], Any]) -> None:
        """Run each ``check(world, redis_url, case)`` in a world of its kind, all at once."""

        async def one(kind: str, check: Callable[..., Awaitable[None]], case: Any) -> None:
            try:
                await check(await self.make(kind), self.redis.url if kind == "redis" else None, case)
            except Exception as error:
                error.add_note(f"{check.__name__} {kind} {case}")
                raise

        async with asyncio.TaskGroup() as group:
            for case in cases:
                group.create_task(one(*case))
