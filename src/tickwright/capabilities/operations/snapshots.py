"""One snapshot a second while the overview is in use, else none.

A process reads once for any number of dashboards: what changes every second, and two of the readings that may be some
seconds old, one statement after the other. A count that stopped at its bound is repeated at every fifth reading. Each
statement may take a second. A reading takes at most a tenth of the time, so that a slow database is read less often.
While the database does not answer, the last snapshot stays, with the time since when it is stale, and why. Of several
processes one reads, and the others show its snapshots: ``shared_snapshot.py``.

A snapshot becomes one message per kind of caller, with what that kind may see, for any number of callers. A subscriber
has the newest message and no queue: a slow reader misses some, and the stream drops one that does not read. Each
reading checks the keys and sessions of subscribers, so that a stream ends with its key or session.
"""

import asyncio
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import Context
from datetime import UTC, datetime, timedelta
from itertools import cycle
from typing import Any

import msgspec
import structlog

from tickwright.capabilities.operations.overview import Moment, read_moment
from tickwright.capabilities.operations.shared_snapshot import SharedSnapshot
from tickwright.domain.errors import Unavailable
from tickwright.engine.service import LoopService
from tickwright.engine.tasks import is_set_within
from tickwright.engine.wakeup.turns import Turns, group_of
from tickwright.observe.isolation import Isolation
from tickwright.plugin.overview import ANSWER_S, OverviewBase, OverviewParts, Rates
from tickwright.ports.ids import monotonic
from tickwright.ports.service import NO_PROBE, Probe
from tickwright.ports.session import Session
from tickwright.ports.views import ALL, Sight, shown
from tickwright.store.pool import UNAVAILABLE, Connection, Pool

EVERY_S = 0.95
IN_USE_S = 5.0
FRESH_S = 1.5
SHARE_OF_TIME = 0.1
FIND_AFTER_S = 0.1
"""How long after it is due a snapshot of another process should be found."""
SLOW_PER_REFRESH = 2
RECOUNT_EVERY = 5
STREAMS_MAX = 200
STREAMS_PER_KEY = 40
REREAD = timedelta(seconds=1)
POINT_EVERY = timedelta(seconds=5)
KEPT = timedelta(minutes=15)
LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)

_log = structlog.get_logger("tickwright.overview")


class Changes:
    """Gives each list a number that changes with the list.

    The numbers start at the present time, so that those of another process differ.
    """

    def __init__(self) -> None:
        self._marks: dict[str, Any] = {}
        self._numbers: dict[str, int] = {}

    def numbers(self, at: datetime, marks: Mapping[str, Any]) -> dict[str, int]:
        """Compare the marks at ``at`` with the former ones; return the number of each list."""
        for name, mark in marks.items():
            if name not in self._numbers:
                self._numbers[name] = int(at.timestamp())
            elif self._marks[name] != mark:
                self._numbers[name] += 1
        self._marks = dict(marks)
        return dict(self._numbers)


class Subscriber:
    """One end of a stream: returns the newest message, or ``None`` when it is over.

    ``key_id`` and ``session_id`` (of a browser) are what opened it; ``sight`` is what it may see; ``is_over`` after its
    end.
    """

    def __init__(self, key_id: int | None, session_id: int | None = None, sight: Sight = ALL) -> None:
        self.key_id, self.session_id, self.sight = key_id, session_id, sight
        self._message: bytes | None = None
        self.is_over = False
        self._woken = asyncio.Event()

    def give(self, message: bytes) -> None:
        """Store the newest message; replace one that was not read."""
        self._message = message
        self._woken.set()

    def end(self) -> None:
        """End the stream; a stored message is dropped."""
        self.is_over = True
        self._woken.set()

    async def next(self, within_s: float) -> bytes | None:
        """Return the next message; ``None`` on a timeout, or when it is over."""
        if not await is_set_within(self._woken, within_s):
            return None
        self._woken.clear()
        message, self._message = self._message, None
        return None if self.is_over else message


class Snapshots(LoopService):
    """Takes snapshots; a :class:`tickwright.ports.service.Service`.

    It uses one connection of the pool at a time. ``every_s`` is the time between two snapshots.
    """

    name = "overview"

    def __init__(
        self,
        pool: Pool,
        overview: OverviewParts,
        *,
        version: str,
        every_s: float = EVERY_S,
        streams_max: int = STREAMS_MAX,
        streams_per_key: int = STREAMS_PER_KEY,
        probe: Probe = NO_PROBE,
    ) -> None:
        super().__init__()
        self._pool, self._overview = pool, overview
        self._version, self._every_s, self._probe = version, every_s, probe
        self._streams_max, self._streams_per_key = streams_max, streams_per_key
        self._rates, self._changes = Rates(), Changes()
        self._points: deque[dict[str, Any]] = deque()
        self._read_last: dict[str, Any] = {}
        self._next_readings = cycle(overview.readings)
        self._counters = msgspec.json.Decoder(overview.counters | None)
        self._isolation = Isolation("overview.reading_failed", UNAVAILABLE)
        self._recount = cycle(range(RECOUNT_EVERY))
        self._seen_at = LONG_AGO
        self._view: OverviewBase | None = None
        self._reading: asyncio.Task[None] | None = None
        self._shared: SharedSnapshot | None = None
        self._turns = Turns(lambda: None)
        self._found_next_in_s: float | None = None
        self._refreshing = asyncio.Lock()
        self._refreshed_s = self._requested_s = float("-inf")
        self._rest_s = every_s
        self._subscribers: set[Subscriber] = set()
        self._asked_keys: set[int] = set()
        self._asked_sessions: set[int] = set()
        self._messages: dict[Sight, bytes] = {}

    @property
    def view(self) -> Any:
        """The struct of a snapshot."""
        return self._overview.view

    def share_with_others(self, session: Session) -> None:
        """From now on, read for all processes that show the overview, or let another one of them read."""
        group = group_of(
            "overview", self._version, self.view.__struct_fields__, self._overview.series.__struct_fields__
        )
        self._shared = SharedSnapshot(group, self._overview)
        self._turns = Turns(session.join(group, self._is_wanted))

    async def latest(self) -> OverviewBase:
        """Return a snapshot that is at most about a second old, with its series; keep taking more for a while.

        Raises:
            Unavailable: ``database_unavailable``: there is no snapshot yet. Retry.
        """
        self._requested_s = monotonic()
        self.wakeup.set()
        await self._refresh_if_due()
        if self._view is None:
            raise Unavailable("database_unavailable", "the database does not answer; try again")
        names = self._overview.series.__struct_fields__
        series = self._overview.series(**{name: [point.get(name) for point in self._points] for name in names})
        return msgspec.structs.replace(self._view, series=series)

    @contextmanager
    def subscribe(
        self, key_id: int | None = None, session_id: int | None = None, *, sight: Sight = ALL
    ) -> Iterator[Subscriber]:
        """Subscribe to the snapshots from now on; the present one, if fresh, comes at once.

        Raises:
            Unavailable: ``too_many_streams``, or ``draining``. Retry.
        """
        if self.stopping.is_set():
            raise Unavailable("draining", "this process is being stopped; try another")
        if len(self._subscribers) >= self._streams_max:
            raise _too_many(f"{self._streams_max} streams are open here already")
        if key_id is not None and sum(one.key_id == key_id for one in self._subscribers) >= self._streams_per_key:
            raise _too_many(f"{self._streams_per_key} streams of this key are open here already")
        subscriber = Subscriber(key_id, session_id, sight)
        self._subscribers.add(subscriber)
        if self._view is not None and monotonic() - self._refreshed_s < FRESH_S:
            subscriber.give(self._message(self._view, sight))
        self.wakeup.set()
        try:
            yield subscriber
        finally:
            self._subscribers.discard(subscriber)

    @property
    def streams(self) -> int:
        """How many streams are open."""
        return len(self._subscribers)

    def _is_wanted(self) -> bool:
        return bool(self._subscribers) or monotonic() - self._requested_s < IN_USE_S

    async def _work(self) -> None:
        """Read while the overview is in use."""
        while not self.stopping.is_set():
            self.tick()
            if self._is_wanted():
                await self._refresh_if_due()
                await self.rest(max(0.01, self._refreshed_s + self._rest_s - monotonic()))
            else:
                self.wakeup.clear()
                await self.wakeup.wait()

    async def quiesce(self) -> None:
        """End every stream, so that the server can end."""
        self.request_stop()
        for subscriber in self._subscribers:
            subscriber.end()

    async def stop(self) -> None:
        """End without waiting for the database."""
        await self.quiesce()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading], timeout=1)

    def last_tick_age_s(self) -> float | None:
        """Return the seconds since the last turn; 0 while it rests."""
        age_s = super().last_tick_age_s()
        return age_s if age_s is None or self._is_wanted() else 0.0

    async def _refresh_if_due(self) -> None:
        async with self._refreshing:
            if monotonic() - self._refreshed_s >= self._rest_s:
                await self._refresh()

    async def _refresh(self) -> None:
        began_s = monotonic()
        if self._reading is None:
            self._reading = asyncio.create_task(self._read(), context=Context())  # no request's context or bounds
        await asyncio.wait({self._reading}, timeout=ANSWER_S)
        if not self._reading.done():
            self._failed(f"the database has not answered within {ANSWER_S:g} s")
        else:
            reading, self._reading = self._reading, None
            self._note_reading(reading)
        self._refreshed_s = monotonic()
        self._rest_s = self._rest_after(self._refreshed_s - began_s)
        if self._found_next_in_s is not None:
            self._rest_s = min(self._rest_s, max(0.0, self._found_next_in_s) + FIND_AFTER_S)
        self._publish()

    def _rest_after(self, took_s: float) -> float:
        return max(self._every_s, took_s / SHARE_OF_TIME) - took_s

    def _note_reading(self, reading: "asyncio.Task[None]") -> None:
        if reading.cancelled():  # by `stop`, which must not cancel a request that waits for it
            return
        try:
            reading.result()
        except TimeoutError:
            self._failed(f"a query took longer than {ANSWER_S:g} s")
        except UNAVAILABLE as error:
            _log.warning("overview.database_unavailable", error=repr(error)[:300])
            self._failed("the database does not answer")

    async def _read(self) -> None:
        """Find the snapshot of another process, or take one, and share it with others."""
        began_s = monotonic()
        self._found_next_in_s = None
        async with self._pool.acquire(timeout=ANSWER_S) as connection:
            self._asked_keys = {one.key_id for one in self._subscribers if one.key_id is not None}
            self._asked_sessions = {one.session_id for one in self._subscribers if one.session_id is not None}
            shared = None if self._turns.alone else self._shared
            if shared is not None and not shared.is_ours and await self._find(connection, shared):
                return
            point = self._take(await self._read_all(connection))
            if shared is not None and shared.is_ours and self._view is not None:
                await shared.share(connection, self._view, point, self._rest_after(monotonic() - began_s))

    async def _find(self, connection: Connection, shared: SharedSnapshot) -> bool:
        """Show what another process has read; return ``False`` where this one must read."""
        found = await shared.find(connection, self._asked_keys, self._asked_sessions)
        if found.is_foreign or (found.is_overdue and await shared.take_over(connection)):
            return False
        if found.view is None and self._view is None:
            return False
        self._found_next_in_s, self._read_last = found.due_in_s, {}  # after a while, all that was read here is old
        if found.view is not None and (self._view is None or found.view.at > self._view.at):
            self._view = found.view
            self._add_point({"at": found.view.at, **found.point})
        self._end_invalid(found.good_keys, found.good_sessions)
        return True

    async def _read_all(self, connection: Connection) -> dict[str, Any]:
        """Read what changes every second, and the next two of the other readings; the first time, all."""
        await self._probe.reached("overview.before_reading")
        before = self._read_last if next(self._recount) else {}
        keys, sessions = self._asked_keys, self._asked_sessions
        moment = await read_moment(connection, after=self._seen_at, keys=keys, sessions=sessions)
        found: dict[str, Any] = {"moment": moment}
        for name, read in self._overview.fast.items():
            with self._isolation.part(name):
                found[name] = await read(connection, before.get(name))
        readings = self._overview.readings
        names = readings if not self._read_last else [next(self._next_readings) for _ in range(SLOW_PER_REFRESH)]
        for name in names:
            with self._isolation.part(name):
                found[name] = await readings[name](connection)
        return found

    def _take(self, read: dict[str, Any]) -> Mapping[str, Any]:
        """Make a snapshot of what was read; return its point of the series."""
        self._read_last |= read
        moment: Moment = read["moment"]
        self._seen_at = moment.at - REREAD
        heartbeats = {one.id: (one.seen_s, self._counters_of(one.counters)) for one in moment.sessions}
        self._rates.take(moment.at.timestamp(), heartbeats)
        shown = self._overview.show(self._read_last, self._rates)
        self._view = self._overview.view(
            at=moment.at,
            version=self._version,
            stale_since=None,
            stale_why=None,
            changes=self._changes.numbers(moment.at, shown.lists),
            **shown.fields,
        )
        self._add_point({"at": moment.at, **shown.points})
        self._end_invalid(moment.good_keys, moment.good_sessions)
        return shown.points

    def _end_invalid(self, good_keys: frozenset[int], good_sessions: frozenset[int]) -> None:
        """End the streams whose keys or sessions were asked for and are no longer valid."""
        for subscriber in self._subscribers:
            ended = subscriber.session_id in self._asked_sessions - good_sessions
            if ended or subscriber.key_id in self._asked_keys - good_keys:
                subscriber.end()

    def _counters_of(self, said: msgspec.Raw) -> Any:
        """Return a process's counters; ``None`` where they are known already, or another release's format differs."""
        try:
            return self._counters.decode(said)
        except msgspec.ValidationError:
            return None

    def _add_point(self, point: dict[str, Any]) -> None:
        """Add a point when the last one is five seconds old, and drop points older than fifteen minutes."""
        if not self._points or point["at"] - self._points[-1]["at"] >= POINT_EVERY:
            self._points.append(point)
        while self._points and self._points[0]["at"] < point["at"] - KEPT:
            self._points.popleft()

    def _failed(self, why: str) -> None:
        if self._view is not None:
            since = self._view.stale_since or self._view.at
            self._view = msgspec.structs.replace(self._view, stale_since=since, stale_why=why)

    def _publish(self) -> None:
        if self._view is not None:
            self._messages.clear()
            for subscriber in self._subscribers:
                subscriber.give(self._message(self._view, subscriber.sight))

    def _message(self, view: OverviewBase, sight: Sight) -> bytes:
        if sight not in self._messages:
            self._messages[sight] = msgspec.json.encode(shown(view, sight))
        return self._messages[sight]


def _too_many(which: str) -> Unavailable:
    return Unavailable("too_many_streams", f"{which}; ask for /v1/overview", retry_after_s=5)
