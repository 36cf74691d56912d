"""The plugin of operations: keys, audit trail, workers, leases, the outbox, alerts and the overview."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from tickwright import __version__
from tickwright.observe.alerts import AlertRules
from tickwright.plugin import Context, Plugin, SettingsPart
from tickwright.plugin.findings import Finding, role_finding
from tickwright.ports.alerts import AlertEndpoints
from tickwright.ports.broker import Brokers, TargetCheck

if TYPE_CHECKING:
    from fastapi import APIRouter

    from tickwright.capabilities.operations.alerts.receivers import AlertReceivers
    from tickwright.capabilities.operations.listings import Operations
    from tickwright.capabilities.operations.snapshots import Snapshots
    from tickwright.rest.gate import Gate


class OperationsSettings(SettingsPart):
    """Settings of the overview; ``streams_per_key`` bounds the streams of one API key in a process, 1 to 200."""

    streams_per_key: Annotated[int, Field(ge=1, le=200)] = 40


class OperationsPlugin(Plugin):
    """Operations, and the roles that every capability uses."""

    name = "operations"
    roles = ("scheduler", "relay")
    settings = OperationsSettings
    commands: ClassVar = {
        "alerts": "tickwright.cli.commands.alerts",
        "workers": "tickwright.cli.commands.workers:workers",
        "leases": "tickwright.cli.commands.workers:leases",
        "outbox": "tickwright.cli.commands.outbox",
        "keys": "tickwright.cli.commands.access:keys",
        "sessions": "tickwright.cli.commands.access:sessions",
        "audit": "tickwright.cli.commands.access:audit",
        "roles": "tickwright.cli.commands.roles",
    }
    lease_purposes: ClassVar = {
        "alerting": "evaluates the alert rules, and notifies their receivers",
        "relay:outbox": "publishes the outbox",
        "upkeep": "creates history tables, deletes what is old, releases stuck jobs",
    }
    parts: ClassVar = {
        "metrics": "tickwright.capabilities.operations.overview:METRICS",
        "overview": "tickwright.capabilities.operations.overview:OperationsPart",
        "alert_rules": "tickwright.capabilities.operations.alerts.rules:RULES",
        "holdings": "tickwright.capabilities.operations.actions:HOLDINGS",
    }

    def provide(self, context: Context) -> None:
        """Offer the services for callers."""
        pool, ports = context.pool, context.ports

        def overview() -> "Snapshots":
            from tickwright.capabilities.operations.snapshots import Snapshots
            from tickwright.plugin.overview import OverviewParts

            limit = context.settings.part(OperationsSettings).streams_per_key
            snapshots = Snapshots(pool, ports.get(OverviewParts), version=__version__, streams_per_key=limit)
            ports.on_close(snapshots.stop)
            return snapshots

        def listings() -> "Operations":
            from tickwright.capabilities.operations.listings import Operations

            return Operations(pool)

        def receivers() -> "AlertReceivers":
            from tickwright.capabilities.operations.alerts.receivers import AlertReceivers

            return AlertReceivers(pool, ports.get(TargetCheck), ports.get(AlertRules))

        def endpoints() -> AlertEndpoints:
            from tickwright.capabilities.operations.alerts.receivers import AlertReceivers

            return ports.get(AlertReceivers)

        ports.offer("tickwright.capabilities.operations.listings:Operations", listings)
        ports.offer("tickwright.capabilities.operations.alerts.receivers:AlertReceivers", receivers)
        ports.offer(AlertEndpoints, endpoints)
        ports.offer("tickwright.capabilities.operations.snapshots:Snapshots", overview)

    async def start(self, context: Context) -> None:
        """Add alerting to every process; the outbox relay, retention and the overview to their roles."""
        from tickwright.capabilities.operations.alerts.alerting import Alerting
        from tickwright.engine.leases import Leases, leases_source

        ports = context.ports
        leases = ports.get(Leases)
        context.run_leased(Alerting(leases, rules=ports.get(AlertRules)))
        if "scheduler" in context.roles:
            from tickwright.capabilities.operations.actions import operations_retention
            from tickwright.engine.leases import LeasedRounds
            from tickwright.engine.retention import EVERY_S, LEASE, TERMS, RetentionRounds, engine_retention

            context.retain(engine_retention(), operations_retention())
            rounds = RetentionRounds(context.retention)
            context.run_leased(LeasedRounds(LEASE, leases, rounds.round, terms=TERMS, rest_max_s=EVERY_S))
        if "relay" in context.roles:
            from tickwright.engine.outbox.relay import OutboxRelay, relay_source
            from tickwright.engine.wakeup.connection import DirectConnection

            direct, keys = ports.get(DirectConnection), context.settings.payload_keys
            relay = OutboxRelay(leases, ports.get(Brokers), direct=direct, terms=leases.terms, keys=keys)
            context.run(relay)
            context.count(relay_source(relay), leases_source([relay]))
            names = ("published", "retried", "dead")
            context.add_counters(relay=lambda: {name: getattr(relay.counters, name) for name in names})
        if "api" in context.roles and context.callers is not None:
            from tickwright.capabilities.operations.snapshots import Snapshots
            from tickwright.engine.session import WorkerSession

            # on the pool of the loops, for the requests of all
            snapshots = context.callers.ports.put(Snapshots, ports.get(Snapshots))
            snapshots.share_with_others(ports.get(WorkerSession))
            context.run(snapshots)

    async def examine(self, context: Context, alive: Mapping[str, int]) -> Sequence[Finding]:
        """Return whether a scheduler and a relay are alive."""
        without = {"scheduler": "nothing is cleaned up", "relay": "no message leaves"}
        return [role_finding(alive, role, text) for role, text in without.items()]

    def routes(self, context: Context, gate: "Gate") -> Sequence["APIRouter"]:
        """Return the routes of operators."""
        from tickwright.capabilities.operations.alerts.receivers import AlertReceivers
        from tickwright.capabilities.operations.listings import Operations
        from tickwright.capabilities.operations.rest import (
            action_routes,
            key_routes,
            operation_routes,
            overview_routes,
            receiver_routes,
        )
        from tickwright.capabilities.operations.snapshots import Snapshots
        from tickwright.engine.leases import LeasePurposes
        from tickwright.ports.session import Holdings

        operations = context.ports.get(Operations)
        return (
            operation_routes(operations, gate),
            overview_routes(context.ports.get(Snapshots), gate),
            action_routes(context.pool, context.ports.get(LeasePurposes), context.ports.get(Holdings), gate),
            receiver_routes(context.ports.get(AlertReceivers), gate),
            key_routes(operations.keys, gate),
        )


PLUGIN = OperationsPlugin()
