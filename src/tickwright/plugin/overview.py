"""What a plugin adds to the overview and to the metrics from the database, and the rates of a whole installation.

The overview is one snapshot a second while it is in use (``capabilities/operations/snapshots.py``). For each snapshot
all ``fast`` readings of all parts are read, and the next two of the others; then each part shows its figures. Every
count stops at :data:`COUNT_MAX`, and every statement may take :data:`ANSWER_S`.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from inspect import cleandoc
from typing import TYPE_CHECKING, Any, ClassVar, get_origin

import msgspec

from tickwright.domain.errors import Rejected
from tickwright.observe.isolation import Isolation
from tickwright.observe.metrics import Sample
from tickwright.store.pool import Connection

COUNT_MAX = 10_000
ANSWER_S = 1.0
SMOOTHED_S = 10.0
SPAN_MIN_S = 2.0
OVERDUE_S = 4.0
GAP_MAX_S = 20.0
MINUTE_S = 60.0
_BARS = "▁▂▃▄▅▆▇█"

Reading = Callable[[Connection], Awaitable[Any]]
FastReading = Callable[[Connection, Any], Awaitable[Any]]
"""``read(connection, before)``; a count that stopped at its bound in ``before``, if any, need not be repeated."""
Count = Callable[[Any], int]
"""A number in the counters of one process."""


@dataclass(frozen=True, slots=True)
class Shown:
    """What a part shows in one snapshot, by the names that the part declares.

    Attributes:
        fields: Of the overview.
        lists: For each list a value that differs when the list has changed.
        dead_letters: Counts by kind; ``None`` where nothing has counted.
        points: Of the series.
    """

    fields: Mapping[str, Any] = field(default_factory=dict)
    lists: Mapping[str, Any] = field(default_factory=dict)
    dead_letters: Mapping[str, int | None] = field(default_factory=dict)
    points: Mapping[str, Any] = field(default_factory=dict)


class OverviewPart:
    """One plugin's part of the overview. Subclasses override what they need. An instance serves one overview.

    Attributes:
        fields: Types of its fields of the overview, by name. They are a part of the REST API.
        counters: Types of the counters in the heartbeat that it uses, by name; each has a value without arguments.
        dead_letters: Types of its counts of dead letters, by kind.
        series: Types of its figures in the series of the last fifteen minutes, by name.
        lists: Lists that clients fetch again after a change.
    """

    fields: ClassVar[Mapping[str, Any]] = {}
    counters: ClassVar[Mapping[str, Any]] = {}
    dead_letters: ClassVar[Mapping[str, Any]] = {}
    series: ClassVar[Mapping[str, Any]] = {}
    lists: ClassVar[tuple[str, ...]] = ()

    @property
    def name(self) -> str:
        """Its name in the log."""
        return type(self).__name__

    def fast(self) -> Mapping[str, FastReading]:
        """Return what changes every second, by name."""
        return {}

    def readings(self) -> Mapping[str, Reading]:
        """Return what may be some seconds old, by name."""
        return {}

    def show(self, read: Mapping[str, Any], rates: "Rates") -> Shown:
        """Return the figures of one snapshot, from the last result of each reading. Called once for each. No I/O."""
        return Shown()

    async def gauges(self, connection: Connection) -> Sequence[Sample]:
        """Return metrics from the database, for a scrape; those of all parts are read on one connection."""
        return ()

    def lines(self, view: "OverviewBase") -> Sequence[str]:
        """Return a line for a log per subject that is in use."""
        return ()

    def draw(self, view: "OverviewBase") -> Sequence[Any]:
        """Return the same for a terminal: what ``rich`` can print; a string is shown as it is, without markup."""
        return self.lines(view)


def spark(values: Sequence[float | None]) -> str:
    """Return a bar per value, scaled to the largest; zero and unknown values are blank."""
    top = max((value or 0 for value in values), default=0)
    return "".join(_bar(value or 0, top) for value in values)


def _bar(value: float, top: float) -> str:
    if value <= 0:
        return " "
    return _BARS[min(len(_BARS) - 1, max(0, -int(-value * len(_BARS) // top) - 1))]


class OverviewBase(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of an overview that belong to no part."""

    at: datetime
    version: str
    stale_since: datetime | None
    stale_why: str | None
    changes: dict[str, int]

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


_OVERVIEW = """One snapshot; ``at`` is the database's clock.

    ``stale_since`` is set while the database does not answer, and ``stale_why`` is the reason: the rest is then the
    last snapshot. ``changes`` has a number per list (``{lists}``), which changes when the list has changed: fetch a
    list again when its number differs from the one you have. ``series`` is only in ``GET /v1/overview``; in the stream
    it is ``None``. The fields of a part of a plugin that has failed since the start are ``None``; the log says why.
    """


class OverviewParts:
    """The parts of all plugins, and the structs that they make together.

    Attributes:
        view: ``OverviewView``, the struct of a snapshot.
        series: ``OverviewSeries``, the struct of the main figures.
        dead_letters: ``DeadLettersNow``.
        counters: The counters of a process that rates use.

    Raises:
        Rejected: ``invalid_plugin``: two parts use one name, or a part a name of the overview itself. Permanent.
    """

    def __init__(self, parts: Iterable[OverviewPart]) -> None:
        self._parts = list(parts)
        self._isolation = Isolation("overview.part_failed")
        self._shown: dict[OverviewPart, Shown] = {}
        self.fast = self._joined(lambda part: part.fast(), {"moment"})
        self.readings = self._joined(lambda part: part.readings(), {"moment", *self.fast})
        self.counters = msgspec.defstruct(
            "Counters",
            [
                (name, kind, msgspec.field(default_factory=get_origin(kind) or kind))
                for name, kind in self._joined(lambda part: part.counters).items()
            ],
        )
        series = {"at": datetime} | self._joined(lambda part: part.series, {"at"})
        self.series = _struct(
            "OverviewSeries",
            """The main figures of the last fifteen minutes, a point every five seconds, oldest first.

            All lists are as long as ``at``. While the overview is not in use there are no points.""",
            series,
            lambda kind: list[kind],  # type: ignore[valid-type]
        )
        dead_letters = self._joined(lambda part: part.dead_letters)
        self.dead_letters = _struct(
            "DeadLettersNow",
            "Dead letters by kind, each counted up to the bound; ``None`` where no process has counted.",
            dead_letters,
        )
        lists = " ".join(sorted(["dead_letters", *(name for part in self._parts for name in part.lists)]))
        self._fields = self._joined(
            lambda part: part.fields, {*OverviewBase.__struct_fields__, "dead_letters", "series"}
        )
        fields = {**self._fields, "dead_letters": self.dead_letters}
        self.view: Any = msgspec.defstruct(
            "OverviewView",
            [*fields.items(), ("series", self.series | None, None)],
            bases=(OverviewBase,),
            frozen=True,
            kw_only=True,
            namespace={"__doc__": cleandoc(_OVERVIEW.format(lists=lists))},
        )
        received: dict[str, Any] = {name: kind | None for name, kind in self._fields.items()}
        received["dead_letters"] = _struct("", "", dead_letters, lambda kind: kind | None)
        received["series"] = _struct("", "", series, lambda kind: list[kind | None]) | None  # type: ignore[valid-type]
        self._received: Any = msgspec.defstruct(
            "Received", [*received.items()], bases=(self.view,), frozen=True, kw_only=True
        )

    def __iter__(self) -> Iterator[OverviewPart]:
        return iter(self._parts)

    def read(self, snapshot: Any) -> OverviewBase:
        """Return a snapshot from the JSON of ``GET /v1/overview``; the fields of a part can be ``None``."""
        found: OverviewBase = msgspec.convert(snapshot, self._received)
        return found

    def show(self, read: Mapping[str, Any], rates: "Rates") -> Shown:
        """Return what all parts show. A part that fails keeps what it showed last, and is ``None`` until then."""
        for part in self._parts:
            with self._isolation.part(part.name):
                self._shown[part] = _checked(part, part.show(read, rates))
        shown = list(self._shown.values())
        dead_letters: dict[str, int | None] = dict.fromkeys(self.dead_letters.__struct_fields__)
        dead_letters |= {name: count for one in shown for name, count in one.dead_letters.items()}
        dead = self.dead_letters(**dead_letters)
        fields = dict.fromkeys(self._fields) | {name: value for one in shown for name, value in one.fields.items()}
        return Shown(
            {**fields, "dead_letters": dead},
            {**{name: mark for one in shown for name, mark in one.lists.items()}, "dead_letters": dead},
            dead_letters,
            {name: point for one in shown for name, point in one.points.items()},
        )

    def _joined(self, of: Callable[[OverviewPart], Mapping[str, Any]], taken: Collection[str] = ()) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for part in self._parts:
            own = of(part)
            if twice := own.keys() & {*found, *taken}:
                raise Rejected("invalid_plugin", f"two parts of the overview use the name {min(twice)!r}")
            found |= own
        return found


def _checked(part: OverviewPart, shown: Shown) -> Shown:
    """Return what a part shows, after a check that it is what it declares and can be encoded."""
    pairs = ((shown.fields, part.fields), (shown.dead_letters, part.dead_letters), (shown.points, part.series))
    for found, declared in pairs:
        if strange := found.keys() ^ declared.keys():
            raise ValueError(f"{min(strange)!r} is shown and not declared, or declared and not shown")
    msgspec.json.encode((shown.fields, shown.dead_letters, shown.points))
    return shown


def _struct(name: str, doc: str, fields: Mapping[str, Any], of: Callable[[Any], Any] = lambda kind: kind) -> Any:
    typed = [(field_name, of(kind)) for field_name, kind in fields.items()]
    return msgspec.defstruct(name, typed, frozen=True, namespace={"__doc__": cleandoc(doc)})


@dataclass(slots=True)
class _Session:
    """The heartbeats of the last 80 s (a minute and the longest gap): instants with the counters until then."""

    beats: deque[tuple[float, Any]] = field(default_factory=deque)
    is_alive: bool = True

    def since(self, age_s: float) -> tuple[float, Any] | None:
        """Return the oldest heartbeat of the last ``age_s``; ``None`` if there is only one, or a gap before it."""
        last_s = self.beats[-1][0]
        found = [beat for beat in self.beats if last_s - beat[0] <= age_s + SPAN_MIN_S]
        return found[0] if len(found) > 1 else None


class Rates:
    """Rates of the whole installation, from the counters in the heartbeats of its processes; pure.

    A session's counters only rise while it lives, so two of its heartbeats give a rate, and the sum over living
    sessions is the total. While a heartbeat is overdue, its session's rate falls; a lost session has no rate. Instants
    are seconds of the database's clock.
    """

    def __init__(self) -> None:
        self._sessions: dict[int, _Session] = {}
        self.now_s = 0.0

    def take(self, now_s: float, heartbeats: Mapping[int, tuple[float, Any]]) -> None:
        """Take the living sessions and their new counters.

        ``heartbeats`` has per living session the instant of its last one and the counters in it: ``None`` where they
        are known already, or unreadable.
        """
        self.now_s = now_s
        for token, (seen_s, counters) in heartbeats.items():
            session = self._sessions.setdefault(token, _Session())
            if counters is not None and not (session.beats and session.beats[-1][0] >= seen_s):
                session.beats.append((seen_s, counters))
        for token, session in list(self._sessions.items()):
            session.is_alive = token in heartbeats
            while session.beats and session.beats[0][0] < now_s - MINUTE_S - GAP_MAX_S:
                session.beats.popleft()
            if not session.is_alive and not session.beats:
                del self._sessions[token]

    def _living(self) -> list[_Session]:
        return [session for session in self._sessions.values() if session.is_alive and session.beats]

    @property
    def known(self) -> bool:
        """Whether rates are known: a session has sent two heartbeats, or no session lives."""
        living = self._living()
        return not living or any(session.since(SMOOTHED_S) is not None for session in living)

    def total(self, count: Count) -> int:
        """Return the sum of a number over the last heartbeats of the living sessions."""
        return sum(count(session.beats[-1][1]) for session in self._living())

    def per_s(self, count: Count) -> float | None:
        """Return how fast a number rises, per second over about ten seconds; ``None`` while that is unknown."""
        if not self.known:
            return None
        return round(sum(self._rate(session, count) for session in self._living()), 3)

    def _rate(self, session: _Session, count: Count) -> float:
        first = session.since(SMOOTHED_S)
        if first is None:
            return 0.0
        last_s, last = session.beats[-1]
        span_s = max(last_s, self.now_s - OVERDUE_S) - first[0]
        return max(0, count(last) - count(first[1])) / max(span_s, 0.1)

    def last_minute(self) -> Iterator[tuple[Any, Any]]:
        """Yield the first and the last counters of the last minute of each session, lost ones included."""
        for session in self._sessions.values():
            beats = [counters for seen_s, counters in session.beats if seen_s >= self.now_s - MINUTE_S]
            if len(beats) > 1:
                yield beats[0], beats[-1]
