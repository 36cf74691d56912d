"""Fan-out for tests: real queues, a real Redis or none, schedulers and consumers in this process or separate ones."""

import asyncio
import json
import os
import signal
import sys
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from kit.forks import Child
from kit.pg_tasks import PgFanout
from kit.processes import kill_group, spawn
from kit.rabbit_tasks import Fanout
from kit.waiting import eventually_async
from tickwright.capabilities.fanout.consumer.consumer import FanoutConsumer
from tickwright.capabilities.fanout.consumer.run_claims import ConsumerRunClaims, LedgerRunClaims, TwoStoreRunClaims
from tickwright.capabilities.fanout.consumer.task_run import SlowShare, TaskRunner
from tickwright.capabilities.fanout.handlers import DeclaredModule, EntityTask, Handler, ModuleRegistry
from tickwright.capabilities.fanout.messages import NO_KEYS, SIGNATURE, MessageKeys, message_id, read_keys, write_task
from tickwright.capabilities.fanout.scheduler.lists import read_parties
from tickwright.capabilities.fanout.scheduler.marks import FallbackMarks, LedgerMarks
from tickwright.capabilities.fanout.scheduler.publisher import Publisher
from tickwright.capabilities.fanout.scheduler.scheduler import CHANNEL, FanoutScheduler
from tickwright.capabilities.fanout.windows import Window, window_at
from tickwright.domain.leases import LeaseTerms
from tickwright.engine.session import WorkerSession
from tickwright.engine.wakeup.connection import DirectConnection
from tickwright.engine.wakeup.listener import WakeupListener
from tickwright.partners.contract import PartnerContract
from tickwright.plugin.secrets import DeclaredSecrets
from tickwright.ports.ids import random_token
from tickwright.ports.service import NO_PROBE, Probe, Service
from tickwright.store.pool import Pool, open_pool
from tickwright.transports.postgres.broker import PostgresBroker, PostgresTaskQueue
from tickwright.transports.rabbitmq.broker import RabbitBroker
from tickwright.transports.rabbitmq.tasks import RabbitTaskQueue
from tickwright.transports.rabbitmq.topology import TASK_KEY
from tickwright.transports.redis.connection import RedisClient
from tickwright.transports.redis.stores import RedisMarks, RedisRunClaims

MODULE = "LOCATIONS"
SECRETS = DeclaredSecrets({
    "TICKWRIGHT_SECRET_OCPI_TOKEN": "secret",
    "TICKWRIGHT_SECRET_HOSTS_OCPI_TOKEN": "a, x, hub.example",
    "TICKWRIGHT_DATABASE_URL": "postgresql://canary",
    "AWS_SECRET_ACCESS_KEY": "canary",
})  # fmt: skip
TERMS = LeaseTerms(timedelta(seconds=2), timedelta(seconds=0.3))
PROCESS = Path(__file__).with_name("fanout_process.py")
_PUT_MODULE = """
INSERT INTO tickwright.modules (name, interval_seconds, timeout_ms, is_gated) VALUES ($1, $2, $3, $4)
ON CONFLICT (name) DO UPDATE SET interval_seconds = $2, timeout_ms = $3, is_gated = $4, updated_at = now()
"""
_PUT_ENTITIES = """
INSERT INTO tickwright.entities (code, party, polling_enabled_modules, partner)
SELECT code, jsonb_build_object('url', 'https://' || code), $2, $3 FROM unnest($1::text[]) AS code
"""


@dataclass
class Hub:
    """A handler with a log, which can be held, and which records runs that overlap.

    Attributes:
        runs: Runs that began, in order.
        ended: Message ids whose run ended.
        overlaps: Runs that began while another one of the same entity and module was under way.
    """

    runs: list[EntityTask] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    overlaps: list[str] = field(default_factory=list)
    most: int = 0
    fails: Mapping[str, Any] = field(default_factory=dict)
    _now: Counter[tuple[str, str]] = field(default_factory=Counter)
    _gates: dict[str, asyncio.Event] = field(default_factory=lambda: defaultdict(_open))

    def hold(self, code: str) -> None:
        """Let every later run of ``code`` wait."""
        self._gates[code] = asyncio.Event()

    def release(self, code: str) -> None:
        """Let held runs continue."""
        self._gates[code].set()

    @property
    def codes(self) -> list[str]:
        """Return the codes of the runs that began."""
        return [task.entity_code for task in self.runs]

    async def __call__(self, task: EntityTask) -> Any:
        """Run a task."""
        key = task.entity_code, task.task_type
        self.runs.append(task)
        self._now[key] += 1
        self.most = max(self.most, sum(self._now.values()))
        if self._now[key] > 1:
            self.overlaps.append(task.id)
        try:
            await self._gates[task.entity_code].wait()
            failure = self.fails.get(task.entity_code)
            if isinstance(failure, Exception):
                raise failure
            self.ended.append(task.id)
            return failure
        finally:
            self._now[key] -= 1


def _open() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


def registry_of(modules: Mapping[str, Handler | Hub]) -> ModuleRegistry:
    """Return a registry with these functions."""
    registry = ModuleRegistry()
    for name, handler in modules.items():
        registry.add(DeclaredModule(name, {}, _as_function(handler)))
    return registry


def _as_function(handler: Handler | Hub) -> Handler:
    async def function(task: EntityTask) -> Any:
        return await handler(task)

    return function


class FanoutWorld:
    """One test's fan-out: its own database, queues and keys."""

    def __init__(
        self, pool: Pool, url: str, queues: Fanout | PgFanout, redis_url: str | None, keys: MessageKeys = NO_KEYS
    ) -> None:
        self.pool, self.url, self.queues, self.redis_url, self._keys = pool, url, queues, redis_url, keys
        self.prefix = queues.names.prefix

    # ------------------------------------------------------------------ the world

    async def put_module(
        self, name: str = MODULE, *, interval_s: int = 3600, timeout_ms: int = 60_000, gated: bool = False
    ) -> None:
        """Set a module as plain SQL does."""
        await self.pool.execute(_PUT_MODULE, name, interval_s, timeout_ms, gated)

    async def put_entities(self, codes: Sequence[str], modules: str = MODULE, *, partner: str | None = None) -> None:
        """Add entities as plain SQL does."""
        await self.pool.execute(_PUT_ENTITIES, codes, modules, partner)

    async def window(self, length_s: int = 3600) -> Window:
        """Return the present window."""
        now_s = await self.pool.fetchval("SELECT extract(epoch FROM clock_timestamp())::float8")
        return window_at(now_s, length_s)

    async def put_task(
        self,
        code: str,
        module: str = MODULE,
        *,
        window: Window | None = None,
        timeout_ms: int = 60_000,
        partner: str | None = None,
        times: int = 1,
    ) -> str:
        """Put a task into the queue as a scheduler does, which caches its key while the database is down."""
        window = window or await self.window()
        known, body = write_task(code, module, b'{"url": "https://x"}', window, None, timeout_ms, partner, 1)
        signed = {SIGNATURE: self._keys.sign(body)}
        for _ in range(times):
            await self.queues.put(known, body=body, headers=signed)
        return known

    async def signed(self, body: bytes) -> dict[str, Any]:
        """Return the headers that a scheduler adds to a message, by the present signing key."""
        return {SIGNATURE: (await read_keys(self.pool)).sign(body)}

    async def cursor(self, code: str, module: str = MODULE) -> Any:
        """Return the ledger's row."""
        return await self.pool.fetchrow(
            "SELECT * FROM tickwright.fanout_cursors WHERE entity_code = $1 AND task_type = $2", code, module
        )

    async def queued(self) -> Counter[str]:
        """Take all messages out of the queue; return how often each message id was there."""
        return Counter(known or "" for known in await self.queues.ids_in(self.queue))

    @property
    def queue(self) -> str:
        """The queue's name."""
        return self.queues.names.queue

    def ids(self, codes: Sequence[str], window: Window, module: str = MODULE) -> Counter[str]:
        """Return the message ids of these entities' tasks, once each."""
        return Counter(message_id(code, module, window) for code in codes)

    # ------------------------------------------------------------------ in this process

    @asynccontextmanager
    async def redis(self) -> AsyncIterator[RedisClient | None]:
        """Open the connection to Redis; ``None`` if the test has none."""
        if self.redis_url is None:
            yield None
            return
        link = RedisClient(self.redis_url)
        try:
            yield link
        finally:
            await link.aclose()

    @asynccontextmanager
    async def scheduler(
        self,
        *,
        gates: Mapping[str, bool] | None = None,
        amqp_url: str | None = None,
        hears: bool = True,
        probe: Probe = NO_PROBE,
    ) -> AsyncIterator[FanoutScheduler]:
        """Run a scheduler; its first round begins at once. ``hears=False`` is one behind a pooler."""
        url = amqp_url or self.queues.url
        async with AsyncExitStack() as stack:
            link = await stack.enter_async_context(self.redis())
            broker = PostgresBroker(self.pool) if isinstance(self.queues, PgFanout) else RabbitBroker(url)
            stack.push_async_callback(broker.aclose)
            marks = None if link is None else RedisMarks(link, prefix=self.prefix)
            publisher = Publisher(
                FallbackMarks(marks, LedgerMarks(self.pool)),
                broker,
                self._destination,
                declare=self.queues.prepare,
                parties=partial(read_parties, self.pool),
                token=random_token(8),
                probe=probe,
            )
            wakeups = WakeupListener(direct := DirectConnection(self.url if hears else None), CHANNEL)
            scheduler = FanoutScheduler(self.pool, publisher, gates=dict(gates or {}).get, wakeups=wakeups)
            async with running([direct, scheduler]):
                yield scheduler

    @asynccontextmanager
    async def consumer(
        self,
        modules: Mapping[str, Handler | Hub],
        *,
        slots: int = 1,
        at_once: int = 4,
        slow_percent: int = 25,
        amqp_url: str | None = None,
        database_url: str | None = None,
        runs_unsigned: bool = False,
        probe: Probe = NO_PROBE,
    ) -> AsyncIterator[FanoutConsumer]:
        """Run a consumer with its session."""
        async with AsyncExitStack() as stack:
            pool = await open_pool(database_url or self.url, max_size=6)
            stack.callback(pool.terminate)
            link = await stack.enter_async_context(self.redis())
            session = WorkerSession(pool, name="test", roles=["fanout-consumer"], version="0", terms=TERMS)
            ledger = LedgerRunClaims(pool, session)
            session.on_reclaim(ledger.reclaim)
            fast = None if link is None else RedisRunClaims(link, prefix=self.prefix)
            contract = PartnerContract(pool, session)
            source = self._source(pool, amqp_url or self.queues.url, slots)
            consumer = FanoutConsumer(
                pool,
                source,
                ConsumerRunClaims(TwoStoreRunClaims(fast, ledger), session),
                session,
                runner=TaskRunner(contract, slots=slots, secrets=SECRETS.bound_to),
                slow=SlowShare(slots, slow_percent),
                modules=registry_of(modules),
                at_once=at_once,
                runs_unsigned=runs_unsigned,
                probe=probe,
            )
            await session.open()
            async with running([session, contract, source, consumer]):
                yield consumer

    @property
    def _destination(self) -> str:
        if isinstance(self.queues, PgFanout):
            return self.queues.destination
        return f"amqp:{self.queues.names.exchange}/{TASK_KEY}"

    def _source(self, pool: Pool, url: str, slots: int) -> RabbitTaskQueue | PostgresTaskQueue:
        if isinstance(self.queues, PgFanout):
            return PostgresTaskQueue(pool, self.queue, slots=slots)
        return RabbitTaskQueue(url, self.queues.names, slots=slots)

    # ------------------------------------------------------------------ in a separate process

    def spawn(self, role: str, log: Path, **environment: str) -> Child:
        """Start a scheduler or a consumer as a process; kill it with ``kill_group``."""
        variables = {
            "FANOUT_ROLE": role,
            "FANOUT_DATABASE": self.url,
            "FANOUT_AMQP": self.queues.url,
            "FANOUT_REDIS": self.redis_url or "",
            "FANOUT_PREFIX": self.prefix,
            **environment,
        }
        return spawn([sys.executable, str(PROCESS)], log, {**os.environ, **variables})


@asynccontextmanager
async def running(services: Sequence[Service]) -> AsyncIterator[None]:
    """Run services as the supervisor does: all at once, stopped in the reverse order in two steps."""
    tasks = [asyncio.create_task(service.run(), name=service.name) for service in services]
    try:
        yield
    finally:
        for service in reversed(services):
            await service.quiesce()
        for service in reversed(services):
            await service.stop()
        done, _ = await asyncio.wait(tasks, timeout=10)
        for task in done:
            task.result()
        assert len(done) == len(tasks), [task.get_name() for task in tasks if not task.done()]


@asynccontextmanager
async def fanout_world(
    database_url: str, amqp_url: str | None, redis_url: str | None, *, direct_amqp_url: str | None = None
) -> AsyncIterator[FanoutWorld]:
    """Make a world and remove its queues afterwards; without an ``amqp_url`` they are inside PostgreSQL."""
    pool = await open_pool(database_url, max_size=6)
    queues = PgFanout(pool) if amqp_url is None else Fanout(amqp_url, direct_amqp_url)
    await queues.prepare()
    try:
        yield FanoutWorld(pool, database_url, queues, redis_url, await read_keys(pool))
    finally:
        await queues.remove()
        pool.terminate()


def lines_of(log: Path) -> list[dict[str, Any]]:
    """Return the events that a consumer process wrote to its log."""
    found = []
    for line in log.read_text(errors="replace").splitlines():
        if line.startswith('{"run"'):
            found.append(json.loads(line))
    return found


async def killed(process: Child, *, within_s: float = 20) -> None:
    """Wait until a process has killed itself."""
    await eventually_async(lambda: process.poll() is not None, within_s, what="the process is dead")
    assert process.returncode == -signal.SIGKILL


__all__ = ["FanoutWorld", "Hub", "fanout_world", "kill_group", "killed", "lines_of", "registry_of"]
