"""Claim, publish, seal: one chunk of a window is published once, however many schedulers try.

A claim expires after seconds. If a scheduler ends after its claim, another one claims the window soon. No publish
begins after half of the claim's life; one that a pause delays is a duplicate. A message whose confirm was lost is sent
again under the same claim and the same id. Consumers drop duplicates.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from enum import Enum

import structlog

from tickwright.capabilities.fanout.messages import NO_KEYS, SIGNATURE, MessageKeys, write_task
from tickwright.capabilities.fanout.scheduler.lists import ListedEntity, ModuleList
from tickwright.capabilities.fanout.windows import Window
from tickwright.domain.errors import Unavailable
from tickwright.ports.broker import Accepted, Broker, Message, Outcome, Refused
from tickwright.ports.fanout import EntityWindow, Mark, Marks
from tickwright.ports.ids import monotonic
from tickwright.ports.service import NO_PROBE, Probe

LEASE = timedelta(seconds=10)
LEASE_MIN = timedelta(seconds=2)
PUBLISH = timedelta(seconds=4)
CHUNKS_AT_ONCE = 3
"""Of all modules together: with more of them, messages wait too long at the broker, and are sent twice."""

SKEW = timedelta(minutes=1)
"""The difference that two clocks may have: a window is not published again for its length and this."""
NO_QUEUE = frozenset({"unroutable", "exchange_missing"})

_log = structlog.get_logger("tickwright.fanout")


class EntityOutcome(Enum):
    """The result of one entity of a chunk."""

    PUBLISHED = "published"
    SEALED = "sealed"
    TAKEN = "taken"
    AGAIN = "again"


_FOUND = {Mark.MINE: EntityOutcome.AGAIN, Mark.TAKEN: EntityOutcome.TAKEN, Mark.SEALED: EntityOutcome.SEALED}


class Publisher:
    """Publishes for all modules of one scheduler.

    Args:
        marks: Decide which scheduler publishes which window.
        declare: Creates the queue if it is missing; raises ``Unavailable``.
        parties: Reads entities whose parties the lists do not keep; raises ``Unavailable``.
        token: Of this process; unique.

    Attributes:
        keys: Sign every message; set with each reading of the lists.
        room: For the chunks of all modules together; more of them would wait at the broker and be published late.

    Invariants:
        FAN-1: a window is sealed only after the broker's confirm.
        FAN-2: no publish begins after half of the claim's life, five seconds at most; one that a pause delays is a
            duplicate, which consumers drop.
    """

    def __init__(
        self,
        marks: Marks,
        broker: Broker,
        destination: str,
        *,
        declare: Callable[[], Awaitable[None]],
        parties: Callable[[Sequence[str]], Awaitable[Mapping[str, ListedEntity]]],
        token: str,
        probe: Probe = NO_PROBE,
    ) -> None:
        self._marks, self._broker, self._destination = marks, broker, destination
        self._declare, self._parties, self._token, self._probe = declare, parties, token, probe
        self.keys: MessageKeys = NO_KEYS
        self.counts: Counter[str] = Counter()
        self.room = asyncio.Semaphore(CHUNKS_AT_ONCE)

    async def send(self, module: ModuleList, window: Window, codes: Sequence[str]) -> Mapping[str, EntityOutcome]:
        """Publish the free ones of ``codes``, at most a few hundred; the caller holds ``room``.

        Raises:
            Unavailable: No store of marks answers, or there is no key to sign with. Retry.
        """
        lease, begun_s = _lease(window), monotonic()
        windows = {code: EntityWindow(code, module.name, window.start_s) for code in codes}
        claims = dict(zip(windows, await self._marks.claim([*windows.values()], self._token, lease), strict=True))
        results = {code: _FOUND[claim.mark] for code, claim in claims.items()}
        listed = await self._with_parties(module, [code for code, claim in claims.items() if claim.mark is Mark.MINE])
        await self._probe.reached("fanout.claimed", places=len(listed))
        if listed and monotonic() - begun_s < lease.total_seconds() / 2:
            timeout = min(PUBLISH, lease * 0.4)
            messages = [
                self._message(module, window, code, entity, claims[code].last_success_s, timeout)
                for code, entity in listed.items()
            ]
            outcomes = await self._broker.publish_many(messages)
            await self._probe.reached("fanout.published_not_sealed", places=len(listed))
            keep = timedelta(seconds=window.length_s) + SKEW
            await self._settle([windows[code] for code in listed], outcomes, results, keep=keep)
        return results

    async def _with_parties(self, module: ModuleList, codes: Sequence[str]) -> Mapping[str, ListedEntity]:
        """Return the entities with their parties, read if they are not kept; deleted entities are left out."""
        listed = {code: module.entities[code] for code in codes}
        large = [code for code, entry in listed.items() if not entry.party]
        if large:
            listed |= await self._parties(large)
        return {code: entry for code, entry in listed.items() if entry.party}

    def _message(  # noqa: PLR0917  what a message is made of
        self,
        module: ModuleList,
        window: Window,
        code: str,
        listed: ListedEntity,
        last_success_s: float | None,
        timeout: timedelta,
    ) -> Message:
        successes = [at_s for at_s in (last_success_s, module.last_success_s.get(code)) if at_s is not None]
        last_s = max(successes, default=None)
        message_id, body = write_task(
            code, module.name, listed.party, window, last_s, module.timeout_ms, listed.partner, listed.config_version
        )
        signed = {SIGNATURE: self.keys.sign(body)}
        return Message(message_id, self._destination, body, headers=signed, timeout=timeout)

    async def _settle(
        self,
        windows: Sequence[EntityWindow],
        outcomes: Sequence[Outcome],
        results: dict[str, EntityOutcome],
        *,
        keep: timedelta,
    ) -> None:
        done, refused, refusals = [], [], []
        for window, outcome in zip(windows, outcomes, strict=True):
            if isinstance(outcome, Accepted):
                done.append(window)
                results[window.entity_code] = EntityOutcome.PUBLISHED
            elif isinstance(outcome, Refused):
                refused.append(window)
                refusals.append(outcome)
        self.counts["published"] += len(done)
        self.counts["refused"] += len(refused)
        self.counts["unknown"] += len(windows) - len(done) - len(refused)
        if done:
            try:
                self.counts["not_mine"] += await self._marks.seal(done, self._token, keep=keep)
            except Unavailable as error:  # at worst another scheduler publishes them again
                _log.warning("fanout.windows_not_sealed", windows=len(done), error=error.message)
        if refused:
            await self._release(refused, refusals)

    async def _release(self, windows: Sequence[EntityWindow], refusals: Sequence[Refused]) -> None:
        codes = Counter(refusal.code for refusal in refusals)
        _log.warning("fanout.messages_refused", refusals=dict(codes), reason=refusals[0].reason)
        with suppress(Unavailable):  # otherwise the claims expire
            await self._marks.release(windows, self._token)
        if NO_QUEUE & codes.keys():
            await self._declare()


def _lease(window: Window) -> timedelta:
    """Return how long a claim lives: half of a short window, so that a killed scheduler's windows are not lost."""
    return min(LEASE, max(LEASE_MIN, timedelta(seconds=window.length_s / 2)))
