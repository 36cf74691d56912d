"""What a plugin builds from: settings and database of one process, and the ports of other plugins, by type.

A capability asks for a port such as ``ObjectStore`` and does not know which transport provides it. The context closes
everything that it opened, in reverse order.
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from tickwright.domain.errors import Rejected
from tickwright.plugin.registrations import Registrations
from tickwright.plugin.settings import Settings

if TYPE_CHECKING:  # the command line loads every plugin for its help, and none of these
    from tickwright.engine.leases import LeasedService
    from tickwright.engine.occurrences import OccurrenceSource
    from tickwright.engine.retention import Retention
    from tickwright.observe.metrics import Source
    from tickwright.ports.service import Service
    from tickwright.store.pool import Pool

T = TypeVar("T")


class Ports:
    """Values by type. Each is made once, when first needed, and may ask for others.

    Of several offers for one type the first counts, so a configured transport comes before a default.
    """

    def __init__(self) -> None:
        self._makers: dict[str, Callable[[], Any]] = {}
        self._values: dict[str, Any] = {}
        self._stack = AsyncExitStack()

    def put(self, kind: type[T], value: T) -> T:
        """Provide an existing value."""
        self._values[_name(kind)] = value
        return value

    def offer(self, kind: type[T] | str, make: Callable[[], T]) -> None:
        """Provide the result of ``make``, which does no I/O: the first call of the value connects.

        ``kind`` is a type or its name, ``"package.module:Class"``: then a process that never needs the value loads no
        code for it.
        """
        self._makers.setdefault(_name(kind), make)

    def get(self, kind: type[T]) -> T:
        """Return the value of this type.

        Raises:
            LookupError: No plugin provides it: a mistake in the order of plugins. Permanent.
        """
        found = self.find(kind)
        if found is None:
            raise LookupError(f"nothing provides {kind.__name__} in this process")
        return found

    def find(self, kind: type[T]) -> T | None:
        """Return the value of this type; ``None`` if no plugin provides it."""
        name = _name(kind)
        if name not in self._values and name in self._makers:
            self._values[name] = self._makers[name]()
        found: T | None = self._values.get(name)
        return found

    def on_close(self, close: Callable[[], Awaitable[None]]) -> None:
        """Call ``close`` when the process ends; the last added is called first."""
        self._stack.push_async_callback(close)

    async def aclose(self) -> None:
        """Close everything."""
        await self._stack.aclose()


def _name(kind: type | str) -> str:
    return kind if isinstance(kind, str) else f"{kind.__module__}:{kind.__qualname__}"


@dataclass(slots=True)
class Context:
    """One process, for its plugins.

    Attributes:
        settings: Of the process; ``settings.part(JobSettings)`` gives those of one plugin.
        pool: Connections for what the plugin builds.
        registrations: What the user's program registered.
        read_config: Returns the tables of the TOML file by kind and name; called when they are needed.
        ports: What plugins provide.
        roles: Of the process; empty where only services for callers are built.
        callers: What the API of the process answers from, where ``roles`` are built.
        facts: What the process says of itself with each heartbeat, by name; a function is called for its value.
        services: Run by the process, started in this order.
        leased: Loops that one process at a time runs; started after ``services``.
        retention: Rules of the lease ``upkeep``, which one process at a time applies.
        occurrences: Kinds of schedules, which one process at a time asks for what is due.
        sources: Of metrics.
        counters: Functions that return counters of the process since its start, for its heartbeat, by name; see
            :meth:`add_counters`.
    """

    settings: Settings
    pool: "Pool"
    registrations: Registrations
    read_config: Callable[[], Mapping[str, Mapping[str, Any]]]
    ports: Ports = field(default_factory=Ports)
    roles: frozenset[str] = frozenset()
    callers: "Context | None" = None
    facts: dict[str, Any] = field(default_factory=dict)
    services: list["Service"] = field(default_factory=list)
    leased: list["LeasedService"] = field(default_factory=list)
    retention: list["Retention"] = field(default_factory=list)
    occurrences: list["OccurrenceSource"] = field(default_factory=list)
    sources: list["Source"] = field(default_factory=list)
    counters: dict[str, Callable[[], Any]] = field(default_factory=dict)

    def add_counters(self, **counters: Callable[[], Any]) -> None:
        """Add counters by name. Their numbers only rise, so two heartbeats give a rate and no query has to count.

        Raises:
            Rejected: ``invalid_plugin``: a name is taken. Permanent.
        """
        if taken := self.counters.keys() & counters.keys():
            raise Rejected("invalid_plugin", f"there are counters named {min(taken)!r} already")
        self.counters |= counters

    def tables(self, kind: str) -> Mapping[str, Any]:
        """Return the tables ``[kind.NAME]`` of the TOML file."""
        return self.read_config().get(kind, {})

    def run(self, *services: "Service") -> None:
        """Add services."""
        self.services += services

    def run_leased(self, *loops: "LeasedService") -> None:
        """Add loops that one process at a time runs."""
        self.leased += loops

    def retain(self, *rules: "Retention") -> None:
        """Add retention rules."""
        self.retention += rules

    def produce(self, *sources: "OccurrenceSource") -> None:
        """Add kinds of schedules."""
        self.occurrences += sources

    def count(self, *sources: "Source") -> None:
        """Add sources of metrics."""
        self.sources += sources
