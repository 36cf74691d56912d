"""Wake-up notifications for loops: an event per loop, set by the notifications of a channel.

A notification is a hint; a loop also polls. Events are also set when the direct connection opens and ends, because
notifications between are lost. While no notification can arrive, loops poll more often.
"""

import asyncio
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal

from tickwright.engine.tasks import is_set_within
from tickwright.engine.wakeup.connection import DirectConnection
from tickwright.engine.wakeup.turns import Turns
from tickwright.ports.ids import monotonic
from tickwright.ports.session import Place, Session
from tickwright.store.queries import load

_SQL = load("tickwright.engine.sql", "wakeup.sql")
_NO_CHANNELS: Mapping[str, Callable[[str], None]] = MappingProxyType({})
LOCK_CLASS = 7313
HOPS_MAX = 1000
"""To how many processes a notification is passed on at most."""
FOLLOW_S = 20.0
"""How often a process looks that does not lead, in case that a notification was lost."""
UNHEARD_S = 0.5
"""How often all of them together look while no notification can arrive."""
DEPUTY_AFTER_S = 0.2
"""How much later than the leader its deputy looks, in case that the leader is dead or stopped."""
LATER_S = 0.01
"""By how much a wait ends later than a round, so that the next one has begun."""
AWAKE = "awake"


class WakeupListener:
    """One channel for all loops of a process that wait for it. ``works`` shows whether notifications can arrive."""

    def __init__(self, direct: DirectConnection, channel: str) -> None:
        self._direct, self._channel = direct, channel
        self._events: list[asyncio.Event] = []
        direct.subscribe(channel, self._notified)
        direct.on_change(self.notify)

    def _notified(self, payload: str) -> None:
        if not payload:  # others are for one process of a group, see LedWakeup
            self.notify()

    @property
    def works(self) -> bool:
        """Whether notifications can arrive now."""
        return self._direct.works

    def subscribe(self, event: asyncio.Event | None = None) -> asyncio.Event:
        """Return an event that every notification sets; its owner clears it before it checks for work.

        A given ``event`` may be that of a loop that waits for several channels.
        """
        event = event or asyncio.Event()
        self._events.append(event)
        return event

    def notify(self) -> None:
        """Set every event, after a change in this process."""
        for event in self._events:
            event.set()

    def join(self, has_room: Callable[[], bool]) -> None:
        """Register whether its loop has room for more work."""

    async def wait(self, event: asyncio.Event, seconds: float) -> None:
        """Wait ``seconds`` for an event of :meth:`subscribe`."""
        await is_set_within(event, seconds)

    async def pass_on(self) -> None:
        """Wake another process, if there is one, since this one has no room for more work."""


class LedWakeup(WakeupListener):
    """Wakes one process of a group for new work, and others only as far as it has no room for it.

    ::

        insert ──notification──▶ the leader of this round: claims as much as it has room for
                      │            │ no more room
                      │            └──"group place hops"──▶ the next process in the order of turns, and so on
                      └─ 0.2 s ──▶ its deputy, the second of this round: finds work if the leader is dead or stopped

    So work causes as many claims as processes take some of it, and one more, however many processes wait. Other
    processes are leader and deputy in each round (:mod:`tickwright.engine.wakeup.turns`). One that was neither looks
    for work when it becomes one of them. The others look rarely.

    Args:
        session: Its heartbeats tell the place in the group.
        group: Of all processes that can do the same work.
    """

    def __init__(self, direct: DirectConnection, channel: str, session: Session, group: str) -> None:
        super().__init__(direct, channel)
        self._session, self._group = session, group
        self._place: Callable[[], Place | None] = lambda: None
        self._turns = Turns(self._place)
        self._hops = 0
        self._deputy_look: asyncio.TimerHandle | None = None
        self._deputy_hops = 0

    def join(self, has_room: Callable[[], bool]) -> None:
        """Take part in the group while ``has_room()`` is true at the heartbeat."""
        self._place = self._session.join(self._group, has_room)
        self._turns = Turns(self._place)

    def _notified(self, payload: str) -> None:
        if not payload:
            match self._turns.rank():
                case 0:
                    self._look_for_all(HOPS_MAX)
                case 1 if self._deputy_look is None:
                    self._deputy_hops = HOPS_MAX
                    self._deputy_look = asyncio.get_running_loop().call_later(DEPUTY_AFTER_S, self._look_as_deputy)
            return
        place = self._place()
        group, _, rest = payload.partition(" ")
        before, _, hops = rest.partition(" ")
        if group != self._group or not hops.isdecimal():
            return
        self._deputy_hops = 0  # the leader has looked, and asks all of them
        if place is not None and before == str(place.before):
            self._look_for_all(min(int(hops), HOPS_MAX))

    def _look_for_all(self, hops: int) -> None:
        self._hops = hops
        self.notify()

    def _look_as_deputy(self) -> None:
        self._deputy_look = None
        self._look_for_all(max(self._hops, self._deputy_hops))

    async def pass_on(self) -> None:
        """Wake the next process in the order of turns, if this one looked for the group and not for itself."""
        place, hops = self._place(), self._hops
        self._hops = 0
        if place is not None and hops > 0 and place.others > HOPS_MAX - hops and self.works:
            after = (place.before + 1) % (place.others + 1)
            await self._direct.fetchval(_SQL["notify"], self._channel, f"{self._group} {after} {hops - 1}")

    async def wait(self, event: asyncio.Event, seconds: float) -> None:
        """Wait for an event: in the leader ``seconds``, in its deputy a little longer, in others until they are one."""
        began = monotonic()
        was_neither = False
        if seconds > 0 and not event.is_set():
            self._hops = 0  # the look for the group has ended, and had room
        while seconds > 0 and not event.is_set():
            rank = self._turns.rank()
            left_s = self._longest_s(rank, seconds) - (monotonic() - began)
            if left_s <= 0 or (was_neither and rank <= 1):
                self._hops = HOPS_MAX if rank <= 1 else 0
                return
            was_neither = was_neither or rank > 1
            round_s = left_s if self._turns.alone else self._turns.round_ends_in_s() + LATER_S
            await is_set_within(event, min(left_s, round_s))

    def _longest_s(self, rank: int, seconds: float) -> float:
        """Return how long a process of this rank waits at most that would wait ``seconds`` alone."""
        if rank == 0 or (rank == 1 and self.works):
            return seconds + rank * DEPUTY_AFTER_S
        return max(seconds, self._follow_s)

    @property
    def _follow_s(self) -> float:
        """Seconds after which a process looks that does not lead."""
        place = self._place()
        return FOLLOW_S if self.works or place is None else min(FOLLOW_S, UNHEARD_S * (place.others + 1))


class ArmedWakeup:
    """Wakes one sleeping loop without a NOTIFY at every insert: ADR-0004.

    NOTIFY takes a global lock at commit: with it, sixteen inserting connections fall from 19 to 5 thousand rows a
    second. An insert trigger therefore notifies only while a loop sleeps. A loop that is about to sleep takes the
    exclusive side of an advisory lock, checks once more, and only then sleeps. The trigger tries the shared side, and
    notifies only when it cannot have it. An insert that does not notify holds the shared side until its commit. So no
    wake-up is lost: the exclusive side is free only once the row is visible.

    Args:
        direct: The connection that listens and has the locks.
        channel: Of the trigger's notifications.
        lock: The number of the advisory lock.
        others: Other channels, each with the function for its payloads.

    Attributes:
        woken: Set when the loop must check for work: an insert notified, the connection is new or lost, or the loop
            set it.
        notified: An insert notified since the loop last cleared this.
        later: Called instead of setting ``woken`` for the payload ``later``: the work is due in a while.
        held: Locks that this process has, so inserts notify.
        relied: Another process has a lock, and inserts notify every listener while it has it.
    """

    def __init__(
        self,
        direct: DirectConnection,
        *,
        channel: str,
        lock: int,
        others: Mapping[str, Callable[[str], None]] = _NO_CHANNELS,
    ) -> None:
        self._direct, self._channel, self._lock = direct, channel, lock
        self._channels = {channel: self._notified, **others}
        self.listening = False
        self.woken = asyncio.Event()
        self.notified = False
        self.relied = False
        self.later: Callable[[], None] = self.woken.set
        self.held: set[int] = set()
        direct.on_change(self._connection_changed)

    @property
    def works(self) -> bool:
        """Whether notifications can arrive now."""
        return self.listening and self._direct.works

    @property
    def armed(self) -> bool:
        """Whether this process has the lock, so that inserts notify."""
        return self._lock in self.held

    async def listen(self) -> None:
        """Listen; check for work afterwards."""
        if not self.listening:
            self.listening = True
            await self._direct.listen(self._channels)

    async def unlisten(self) -> None:
        """Release the locks, and listen no more."""
        if self.listening:
            await self.disarm()
            self.listening = False
            await self._direct.unlisten(self._channels)

    def _connection_changed(self) -> None:
        self.held.clear()
        self.woken.set()

    def _notified(self, payload: str) -> None:
        if payload == AWAKE:
            if self.relied:
                self.relied = False
                self.woken.set()
        elif payload:
            self.later()
        else:
            self.notified = True
            self.woken.set()

    async def nap(self, seconds: float) -> bool:
        """Wait until ``woken`` is set, at most ``seconds``; clear it and return whether it was."""
        if not await is_set_within(self.woken, seconds):
            return False
        self.woken.clear()
        return True

    async def arm(self, *more: int) -> Literal["new", "kept", "refused"]:
        """Ask inserts to notify; ``more`` are locks beside the own one.

        Returns:
            ``new``: inserts notify from now on; check once more, then sleep. ``kept``: armed before, or another sleeper
            has the lock and inserts notify every listener; sleep. ``refused``: an insert is in progress, or there is no
            listening connection; stay awake.
        """
        is_new = False
        self.relied = False
        for lock in (self._lock, *more):
            if lock in self.held:
                continue
            if await self._query("arm", LOCK_CLASS, lock):
                self.held.add(lock)
                is_new = True
            elif await self._query("others_sleep", LOCK_CLASS, lock):
                self.relied = True
            else:
                return "refused"
        return "new" if is_new else "kept"

    async def disarm(self, *locks: int) -> None:
        """Let inserts skip the notification: this loop is awake. Release some locks, or all."""
        if released := self.held & set(locks or self.held):
            self.held -= released
            await self._query("disarm", sorted(released), LOCK_CLASS, self._channel)

    async def _query(self, query: str, *args: object) -> bool:
        return bool(await self._direct.fetchval(_SQL[query], *args))
