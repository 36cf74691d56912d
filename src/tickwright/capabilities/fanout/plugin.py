"""The plugin of fan-out: a scheduler that publishes a task per entity and window, and its consumers."""

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from tickwright.domain.errors import Rejected, Unavailable
from tickwright.plugin import Context, Plugin, Registrations, SettingsPart
from tickwright.plugin.contract import CONFIG_FILE, PROGRAM
from tickwright.ports.broker import Brokers
from tickwright.ports.fanout import CarryingRunClaims, Marks
from tickwright.ports.transports import TaskTransport

if TYPE_CHECKING:
    from fastapi import APIRouter

    from tickwright.capabilities.fanout.service import FanoutService
    from tickwright.rest.gate import Gate
    from tickwright.store.pool import Pool

CONSUMER = "fanout-consumer"
_GATE = re.compile(r"ENABLE_([A-Z][A-Z0-9_]{0,49})_POLLING")
_FLAGS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}


class FanoutSettings(SettingsPart):
    """Settings of consumers.

    Attributes:
        fanout_unsigned: Tasks without a signature: ``refuse`` them, or ``run`` them while schedulers of a release that
            did not sign are still running.
        fanout_entity_concurrency: Runs of one entity, all its modules together, 1 to 100.
        fanout_slow_percent: Part of a consumer's slots that slow entities hold at most, 1 to 100; at least one slot.
    """

    fanout_unsigned: Annotated[str, Field(pattern="^(refuse|run)$")] = "refuse"
    fanout_entity_concurrency: Annotated[int, Field(ge=1, le=100)] = 4
    fanout_slow_percent: Annotated[int, Field(ge=1, le=100)] = 25


class FanoutPlugin(Plugin):
    """Tasks for many entities, one per entity, module and window."""

    name = "fanout"
    roles = function_roles = (CONSUMER,)
    settings = FanoutSettings
    commands: ClassVar = {
        "entities": "tickwright.cli.commands.entities",
        "modules": "tickwright.cli.commands.modules",
    }
    broker_dead_letters: ClassVar = {"fanout": ("task_type", "entity_code")}
    lease_purposes: ClassVar = {"fanout-upkeep": "deletes old windows, claims and cursors of fan-out"}
    parts: ClassVar = {
        "metrics": "tickwright.capabilities.fanout.metrics:METRICS",
        "overview": "tickwright.capabilities.fanout.overview:FanoutPart",
        "alert_rules": "tickwright.capabilities.fanout.alerts:RULES",
        "holdings": "tickwright.capabilities.fanout.consumer.run_claims:HOLDINGS",
        "reclaim": "tickwright.capabilities.fanout.consumer.run_claims:LedgerRunClaims.reclaim",
        "examine": "tickwright.capabilities.fanout.overview:examine",
    }
    config_checks: ClassVar = {"modules": "tickwright.capabilities.fanout.entities.modules:read_module"}

    def is_idle(self, role: str, registrations: Registrations) -> bool:
        """Return whether a consumer has no module to run."""
        from tickwright.capabilities.fanout.handlers import ModuleRegistry
        from tickwright.engine.remote.declared import remotes_of

        has_any = registrations.of(ModuleRegistry).all() or remotes_of(registrations, "module")
        return role == CONSUMER and not has_any

    def provide(self, context: Context) -> None:
        """Offer the service for callers."""
        ports = context.ports

        def service() -> "FanoutService":
            from tickwright.capabilities.fanout.service import FanoutService

            return FanoutService(context.pool, ports.get(TaskTransport).dead_letters())

        ports.offer("tickwright.capabilities.fanout.service:FanoutService", service)

    async def declare(self, context: Context) -> None:
        """Register the program's modules unless an operator has set them up, and set those of the TOML file."""
        registrations = context.registrations
        if registrations.have("ModuleRegistry") or registrations.have("RemoteRegistry") or context.tables("modules"):
            await declare_modules(context.pool, context.registrations, context.tables("modules"))

    async def start(self, context: Context) -> None:
        """Add the scheduler and its retention, and the consumer."""
        if "scheduler" in context.roles:
            self._add_scheduler(context)
        if CONSUMER in context.roles:
            await self._add_consumer(context)

    def _add_scheduler(self, context: Context) -> None:
        from tickwright.capabilities.fanout.retention import FanoutRetention
        from tickwright.capabilities.fanout.scheduler.lists import read_parties
        from tickwright.capabilities.fanout.scheduler.marks import FallbackMarks, LedgerMarks
        from tickwright.capabilities.fanout.scheduler.publisher import Publisher
        from tickwright.capabilities.fanout.scheduler.scheduler import CHANNEL, FanoutScheduler
        from tickwright.engine.leases import LeasedRounds, Leases
        from tickwright.engine.retention import EVERY_S, TERMS
        from tickwright.engine.wakeup.connection import DirectConnection
        from tickwright.engine.wakeup.listener import WakeupListener
        from tickwright.ports.ids import random_token

        pool, ports = context.pool, context.ports
        tasks, enabled = ports.get(TaskTransport), read_gates(os.environ)
        context.facts["gates"] = enabled
        publisher = Publisher(
            FallbackMarks(ports.find(Marks), LedgerMarks(pool)),
            ports.get(Brokers)[tasks.destination.partition(":")[0]],
            tasks.destination,
            declare=tasks.prepare,
            parties=partial(read_parties, pool),
            token=random_token(12),
        )
        wakeups = WakeupListener(context.ports.get(DirectConnection), CHANNEL)
        scheduler = FanoutScheduler(pool, publisher, gates=enabled.get, wakeups=wakeups)
        context.run(scheduler)
        context.count(scheduler.samples)
        leases, work = ports.get(Leases), FanoutRetention().round
        context.run_leased(LeasedRounds("fanout-upkeep", leases, work, terms=TERMS, rest_max_s=EVERY_S))

    async def _add_consumer(self, context: Context) -> None:
        from tickwright.capabilities.fanout.consumer.consumer import ConsumerReporter, FanoutConsumer, called
        from tickwright.capabilities.fanout.consumer.remote_tasks import RemoteTasks
        from tickwright.capabilities.fanout.consumer.run_claims import (
            ConsumerRunClaims,
            LedgerRunClaims,
            TwoStoreRunClaims,
        )
        from tickwright.capabilities.fanout.consumer.task_run import SlowShare, TaskRunner
        from tickwright.capabilities.fanout.handlers import ModuleRegistry
        from tickwright.engine.remote.calls import RemoteCalls
        from tickwright.engine.session import WorkerSession
        from tickwright.partners.contract import PartnerContract

        pool, ports, settings = context.pool, context.ports, context.settings
        mine, slots, session = settings.part(FanoutSettings), settings.concurrency, ports.get(WorkerSession)
        tasks, modules = ports.get(TaskTransport), context.registrations.of(ModuleRegistry)
        with suppress(Unavailable):  # it is prepared again on use
            await tasks.prepare()
        contract, queue = ports.get(PartnerContract), tasks.queue(slots)
        claims = TwoStoreRunClaims(ports.find(CarryingRunClaims), LedgerRunClaims(pool, session))
        consumer = FanoutConsumer(
            pool,
            queue,
            ConsumerRunClaims(claims, session),
            session,
            runner=TaskRunner(contract, slots=slots, secrets=settings.secrets.bound_to),
            slow=SlowShare(slots, mine.fanout_slow_percent),
            modules=modules,
            at_once=mine.fanout_entity_concurrency,
            remote=RemoteTasks(ports.get(RemoteCalls)),
            runs_unsigned=mine.fanout_unsigned == "run",
        )
        context.facts["modules"] = lambda: list(consumer.served())
        context.run(queue, consumer, ConsumerReporter(consumer.counts, queue, context.facts))
        context.count(consumer.samples, queue.samples)
        context.add_counters(fanout=lambda: called(consumer.counts))

    def routes(self, context: Context, gate: "Gate") -> Sequence["APIRouter"]:
        """Return the routes of entities and modules."""
        from tickwright.capabilities.fanout.rest import fanout_routes
        from tickwright.capabilities.fanout.service import FanoutService

        return (fanout_routes(context.ports.get(FanoutService), gate),)


async def declare_modules(pool: "Pool", registrations: Registrations, tables: Mapping[str, Any]) -> None:
    """Register modules unless an operator has set them up, and set those of ``tables``.

    Settings that neither gives stay as they are. An equal declaration writes nothing, not even an audit row.

    Raises:
        Rejected: ``invalid_module``. Permanent.
    """
    from tickwright.capabilities.fanout.entities.modules import Modules
    from tickwright.capabilities.fanout.handlers import ModuleRegistry
    from tickwright.engine.remote.declared import remotes_of

    modules = Modules(pool)
    for declared in registrations.of(ModuleRegistry).all():
        await modules.set(declared.name, declared.settings, caller=PROGRAM, set_by="app")
    for remote in remotes_of(registrations, "module"):
        await modules.set(remote.called, remote.settings, caller=PROGRAM, set_by="app")
    for name, table in tables.items():
        await modules.set(name, table, caller=CONFIG_FILE)


def read_gates(environment: Mapping[str, str]) -> dict[str, bool]:
    """Return the value of ``ENABLE_<NAME>_POLLING`` for each module that has one.

    Raises:
        Rejected: ``invalid_environment`` with every mistake. Permanent.
    """
    found: dict[str, bool] = {}
    problems = []
    for name, value in sorted(environment.items()):
        match = _GATE.fullmatch(name)
        if match is None:
            continue
        flag = _FLAGS.get(value.strip().lower())
        if flag is None:
            problems.append(f"{name}: write true or false")
        else:
            found[match[1]] = flag
    if problems:
        raise Rejected("invalid_environment", "\n".join(problems), problems=problems)
    return found


PLUGIN = FanoutPlugin()
