"""The workers' side of remote calls: claims, answers and releases of remote sessions, beside those of jobs.

Every write is fenced by the session and by the fence of the call's claim. A call that is repeated finds nothing to
change, and one about a call that was withdrawn finds no row.
"""

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple

import msgspec

from tickwright.engine.call_batcher import CallBatcher
from tickwright.engine.remote.calls import SQL, CallEnd, CallKind, Outcome
from tickwright.ports.service import NO_PROBE, Probe
from tickwright.store.bounds import TookTooLong, for_all_callers, outcome_unknown, within
from tickwright.store.pool import Connection, Pool

WRITE_S = 10.0
CALLS_TOGETHER_MAX = 64
CLAIMED_CHARS_MAX = 4 * 1024 * 1024
"""Of the payloads of one claim; the first call always fits."""
TIMEOUT_GRACE = timedelta(seconds=2)
"""How much longer than its timeout a call may take before the server ends it; its client ends it first."""
_SILENT = frozenset({"outcome", "result"})

Attempt = tuple[int, int]
"""The id and the fence of a claimed call."""


class ClaimedCall(NamedTuple):
    """A call that a remote session makes; ``payload`` is JSON."""

    id: int
    kind: CallKind
    name: str
    payload: str
    timeout_ms: int
    fence: int


class EndedCall(NamedTuple):
    """An answer of the session ``owner``: JSON, or ``None``."""

    id: int
    owner: int
    fence: int
    outcome: Outcome
    answer: str | None


def failure(end: CallEnd) -> str:
    """Return the answer of a call that did not complete, as its caller reads it."""
    fields = {name: value for name, value in msgspec.structs.asdict(end).items() if name not in _SILENT}
    return msgspec.json.encode(fields).decode()


class CallStore:
    """The rows of ``tickwright.remote_calls`` for remote sessions.

    Attributes:
        counts: Answers by outcome, and those that were stale.

    Invariants:
        RCW-1: only the session that holds a call, under the fence of its claim, ends it, and once.
    """

    def __init__(self, pool: Pool, *, probe: Probe = NO_PROBE) -> None:
        self._pool, self._probe = pool, probe
        self._end = CallBatcher(self._write, items_max=CALLS_TOGETHER_MAX)
        self.counts: Counter[str] = Counter()

    async def claim(
        self, owner: int, number: int, pool: str, wanted: Sequence[tuple[str, str]], most: int
    ) -> list[ClaimedCall]:
        """Claim waiting calls of these kinds and names, the oldest first."""
        kinds, names = [kind for kind, _ in wanted], [name for _, name in wanted]
        rows = await self._pool.fetch(
            SQL["claim"], owner, number, pool, kinds, names, most, CLAIMED_CHARS_MAX, TIMEOUT_GRACE
        )
        return sorted(ClaimedCall(*row) for row in rows)

    async def end(self, answers: Sequence[EndedCall]) -> set[int]:
        """Write answers; return the ids of those that were written. The others are stale.

        Raises:
            Unavailable: ``outcome_unknown``, or the database does not answer. Send the same answers again.
        """
        return await self._end(answers)

    async def _write(self, calls: Sequence[Sequence[EndedCall]]) -> Sequence[set[int] | Exception]:
        unique = {(one.id, one.owner, one.fence): one for answers in reversed(calls) for one in answers}
        try:
            with for_all_callers(), within(WRITE_S):
                rows = await self._pool.fetch(SQL["end_calls"], *map(list, zip(*unique.values(), strict=True)))
        except TookTooLong:
            return [outcome_unknown()] * len(calls)
        left = {row["id"] for row in rows}
        found: list[set[int] | Exception] = []
        for answers in calls:
            written = {one.id for one in answers if one.id in left and unique[one.id, one.owner, one.fence] is one}
            found.append(written)
            self.counts.update(one.outcome for one in answers if one.id in written)
            self.counts["stale"] += len(answers) - len(written)
        await self._probe.reached("remote.calls_ended", count=len(left))
        return found

    async def release(self, owner: int, attempts: Sequence[Attempt]) -> set[int]:
        """Let other workers claim these calls; return the ids of those that the session held."""
        return await _release(self._pool, owner, attempts, others=False)

    async def release_unknown(self, connection: Connection, owner: int, known: Sequence[Attempt]) -> int:
        """Release what the session holds besides ``known``; return how many calls."""
        return len(await _release(connection, owner, known, others=True))

    async def lost(self, owner: int, attempts: Sequence[Attempt]) -> list[Attempt]:
        """Return those of the calls that the session does not hold."""
        if not attempts:
            return []
        ids, fences = _columns(attempts)
        return [(row["id"], row["fence"]) for row in await self._pool.fetch(SQL["check_calls"], owner, ids, fences)]

    async def report_progress(self, owner: int, items: Sequence[tuple[int, int, str]]) -> set[int]:
        """Write the progress of calls, JSON; return the ids of those that the session holds."""
        ids, fences, texts = map(list, zip(*items, strict=True))
        return {row["id"] for row in await self._pool.fetch(SQL["report_progress"], owner, ids, fences, texts)}


async def _release(where: Pool | Connection, owner: int, attempts: Sequence[Attempt], *, others: bool) -> set[int]:
    ids, fences = _columns(attempts)
    return {row["id"] for row in await where.fetch(SQL["release_calls"], owner, others, ids, fences)}


def _columns(attempts: Sequence[Attempt]) -> tuple[list[int], list[int]]:
    return [call_id for call_id, _ in attempts], [fence for _, fence in attempts]
