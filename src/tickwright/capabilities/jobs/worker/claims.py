"""The worker's statements on the jobs tables: claims, results, reclaims. Every write carries the session's token."""

from collections import Counter
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from itertools import pairwise, starmap
from operator import attrgetter
from typing import Any

import asyncpg
import structlog

from tickwright.capabilities.jobs.model import PRIORITY_FIRST, ClaimedRow, ClaimPlan, ClaimRange
from tickwright.capabilities.jobs.queries import with_claim_ranges
from tickwright.engine.remote.calls import HOLDINGS as CALL_HOLDINGS
from tickwright.ports.ids import monotonic, record_database_time, unix_seconds
from tickwright.store.pool import Connection, Pool
from tickwright.store.queries import load, with_shared

_PACKAGE = "tickwright.capabilities.jobs.sql"
_CLAIMS = with_claim_ranges(load(_PACKAGE, "claims.sql"))
HOLDINGS, OWNED = (_CLAIMS["held"], *CALL_HOLDINGS), _CLAIMS["owned"]
_PIECES = load(_PACKAGE, "fragments.sql")
_COLUMNS = with_shared(
    _PIECES, "job_columns", "request_columns", "claim_columns", "detail_columns", "attempt", of=_PIECES
)
_FRAGMENTS = {name: "\n".join(text.splitlines()[1:]) for name, text in _COLUMNS.items()}
_RESULTS = with_shared(load(_PACKAGE, "results.sql"), "stopped", of=_PIECES)
_HISTORY = "SELECT tickwright.ensure_history(clock_timestamp())"
_HISTORY_AND_DAY = load(_PACKAGE, "jobs.sql")["history_of_today"]

_COUNTS_ITSELF = frozenset({"retry", "release", "release_with_error", "snooze", "defer"})

LEASE_EXPIRED = "lease_expired: the worker was lost while it ran this job"

DAY_S = 86_400
"""A day of the database in UTC begins at each multiple, as in ``tickwright.history_table``."""

TAKES_LONG_S = 900.0

LONG_MAX = 64
LONG_BYTES = 2 * 1024 * 1024
"""How many payloads of one claim may be long, and the bytes of each as text; other payloads have 64 KB."""

_log = structlog.get_logger("tickwright.jobs")


_priority_of, _due_of = attrgetter("priority"), attrgetter("due_s")
_type_of, _payload_of, _details_of = attrgetter("task_type"), attrgetter("payload"), attrgetter("details")


@dataclass(frozen=True)
class ClaimedJobs:
    """The result of one claim.

    Attributes:
        rows: The claimed jobs, unordered.
        now_s: The database's clock at the end of the statement.
        next_due_s: The first due instant behind the horizon, in the ranges of the claim.
        snapshot_s: The database's clock at the snapshot: rows that are inserted later are not in it.
        new_ranges: Priorities in use that the worker did not know.
        fire_s: The starts of rate-limited jobs, by id.
        rate_per_s: The rate of the type at which these starts were taken.
        was_cut: More was due than one claim may return, by its bytes.
        empty_ranges: Those of the checked ranges that have no job of any status.
        first_priority: The priority that the claim read first, then those below it, then those above.
        received_s: When the result arrived (monotonic), before the commit.
    """

    rows: list[ClaimedRow]
    now_s: float
    next_due_s: float | None
    snapshot_s: float
    new_ranges: list[ClaimRange]
    fire_s: dict[int, float] = field(default_factory=dict)
    rate_per_s: float | None = None
    was_cut: bool = False
    empty_ranges: list[ClaimRange] = field(default_factory=list)
    first_priority: int = PRIORITY_FIRST
    received_s: float = field(default_factory=monotonic)

    @cached_property
    def counts(self) -> Counter[str]:
        """How many rows of each task type there are."""
        return Counter(map(_type_of, self.rows))

    @cached_property
    def priorities(self) -> set[int]:
        """Those of the rows."""
        return set(map(_priority_of, self.rows))

    def latest(self) -> dict[tuple[str, int], float]:
        """Return the latest due instant of each task type and priority."""
        if len(self.counts) == len(self.priorities) == 1:
            (name,), (priority,) = self.counts, self.priorities
            return {(name, priority): max(map(_due_of, self.rows))}
        latest: dict[tuple[str, int], float] = {}
        for row in self.rows:
            key = row.task_type, row.priority
            latest[key] = max(latest.get(key, 0.0), row.due_s)
        return latest

    def sort(self) -> None:
        """Sort the rows as the claim read them: by priority, from the first one, then by due instant."""
        first, is_mixed = self.first_priority, len(self.priorities) > 1
        self.rows.sort(key=(lambda row: (row.priority > first, -row.priority, row.due_s)) if is_mixed else _due_of)

    @cached_property
    def details_chars(self) -> int:
        """The total length of the details; 0 where no job has any."""
        return sum(map(len, filter(None, map(_details_of, self.rows))))

    @cached_property
    def lengths(self) -> Counter[str]:
        """The total length of the payloads and details of each task type."""
        if len(self.counts) != 1:
            return lengths_of(self.rows)
        return Counter(dict.fromkeys(self.counts, sum(map(len, map(_payload_of, self.rows))) + self.details_chars))


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """The parameters of one claim.

    Attributes:
        ranges: The ranges to read, for the types of the plan.
        horizon: How far ahead a row may be due.
        bounded: Use the frontiers of the ranges.
        whole: Types with all known ranges in ``ranges``: discover priorities between them. ``None``: all types.
        number: The session may refuse claims by their numbers.
        long_max: How many payloads that may be long it may return.
        checked: Ranges that may have no job any more.
    """

    token: int
    plan: ClaimPlan
    ranges: Sequence[ClaimRange]
    horizon: timedelta
    bounded: bool = False
    whole: AbstractSet[str] | None = None
    number: int = 0
    long_max: int = LONG_MAX
    checked: Sequence[ClaimRange] = ()


class ClaimStore:
    """The statements of one worker. Those that write history use the table of the database's day."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._history, self._day = "", 0
        self._sql: dict[str, str] = {}

    async def claim(self, request: ClaimRequest, connection: Connection | None = None) -> ClaimedJobs:
        """Claim, alone or inside the caller's transaction."""
        records = await (connection or self._pool).fetch(_CLAIMS["claim"], *_claim_arguments(request))
        summary = records.pop()  # the statement's comment says which column of a job holds what
        record_database_time(now_s := summary["execute_s"])
        found: list[ClaimRange] = []
        empty: list[ClaimRange] = []
        while records and records[-1]["id"] is None:
            record = records.pop()
            (empty if record["attempts"] == 0 else found).append(ClaimRange(record["task_type"], record["priority"]))
        return ClaimedJobs(
            list(starmap(ClaimedRow, records)),
            now_s,
            next_due_s=summary["due_s"],
            snapshot_s=summary["expires_s"],
            new_ranges=found,
            was_cut=summary["max_attempts"] > 0,
            empty_ranges=empty,
            first_priority=request.plan.first_priority,
        )

    async def write(self, name: str, token: int, ids: list[int], *columns: list[Any]) -> int:
        """Run one result statement; return how many of the jobs ``token`` still held."""
        try:
            return await self._write(self._pool, name, token, ids, *columns)
        except asyncpg.UndefinedTableError:  # retention has dropped the table of the former day
            self._forget_day()
            return await self._write(self._pool, name, token, ids, *columns)

    async def write_in(self, connection: Connection, name: str, token: int, ids: list[int], *columns: list[Any]) -> int:
        """Write like :meth:`write`, inside the caller's transaction.

        Raises:
            asyncpg.UndefinedTableError: Retention has dropped the table of the former day. Repeat the transaction.
        """
        try:
            return await self._write(connection, name, token, ids, *columns)
        except asyncpg.UndefinedTableError:
            self._forget_day()
            raise

    async def write_unlocked(
        self, name: str, token: int, ids: list[int], *columns: list[Any]
    ) -> tuple[int, AbstractSet[int]]:
        """Write like :meth:`write`, but skip rows that other sessions have locked; return their ids, too."""
        try:
            return await self._write_unlocked(name, token, ids, *columns)
        except asyncpg.UndefinedTableError:  # as above
            self._forget_day()
            return await self._write_unlocked(name, token, ids, *columns)

    async def _write_unlocked(
        self, name: str, token: int, ids: list[int], *columns: list[Any]
    ) -> tuple[int, AbstractSet[int]]:
        async with self._pool.acquire() as connection, connection.transaction():
            locked = {row[0] for row in await connection.fetch(_CLAIMS["lock_unlocked"], token, ids)}
            free = [index for index, job_id in enumerate(ids) if job_id not in locked]
            written = [[column[index] for index in free] for column in (ids, *columns)]
            return await self._write(connection, name, token, *written), locked

    async def _write(self, to: Pool | Connection, name: str, token: int, ids: list[int], *columns: list[Any]) -> int:
        if self._day != unix_seconds() // DAY_S:
            self._forget_day()
        sql = self._sql.get(name) or await self._prepare(name)
        if not columns:  # as text: the driver checks each element of an array, for 4 % of a worker's time
            return _affected(await to.execute(sql, token, f"{{{str(ids)[1:-1]}}}"))
        if name in _COUNTS_ITSELF:
            return int(await to.fetchval(sql, token, ids, *columns))
        return _affected(await to.execute(sql, token, ids, *columns))

    async def reclaim(self, connection: Connection, tokens: Sequence[int]) -> tuple[int, int]:
        """Release the jobs of lost sessions; return ``(released, ended)``."""
        history = await connection.fetchval(_HISTORY)
        sql = _CLAIMS["reclaim"].format(history=history, **_FRAGMENTS)
        await connection.execute(_CLAIMS["allow_long_statement"])
        row = await connection.fetchrow(sql, list(tokens), LEASE_EXPIRED, timeout=TAKES_LONG_S)
        returned, ended = row["returned"], row["ended"]
        if returned or ended:
            _log.warning("jobs.reclaimed", sessions=list(tokens), returned=returned, failed=ended)
        return returned, ended

    async def reclaim_for_others(self, connection: Connection, tokens: Sequence[int]) -> None:
        """Release the jobs of lost sessions in a process that runs no jobs itself."""
        await self.reclaim(connection, tokens)

    async def begin_last(self, token: int, ids: Sequence[int], fences: Sequence[int]) -> dict[int, bool]:
        """Write that last attempts begin; return the held ids, with ``False`` where the row is locked."""
        rows = await self._pool.fetch(_CLAIMS["begin_last"], token, list(ids), list(fences))
        return {row["id"]: row["begins"] for row in rows}

    async def release_unknown(
        self, connection: Connection, token: int, known: Sequence[tuple[int, int]]
    ) -> tuple[int, Sequence[tuple[int, int]]]:
        """Release the jobs of ``token`` except ``known``, given as ``(id, fence)``; fence 0 matches any fence.

        Returns:
            How many were released, and the ``(id, fence)`` of those whose rows other sessions have locked.
        """
        history = await connection.fetchval(_HISTORY)
        sql = _CLAIMS["release_unknown"].format(history=history, **_FRAGMENTS)
        ids, fences = [job_id for job_id, _ in known], [fence for _, fence in known]
        await connection.execute(_CLAIMS["allow_long_statement"])
        row = await connection.fetchrow(sql, token, ids, fences, timeout=TAKES_LONG_S)
        return row["released"], list(zip(row["locked_ids"], row["locked_fences"], strict=True))

    async def check_held(
        self, connection: Connection, token: int, ids: Sequence[int]
    ) -> dict[int, tuple[str | None, bool]]:
        """Return why held jobs must stop (``lost``, ``cancel``), and whether they are awaited; no others."""
        return {row[0]: (row[1], row[2]) for row in await connection.fetch(_CLAIMS["check_held"], token, list(ids))}

    async def report_progress(self, token: int, job_id: int, fence: int, progress: str) -> bool:
        """Write a job's progress; return ``False`` when the session no longer holds the job."""
        return _affected(await self._pool.execute(_RESULTS["report_progress"], token, job_id, progress, fence)) == 1

    def _forget_day(self) -> None:
        self._sql.clear()
        self._history = ""

    async def _prepare(self, name: str) -> str:
        if not self._history:
            row = await self._pool.fetchrow(_HISTORY_AND_DAY)
            self._history, self._day = row["history"], row["day"]
            self._sql.clear()
        sql = self._sql[name] = _RESULTS[name].format(history=self._history, **_FRAGMENTS)
        return sql


def lengths_of(rows: Sequence[ClaimedRow]) -> Counter[str]:
    """Return the total length of the payloads and details by task type."""
    if len(names := set(map(_type_of, rows))) == 1:
        details = sum(map(len, filter(None, map(_details_of, rows))))
        return Counter({names.pop(): sum(map(len, map(_payload_of, rows))) + details})
    found: Counter[str] = Counter()
    for row in rows:
        found[row.task_type] += len(row.payload) + len(row.details or "")
    return found


_PRIORITY_MIN, _PRIORITY_MAX = -101, 101


def _claim_arguments(request: ClaimRequest) -> tuple[Any, ...]:
    plan, whole = request.plan, request.whole
    ranges = sorted(request.ranges, key=lambda claim_range: -claim_range.priority)
    gaps = _gaps([claim_range for claim_range in ranges if whole is None or claim_range.task_type in whole])
    frontiers = [claim_range.frontier_s if request.bounded else 0.0 for claim_range in ranges]
    return (
        request.token,
        plan.types,
        plan.rows_max,
        *_columns(ranges),
        frontiers,
        request.horizon,
        plan.total_max,
        [gap[0] for gap in gaps],
        [gap[1] for gap in gaps],
        [gap[2] for gap in gaps],
        request.number,
        request.long_max,
        *_columns(request.checked),
        plan.first_priority,
    )


def _columns(ranges: Sequence[ClaimRange]) -> tuple[list[str], list[int]]:
    return [found.task_type for found in ranges], [found.priority for found in ranges]


def _gaps(ranges: Sequence[ClaimRange]) -> list[tuple[str, int, int]]:
    """Return the gaps between known priorities; ``ranges`` are in descending order of priority."""
    known: dict[str, list[int]] = {}
    for claim_range in ranges:
        known.setdefault(claim_range.task_type, [_PRIORITY_MAX]).append(claim_range.priority)
    return [
        (name, below, above)
        for name, priorities in known.items()
        for above, below in pairwise([*priorities, _PRIORITY_MIN])
        if above - below > 1
    ]


def _affected(tag: str) -> int:
    return int(tag.rsplit(" ", 1)[1])
