"""The plugin of batches and campaigns: a producer, consumers and a checker of executions."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from tickwright.plugin import Context, Plugin, Registrations, SettingsPart
from tickwright.plugin.contract import CONFIG_FILE, PROGRAM
from tickwright.plugin.settings import Duration
from tickwright.ports.batches import AudienceFiles
from tickwright.ports.broker import TargetCheck
from tickwright.ports.objects import LazyObjectStore, WorkFolder

if TYPE_CHECKING:
    from fastapi import APIRouter

    from tickwright.capabilities.batches.audience.audience import Audiences
    from tickwright.capabilities.batches.definitions.batches import Batches
    from tickwright.capabilities.batches.service import CampaignsService
    from tickwright.rest.gate import Gate

CONSUMER = "campaign-consumer"


class BatchesSettings(SettingsPart):
    """Settings of consumers and of the producer's lease.

    Attributes:
        campaign_concurrency: Chunks that one consumer runs at once, 1 to 64; plus one, of a batch that has none running
            there.
        lock_at_most_for: Length of the producer's lease, after which another process takes over from a crashed one. 2 s
            to 1 h.
        lock_at_least_for: Time after a take in which no other process takes the lease, even when it is released.
    """

    campaign_concurrency: Annotated[int, Field(ge=1, le=64)] = 2
    lock_at_most_for: Annotated[Duration, Field(ge=timedelta(seconds=2), le=timedelta(hours=1))] = timedelta(seconds=20)
    lock_at_least_for: Annotated[Duration, Field(ge=timedelta(), le=timedelta(hours=1))] = timedelta()

    def contradictions(self) -> list[str]:
        """Return the contradiction between the two bounds of the lease, if any."""
        if self.lock_at_least_for > self.lock_at_most_for:
            return ["TICKWRIGHT_LOCK_AT_LEAST_FOR: at most TICKWRIGHT_LOCK_AT_MOST_FOR"]
        return []


class BatchesPlugin(Plugin):
    """Work over large audiences, in chunks."""

    name = "batches"
    roles = function_roles = (CONSUMER,)
    settings = BatchesSettings
    commands: ClassVar = {
        "campaigns": "tickwright.cli.commands.batches.campaigns",
        "batches": "tickwright.cli.commands.batches.batches",
        "executions": "tickwright.cli.commands.batches.executions",
    }
    config_checks: ClassVar = {"batches": "tickwright.capabilities.batches.definitions.schema:read_remote_batch"}
    long_routes = ("/v1/campaigns/{name}/dry-run",)
    lease_purposes: ClassVar = {
        "campaign-checker": "releases actions of finished executions",
        "campaign-producer": "makes executions and jobs of due occurrences",
        "campaign-upkeep": "deletes old executions",
    }
    parts: ClassVar = {
        "metrics": "tickwright.capabilities.batches.metrics:METRICS",
        "overview": "tickwright.capabilities.batches.overview:BatchesPart",
        "alert_rules": "tickwright.capabilities.batches.alerts:RULES",
        "holdings": "tickwright.capabilities.batches.executions.chunks_store:HOLDINGS",
        "reclaim": "tickwright.capabilities.batches.executions.chunks_store:ChunksStore.reclaim",
        "examine": "tickwright.capabilities.batches.overview:examine",
    }

    def provide(self, context: Context) -> None:
        """Offer the service for callers, and the audiences that this process can read."""
        ports = context.ports

        def audiences() -> "Audiences":
            from tickwright.capabilities.batches.audience.audience import Audiences
            from tickwright.sources.named import Sources

            return Audiences(ports.get(Sources), ports.get(AudienceFiles))

        def service() -> "CampaignsService":
            from tickwright.capabilities.batches.audience.audience import Audiences
            from tickwright.capabilities.batches.service import CampaignsService

            return CampaignsService(context.pool, ports.get(Audiences), ports.get(TargetCheck))

        ports.offer("tickwright.capabilities.batches.audience.audience:Audiences", audiences)
        ports.offer("tickwright.capabilities.batches.service:CampaignsService", service)

    async def declare(self, context: Context) -> None:
        """Register the program's batches unless an operator has set them up, and set those of the TOML file."""
        registrations, tables = context.registrations, context.tables("batches")
        if not (registrations.have("BatchRegistry") or registrations.have("RemoteRegistry") or tables):
            return
        from tickwright.capabilities.batches.service import CampaignsService

        service = context.ports.get(CampaignsService)
        await declare_batches(service.programs, registrations)
        for name, table in tables.items():
            await service.put_remote(name, table, caller=CONFIG_FILE, activate=True)

    async def start(self, context: Context) -> None:
        """Add the loops of the scheduler, and the consumer."""
        if "scheduler" in context.roles:
            self._add_loops(context)
        if CONSUMER in context.roles:
            await self._add_consumer(context)

    def _add_loops(self, context: Context) -> None:
        """Add the producer, the checker and retention.

        The settings of the lease apply to the producer only. Two checkers at once would be harmless; a checker that is
        missing for hours would not be.
        """
        from tickwright.capabilities.batches.executions.checker import Checker, scheduler_source
        from tickwright.capabilities.batches.executions.consumer import CHANNEL
        from tickwright.capabilities.batches.executions.producer import BatchSource
        from tickwright.capabilities.batches.retention import BatchRetention
        from tickwright.domain.leases import LeaseTerms
        from tickwright.engine.leases import TERMS, LeasedRounds, Leases
        from tickwright.engine.occurrences import OccurrenceProducer
        from tickwright.engine.retention import EVERY_S
        from tickwright.engine.retention import TERMS as UPKEEP
        from tickwright.engine.wakeup.connection import DirectConnection
        from tickwright.engine.wakeup.listener import WakeupListener

        mine, leases = context.settings.part(BatchesSettings), context.ports.get(Leases)
        direct = context.ports.get(DirectConnection)
        wakeups = WakeupListener(direct, CHANNEL)
        ttl = mine.lock_at_most_for
        locked = LeaseTerms(ttl, min(timedelta(seconds=3), ttl / 4), mine.lock_at_least_for)
        batches, checker, woken = BatchSource(), Checker(), asyncio.Event()
        context.produce(batches)
        for source in context.occurrences:
            WakeupListener(direct, source.wakeup_channel).subscribe(woken)
        producer = OccurrenceProducer(context.occurrences)
        context.run_leased(
            LeasedRounds("campaign-producer", leases, producer.round, terms=locked, wakeup=woken),
            LeasedRounds("campaign-checker", leases, checker.round, terms=TERMS, wakeup=wakeups.subscribe()),
            LeasedRounds("campaign-upkeep", leases, BatchRetention().round, terms=UPKEEP, rest_max_s=EVERY_S),
        )
        context.count(scheduler_source(batches, checker))

    async def _add_consumer(self, context: Context) -> None:
        """Add the consumer of executions.

        Raises:
            Rejected: ``invalid_object_store``, ``object_store_refused``. Permanent.
            Unavailable: ``object_store_unavailable``, ``no_space``. Retry.
        """
        from tickwright.capabilities.batches.audience.audience import Audiences
        from tickwright.capabilities.batches.executions.chunks_store import ChunksStore
        from tickwright.capabilities.batches.executions.consumer import CHANNEL, BatchConsumer, consumer_source
        from tickwright.capabilities.batches.executions.remote_work import RemoteBatches
        from tickwright.capabilities.batches.executions.work import BatchRegistry, ProcessWorks
        from tickwright.engine.remote.calls import RemoteCalls
        from tickwright.engine.session import WorkerSession
        from tickwright.engine.wakeup.connection import DirectConnection
        from tickwright.engine.wakeup.listener import LedWakeup
        from tickwright.engine.wakeup.turns import group_of
        from tickwright.sources.named import Sources

        ports, at_once = context.ports, context.settings.part(BatchesSettings).campaign_concurrency
        await ports.get(LazyObjectStore).opened()
        await ports.get(WorkFolder).opened()
        sources, audiences = ports.get(Sources).names(), ports.get(Audiences)
        remote = RemoteBatches(ports.get(RemoteCalls), audiences, {*(f"source:{name}" for name in sources), "objects"})
        works = ProcessWorks(sources, audiences, context.registrations.of(BatchRegistry), remote)
        context.facts["batches"] = lambda: list(works.served())
        session = ports.get(WorkerSession)
        session.on_beat(remote.read)
        (await remote.read(context.pool))()
        group = group_of("executions", sorted(works.served()))
        wakeups = LedWakeup(ports.get(DirectConnection), CHANNEL, session, group)
        consumer = BatchConsumer(ChunksStore(context.pool), session, wakeups, works, at_once=at_once)
        context.run(consumer)
        context.count(consumer_source(consumer))

    def routes(self, context: Context, gate: "Gate") -> Sequence["APIRouter"]:
        """Return the routes of campaigns, batches and executions."""
        from tickwright.capabilities.batches.rest import campaign_routes
        from tickwright.capabilities.batches.service import CampaignsService

        return (campaign_routes(context.ports.get(CampaignsService), gate),)


async def declare_batches(batches: "Batches", registrations: Registrations) -> None:
    """Register batches unless an operator has set them up; one with a schedule runs from then on.

    Raises:
        Rejected: ``name_taken``: a campaign has that name. Permanent.
    """
    from tickwright.capabilities.batches.definitions.schema import read_program
    from tickwright.capabilities.batches.executions.work import BatchRegistry
    from tickwright.engine.remote.declared import remotes_of

    for declared in registrations.of(BatchRegistry).all():
        await batches.register(declared.name, declared.draft, caller=PROGRAM, activate=True)
    for remote in remotes_of(registrations, "batch"):
        draft = read_program(remote.settings, lambda _: None)
        await batches.register(remote.called, draft, caller=PROGRAM, activate=True)


PLUGIN = BatchesPlugin()
