"""A plugin: everything that the product needs to know of one of its parts.

A process calls a plugin in this order; each step is optional:

1. ``settings`` are read from the environment, ``config_tables`` from the TOML file.
2. :meth:`Plugin.provide` offers values to other plugins, by type. It opens nothing.
3. :meth:`Plugin.declare` writes what the program and the TOML file declare into rows.
4. :meth:`Plugin.reclaim` returns functions that release the work of a lost session.
5. :meth:`Plugin.start` adds services, loops under a lease and sources of metrics, for the roles of the process.
6. :meth:`Plugin.routes` returns the REST routes, if the process serves the API.

What operators see is joined from all plugins: :meth:`Plugin.overview`, ``metrics``, ``alert_rules``, ``holdings``,
``examine``, ``commands``.

Modules that define a plugin import little, so that the command line starts fast: methods import what they build.
"""

from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from tickwright.domain.errors import Rejected
from tickwright.plugin.registrations import Registrations
from tickwright.plugin.settings import Settings, SettingsPart
from tickwright.ports.caller import Caller, Role

if TYPE_CHECKING:
    from fastapi import APIRouter

    from tickwright.observe.alerts import AlertRule
    from tickwright.observe.metrics import MetricSpec
    from tickwright.plugin.context import Context
    from tickwright.plugin.findings import Finding
    from tickwright.plugin.overview import OverviewPart
    from tickwright.ports.broker import Broker
    from tickwright.ports.session import Reclaim
    from tickwright.rest.gate import Gate

T = TypeVar("T")
PARTS = frozenset({"metrics", "overview", "alert_rules", "holdings", "reclaim", "examine"})
PROGRAM = Caller("python", Role.ADMIN)
"""The audit trail's actor for a program's declarations."""
CONFIG_FILE = Caller("config", Role.ADMIN)
"""The audit trail's actor for the TOML file."""

ReadTable = Callable[..., Any]
"""``read(name, table, problems, *, where)``: adds every mistake of a table to ``problems``."""

Producer = Callable[[], Awaitable[float | None]]
"""Makes the work that is due, in a transaction of its own; returns the seconds until more is due, ``None`` if never."""

FastRoute = Callable[[MutableMapping[str, Any], Any, Any], Awaitable[None]]
"""An ASGI application, called after the check of the caller's key."""


@dataclass(frozen=True, slots=True)
class Ownership:
    """A place outside PostgreSQL that one installation owns: a prefix of queues, topics, keys or objects.

    Attributes:
        place: Such as ``RabbitMQ``.
        roles: Roles that use it.
        prefix: The value of ``setting``.
        setting: The variable to change when the place belongs to another installation.
        mark: What to delete when that installation is gone.
        claim: Called with the name of this installation; returns the name of the owner.
        is_shared: Only report another owner: two programs of one user share a default folder.
        asks_twice: Only a second call tells apart two installations that claim at once.
    """

    place: str
    roles: frozenset[str]
    prefix: str
    setting: str
    mark: str
    claim: Callable[[str], Awaitable[str]]
    is_shared: bool = False
    asks_twice: bool = False


class Plugin:
    """A capability, a transport or another part of the product. Subclasses override what they need.

    Attributes:
        name: Unique, such as ``jobs``.
        roles: That this plugin adds to ``tickwright run``.
        settings: What it reads from the environment.
        commands: The typer application, or the function, of each command: ``MODULE`` where it is ``app``, otherwise
            ``MODULE:NAME``.
        parts: What a method of ``PARTS`` returns or calls, by its name, as ``MODULE:NAME``, imported when it is needed;
            for ``reclaim`` one function.
        config_checks: The check of the tables ``[kind.NAME]`` of the TOML file, by kind, also as ``MODULE:NAME``.
        long_routes: Paths of its routes whose changes have a minute for each statement instead of ten seconds in all,
            as the routes have them: ``/v1/accounts/{account_id}/preview``. Actions on a list, such as
            ``/v1/jobs:cancel``, need no entry.
        endless_routes: Paths of its routes whose answers last as long as their readers, so that no time limits them.
        broker_dead_letters: Kinds of dead letters that stay in a broker, with their own columns, of which the first is
            the filter of ``GET /v1/dead-letters/KIND``.
        lease_purposes: What only the holder of each of its leases does, for operators, by the name of the lease or the
            part of the name before ``:``.
    """

    name: ClassVar[str]
    roles: ClassVar[tuple[str, ...]] = ()
    function_roles: ClassVar[tuple[str, ...]] = ()
    settings: ClassVar[type[SettingsPart] | None] = None
    commands: ClassVar[Mapping[str, str]] = {}
    parts: ClassVar[Mapping[str, str]] = {}
    config_checks: ClassVar[Mapping[str, str]] = {}
    long_routes: ClassVar[Sequence[str]] = ()
    endless_routes: ClassVar[Sequence[str]] = ()
    broker_dead_letters: ClassVar[Mapping[str, Sequence[str]]] = {}
    lease_purposes: ClassVar[Mapping[str, str]] = {}

    def config_tables(self) -> Mapping[str, ReadTable]:
        """Return the checks of tables ``[kind.NAME]`` of the TOML file, by kind."""
        return {kind: self._imported(check) for kind, check in self.config_checks.items()}

    def is_idle(self, role: str, registrations: Registrations) -> bool:
        """Return whether ``role`` would do nothing in a process of this program."""
        return False

    def provide(self, context: "Context") -> None:
        """Offer values to other plugins, by type."""

    async def declare(self, context: "Context") -> None:
        """Write what the program and the TOML file declare.

        Raises:
            Rejected: A declaration is wrong. Permanent.
            Unavailable: The database does not answer. Retry.
        """

    def reclaim(self, context: "Context") -> Sequence["Reclaim"]:
        """Return functions that release the work of a lost session."""
        reclaim: Any = self._part("reclaim", None)
        return () if reclaim is None else (reclaim,)

    def holdings(self) -> Sequence[str]:
        """Return SQL of what a session holds, for operators; see :class:`tickwright.ports.session.Holdings`."""
        return self._part("holdings", ())

    async def start(self, context: "Context") -> None:
        """Add services, loops and sources for the roles of the process.

        Raises:
            TickwrightError: The process cannot take a role that it was started for.
        """

    def producers(self, context: "Context") -> Sequence[Producer]:
        """Return functions that make due work of a schedule, for programs that drain jobs without a scheduler."""
        return ()

    def brokers(self, context: "Context") -> Sequence["Broker"]:
        """Return new brokers, for the schemes of their destinations; the caller closes them."""
        return ()

    def reserved_prefixes(self, settings: Settings) -> Sequence[str]:
        """Return prefixes of exchanges and topics that only the product publishes to."""
        return ()

    def ownerships(self, context: "Context") -> Sequence[Ownership]:
        """Return the places outside PostgreSQL that one installation owns."""
        return ()

    def metrics(self) -> Sequence["MetricSpec"]:
        """Return the metrics that its sources have samples of."""
        return self._part("metrics", ())

    def overview(self) -> "OverviewPart | None":
        """Return a new part of the overview and of the metrics from the database."""
        make: Callable[[], OverviewPart | None] = self._part("overview", lambda: None)
        return make()

    def alert_rules(self) -> Sequence["AlertRule"]:
        """Return the alert rules of this part; one process at a time evaluates them for all."""
        return self._part("alert_rules", ())

    async def examine(self, context: "Context", alive: Mapping[str, int]) -> Sequence["Finding"]:
        """Return findings for ``tickwright doctor``; ``alive`` has the number of living processes by role."""
        examine: Any = self._part("examine", None)
        return () if examine is None else await examine(context, alive)

    def routes(self, context: "Context", gate: "Gate") -> Sequence["APIRouter"]:
        """Return the routes of the REST API."""
        return ()

    def fast_routes(self, context: "Context", gate: "Gate") -> Mapping[str, FastRoute]:
        """Return handlers of ``POST`` by path, without the framework; ``routes`` contains the same paths."""
        return {}

    def _part(self, name: str, default: T) -> T:
        part: T = self._imported(self.parts[name]) if name in self.parts else default
        return part

    def _imported(self, place: str) -> Any:
        try:
            return resolve_name(place)
        except (ImportError, AttributeError, ValueError) as error:
            raise Rejected("invalid_plugin", f"plugin {self.name}: {place!r} cannot be imported: {error}") from error
