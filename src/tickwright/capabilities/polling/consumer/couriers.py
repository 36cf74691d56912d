"""The couriers of one process: for each partner a function of the program, or what its settings say of HTTP."""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import structlog

from tickwright.capabilities.polling.consumer.courier import Courier, CourierRegistry
from tickwright.capabilities.polling.consumer.http_courier import PLACEHOLDER, HttpSchema, read_http
from tickwright.domain.errors import Rejected
from tickwright.domain.secret_hosts import destination_of
from tickwright.observe.logs import know_secret
from tickwright.partners import PartnerSettings
from tickwright.plugin import Settings
from tickwright.ports.ids import monotonic

if TYPE_CHECKING:
    from tickwright.capabilities.polling.consumer.http_courier import HttpCourier

CONNECTIONS_MAX = 256
READ_AGAIN_S = 10.0
_log = structlog.get_logger("tickwright.polling")


class _Made(NamedTuple):
    """Who asks a partner by HTTP, and what that was made of."""

    table: Mapping[str, Any]
    terms: HttpSchema | None
    problems: list[str]
    courier: "HttpCourier | None"
    read_s: float


class Couriers:
    """Who asks a partner: the program's function, else what its settings say of HTTP."""

    def __init__(self, settings: Settings, registry: CourierRegistry) -> None:
        self._settings, self._registry = settings, registry
        self._made: dict[str, _Made] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def of(self, name: str, terms: PartnerSettings) -> Courier | None:
        """Return who asks a partner now; ``None`` for nobody in this process."""
        function = self._registry.get(name)
        if function is not None or terms.http is None:
            return function
        made = self._made.get(name)
        if made is None or made.table != terms.http or monotonic() - made.read_s >= READ_AGAIN_S:
            made = self._made[name] = self._make(name, terms.http, made)
        return made.courier

    def names(self) -> list[str]:
        """Return whom a function of this program asks, whatever their settings say."""
        return [partner.name for partner in self._registry.all()]

    def _make(self, name: str, table: Mapping[str, Any], before: "_Made | None") -> "_Made":
        """Read the settings with their secrets; a file may be written or rotated at any time, and its hosts changed."""

        def find(secret: str) -> str | None:
            to = destination_of(str(table.get("url")).replace(PLACEHOLDER, "x"))
            found = self._settings.secrets.bound_to((to,))(secret)
            know_secret(found or "")
            return found

        problems: list[str] = []
        read = read_http(table, problems, where=f"partners.{name}.http", secrets=find)
        if before is not None and (before.terms, before.problems) == (read, problems):
            return before._replace(table=table, read_s=monotonic())
        if before is not None and before.courier is not None:
            self._close_later(before.courier)
        courier = None
        if read is not None:
            try:
                courier = self._open(read)
            except Rejected as error:
                problems = [error.message]
        if courier is None:
            _log.error("partner.not_callable", name=name, problems=problems)
        return _Made(table, read, problems if read is None else [], courier, monotonic())

    def _open(self, terms: HttpSchema) -> "HttpCourier":
        from tickwright.capabilities.polling.consumer.http_courier import HttpCourier

        most = max(CONNECTIONS_MAX, self._settings.concurrency)
        return HttpCourier(terms, allow=self._settings.targets, connections_max=most)

    def _close_later(self, courier: "HttpCourier") -> None:
        task = asyncio.get_running_loop().create_task(courier.aclose())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def aclose(self) -> None:
        """Close every connection."""
        for made in self._made.values():
            if made.courier is not None:
                await made.courier.aclose()
        if self._closing:
            await asyncio.wait(self._closing)
