"""What the bench of campaigns works with: clients in a database of their own, a campaign about them, its consumers.

The clients are on the same server as Tickwright's database. Consumers are the real program, each a process of its own;
what they hold is read from ``/proc``, processes that they started included, while an execution runs.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import Popen
from typing import Any, NamedTuple

import psycopg
from psycopg import sql
from pydantic import SecretStr
from sqlalchemy.engine import make_url

from tickwright.bench.ground import DATABASE, Ground, wait_until
from tickwright.capabilities.batches.executions.states import BatchAction
from tickwright.capabilities.batches.service import CampaignsService
from tickwright.plugin.settings import Bind, Settings
from tickwright.ports.caller import Caller, Role
from tickwright.process.installation import open_installation
from tickwright.store.queries import load

SQL = load("tickwright.bench.sql", "campaigns.sql")
EXPRESSION = 'client.age > 25 && client.income > 3000 && client.country == "UK"'
ROW_BY_ROW = 'client.age > 25 && client.income + 0.0 > 3000 && client.country == "UK"'
"""Selects the same; sums are not translated into SQL, so every client is read and judged in the consumer."""

EARLY_CHUNKS = 10
"""So many are done when a consumer has everything that it needs; its memory then is compared with later samples."""
READY_WITHIN_S = 60.0
OVER_WITHIN_S = 900.0
SAMPLE_S = 0.05
_BENCH = Caller("bench", Role.ADMIN)
_OVER = {"FINISHED", "EXCEPTION_OCCURRED", "STOPPED", "DISABLED"}

Say = Callable[[str], None]


class Progress(NamedTuple):
    """Where an execution is."""

    status: str
    is_planned: bool
    chunks_done: int
    chunks: int


class Ran(NamedTuple):
    """What an execution took from ``NEW`` to its end, cutting it included, and what it counted."""

    seconds: float
    cut_s: float
    status: str
    seen: int
    selected: int
    actions: int
    chunks: int
    error: str | None


class Tally(NamedTuple):
    """Clients that should be there and are not, that are there and should not be, and that are there twice."""

    missing: int
    wrong: int
    twice: int


@dataclass
class Memory:
    """What processes hold: when everything is under way, and the most after that, by process."""

    early_bytes: dict[int, int] = field(default_factory=dict)
    peak_bytes: dict[int, int] = field(default_factory=dict)

    def sample(self, pid: int) -> None:
        """Take a sample of a process that works."""
        held = tree_rss_bytes(pid)
        self.early_bytes.setdefault(pid, held)
        self.peak_bytes[pid] = max(held, self.peak_bytes.get(pid, 0))

    @property
    def growth_bytes(self) -> int:
        """Of the process that grew most."""
        return max((peak - self.early_bytes[pid] for pid, peak in self.peak_bytes.items()), default=0)


@dataclass(frozen=True)
class World:
    """The clients, a campaign about them, and its consumers."""

    ground: Ground
    clients_url: str
    environment: Mapping[str, str]

    def consumer(self) -> "Popen[bytes]":
        """Start one and return when it has registered."""
        newest = self.ground.row(SQL["newest_consumer"])[0]
        process = self.ground.launch("campaign-consumer", environment=self.environment)
        wait_until(lambda: self._registered(process, newest), READY_WITHIN_S, "the consumer to register")
        return process

    def _registered(self, process: "Popen[bytes]", newest: int) -> bool:
        if process.poll() is not None:
            raise RuntimeError((self.ground.folder / f"worker{self.ground.started}.out").read_text()[-2000:])
        return bool(self.ground.row(SQL["newest_consumer"])[0] > newest)

    def create(self, name: str, expression: str = EXPRESSION, **fields: Any) -> None:
        """Make a campaign about all clients, as an operator does."""
        audience = {
            "source": "clients",
            "table": "public.clients",
            "key": "id",
            "fields": {"age": "int", "income": "double", "country": "string"},
        }
        document = {"name": name, "type": "MANUAL", "audience": audience, "expression": expression}
        document |= {"action": {"target": "pg:applications"}, **fields}

        async def create() -> None:
            async with open_installation(self._settings()) as installation:
                await installation.of(CampaignsService).campaigns.create(document, caller=_BENCH)

        asyncio.run(create())

    def start(self, name: str) -> int:
        """Start it, as an operator does; the id of its execution."""

        async def start() -> int:
            async with open_installation(self._settings()) as installation:
                change = await installation.of(CampaignsService).campaign_batches.act(
                    BatchAction.START, name, caller=_BENCH
                )
                return change.executions[-1].id

        return asyncio.run(start())

    def _settings(self) -> Settings:
        return Settings(
            database_url=SecretStr(self.ground.url),
            home=Path(self.environment["TICKWRIGHT_HOME"]),
            config=Path(self.environment["TICKWRIGHT_CONFIG"]),
            metrics_bind=Bind("127.0.0.1", 0),
        )

    def settle(self) -> None:
        """Delete earlier executions, and let the disk be quiet."""
        self.ground.run(SQL["settle"])
        self.ground.run("CHECKPOINT")

    def progress(self, execution_id: int) -> Progress:
        """Return where an execution is."""
        return Progress(*self.ground.row(SQL["progress"], execution_id))

    def over(self, execution_id: int) -> tuple[Ran, Memory]:
        """Wait until an execution has ended; what it took, and what the processes held meanwhile.

        Raises:
            RuntimeError: It did not finish.
        """
        memory, deadline = Memory(), time.monotonic() + OVER_WITHIN_S
        while (now := self.progress(execution_id)).status not in _OVER:
            if now.is_planned and now.chunks_done >= min(EARLY_CHUNKS, now.chunks // 2):
                for process in self.ground.workers:
                    memory.sample(process.pid)
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited {OVER_WITHIN_S} s for an execution: {now}")
            time.sleep(SAMPLE_S)
        ran = Ran(*self.ground.row(SQL["run"], execution_id))
        if ran.status != "FINISHED":
            raise RuntimeError(f"an execution is {ran.status}: {ran.error}")
        return ran, memory

    def expected(self, query: str = "expected") -> set[str]:
        """Return the clients that have to be selected, by plain SQL on their database."""
        with psycopg.connect(self.clients_url) as connection:
            return {row[0] for row in connection.execute(SQL[query].encode())}

    def recorded(self, execution_id: int, expected: set[str]) -> Tally:
        """Compare the records of actions with the clients that should have one."""
        return tally(expected, Counter(self._column("recorded", execution_id)))

    def left(self, execution_id: int, expected: set[str]) -> Tally:
        """Compare the messages that left with the clients that should have one."""
        rows = psycopg.RawCursor(self.ground.connection).execute(SQL["messages"].encode(), (execution_id,))
        return tally(expected, Counter(dict(rows.fetchall())))

    def _column(self, name: str, execution_id: int) -> Iterator[str]:
        rows = psycopg.RawCursor(self.ground.connection).execute(SQL[name].encode(), (execution_id,))
        return (row[0] for row in rows)


def tally(expected: set[str], found: Counter[str]) -> Tally:
    """Compare what is there, and how often, with what should be there once."""
    twice = sum(count - 1 for count in found.values() if count > 1)
    return Tally(len(expected - found.keys()), len(found.keys() - expected), twice)


def tree_rss_bytes(pid: int) -> int:
    """Return what a process and those that it started hold in memory; 0 of one that is gone."""
    held = 0
    with suppress(OSError, StopIteration):
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
        held = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))
        for task in Path(f"/proc/{pid}/task").iterdir():
            held += sum(tree_rss_bytes(int(child)) for child in (task / "children").read_text().split())
    return held


@contextmanager
def campaign_world(ground: Ground, clients: int) -> Iterator[World]:
    """Make the clients in a database of their own beside the ground's, and drop it at the end."""
    name = f"{DATABASE}_clients"
    own = sql.Identifier(name)
    ground.connection.execute(sql.SQL("CREATE DATABASE {}").format(own))
    try:
        url = make_url(ground.url).set(database=name).render_as_string(hide_password=False)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(SQL["clients"].encode())
            psycopg.RawCursor(connection).execute(SQL["put_clients"].encode(), (clients,))
            connection.execute("VACUUM ANALYZE public.clients")
        ground.run(SQL["left"])
        config = ground.folder / "campaigns.toml"
        config.write_text(f'[sources.clients]\nurl = "{ground.reader_url(url)}"\n', encoding="utf-8")
        environment = {
            "TICKWRIGHT_HOME": str(ground.folder / "campaigns-home"),
            "TICKWRIGHT_CONFIG": str(config),
            "TICKWRIGHT_LOG_LEVEL": "warning",
        }
        yield World(ground, url, environment)
    finally:
        ground.stop()
        ground.connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(own))
