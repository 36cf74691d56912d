"""A rolling upgrade under load: processes of the release before beside processes of this one, on the new schema."""

import asyncio
import json
import signal
import sys
import tarfile
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from subprocess import Popen
from typing import Any, Literal

import aiohttp
import asyncpg
import pytest

from kit.cli import environment, tickwright
from kit.ports import free_port
from kit.processes import kill_group, spawn
from kit.waiting import eventually_async
from tickwright.store.pool import Pool, open_pool

Release = Literal["old", "new"]
TESTS = Path(__file__).parents[1]
BEFORE = TESTS / "releases" / "schema-0011.tar.xz"
"""The package of the release before, without the files of its page; its newest migration is 0011.

Made with ``git archive REVISION src/tickwright | tar -x`` and ``tar -cJ src``; the next release takes its place.
"""
MAKERS = ("scheduler", "relay", "api")
DOERS = ("worker", "poll-consumer", "fanout-consumer", "report-listener", "campaign-consumer")
KINDS = ("job", "entity", "poll", "part", "chunk")
PHASE_S = 120
_JOB = (
    "INSERT INTO tickwright.scheduled_tasks (task_type, payload, execute_at) VALUES ('work', '{}', now()) RETURNING id"
)
_SETTINGS = """
INSERT INTO tickwright.entities (code, party, polling_enabled_modules)
SELECT 'E' || n, '{}', 'LOCATIONS' FROM generate_series(1, 3) AS n;
INSERT INTO tickwright.polling_schedule_config (account_id, polling_interval_minutes) VALUES ('a', 1);
INSERT INTO tickwright.shipment_polling_tracker (account_id, partner, external_id)
SELECT 'a', 'acme', 'X' || n FROM generate_series(1, 300) AS n;
"""
_DECLARED = """
SELECT (SELECT count(*) FROM tickwright.task_types WHERE name = 'work')
     + (SELECT count(*) FROM tickwright.partners WHERE name = 'acme')
"""
_OPEN = "SELECT count(*) FROM ONLY tickwright.scheduled_tasks"
_ENDS = "SELECT status, count(*) AS n FROM tickwright.executions GROUP BY status"


class Fleet:
    """Processes of two releases on one database, and what they have run."""

    def __init__(self, url: str, folder: Path, before: Path) -> None:
        self.url, self._folder, self._before = url, folder, before
        self._started: list[Popen[bytes]] = []
        self.api = ""

    def environment(self, release: Release, **more: str) -> dict[str, str]:
        """What a process of the release finds."""
        code = [str(self._before / "src")] if release == "old" else []
        if release == "new":
            more["FANOUT_UNSIGNED"] = "run"  # schedulers of the release before do not sign
        home = self._folder / release
        home.mkdir(exist_ok=True)
        env = environment(DATABASE_URL=self.url, HOME=str(home), OBJECT_STORE=self._folder.as_uri(), **more)
        return {**env, "PYTHONPATH": ":".join([*code, str(TESTS / "kit")])}

    def start(self, release: Release, roles: tuple[str, ...]) -> "Popen[bytes]":
        """Begin a process; if it is an API, it is the one that is asked from now on."""
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

    async def drain(self, child: "Popen[bytes]") -> None:
        """Ask for an end, as a deploy does, and wait for it."""
        child.send_signal(signal.SIGTERM)
        await eventually_async(lambda: child.poll() is not None, 60, what="it has drained")
        assert child.returncode == 0

    def kill(self) -> None:
        """End what still runs."""
        for child in self._started:
            if child.poll() is None:
                kill_group(child)

    def runs(self, release: str = "*") -> list[tuple[str, ...]]:
        """What ran, in processes of one release or of all."""
        files = sorted(self._folder.glob(f"{release}-*.runs"))
        return [tuple(line.split()) for file in files for line in file.read_text().splitlines()]

    def complaints(self) -> list[str]:
        """Lines of logs that no upgrade may cause."""
        words = ("Traceback", "Undefined", "internal_error", "crashed")
        lines = [line for log in self._folder.glob("*.log") for line in log.read_text(errors="replace").splitlines()]
        return [line for line in lines if any(word in line for word in words)]


class Load:
    """Jobs by SQL and by HTTP, reports and batches, all the time."""

    def __init__(self, pool: Pool, fleet: Fleet, key: str) -> None:
        self._pool, self._fleet = pool, fleet
        self._head = {"Authorization": f"Bearer {key}"}
        self.jobs: set[int] = set()
        self.reports: set[int] = set()
        self.batches = 0
        self.unexpected: list[Any] = []

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Ask for the length of the block."""
        over = asyncio.Event()
        tasks = [asyncio.create_task(work(over)) for work in (self._sql, self._http)]
        yield
        over.set()
        await asyncio.gather(*tasks)

    async def _sql(self, over: asyncio.Event) -> None:
        while not over.is_set():
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
        """Send it, to whichever API there is, until one has answered."""
        head = {} if key is None else {"Idempotency-Key": key}

        async def answered() -> Any:
            with suppress(aiohttp.ClientError, TimeoutError):
                async with client.post(f"{self._fleet.api}/v1/{path}", json=body, headers=head) as answer:
                    said = json.loads(await answer.read())
                    if answer.status in {200, 201, 202}:
                        return said
                    if answer.status != 503 and said.get("code") != "execution_open":
                        self.unexpected.append((path, answer.status, said))
            return None

        return await eventually_async(answered, 60, what=f"{path} is answered")


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The release before, unpacked."""
    folder = tmp_path_factory.mktemp("before")
    with tarfile.open(BEFORE) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture
async def fleet(empty_database_url: str, tmp_path: Path, before: Path) -> AsyncIterator[Fleet]:
    """No process yet."""
    fleet = Fleet(empty_database_url, tmp_path, before)
    yield fleet
    fleet.kill()


@pytest.mark.timeout(900)  # it waits for polls of every phase, the first ones for two minutes
async def test_both_releases_work_side_by_side_in_both_orders_and_nothing_is_lost_or_done_twice(fleet: Fleet) -> None:
    """Old makers with new doers, then new makers with old doers; what each of them does is there once."""
    assert tickwright("migrate", env=fleet.environment("old")).code == 0
    key = tickwright("keys", "create", "loader", "--role", "operator", env=fleet.environment("old")).out.strip()
    old_makers, old_doers = fleet.start("old", MAKERS), fleet.start("old", DOERS)
    async with await open_pool(fleet.url, max_size=4) as pool:
        await eventually_async(lambda: _has(pool, _DECLARED, 2), 60, what="the program is declared")
        await pool.execute(_SETTINGS)
        load = Load(pool, fleet, key)
        async with load.running():
            await _are_done(fleet, "old", "before the migration")
            assert tickwright("migrate", env=fleet.environment("new")).code == 0
            await _are_done(fleet, "old", "the release before, on the new schema")

            new_doers = fleet.start("new", DOERS)
            await _are_done(fleet, "new", "both beside each other")
            await fleet.drain(old_doers)
            await _are_done(fleet, "new", "old makers, new doers")

            old_doers, new_makers = fleet.start("old", DOERS), fleet.start("new", MAKERS)
            await fleet.drain(old_makers)
            await fleet.drain(new_doers)
            await _are_done(fleet, "old", "new makers, old doers")

            new_doers = fleet.start("new", DOERS)
            await fleet.drain(old_doers)
            await _are_done(fleet, "new", "nothing of the release before")
        await eventually_async(lambda: _has(pool, _OPEN, 0), 60, what="every job is over")
        await eventually_async(lambda: _all_over(pool, load), 60, what="every report and execution is over")
        await fleet.drain(new_makers)
        await fleet.drain(new_doers)
        reports = {row["id"]: row["status"] for row in await pool.fetch("SELECT id, status FROM tickwright.reports")}
    assert load.unexpected == []
    runs = fleet.runs()
    jobs = Counter(int(run[1]) for run in runs if run[0] == "job")
    assert set(jobs) == load.jobs, "a job was lost, or nobody asked for it"
    assert set(jobs.values()) == {1}, "a drain costs no attempt"
    for kind in ("entity", "poll", "chunk"):
        twice = [run for run, times in Counter(run for run in runs if run[0] == kind).items() if times > 1]
        assert not twice, twice[:3]
    assert {reports[report] for report in load.reports} == {"finished"}
    assert fleet.complaints() == []


async def _are_done(fleet: Fleet, release: Release, what: str) -> None:
    """Wait until the release has run more of every kind."""
    since = Counter(run[0] for run in fleet.runs(release))

    def more() -> bool:
        now = Counter(run[0] for run in fleet.runs(release))
        return all(now[kind] >= since[kind] + 3 for kind in KINDS)

    await eventually_async(more, PHASE_S, what=f"{what}: {release} runs some of each")


async def _has(pool: Pool, query: str, count: int) -> bool:
    with suppress(asyncpg.UndefinedTableError):
        return bool(await pool.fetchval(query) == count)
    return False


async def _all_over(pool: Pool, load: Load) -> bool:
    ends = {row["status"]: row["n"] for row in await pool.fetch(_ENDS)}
    open_ = "SELECT count(*) FROM tickwright.reports WHERE status NOT IN ('finished', 'failed', 'cancelled')"
    return set(ends) == {"FINISHED"} and not await pool.fetchval(open_)
