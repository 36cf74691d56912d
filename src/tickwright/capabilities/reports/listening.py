"""The listeners of one process: whose parts are claimed, and which of them are still ours. What brings them: part_runs.

::

    due ──claim──▶ running ──brought──▶ done ──the last one──▶ ring
                      │ failed: due again after 1, 5, 25 s …, or failed for good
                      └ cancelled, or its session lost: due again

A part that is announced is claimed when its message comes; without messages, when it is due. While it runs, the ledger
hears every second how far it is, and says whether it is still ours.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import structlog

from tickwright.capabilities.reports.bringing import Bringers
from tickwright.capabilities.reports.held_parts import Held
from tickwright.capabilities.reports.part_places import PartPlaces
from tickwright.capabilities.reports.part_runs import PartRuns
from tickwright.capabilities.reports.parts_store import Claim, PartsStore
from tickwright.ports.ids import monotonic
from tickwright.ports.probe import NO_PROBE, Probe
from tickwright.ports.session import Session
from tickwright.store.hearing import Hearing
from tickwright.store.pool import AWAY

LOOK_S = 5.0
LOOK_WITHOUT_NEWS_S = 0.5
KEEP_S = 1.0
RENEW_S = 60.0
AWAY_S = 1.0

_log = structlog.get_logger("tickwright.reports")


class ReportListener:
    """A :class:`tickwright.ports.service.Service`.

    Args:
        bringers: What this process can bring.
        folder: Where rows are spooled.
        at_once: Parts at a time of one function or one source in this process, 1 to 100.

    Invariants:
        RPL-1: nothing is brought without a claim, and counts only under that claim.
        RPL-2: a part whose claim is lost is cancelled within two seconds of the loss being known.
    """

    name = "report-listener"

    def __init__(
        self,
        parts: PartsStore,
        places: PartPlaces,
        session: Session,
        hearing: Hearing,
        bringers: Bringers,
        *,
        folder: Path,
        at_once: int,
        probe: Probe = NO_PROBE,
    ) -> None:
        self._parts, self._places, self._session, self._hearing = parts, places, session, hearing
        self._bringers, self._at_once, self._probe = bringers, at_once, probe
        self._runs = PartRuns(parts, places, session, bringers, folder, probe=probe)
        self.counts: Counter[str] = Counter()
        self._news = hearing.subscribe()
        self._held: dict[tuple[int, str], Held] = {}
        self._stopping = asyncio.Event()
        self._over = asyncio.Event()
        self._over.set()
        self._ticked_s: float | None = None
        self._renewed_s: dict[tuple[int, int], float] = {}
        self._one_claims, self._unsure = asyncio.Lock(), False
        session.on_lost(self._lose_all)

    # ------------------------------------------------------------------ service

    async def run(self) -> None:
        """Bring parts until stopped."""
        self._over.clear()
        keeping = asyncio.create_task(self._keep())
        try:
            while not self._stopping.is_set():
                self._news.clear()
                wait_s = await self._look()
                self._ticked_s = monotonic()
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._news.wait()
            await self._none_runs()
        finally:
            keeping.cancel()
            self._over.set()

    async def quiesce(self) -> None:
        """Claim nothing more; what runs ends."""
        self._stopping.set()
        self._news.set()
        await self._over.wait()
        await self._none_runs()

    async def stop(self) -> None:
        """Cancel what runs and give it back."""
        self._stopping.set()
        self._news.set()
        for held in [*self._held.values()]:
            held.cancel()
        await self._over.wait()
        await self._none_runs()

    def last_tick_age_s(self) -> float | None:
        """Seconds since it looked what is due."""
        return None if self._ticked_s is None else monotonic() - self._ticked_s

    @property
    def running(self) -> int:
        """Parts in this process's hands."""
        return len(self._held)

    @property
    def stuck(self) -> int:
        """Parts whose calls do not come back."""
        return sum(held.is_stuck() for held in self._held.values())

    async def _none_runs(self) -> None:
        while tasks := [held.task for held in self._held.values() if held.task is not None]:
            await asyncio.wait(tasks)

    def _lose_all(self) -> None:
        for held in self._held.values():
            held.lost = True
            held.cancel()

    # ------------------------------------------------------------------ claiming

    async def _look(self) -> float:
        """Claim what is due; return after how many seconds to look again."""
        if not self._session.holds():
            return AWAY_S
        rooms = self._rooms()
        try:
            found = await self._claim(rooms) if rooms else 0
            next_s = await self._parts.next_in_s([*rooms]) if rooms else None
        except AWAY as error:
            _log.warning("reports.parts_not_claimed", error=repr(error))
            return AWAY_S
        look_s = LOOK_S if self._hearing.works else LOOK_WITHOUT_NEWS_S
        if next_s is None or (found == 0 and next_s <= 0):  # due, and somebody else is about to take it
            return look_s if next_s is None else LOOK_WITHOUT_NEWS_S
        return min(max(next_s, 0.0), look_s)

    async def hear(self, report_id: int, listener: str) -> None:
        """Claim a part that was announced, if it is still to be claimed and there is room.

        Raises:
            One of ``AWAY``: nothing is known; the message has to come again.
        """
        if self._stopping.is_set() or not self._session.holds():
            return  # due by itself soon
        await self._claim(self._rooms(), announced=(report_id, listener))

    def _rooms(self) -> dict[str, int]:
        taken = Counter(held.claim.served_by for held in self._held.values())
        rooms = {name: self._at_once - taken[name] for name in self._bringers.names()}
        return {name: room for name, room in rooms.items() if room > 0}

    async def _claim(self, rooms: Mapping[str, int], *, announced: tuple[int, str] | None = None) -> int:
        owner = self._session.token
        async with self._one_claims:
            try:
                if self._unsure:
                    await self._parts.give_back_strays(owner, self._held.keys())
                    self._unsure = False
                claims = await self._parts.claim(owner, rooms, announced=announced)
            except AWAY:
                self._unsure = True
                raise
            for claim in claims:
                held = self._held[claim.key.report_id, claim.key.listener] = Held(claim, owner)
                held.task = asyncio.create_task(self._bring(held))
        return len(claims)

    async def _bring(self, held: Held) -> None:
        claim = held.claim
        outcome = "lost"
        try:
            await self._probe.reached("reports.part_claimed", key=claim.key)
            outcome = await self._runs.run(held)
        except asyncio.CancelledError:
            if not held.lost:
                outcome = "released"
                with suppress(*AWAY):
                    await self._parts.release(claim, held.owner)
        finally:
            key = (claim.key.report_id, claim.key.listener)
            if self._held.get(key) is held:
                del self._held[key]
            self.counts[outcome] += 1
            self._news.set()

    # ------------------------------------------------------------------ keeping

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(KEEP_S)
            held = dict(self._held)
            if not held:
                continue
            owner = self._session.token
            try:
                ours = await self._parts.keep({key: (one.claim.fence, one.rows) for key, one in held.items()}, owner)
            except AWAY:
                continue
            for key, one in held.items():
                if key not in ours and self._held.get(key) is one and not one.ending:
                    one.lost = True
                    one.cancel()
            await self._renew([one.claim for one in held.values()])

    async def _renew(self, claims: Sequence[Claim]) -> None:
        """Renew what Redis has of these reports, of each once a minute: it lives for ten at least."""
        now_s = monotonic()
        self._renewed_s = {known: at_s for known, at_s in self._renewed_s.items() if now_s - at_s < RENEW_S}
        plans = {(one.key.report_id, one.key.epoch): one.plan for one in claims}
        due = {known: plan for known, plan in plans.items() if known not in self._renewed_s}
        self._renewed_s.update(dict.fromkeys(due, now_s))
        await self._places.touch_all(due)
