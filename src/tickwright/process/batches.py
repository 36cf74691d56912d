"""Batches and campaigns in one process: who produces their executions, who works on them, and what a process can do."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

from tickwright.capabilities.batches.audience.audience import Audiences
from tickwright.capabilities.batches.definitions.batches import Batches
from tickwright.capabilities.batches.executions.checker import Checker, scheduler_source
from tickwright.capabilities.batches.executions.chunks_store import ChunksStore
from tickwright.capabilities.batches.executions.consumer import CHANNEL, BatchConsumer, consumer_source
from tickwright.capabilities.batches.executions.producer import Producer
from tickwright.capabilities.batches.executions.work import BatchRegistry, CampaignWork, ProgramWork
from tickwright.capabilities.batches.retention import Upkeep
from tickwright.domain.errors import Rejected
from tickwright.domain.leases import LeaseTerms
from tickwright.engine.leased_loop import TERMS as ROUNDS
from tickwright.engine.leased_loop import LeasedRounds
from tickwright.engine.leases import LeasedService, Leases
from tickwright.engine.retention import TERMS as UPKEEP
from tickwright.engine.session import WorkerSession
from tickwright.engine.wakeup import WakeupListener
from tickwright.observe.metrics import Source
from tickwright.ports.batches import BatchWork, Run
from tickwright.ports.caller import Caller, Role
from tickwright.ports.service import Service
from tickwright.process.campaign_resources import LazyFiles
from tickwright.process.objects import open_objects
from tickwright.process.settings import Settings
from tickwright.process.work_folder import open_work_folder
from tickwright.sources.named import Sources
from tickwright.store.pool import Pool

_PROGRAM = Caller("python", Role.ADMIN)


class ProcessWorks:
    """What this process can do: campaigns whose audience it can read, and the batches of its program."""

    def __init__(self, sources: Sources, audiences: Audiences, programs: BatchRegistry) -> None:
        self._audiences, self._programs = audiences, programs
        self._campaigns = CampaignWork(audiences)
        own = [f"program:{batch.name}" for batch in programs.all()]
        self._served = [*(f"source:{name}" for name in sources.names()), "objects", *own]

    def served(self) -> Sequence[str]:
        """Return what it has."""
        return self._served

    def of(self, run: Run) -> BatchWork:
        """Return whoever knows the work of this execution.

        Raises:
            Rejected: ``unknown_batch``. Permanent for this process.
        """
        if run.kind == "campaign":
            return self._campaigns
        declared = self._programs.get(run.name)
        if declared is None:
            raise Rejected("unknown_batch", f"this program has no @app.batch({run.name!r})")
        return ProgramWork(declared, self._audiences)


@dataclass(frozen=True, slots=True)
class Executing:
    """What the role that works on executions needs in one process."""

    settings: Settings
    pool: Pool
    works: ProcessWorks

    def consumer(self, session: WorkerSession, direct_url: str | None) -> tuple[list[Service], list[Source]]:
        """Return its services in the order of their start, and what their metrics are read from."""
        wakeups = WakeupListener("batch-hearing", direct_url, CHANNEL)
        at_once = self.settings.campaign_concurrency
        session.facts["batches"] = list(self.works.served())
        consumer = BatchConsumer(ChunksStore(self.pool), session, wakeups, self.works, at_once=at_once)
        return [wakeups, consumer], [consumer_source(consumer)]


@asynccontextmanager
async def open_executing(
    settings: Settings, pool: Pool, sources: Sources, programs: BatchRegistry
) -> AsyncIterator[Executing]:
    """Open what executions need.

    Raises:
        Rejected: ``invalid_object_store``, ``object_store_refused``. Permanent.
        Unavailable: ``object_store_unavailable``, ``no_space``. Retry.
    """
    async with open_work_folder(settings) as folder, open_objects(settings) as objects:
        files = LazyFiles(objects, lambda: folder)
        try:
            yield Executing(settings, pool, ProcessWorks(sources, Audiences(sources, files), programs))
        finally:
            await files.aclose()


def batch_loops(
    settings: Settings, leases: Leases, direct_url: str | None
) -> tuple[list[Service], list[LeasedService], list[Source]]:
    """Return what the scheduler role does: it hears, produces executions, and lets their actions leave.

    The settings of the lease are the producer's alone: two checkers at once would do no harm, and none for hours would.
    """
    wakeups = WakeupListener("batch-news", direct_url, CHANNEL)
    ttl = settings.lock_at_most_for
    locked = LeaseTerms(ttl, min(timedelta(seconds=3), ttl / 4), settings.lock_at_least_for)
    rest_max_s = min(5.0, ttl.total_seconds() / 4)
    producer, checker = Producer(), Checker()
    rounds: list[LeasedService] = [
        LeasedRounds(
            "campaign-producer", leases, producer.round, terms=locked, wakeup=wakeups.subscribe(), rest_max_s=rest_max_s
        ),
        LeasedRounds("campaign-checker", leases, checker.round, terms=ROUNDS, wakeup=wakeups.subscribe()),
        LeasedRounds("campaign-upkeep", leases, Upkeep().round, terms=UPKEEP, rest_max_s=30),
    ]
    return [wakeups], rounds, [scheduler_source(producer, checker)]


async def register_batches(programs: BatchRegistry, batches: Batches) -> None:
    """Register what the program brings where nobody has set it up by hand; what is timed runs by itself from then on.

    Raises:
        Rejected: ``name_taken``: a campaign has that name. Permanent.
    """
    for declared in programs.all():
        await batches.register(declared.name, declared.draft, caller=_PROGRAM, activate=True)
