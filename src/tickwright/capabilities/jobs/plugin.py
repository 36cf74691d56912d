"""The plugin of one-shot jobs."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from tickwright.capabilities.jobs.worker.pools import WorkerScope, parse_needs, parse_queues, parse_types, read_scope
from tickwright.plugin import Context, Plugin, SettingsPart
from tickwright.plugin.contract import CONFIG_FILE, FastRoute
from tickwright.plugin.findings import Finding, role_finding
from tickwright.plugin.settings import Duration, text
from tickwright.ports.broker import Brokers, TargetCheck
from tickwright.ports.caller import Caller

if TYPE_CHECKING:
    from fastapi import APIRouter

    from tickwright.capabilities.jobs.admin.service import JobService
    from tickwright.capabilities.jobs.admin.waits import JobWaits, WorkflowWaits
    from tickwright.capabilities.jobs.enqueue import Enqueuer
    from tickwright.capabilities.jobs.remote.workers import RemoteWorkers
    from tickwright.capabilities.jobs.results import JobResults, WorkflowResults
    from tickwright.capabilities.jobs.schedules.service import Schedules
    from tickwright.capabilities.jobs.workflows.reader import WorkflowReader
    from tickwright.capabilities.jobs.workflows.service import Workflows
    from tickwright.engine.remote.calls import RemoteCalls
    from tickwright.plugin.contract import Producer
    from tickwright.ports.session import Reclaim
    from tickwright.rest.gate import Gate

WORKER = "worker"


class JobSettings(SettingsPart):
    """Settings of workers and of the retention of jobs.

    Attributes:
        stuck_after: A job that was set to ``processing`` by hand and not touched for so long is released.
        threads: Synchronous handlers that one worker runs at once, 1 to 1,000.
        queues: Slots of one worker by queue, such as ``critical:50,default:200,*:30``; ``*`` are slots for every queue,
            and without them only the named queues are served. They replace ``concurrency``.
        types: The only types that a worker runs, such as ``invoice.remind,report.*``.
        needs: What the types of a worker may need, such as ``gpu``; it runs no type that needs nothing.
    """

    stuck_after: Annotated[Duration, Field(ge=timedelta(seconds=10), le=timedelta(days=7))] = timedelta(minutes=5)
    threads: Annotated[int, Field(ge=1, le=1000)] = 32
    queues: Annotated[str, text(parse_queues, keep=True)] | None = None
    types: Annotated[str, text(parse_types, keep=True)] | None = None
    needs: Annotated[str, text(parse_needs, keep=True)] | None = None

    @property
    def scope(self) -> WorkerScope:
        """What a worker with these settings runs."""
        return read_scope(self.queues or "", self.types or "", self.needs or "")


class JobsPlugin(Plugin):
    """Jobs, their task types and their dead letters."""

    name = "jobs"
    roles = function_roles = (WORKER,)
    settings = JobSettings
    commands: ClassVar = {
        "jobs": "tickwright.cli.commands.jobs",
        "task-types": "tickwright.cli.commands.task_types",
        "queues": "tickwright.cli.commands.task_types:queues",
        "dead-letters": "tickwright.cli.commands.dead_letters",
        "schedules": "tickwright.cli.commands.schedules",
        "payload-keys": "tickwright.cli.commands.payload_keys",
        "workflows": "tickwright.cli.commands.workflows",
    }
    lease_purposes: ClassVar = {"workflows": "cancels workflows beyond their deadline, settles rows that were locked"}
    parts: ClassVar = {
        "metrics": "tickwright.capabilities.jobs.metrics:METRICS",
        "overview": "tickwright.capabilities.jobs.overview:JobsPart",
        "alert_rules": "tickwright.capabilities.jobs.alerts:RULES",
        "holdings": "tickwright.capabilities.jobs.worker.claims:HOLDINGS",
    }
    endless_routes = ("/v1/jobs/{job_id}/events",)
    config_checks: ClassVar = {
        "task_types": "tickwright.capabilities.jobs.task_types:read_task_type",
        "schedules": "tickwright.capabilities.jobs.schedules.definition:read_schedule",
    }

    def provide(self, context: Context) -> None:
        """Offer the job service, the enqueuer, the waiting for results, and the remote calls of consumers."""
        ports = context.ports

        def enqueuer() -> "Enqueuer":
            from tickwright.capabilities.jobs.enqueue import Enqueuer

            return Enqueuer(context.pool, context.settings.payload_keys)

        def service() -> "JobService":
            from tickwright.capabilities.jobs.admin.service import JobService
            from tickwright.capabilities.jobs.enqueue import Enqueuer

            return JobService(context.pool, enqueuer=ports.get(Enqueuer), allow_target=ports.get(TargetCheck))

        def results() -> "JobResults":
            from tickwright.capabilities.jobs.results import JobResults
            from tickwright.engine.wakeup.on_demand import DirectAccess

            access = ports.find(DirectAccess) or DirectAccess(None)
            made = JobResults(context.pool, access, context.settings.payload_keys)
            ports.on_close(made.aclose)
            return made

        def waits() -> "JobWaits":
            from tickwright.capabilities.jobs.admin.waits import JobWaits
            from tickwright.capabilities.jobs.results import JobResults

            return JobWaits(ports.get(JobResults))

        def schedules() -> "Schedules":
            from tickwright.capabilities.jobs.enqueue import Enqueuer
            from tickwright.capabilities.jobs.schedules.service import Schedules

            return Schedules(context.pool, ports.get(Enqueuer).types, context.settings.payload_keys)

        def remote() -> "RemoteWorkers":
            from tickwright.capabilities.jobs.remote.workers import RemoteWorkers
            from tickwright.engine.wakeup.connection import DirectConnection

            settings, direct = context.settings, ports.find(DirectConnection)
            return RemoteWorkers(context.pool, lease=settings.lease, keys=settings.payload_keys, direct=direct)

        def calls() -> "RemoteCalls":
            from tickwright.engine.remote.calls import RemoteCalls
            from tickwright.engine.session import WorkerSession
            from tickwright.engine.wakeup.connection import DirectConnection

            made = RemoteCalls(context.pool, ports.get(WorkerSession), ports.get(DirectConnection))
            context.run(made)
            context.count(made.samples)
            return made

        ports.offer("tickwright.engine.remote.calls:RemoteCalls", calls)
        ports.offer("tickwright.capabilities.jobs.remote.workers:RemoteWorkers", remote)
        ports.offer("tickwright.capabilities.jobs.enqueue:Enqueuer", enqueuer)
        ports.offer("tickwright.capabilities.jobs.results:JobResults", results)
        ports.offer("tickwright.capabilities.jobs.admin.waits:JobWaits", waits)
        ports.offer("tickwright.capabilities.jobs.schedules.service:Schedules", schedules)
        ports.offer("tickwright.capabilities.jobs.admin.service:JobService", service)
        self._provide_workflows(context)

    @staticmethod
    def _provide_workflows(context: Context) -> None:
        ports = context.ports

        def workflow_results() -> "WorkflowResults":
            from tickwright.capabilities.jobs.results import WorkflowResults
            from tickwright.engine.wakeup.on_demand import DirectAccess

            made = WorkflowResults(context.pool, ports.find(DirectAccess) or DirectAccess(None))
            ports.on_close(made.aclose)
            return made

        def workflows() -> "Workflows":
            from tickwright.capabilities.jobs.enqueue import Enqueuer
            from tickwright.capabilities.jobs.workflows.service import Workflows

            return Workflows(context.pool, ports.get(Enqueuer).types, lambda: context.settings.payload_keys)

        def workflow_reader() -> "WorkflowReader":
            from tickwright.capabilities.jobs.workflows.reader import WorkflowReader

            return WorkflowReader(context.pool)

        def workflow_waits() -> "WorkflowWaits":
            from tickwright.capabilities.jobs.admin.waits import WorkflowWaits
            from tickwright.capabilities.jobs.results import WorkflowResults

            return WorkflowWaits(ports.get(WorkflowResults))

        ports.offer("tickwright.capabilities.jobs.results:WorkflowResults", workflow_results)
        ports.offer("tickwright.capabilities.jobs.workflows.service:Workflows", workflows)
        ports.offer("tickwright.capabilities.jobs.workflows.reader:WorkflowReader", workflow_reader)
        ports.offer("tickwright.capabilities.jobs.admin.waits:WorkflowWaits", workflow_waits)

    async def declare(self, context: Context) -> None:
        """Register the program's task types and schedules where no operator has set them up, and store the file's."""
        await self._declare_types(context)
        if context.registrations.have("ScheduleRegistry") or context.tables("schedules"):
            from tickwright.capabilities.jobs.schedules.declared import store_declared, store_file
            from tickwright.capabilities.jobs.schedules.service import Schedules

            schedules = context.ports.get(Schedules)
            await store_declared(schedules, context.registrations)
            await store_file(schedules, context.tables("schedules"), context.settings.config)

    async def _declare_types(self, context: Context) -> None:
        registrations = context.registrations
        if not (
            registrations.have("HandlerRegistry")
            or registrations.have("RemoteRegistry")
            or context.tables("task_types")
        ):
            return
        from structlog import get_logger

        from tickwright.capabilities.jobs.handlers import HandlerRegistry
        from tickwright.capabilities.jobs.task_types import (
            as_declared,
            load_types,
            read_declared,
            register_handler,
            request_of,
            seal_schedules,
        )
        from tickwright.engine.remote.declared import remotes_of

        declared = [handler.defaults for handler in registrations.of(HandlerRegistry).all()]
        declared += [remote.settings["type"] for remote in remotes_of(registrations, "job")]
        async with context.pool.acquire() as connection:
            for kind in declared:
                async with connection.transaction():
                    await register_handler(connection, kind)
                    if kind.encrypted:
                        await seal_schedules(connection, kind.name, context.settings.payload_keys)
            present = {kind.name: kind for kind in await load_types(connection)}
        log = get_logger("tickwright.jobs")
        actor = Caller(f"config:{context.settings.config}", CONFIG_FILE.role)
        for kind in read_declared(context.tables("task_types")):
            from tickwright.capabilities.jobs.admin.service import JobService

            if as_declared(present.get(kind.name)) != as_declared(kind, present.get(kind.name)):
                stored = await context.ports.get(JobService).types.put(kind.name, request_of(kind), caller=actor)
                log.info("task_type.set", name=kind.name, file=str(context.settings.config), created=stored.created)

    def producers(self, context: Context) -> "Sequence[Producer]":
        """Return the producer of periodic jobs."""
        from tickwright.capabilities.jobs.schedules.producer import produce_due

        return (partial(produce_due, context.pool),)

    def reclaim(self, context: Context) -> Sequence["Reclaim"]:
        """Release the jobs of lost sessions in processes without a worker; a worker reclaims by itself."""
        from tickwright.capabilities.jobs.worker.claims import ClaimStore

        return () if WORKER in context.roles else (ClaimStore(context.pool).reclaim_for_others,)

    async def start(self, context: Context) -> None:
        """Add the services of the process's roles."""
        self._count_requests(context)
        if "scheduler" in context.roles:
            self._start_scheduler(context)
        if "api" in context.roles and context.callers is not None:
            self._start_api(context, context.callers)
        if WORKER in context.roles:
            self._start_worker(context)

    @staticmethod
    def _count_requests(context: Context) -> None:
        """Count what the API and the program's functions schedule; a process of other roles schedules nothing."""
        scheduling = [context] if context.roles & {WORKER} else []
        if "api" in context.roles and context.callers is not None:
            scheduling.append(context.callers)
        if scheduling:
            from tickwright.capabilities.jobs.enqueue import Enqueuer
            from tickwright.capabilities.jobs.metrics import enqueue_source

            context.count(enqueue_source([one.ports.get(Enqueuer) for one in scheduling]))

    @staticmethod
    def _start_scheduler(context: Context) -> None:
        from tickwright.capabilities.jobs.metrics import schedule_source
        from tickwright.capabilities.jobs.retention import JobRetention
        from tickwright.capabilities.jobs.schedules.producer import ScheduleSource
        from tickwright.capabilities.jobs.workflows.sweeping import EVERY_S, WorkflowSweep
        from tickwright.engine.leases import TERMS, LeasedRounds, Leases

        context.run_leased(
            LeasedRounds("workflows", context.ports.get(Leases), WorkflowSweep().round, terms=TERMS, rest_max_s=EVERY_S)
        )
        context.retain(JobRetention(stuck_after=context.settings.part(JobSettings).stuck_after))
        schedules = ScheduleSource()
        context.produce(schedules)
        context.count(schedule_source(schedules))

    @staticmethod
    def _start_api(context: Context, callers: Context) -> None:
        from tickwright.capabilities.jobs.admin.waits import JobWaits, WorkflowWaits
        from tickwright.capabilities.jobs.metrics import remote_source
        from tickwright.capabilities.jobs.remote.workers import RemoteWorkers

        # on the pool of the loops, and with the process's listening connection
        remote = callers.ports.put(RemoteWorkers, context.ports.get(RemoteWorkers))
        context.run(callers.ports.get(JobWaits), callers.ports.get(WorkflowWaits), remote.claims)
        context.count(remote_source(remote.claims))

    @staticmethod
    def _start_worker(context: Context) -> None:
        from tickwright.capabilities.jobs.handlers import HandlerRegistry
        from tickwright.capabilities.jobs.metrics import WorkerCounters, worker_source
        from tickwright.capabilities.jobs.worker.worker import JobWorker, WorkerLimits
        from tickwright.engine.session import WorkerSession
        from tickwright.engine.wakeup.connection import DirectConnection

        mine = context.settings.part(JobSettings)
        limits = WorkerLimits(context.settings.concurrency, mine.threads)
        handlers, brokers = context.registrations.of(HandlerRegistry), context.ports.get(Brokers)
        session = context.ports.get(WorkerSession)
        direct = context.ports.get(DirectConnection)
        keys = context.settings.payload_keys
        worker = JobWorker(
            context.pool, session, handlers, brokers, direct=direct, limits=limits, scope=mine.scope, keys=keys
        )
        context.facts["payload_keys"] = list(keys.names)
        context.facts["payload_keys_missing"] = worker.encryption.missing
        context.facts["handlers"] = handlers.names
        context.facts["brokers"] = sorted(brokers)
        context.facts["scope"] = worker.scope.facts()
        context.facts["queues_full"] = worker.queues_full
        context.facts["threads_stuck"] = lambda: worker.runner.threads_stuck
        context.run(context.ports.put(JobWorker, worker))
        context.count(worker_source(worker))
        counters = WorkerCounters(worker)
        context.add_counters(jobs=counters.jobs, types=counters.types)

    async def examine(self, context: Context, alive: Mapping[str, int]) -> Sequence[Finding]:
        """Return whether a worker is alive."""
        return (role_finding(alive, WORKER, "no job runs"),)

    def routes(self, context: Context, gate: "Gate") -> Sequence["APIRouter"]:
        """Return the routes of jobs, task types, their figures, dead letters, schedules and payload keys."""
        from tickwright.capabilities.jobs.admin.figures import TypeFigureReader, figure_routes
        from tickwright.capabilities.jobs.admin.payload_keys import PayloadKeyAdmin, payload_key_routes
        from tickwright.capabilities.jobs.admin.service import JobService
        from tickwright.capabilities.jobs.admin.waits import JobWaits, WorkflowWaits
        from tickwright.capabilities.jobs.remote.rest import worker_routes
        from tickwright.capabilities.jobs.remote.workers import RemoteWorkers
        from tickwright.capabilities.jobs.rest import job_routes
        from tickwright.capabilities.jobs.schedules.rest import schedule_routes
        from tickwright.capabilities.jobs.schedules.service import Schedules
        from tickwright.capabilities.jobs.workflows.reader import WorkflowReader
        from tickwright.capabilities.jobs.workflows.rest import workflow_routes
        from tickwright.capabilities.jobs.workflows.service import Workflows

        ports = context.ports
        return (
            job_routes(context.ports.get(JobService), context.ports.get(JobWaits), gate),
            figure_routes(TypeFigureReader(context.pool), gate),
            schedule_routes(context.ports.get(Schedules), gate),
            workflow_routes(ports.get(Workflows), ports.get(WorkflowReader), ports.get(WorkflowWaits), gate),
            worker_routes(context.ports.get(RemoteWorkers), gate),
            payload_key_routes(PayloadKeyAdmin(context.pool, context.settings.payload_keys), gate),
        )

    def fast_routes(self, context: Context, gate: "Gate") -> Mapping[str, FastRoute]:
        """Return the route that schedules one job, and the calls of remote workers."""
        from tickwright.capabilities.jobs.admin.service import JobService
        from tickwright.capabilities.jobs.remote.rest import fast_worker_routes
        from tickwright.capabilities.jobs.remote.workers import RemoteWorkers
        from tickwright.capabilities.jobs.rest import POST_JOB_PATH, post_job

        post = partial(post_job, context.ports.get(JobService), gate)
        return {POST_JOB_PATH: post, **fast_worker_routes(context.ports.get(RemoteWorkers), gate)}


PLUGIN = JobsPlugin()
