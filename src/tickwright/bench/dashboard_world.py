"""A full installation: what ``bench dashboard`` reads, and the programs through which it reads."""

import http.client
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

import aiohttp

from tickwright.bench import poll_world
from tickwright.bench.ground import Ground, wait_until
from tickwright.bench.http.rest import free_port
from tickwright.capabilities.polling.wheels.loops import SLICES_KEPT
from tickwright.store.pool import Pool, open_pool
from tickwright.store.queries import load

SQL = load("tickwright.bench.sql", "dashboard.sql")
ACCOUNTS = ((120, 130), (30, 10), (240, 60))
"""Intervals in minutes, and how many of the two hundred accounts have them."""

FINISHED, DEAD = 0.5, 0.02
"""Shares of all jobs: of the last seven days, and of the last day. The others are live."""

DAYS = 7
CAMPAIGNS = 20
CAMPAIGN = {
    "type": "MANUAL",
    "audience": {"source": "bench", "table": "public.clients", "key": "id", "fields": {"age": "int"}},
    "expression": "client.age > 25",
    "action": {"target": "pg:applications"},
}
REPORT_TYPE = {"listeners": ["users"], "merge": "SELECT id FROM users", "parameters": {"country": "text"}}
_READY_WITHIN_S = 60.0
_BESIDE = (
    "put_freshness", "settle_partners", "put_waiting_polls", "put_outbox", "put_dead_messages", "put_alerts",
    "put_audit", "put_leases", "put_entities", "put_windows", "make_clients", "put_clients",
)  # fmt: skip
_AFTER_CAMPAIGNS = ("put_program", "put_executions", "put_reports")

Say = Callable[[str], None]


@dataclass(frozen=True)
class Site:
    """The filled database, an admin's key, and what the programs are started with."""

    ground: Ground
    key: str
    environment: dict[str, str]

    @contextmanager
    def api(self, database_url: str | None = None) -> Iterator[str]:
        """Run an API with the page; its address. ``database_url`` is another way to the same database."""
        port = free_port()
        environment = {**self.environment, "TICKWRIGHT_API_BIND": f"127.0.0.1:{port}"}
        if database_url is not None:
            environment["TICKWRIGHT_DATABASE_URL"] = database_url
        process = self.ground.launch("api", environment=environment)
        try:
            wait_until(lambda: process.poll() is not None or _is_ready(port), _READY_WITHIN_S, "the API to be ready")
            if process.poll() is not None:
                raise RuntimeError((self.ground.folder / f"worker{self.ground.started}.out").read_text()[-2000:])
            yield f"http://127.0.0.1:{port}"
        finally:
            self.ground.stop_one(process)

    @asynccontextmanager
    async def client(self, url: str) -> AsyncIterator[aiohttp.ClientSession]:
        """Give a client that sends requests as a script would."""
        async with aiohttp.ClientSession(url, headers={"authorization": f"Bearer {self.key}"}) as session:
            yield session


async def build_site(ground: Ground, jobs: int, trackers: int, say: Say) -> Site:
    """Fill the database of the ground and return the site on it."""
    pool = await open_pool(ground.url, max_size=4)
    try:
        await _put_polling(pool, trackers)
        say(f"{trackers} trackers are placed")
        await _put_jobs(pool, jobs)
        for name in _BESIDE:
            await pool.execute(SQL[name])
        site = _site(ground)
        with site.api() as url:
            await _put_by_rest(site, url)
        for name in _AFTER_CAMPAIGNS:
            await pool.execute(SQL[name])
        await pool.execute("VACUUM ANALYZE")
        await pool.execute("CHECKPOINT")
        say(f"{jobs} jobs and the rows of other capabilities are there")
        return site
    finally:
        pool.terminate()


async def _put_polling(pool: Pool, trackers: int) -> None:
    world = poll_world.World(pool, ACCOUNTS)
    await world.prepare()
    await world.add(trackers)
    await pool.execute(SQL["turn_once"])
    await pool.execute(poll_world.SQL["fill_slices"], datetime.now(UTC), SLICES_KEPT)
    await pool.execute(SQL["finish_slices"])


async def _put_jobs(pool: Pool, jobs: int) -> None:
    finished, dead = int(jobs * FINISHED), int(jobs * DEAD)
    await pool.execute(SQL["make_types"])
    await pool.execute(SQL["make_history"])
    await pool.execute(SQL["put_history"], finished // DAYS)
    await pool.execute(SQL["put_dead"], dead)
    await pool.execute(SQL["put_jobs"], jobs - dead - finished // DAYS * DAYS)


async def _put_by_rest(site: Site, url: str) -> None:
    """Put what the API judges before it takes it."""
    async with site.client(url) as session:
        for number in range(CAMPAIGNS):
            (await session.post("/v1/campaigns", json={**CAMPAIGN, "name": f"screen.{number}"})).raise_for_status()
        (await session.put("/v1/report-types/screen", json=REPORT_TYPE)).raise_for_status()


def _site(ground: Ground) -> Site:
    config = ground.folder / "bench.toml"
    config.write_text('[sources.bench]\nurl = "${env:BENCH_SOURCE}"\n', encoding="utf-8")
    environment = {
        "TICKWRIGHT_HOME": str(ground.folder / "screen-home"),
        "TICKWRIGHT_CONFIG": str(config),
        "TICKWRIGHT_LOG_LEVEL": "warning",
        "BENCH_SOURCE": ground.reader_url(),
    }
    key = json.loads(ground.command("keys", "create", "bench", "--role", "admin", "--json"))["key"]
    return Site(ground, key, environment)


def _is_ready(port: int) -> bool:
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        link.request("GET", "/readyz")
        return link.getresponse().status == 200
    except OSError:
        return False
    finally:
        link.close()
