"""All roles in two processes on one database, a load for each of them, and their runs."""

import asyncio
import json
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import aiohttp
import asyncpg

from kit.cli import environment
from kit.forks import Child
from kit.ports import free_port
from kit.processes import kill_group, spawn
from kit.waiting import eventually_async
from tickwright.store.pool import UNAVAILABLE, Pool

Release = Literal["old", "new"]
TESTS = Path(__file__).parents[1]
MAKERS = ("scheduler", "relay", "api")
DOERS = ("worker", "poll-consumer", "fanout-consumer", "report-listener", "campaign-consumer")
KINDS = ("job", "entity", "poll", "part", "chunk")
PHASE_S = 180
_JOB = (
    "INSERT INTO tickwright.scheduled_tasks (task_type, payload, execute_at) VALUES ('work', '{}', now()) RETURNING id"
)
SETTINGS = """
INSERT INTO tickwright.entities (code, party, polling_enabled_modules)
SELECT 'E' || n, '{}', 'LOCATIONS' FROM generate_series(1, 3) AS n;
INSERT INTO tickwright.polling_schedule_config (account_id, polling_interval_minutes) VALUES ('a', 1);
INSERT INTO tickwright.shipment_polling_tracker (account_id, partner, external_id)
SELECT 'a', 'acme', 'X' || n FROM generate_series(1, 300) AS n;
"""
DECLARED = """
SELECT (SELECT count(*) FROM tickwright.task_types WHERE name = 'work')
     + (SELECT count(*) FROM tickwright.partners WHERE name = 'acme')
"""
_OPEN = "SELECT count(*) FROM ONLY tickwright.scheduled_tasks"
_ENDS = "SELECT status, count(*) AS n FROM tickwright.executions GROUP BY status"


class Fleet:
    """Processes of two releases on one database, and their runs."""

    def __init__(self, url: str, folder: Path, before: Path | None = None) -> None:
        self.url, self._folder, self._before = url, folder, before
        self._started: list[Child] = []
        self.api = ""

    def environment(self, release: Release, **more: str) -> dict[str, str]:
        """Return the environment of a process of the release."""
        code = [f"{self._before}/src"] if release == "old" else []
        if release == "new":
            more["FANOUT_UNSIGNED"] = "run"  # schedulers of the release before do not sign
        home = self._folder / release
        home.mkdir(exist_ok=True)
        env = environment(DATABASE_URL=self.url, HOME=str(home), OBJECT_STORE=self._folder.as_uri(), **more)
        return {**env, "PYTHONPATH": ":".join([*code, str(TESTS / "kit")])}

    def start(self, release: Release, roles: tuple[str, ...]) -> Child:
        """Start a process; if it is an API, later requests go to it."""
        name = f"{release}-{len(self._started)}"
        address = f"127.0.0.1:{free_port()}"
        env = self.environment(
            release, APP="release_program:app", API_BIND=address, METRICS_BIND=f"127.0.0.1:{free_port()}"
        )
        env["RELEASE_LOG"] = str(self._folder / f"{name}.runs")
        child = spawn([sys.executable, "-m", "tickwright", "run", *roles], self._folder / f"{name}.log", env)
        self._started.append(child)
        if "api" in roles:
            self.api = f"http://{address}"
        return child

    async def drain(self, child: Child) -> None:
        """Request a drain, as a deploy does, and wait for the end."""
        child.send_signal(signal.SIGTERM)
        await eventually_async(lambda: child.poll() is not None, 60, what="it has drained")
        assert child.returncode == 0

    def kill(self) -> None:
        """Kill the running processes."""
        for child in self._started:
            if child.poll() is None:
                kill_group(child)

    def runs(self, release: str = "*") -> list[tuple[str, ...]]:
        """Return the runs in processes of one release or of all."""
        files = sorted(self._folder.glob(f"{release}-*.runs"))
        return [tuple(line.split()) for file in files for line in file.read_text().splitlines()]

    def complaints(self) -> list[str]:
        """Return lines of the logs that no upgrade may cause."""
        wanted = ("Traceback", "Undefined", "internal_error", "crashed")
        lines = [line for log in self._folder.glob("*.log") for line in log.read_text(errors="replace").splitlines()]
        return [line for line in lines if any(text in line for text in wanted)]


class Load:
    """Jobs by SQL and by HTTP, reports and batches, continuously."""

    def __init__(self, pool: Pool, fleet: Fleet, key: str) -> None:
        self._pool, self._fleet = pool, fleet
        self._head = {"Authorization": f"Bearer {key}"}
        self.jobs: set[int] = set()
        self.reports: set[int] = set()
        self.batches = 0
        self.unexpected: list[Any] = []

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Send the load for the length of the block."""
        over = asyncio.Event()
        tasks = [asyncio.create_task(work(over)) for work in (self._sql, self._http)]
        yield
        over.set()
        await asyncio.gather(*tasks)

    async def _sql(self, over: asyncio.Event) -> None:
        while not over.is_set():
            with suppress(*UNAVAILABLE):
                self.jobs.add(await self._pool.fetchval(_JOB))
            await asyncio.sleep(0.02)

    async def _http(self, over: asyncio.Event) -> None:
        number = 0
        async with aiohttp.ClientSession(headers=self._head) as client:
            while not over.is_set():
                number += 1
                if (job := await self._until_taken(client, "jobs", {"task_type": "work"}, f"job-{number}")) is not None:
                    self.jobs.add(job["id"])
                if number % 40 == 1:
                    report = await self._until_taken(client, "reports", {"type": "numbers"}, f"report-{number}")
                    self.reports.add(report["id"])
                    self.batches += bool(await self._until_taken(client, "batches/months.close/start", None, None))
                await asyncio.sleep(0.05)

    async def _until_taken(self, client: aiohttp.ClientSession, path: str, body: Any, key: str | None) -> Any:
        """Send a request to the present API until one has answered."""
        head = {} if key is None else {"Idempotency-Key": key}

        async def answered() -> Any:
            with suppress(aiohttp.ClientError, TimeoutError):
                async with client.post(f"{self._fleet.api}/v1/{path}", json=body, headers=head) as answer:
                    response = json.loads(await answer.read())
                    if answer.status in {200, 201, 202}:
                        return response
                    if answer.status not in {503, 504} and response.get("code") != "execution_open":
                        self.unexpected.append((path, answer.status, response))
            return None

        return await eventually_async(answered, 60, what=f"{path} is answered")

    async def none_open(self) -> bool:
        """Whether every job is over."""
        return await has(self._pool, _OPEN, 0)


async def are_done(fleet: Fleet, release: Release, what: str) -> None:
    """Wait until the release has run more of every kind."""
    since = Counter(run[0] for run in fleet.runs(release))

    def more() -> bool:
        now = Counter(run[0] for run in fleet.runs(release))
        return all(now[kind] >= since[kind] + 3 for kind in KINDS)

    await eventually_async(more, PHASE_S, what=f"{what}: {release} runs some of each")


async def has(pool: Pool, query: str, count: int) -> bool:
    """Whether the query returns this count; before the first migration it does not."""
    with suppress(asyncpg.UndefinedTableError):
        return bool(await pool.fetchval(query) == count)
    return False


async def all_over(pool: Pool) -> bool:
    """Whether every report and every execution is over, and each execution finished."""
    ends = {row["status"]: row["n"] for row in await pool.fetch(_ENDS)}
    open_ = "SELECT count(*) FROM tickwright.reports WHERE status NOT IN ('finished', 'failed', 'cancelled')"
    return set(ends) == {"FINISHED"} and not await pool.fetchval(open_)
