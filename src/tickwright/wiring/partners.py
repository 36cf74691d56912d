"""Partners in one process: who asks them, what they allow, and the consumer that calls them."""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import structlog

from tickwright.capabilities.polling.consumer import PollConsumer
from tickwright.capabilities.polling.consumer_metrics import consumer_source
from tickwright.capabilities.polling.courier import Courier, CourierRegistry
from tickwright.capabilities.polling.courier_terms import PLACE, HttpTerms, read_http
from tickwright.capabilities.polling.poll_queue import QueueSource
from tickwright.capabilities.polling.poll_sources import QueueBesideLog
from tickwright.domain.errors import Rejected
from tickwright.domain.secret_hosts import destination_of
from tickwright.observe.logs import know_secret
from tickwright.observe.metrics import Source
from tickwright.partners import PartnerContract, PartnerSettings
from tickwright.partners.settings import as_json
from tickwright.partners.store import declare_partner, put_partner
from tickwright.ports.service import Service
from tickwright.runtime.session import WorkerSession
from tickwright.store.pool import Pool
from tickwright.wiring.brokers import poll_events, poll_source
from tickwright.wiring.settings import Settings

if TYPE_CHECKING:
    from tickwright.capabilities.polling.courier_http import HttpCourier

CONNECTIONS_MAX = 256

_log = structlog.get_logger("tickwright.wiring")


async def register_partners(pool: Pool, couriers: CourierRegistry, from_file: Mapping[str, Mapping[str, Any]]) -> None:
    """Register what the program brings where nobody has set it up, and set what the TOML file says."""
    for partner in couriers.all():
        await declare_partner(pool, partner.name, as_json(partner.settings))
    for name, table in from_file.items():
        if await put_partner(pool, name, as_json(table)):
            _log.info("partner.set", name=name)


class Couriers:
    """Who asks a partner: the program's function, else what its settings say of HTTP."""

    def __init__(self, settings: Settings, registry: CourierRegistry) -> None:
        self._settings, self._registry = settings, registry
        self._made: dict[str, tuple[Mapping[str, Any], HttpCourier | None]] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def of(self, name: str, terms: PartnerSettings) -> Courier | None:
        """Return who asks a partner now; ``None`` for nobody in this process."""
        function = self._registry.get(name)
        if function is not None or terms.http is None:
            return function
        before = self._made.get(name)
        if before is None or before[0] != terms.http:
            self._made[name] = (terms.http, self._make(name, terms.http))
            if before is not None and before[1] is not None:
                self._close_later(before[1])
        return self._made[name][1]

    def names(self) -> list[str]:
        """Return whom a function of this program asks, whatever their settings say."""
        return [partner.name for partner in self._registry.all()]

    def _make(self, name: str, table: Mapping[str, Any]) -> "HttpCourier | None":
        def find(secret: str) -> str | None:
            to = destination_of(str(table.get("url")).replace(PLACE, "x"))
            found = self._settings.secrets.bound_to((to,))(secret)
            know_secret(found or "")  # a file may have been written since the process started
            return found

        problems: list[str] = []
        read = read_http(table, problems, where=f"partners.{name}.http", secrets=find)
        if read is not None:
            try:
                return self._open(read)
            except Rejected as error:
                problems.append(error.message)
        _log.error("partner.not_callable", name=name, problems=problems)
        return None

    def _open(self, terms: HttpTerms) -> "HttpCourier":
        from tickwright.capabilities.polling.courier_http import HttpCourier

        most = max(CONNECTIONS_MAX, self._settings.concurrency)
        return HttpCourier(terms, allow=self._settings.targets, connections_max=most)

    def _close_later(self, courier: "HttpCourier") -> None:
        task = asyncio.get_running_loop().create_task(courier.aclose())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def aclose(self) -> None:
        """Close every connection."""
        for _, courier in self._made.values():
            if courier is not None:
                await courier.aclose()
        if self._closing:
            await asyncio.wait(self._closing)


def build_consumer(
    settings: Settings, pool: Pool, session: WorkerSession, contract: PartnerContract, couriers: Couriers
) -> tuple[list[Service], list[Source]]:
    """Return the services of a consumer in the order of their start, and what their metrics are read from."""
    session.facts["partners"] = couriers.names()
    source, queue = poll_source(settings, pool, session), QueueSource(pool, session)
    consumer = PollConsumer(
        pool,
        session,
        queue if source is None else QueueBesideLog(queue, source),
        contract,
        couriers.of,
        destination=poll_events(settings),
        calls_max=settings.concurrency,
    )
    if source is None:
        return [consumer], [consumer_source(consumer)]
    return [source, consumer], [consumer_source(consumer), source.samples]
