"""Run claims in PostgreSQL: the cursors that decide which task runs, and the counts of each window's results.

A claim lives as long as its owner's session; a lost session owns nothing. Every write of a run carries the session's
token and the claim's fence.
"""

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

from tickwright.capabilities.fanout.store_access import short_connection
from tickwright.engine.claim_gate import ClaimGate, Ticket
from tickwright.ports.fanout import TIMED_OUT, Begun, Ended, Run, RunStart, Success
from tickwright.ports.session import Session
from tickwright.store.pool import Connection, Pool
from tickwright.store.queries import load

RUNS_MAX = 100  # of one transaction: others wait for its entities
ANSWER_S = 3.0
ERROR_CHARS_MAX = 500

_SQL = load("tickwright.capabilities.fanout.sql", "runs.sql")
_UNWRITABLE = re.compile("[\x00\ud800-\udfff]")


class LedgerRunClaims:
    """Implements :class:`tickwright.ports.fanout.RunClaims`; one for a process.

    Args:
        session: Under which runs are claimed; ``None`` when each call names a session of another process.

    Invariants:
        RUN-1: at most one task of an entity and task type is running.
        RUN-2: no window begins that is not newer than the last successful one.
        RUN-3: no entity has more runs at once than its ``at_once``, all task types and processes together.
    """

    def __init__(self, pool: Pool, session: Session | None = None) -> None:
        self._pool = pool
        self._beginning = asyncio.Lock()
        self._fences: dict[tuple[int, str, str], int] = {}
        self._gate = None if session is None else ClaimGate(self._connection, session, "fanout", self._strays)

    async def begin(self, runs: Sequence[Run], owner: int) -> list[Begun]:
        """Claim each run, in one order for all processes, so that they cannot deadlock.

        A claim whose answer was lost is released before the next one (:mod:`engine.claim_gate`), so that it cannot
        block its own process.
        """
        async with self._beginning:
            begun: dict[int, Begun] = {}
            for numbers in _batches(runs):
                asked = [runs[number] for number in numbers]
                begun.update(zip(numbers, await self._begin(asked, owner), strict=True))
        return [begun[number] for number in range(len(runs))]

    async def end(self, ended: Sequence[Ended], owner: int) -> list[bool]:
        """Write how runs ended and count them, in one statement. A repetition returns true again, and writes once."""
        ours: dict[int, bool] = {}
        for numbers in _batches([one.run for one in ended]):
            rows = await self._fetch("end", owner, *_ended_columns([ended[number] for number in numbers]))
            self._forget(owner, [ended[number] for number in numbers])
            ours.update(zip(numbers, (row["ours"] for row in rows), strict=True))
        return [ours[number] for number in range(len(ended))]

    async def renew(self, held: Sequence[Ended], owner: int) -> list[bool]:
        """Return which runs are still ours; their lease is the session's, which the session renews."""
        columns = [[one.run.entity_code for one in held], [one.run.task_type for one in held]]
        rows = await self._fetch("renew", owner, *columns, [one.begun.fence for one in held])
        self._forget(owner, [one for one, row in zip(held, rows, strict=True) if not row["ours"]])
        return [row["ours"] for row in rows]

    async def carry_over(self, successes: Sequence[Success]) -> None:
        """Write successes from a time without the ledger; only newer ones, so twice is harmless."""
        newest: dict[tuple[str, str], Success] = {}
        for one in sorted(successes, key=lambda one: one.window_s):
            newest[one.entity_code, one.task_type] = one
        if newest:
            await self._fetch("carry_over", *(list(column) for column in zip(*newest.values(), strict=True)))

    async def count_dropped(self, dropped: Mapping[tuple[str, int, str], int]) -> None:
        """Count dropped messages by task type, window, and ``superseded`` or ``expired``."""
        windows = sorted({(task_type, window_s) for task_type, window_s, _ in dropped})
        if windows:
            whys = [[dropped.get((*window, why), 0) for window in windows] for why in ("superseded", "expired")]
            columns = [[task_type for task_type, _ in windows], [window_s for _, window_s in windows]]
            await self._fetch("count_dropped", *columns, *whys)

    async def reclaim(self, connection: Connection, tokens: Sequence[int]) -> None:
        """Release the runs of lost sessions; for the transaction that declares them lost."""
        await connection.execute(_SQL["reclaim"], list(tokens))

    async def _begin(self, runs: Sequence[Run], owner: int) -> list[Begun]:
        codes, types = [run.entity_code for run in runs], [run.task_type for run in runs]
        windows, at_once = [run.window_s for run in runs], [run.at_once for run in runs]
        async with self._claiming(owner) as (_, number):
            async with self._connection() as connection, connection.transaction():
                await connection.execute(_SQL["lock_entities"], codes)
                rows = await connection.fetch(_SQL["begin"], owner, codes, types, windows, at_once, number, TIMED_OUT)
            for run, row in zip(runs, rows, strict=True):
                if row["fence"] is not None:
                    self._fences[owner, run.entity_code, run.task_type] = row["fence"]
        return [_begun(row) for row in rows]

    def _claiming(self, owner: int) -> AbstractAsyncContextManager[Ticket]:
        return nullcontext(Ticket(owner, 0)) if self._gate is None else self._gate.claiming()

    def _forget(self, owner: int, runs: Sequence[Ended]) -> None:
        for one in runs:
            key = owner, one.run.entity_code, one.run.task_type
            if self._fences.get(key) == one.begun.fence:
                del self._fences[key]

    async def _strays(self, connection: Connection, owner: int) -> int:
        self._fences = {key: fence for key, fence in self._fences.items() if key[0] == owner}
        codes, types = [key[1] for key in self._fences], [key[2] for key in self._fences]
        return int(await connection.fetchval(_SQL["strays"], owner, codes, types, [*self._fences.values()]))

    async def _fetch(self, name: str, *arguments: Any) -> Sequence[Any]:
        async with self._connection() as connection:
            rows: Sequence[Any] = await connection.fetch(_SQL[name], *arguments)
            return rows

    def _connection(self) -> AbstractAsyncContextManager[Connection]:
        return short_connection(self._pool, ANSWER_S, "run claims")


def _batches(runs: Sequence[Run]) -> Iterator[list[int]]:
    """Divide ``runs`` into bounded batches, as indexes in order; no batch has an entity and task type twice."""
    left = list(range(len(runs)))
    while left:
        seen: dict[tuple[str, str], int] = {}
        for number in left:
            key = runs[number].entity_code, runs[number].task_type
            if key in seen or len(seen) == RUNS_MAX:
                break
            seen[key] = number
        yield list(seen.values())
        left = left[len(seen) :]


def _begun(row: Any) -> Begun:
    if row["fence"] is not None:
        return Begun(RunStart.BEGUN, row["fence"], row["begun_s"], row["last_success_s"], row["since_timeout_s"])
    return Begun(RunStart.DONE if row["done"] else RunStart.BUSY, 0, row["begun_s"], row["last_success_s"])


def _ended_columns(ended: Sequence[Ended]) -> list[list[Any]]:
    return [
        [one.run.entity_code for one in ended],
        [one.run.task_type for one in ended],
        [one.begun.fence for one in ended],
        [one.run.window_s for one in ended],
        [one.begun.begun_s for one in ended],
        [None if one.error is None else _UNWRITABLE.sub("�", one.error)[:ERROR_CHARS_MAX] for one in ended],
        [one.released for one in ended],
    ]
