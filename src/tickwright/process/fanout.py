"""Fan-out in one process: its scheduler, its consumer, and who decides between them."""

import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from tickwright.capabilities.fanout.consumer.consumer import ConsumerReporter, FanoutConsumer, consumer_source
from tickwright.capabilities.fanout.consumer.run_claims import ConsumerRunClaims, TwoStoreRunClaims
from tickwright.capabilities.fanout.consumer.runs_store import LedgerRunClaims
from tickwright.capabilities.fanout.consumer.task_run import SlowShare, TaskRunner
from tickwright.capabilities.fanout.handlers import ModuleRegistry
from tickwright.capabilities.fanout.scheduler.publish_marks import FallbackMarks, LedgerMarks
from tickwright.capabilities.fanout.scheduler.publisher import Publisher, read_parties
from tickwright.capabilities.fanout.scheduler.scheduler import CHANNEL, FanoutScheduler, scheduler_source
from tickwright.domain.errors import Rejected, Unavailable
from tickwright.engine.session import WorkerSession
from tickwright.engine.wakeup import WakeupListener
from tickwright.observe.metrics import Source
from tickwright.partners import PartnerContract
from tickwright.ports.broker import Broker
from tickwright.ports.ids import random_token
from tickwright.ports.service import Service
from tickwright.process.brokers import fanout_names, fanout_topic
from tickwright.process.settings import Settings
from tickwright.store.pool import Pool

if TYPE_CHECKING:
    from tickwright.ports.fanout import CarryingRunClaims, Marks
    from tickwright.transports.postgres import PostgresTaskQueue
    from tickwright.transports.rabbitmq import RabbitTaskQueue
    from tickwright.transports.redis import RedisLink

_GATE = re.compile(r"ENABLE_([A-Z][A-Z0-9_]{0,49})_POLLING")
_WORDS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}


@dataclass(frozen=True, slots=True)
class Fanout:
    """What both halves share in one process; ``redis`` is ``None`` where PostgreSQL decides alone."""

    settings: Settings
    pool: Pool
    redis: "RedisLink | None"

    def scheduler(
        self, brokers: Mapping[str, Broker], direct_url: str | None, facts: dict[str, Any]
    ) -> tuple[list[Service], list[Source]]:
        """Return the services that publish in the order of their start, and what their metrics are read from.

        What the environment says of modules becomes a fact of the session, so that explain can tell of it.

        Raises:
            Rejected: ``invalid_environment``, a gate that is neither true nor false. Permanent.
        """
        found = gates(os.environ)
        facts["gates"] = found
        destination, declare = self._queue()
        publisher = Publisher(
            FallbackMarks(self._fast_marks(), LedgerMarks(self.pool)),
            brokers[destination.partition(":")[0]],
            destination,
            declare=declare,
            parties=partial(read_parties, self.pool),
            token=random_token(12),
        )
        wakeups = WakeupListener("fanout-hearing", direct_url, CHANNEL)
        scheduler = FanoutScheduler(self.pool, publisher, gates=found.get, wakeups=wakeups)
        return [wakeups, scheduler], [scheduler_source(scheduler)]

    def consumer(
        self, session: WorkerSession, contract: PartnerContract, modules: ModuleRegistry
    ) -> tuple[list[Service], list[Source]]:
        """Return the services of a consumer in the order of their start, and what its metrics are read from."""
        slots = self.settings.concurrency
        source = self._source(slots)
        consumer = FanoutConsumer(
            self.pool,
            source,
            ConsumerRunClaims(TwoStoreRunClaims(self._fast_runs(), LedgerRunClaims(self.pool, session)), session),
            runner=TaskRunner(contract, slots=slots, secrets=self.settings.secrets.bound_to),
            slow=SlowShare(slots, self.settings.fanout_slow_percent),
            modules=modules,
            at_once=self.settings.fanout_entity_concurrency,
            runs_unsigned=self.settings.fanout_unsigned == "run",
        )
        session.facts["modules"] = [module.name for module in modules.all()]
        reporter = ConsumerReporter(consumer, source, session.facts)
        return [source, consumer, reporter], [consumer_source(consumer), source.samples]

    def _queue(self) -> tuple[str, Callable[[], Awaitable[None]]]:
        """Return where tasks are published, and what makes that place where it is missing."""
        if self.settings.amqp_url is None:
            return f"pg:{fanout_topic(self.settings)}", _nothing
        from tickwright.transports.rabbitmq import TASK_KEY, prepare

        url, names = self.settings.amqp_url.get_secret_value(), fanout_names(self.settings)
        return f"amqp:{names.exchange}/{TASK_KEY}", lambda: prepare(url, names)

    def _source(self, slots: int) -> "RabbitTaskQueue | PostgresTaskQueue":
        """Return where tasks are taken from."""
        if self.settings.amqp_url is None:
            from tickwright.transports.postgres import PostgresTaskQueue

            return PostgresTaskQueue(self.pool, fanout_topic(self.settings), slots=slots)
        from tickwright.transports.rabbitmq import RabbitTaskQueue

        return RabbitTaskQueue(self.settings.amqp_url.get_secret_value(), fanout_names(self.settings), slots=slots)

    def _fast_marks(self) -> "Marks | None":
        if self.redis is None:
            return None
        from tickwright.transports.redis import RedisMarks

        return RedisMarks(self.redis, prefix=self.settings.redis_prefix)

    def _fast_runs(self) -> "CarryingRunClaims | None":
        if self.redis is None:
            return None
        from tickwright.transports.redis import RedisRunClaims

        return RedisRunClaims(self.redis, prefix=self.settings.redis_prefix)


async def _nothing() -> None:
    """A topic inside PostgreSQL is there."""


@asynccontextmanager
async def open_fanout(settings: Settings, pool: Pool) -> AsyncIterator[Fanout]:
    """Open what both halves share. A Redis that does not answer now is asked again while it is needed.

    Raises:
        Rejected: ``redis_may_evict``, ``invalid_redis_url`` and what else makes a Redis unfit. Permanent.
    """
    if settings.redis_url is None:
        yield Fanout(settings, pool, None)
        return
    from tickwright.transports.redis import RedisLink

    link = RedisLink(settings.redis_url.get_secret_value())
    try:
        with suppress(Unavailable):
            await link.check()
        yield Fanout(settings, pool, link)
    finally:
        await link.aclose()


async def prepare_queue(settings: Settings) -> None:
    """Make fan-out's exchange and queues in RabbitMQ where they are missing, so that who starts hears what is wrong.

    Raises:
        Rejected: ``queue_differs``, ``queue_forbidden``. Permanent.
        Unavailable: ``rabbitmq_unavailable``. Retry.
    """
    from tickwright.transports.rabbitmq import prepare

    if settings.amqp_url is not None:
        await prepare(settings.amqp_url.get_secret_value(), fanout_names(settings))


async def missing_queues(settings: Settings) -> list[str] | None:
    """Return which of fan-out's queues are not there, all others being as they should; ``None`` when none is there.

    Raises:
        Rejected: ``queue_differs``, ``queue_forbidden``. Permanent.
        Unavailable: ``rabbitmq_unavailable``. Retry.
    """
    from tickwright.transports.rabbitmq import examine

    if settings.amqp_url is None:
        return []
    names = fanout_names(settings)
    missing = await examine(settings.amqp_url.get_secret_value(), names)
    return None if len(missing) == len(names.queues()) else missing


async def check_redis(settings: Settings) -> None:
    """Look whether the Redis that is set may be relied on.

    Raises:
        Rejected: ``redis_may_evict``, ``redis_too_old``, ``redis_forbidden``, ``invalid_redis_url``. Permanent.
        Unavailable: ``redis_unavailable``. Retry.
    """
    from tickwright.transports.redis import RedisLink

    if settings.redis_url is None:
        return
    link = RedisLink(settings.redis_url.get_secret_value())
    try:
        await link.check()
    finally:
        await link.aclose()


def gates(environment: Mapping[str, str]) -> dict[str, bool]:
    """Return what ``ENABLE_<NAME>_POLLING`` says of each module, where it says something.

    Raises:
        Rejected: ``invalid_environment`` with every mistake. Permanent.
    """
    found: dict[str, bool] = {}
    problems = []
    for name, value in sorted(environment.items()):
        match = _GATE.fullmatch(name)
        if match is None:
            continue
        word = _WORDS.get(value.strip().lower())
        if word is None:
            problems.append(f"{name}: write true or false")
        else:
            found[match[1]] = word
    if problems:
        raise Rejected("invalid_environment", "\n".join(problems), problems=problems)
    return found
