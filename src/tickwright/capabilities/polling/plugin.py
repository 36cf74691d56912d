"""The plugin of polling: trackers, their accounts and partners, the relay of polls and its consumers."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from tickwright.plugin import Context, Plugin, SettingsPart
from tickwright.ports.transports import PollTransport

if TYPE_CHECKING:
    from fastapi import APIRouter

    from tickwright.capabilities.polling.consumer.consumer import PollConsumer
    from tickwright.capabilities.polling.relay.admin import PollRelayAdmin
    from tickwright.capabilities.polling.relay.relay import PollRelay
    from tickwright.capabilities.polling.service import PollingService
    from tickwright.engine.leases import Leases
    from tickwright.rest.gate import Gate

CONSUMER = "poll-consumer"


class PollingSettings(SettingsPart):
    """Settings of the relays of polls.

    Attributes:
        relay_shards: How many relays share the partners' polls, 1 to 16; the same in every process.
    """

    relay_shards: Annotated[int, Field(ge=1, le=16)] = 1


class PollingPlugin(Plugin):
    """Polls of trackers, spread over time, each published exactly once."""

    name = "polling"
    roles = function_roles = (CONSUMER,)
    settings = PollingSettings
    commands: ClassVar = {
        "accounts": "tickwright.cli.commands.accounts",
        "trackers": "tickwright.cli.commands.trackers",
        "partners": "tickwright.cli.commands.partners",
        "slices": "tickwright.cli.commands.slices",
    }
    long_routes = ("/v1/accounts/{account_id}/preview", "/v1/outbox/polls/reconcile", "/v1/slices/replay")
    lease_purposes: ClassVar = {
        "corrector": "moves trackers: another interval, a slot too full, too old",
        "freshness": "judges every scheduled poll, fresh or stale, per account",
        "poll-relay": "publishes polls at their seconds",
        "registrar": "gives registered trackers their time slots",
        "selector": "selects the polls of the next minute",
    }
    parts: ClassVar = {
        "metrics": "tickwright.capabilities.polling.metrics:METRICS",
        "overview": "tickwright.capabilities.polling.overview:PollingPart",
        "alert_rules": "tickwright.capabilities.polling.alerts:RULES",
        "holdings": "tickwright.capabilities.polling.consumer.queue:HOLDINGS",
        "reclaim": "tickwright.capabilities.polling.consumer.queue:reclaim",
    }
    config_checks: ClassVar = {"partners": "tickwright.capabilities.polling.partners:read_partner"}

    def provide(self, context: Context) -> None:
        """Offer the service for callers, and the relay admin."""
        pool, ports, shards = context.pool, context.ports, context.settings.part(PollingSettings).relay_shards

        def service() -> "PollingService":
            from tickwright.capabilities.polling.service import PollingService

            return PollingService(pool, events_to=ports.get(PollTransport).events, shards=shards)

        def admin() -> "PollRelayAdmin":
            from tickwright.capabilities.polling.relay.admin import PollRelayAdmin
            from tickwright.engine.leases import Leases

            return PollRelayAdmin(pool, Leases(pool, owner="relay-admin"), ports.get(PollTransport).log)

        ports.offer("tickwright.capabilities.polling.service:PollingService", service)
        ports.offer("tickwright.capabilities.polling.relay.admin:PollRelayAdmin", admin)

    async def declare(self, context: Context) -> None:
        """Register the program's partners unless an operator has set them up, and set those of the TOML file."""
        registrations = context.registrations
        if not any(
            (registrations.have("CourierRegistry"), registrations.have("RemoteRegistry"), context.tables("partners"))
        ):
            return
        from structlog import get_logger

        from tickwright.capabilities.polling.consumer.courier import CourierRegistry
        from tickwright.engine.remote.declared import remotes_of
        from tickwright.partners.contract import declare_partner, put_partner
        from tickwright.partners.settings import as_json

        for partner in registrations.of(CourierRegistry).all():
            await declare_partner(context.pool, partner.name, as_json(partner.settings))
        for remote in remotes_of(registrations, "partner"):
            await declare_partner(context.pool, remote.called, as_json(remote.settings))
        for name, table in context.tables("partners").items():
            if await put_partner(context.pool, name, as_json(table)):
                get_logger("tickwright.polling").info("partner.set", name=name)

    async def start(self, context: Context) -> None:
        """Add the relays, the loops of the scheduler, and the consumer."""
        from tickwright.engine.leases import Leases
        from tickwright.store.queries import load

        sql = load("tickwright.capabilities.polling.sql", "trackers.sql")
        topic, leases = context.ports.get(PollTransport), context.ports.get(Leases)
        await context.pool.execute(sql["set_events_destination"], topic.events)
        relays = self._add_relays(context, leases, topic) if "relay" in context.roles else []
        if "scheduler" in context.roles:
            self._add_loops(context, leases, topic)
        consumer = await self._add_consumer(context, topic) if CONSUMER in context.roles else None
        if relays or consumer is not None:
            context.add_counters(polls=lambda: _counted(relays, consumer))

    def _add_relays(self, context: Context, leases: "Leases", topic: PollTransport) -> "list[PollRelay]":
        from tickwright.capabilities.polling.relay.relay import PollRelay

        shards = range(context.settings.part(PollingSettings).relay_shards)
        relays = [PollRelay(leases, topic.log(), topic=topic.topic, shard=shard) for shard in shards]
        context.run_leased(*relays)
        context.count(*(relay.samples for relay in relays))
        return relays

    def _add_loops(self, context: Context, leases: "Leases", topic: PollTransport) -> None:
        from tickwright.capabilities.polling.trackers.freshness import FreshnessJudge
        from tickwright.capabilities.polling.wheels.loops import (
            INTAKE_CHANNEL,
            INTAKE_IDLE_S,
            INTAKE_LOCK,
            SELECTED_EVERY_S,
            Corrector,
            Registrar,
            Selector,
        )
        from tickwright.engine.leases import TERMS, LeasedRounds
        from tickwright.engine.wakeup.connection import DirectConnection
        from tickwright.engine.wakeup.listener import ArmedWakeup

        shards = context.settings.part(PollingSettings).relay_shards
        intake = ArmedWakeup(context.ports.get(DirectConnection), channel=INTAKE_CHANNEL, lock=INTAKE_LOCK)
        rounds = {
            "corrector": Corrector(topic.events).round,
            "freshness": FreshnessJudge().round,
        }
        select = Selector(shards=shards).round
        context.run_leased(LeasedRounds("selector", leases, select, terms=TERMS, rest_max_s=SELECTED_EVERY_S))
        context.run_leased(
            LeasedRounds("registrar", leases, Registrar().round, terms=TERMS, armed=intake, rest_max_s=INTAKE_IDLE_S),
        )
        context.run_leased(*(LeasedRounds(name, leases, work, terms=TERMS) for name, work in rounds.items()))

    async def _add_consumer(self, context: Context, topic: PollTransport) -> "PollConsumer":
        from tickwright.capabilities.polling.consumer.consumer import PollConsumer
        from tickwright.capabilities.polling.consumer.courier import CourierRegistry
        from tickwright.capabilities.polling.consumer.http_courier import Couriers
        from tickwright.capabilities.polling.consumer.queue import EMPTY_WAIT_S, QueueBesideLog, QueueSource
        from tickwright.capabilities.polling.relay.batches import read_poll
        from tickwright.engine.remote.calls import RemoteCalls
        from tickwright.engine.session import WorkerSession
        from tickwright.engine.wakeup.turns import Turns, group_of
        from tickwright.partners.contract import PartnerContract

        pool, ports, session = context.pool, context.ports, context.ports.get(WorkerSession)
        contract = ports.get(PartnerContract)
        registry = context.registrations.of(CourierRegistry)
        remote = ports.get(RemoteCalls)
        couriers = Couriers(context.settings, registry, remote)
        ports.on_close(couriers.aclose)
        own = [partner.name for partner in registry.all()]
        log, queue = topic.source(pool, session, read_poll), QueueSource(pool, session)
        group = group_of("polls", sorted(partner.name for partner in registry.all()))
        consumer = PollConsumer(
            pool,
            session,
            queue
            if log is None
            else QueueBesideLog(queue, log, Turns(session.join(group, lambda: True), EMPTY_WAIT_S)),
            contract,
            couriers.of,
            destination=topic.events,
            calls_max=context.settings.concurrency,
            group=group if log is None else None,
        )
        context.facts["partners"] = lambda: sorted({*own, *consumer.remote_partners()})
        if log is not None:
            context.run(log)
        context.run(consumer)
        context.count(consumer.samples, *([log.samples] if log is not None else ()))
        return consumer

    def routes(self, context: Context, gate: "Gate") -> Sequence["APIRouter"]:
        """Return the routes of trackers, accounts, partners, slices and the relays."""
        from tickwright.capabilities.polling.relay.admin import PollRelayAdmin
        from tickwright.capabilities.polling.rest import polling_routes, relay_routes
        from tickwright.capabilities.polling.service import PollingService

        ports = context.ports
        return polling_routes(ports.get(PollingService), gate), relay_routes(
            context.pool, ports.get(PollRelayAdmin), gate
        )


def _counted(relays: "Sequence[PollRelay]", consumer: "PollConsumer | None") -> dict[str, int]:
    """Return the counters for the heartbeat."""
    writer = None if consumer is None else consumer.writer
    return {
        "published": sum(relay.counters.published for relay in relays),
        "answered": writer.polled if writer else 0,
        "late": writer.late if writer else 0,
        "superseded": writer.superseded if writer else 0,
    }


PLUGIN = PollingPlugin()
