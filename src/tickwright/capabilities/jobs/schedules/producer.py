"""What the producer does for periodic jobs: one job for each occurrence, under a key that only this occurrence has.

Where jobs of one schedule may run side by side, a job is written up to two seconds before it is due, so that a worker
claims it ahead and starts it at its slot. With ``skip`` and ``replace`` it is written at its slot, because only then it
is known whether the job before it has ended.
"""

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, NamedTuple, cast

import asyncpg
import structlog

from tickwright.capabilities.jobs.schedules.definition import policies_of, recurrence_of
from tickwright.domain.calendars.occurrences import Decision, spread_offset
from tickwright.domain.errors import Rejected
from tickwright.engine.occurrences import WRONG_LATER, Due, OccurrenceProducer
from tickwright.ports.session import HeldLease
from tickwright.store.pool import Connection, Pool
from tickwright.store.queries import load

SQL = load("tickwright.capabilities.jobs.schedules.sql", "schedule_producer.sql")
CHANNEL = "tickwright_schedules"
AHEAD = timedelta(seconds=2)
"""How long before it is due a job is written, where the overlap policy permits it."""
SKIPS_KEPT = 100
KEY_WAIT = "1s"
LOCK_WAIT = "100ms"
"""How long the jobs that are replaced are waited for; claims and results hold them for less."""
LOCKED_LATER = timedelta(seconds=2)
"""When a schedule with a locked job is decided about again: another transaction may end soon."""
PROBLEM_CHARS_MAX = 500
_TICK = timedelta(microseconds=1)
_NOT_MADE = (
    asyncpg.DataError,
    asyncpg.IntegrityConstraintViolationError,
    asyncpg.LockNotAvailableError,
    asyncpg.DeadlockDetectedError,
)

_log = structlog.get_logger("tickwright.schedules")


def slot_key(name: str, slot_at: datetime) -> str:
    """Return the idempotency key of an occurrence, such as ``schedule:nightly:2026-11-28T03:00:00Z``.

    Invariants:
        SCK-1: different slots or names give different keys; the key does not depend on the spread.
    """
    return f"schedule:{name}:{slot_at.astimezone(UTC).isoformat().replace('+00:00', 'Z')}"


class _Row(NamedTuple):
    """What of a locked row is needed to write a decision about it."""

    offset: timedelta
    ahead: timedelta


class _NewJob(NamedTuple):
    name: str
    execute_at: datetime
    key: str


class ScheduleSource:
    """Periodic jobs as an :class:`~tickwright.engine.occurrences.OccurrenceSource`.

    Invariants:
        SCH-1: an occurrence has one job, or is in a skip with its reason, whatever is killed and however many
            producers there are.
        SCH-2: no job is due before its slot and its place in the spread.
        SCH-3: a schedule whose job PostgreSQL refuses, or whose open job another transaction has locked, delays no
            other one; its occurrences are caught up by its policy.
    """

    name: ClassVar[str] = "schedules"
    wakeup_channel: ClassVar[str] = CHANNEL

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._rows: dict[Any, _Row] = {}

    async def lock(self, connection: Connection, at_once: int) -> Sequence[Any]:
        """Lock and return due schedules."""
        rows: Sequence[Any] = await connection.fetch(SQL["due_schedules"], at_once)
        return rows

    async def due(self, connection: Connection, rows: Sequence[Any]) -> Sequence[Due]:
        """Return what is due; a schedule without a further occurrence is not read again before it is edited."""
        careful = [row["name"] for row in rows if row["overlap"] == "skip"]
        found = await connection.fetch(SQL["open_schedules"], careful) if careful else []
        opened = {row["name"] for row in found}
        self._rows = {}
        due, over, wrong = [], [], {}
        for row in rows:
            try:
                one = self._due(row, is_open=row["name"] in opened)
            except Rejected as error:
                _log.error("schedules.calendar_invalid", schedule=row["name"], code=error.code, reason=error.message)
                wrong[row["name"]] = f"{error.code}: {error.message}"
            else:
                due.append(one) if one is not None else over.append(row["name"])
        if over:
            nothing = [None] * len(over)
            await connection.execute(SQL["move_schedules"], over, nothing, nothing, nothing, nothing)
        await _postpone(connection, wrong)
        return due

    def _due(self, row: Any, *, is_open: bool) -> Due | None:
        recurrence, offset = recurrence_of(row), spread_offset(row["name"], row["spread"])
        first = row["next_slot_at"] or recurrence.next_after(row["counts_from"] - offset - _TICK)
        if first is None:
            return None
        ahead = AHEAD if row["overlap"] == "allow" else timedelta()
        self._rows[row["name"]] = _Row(offset, ahead)
        return Due(row["name"], recurrence, first, row["now"] - offset, policies_of(row), is_open, ahead)

    async def write(self, connection: Connection, decisions: Mapping[Any, Decision]) -> Mapping[str, int]:
        """Write jobs, skips and next slots."""
        locked = await _cancel_open(connection, [name for name, one in decisions.items() if one.is_replacing])
        decisions = {name: one for name, one in decisions.items() if name not in locked}
        new = [
            _NewJob(name, slot_at + self._rows[name].offset, slot_key(name, slot_at))
            for name, decision in decisions.items()
            for slot_at in decision.new
        ]
        made, refused = await _put_jobs(connection, new)
        written = {name: decision for name, decision in decisions.items() if name not in refused}
        skips = [(name, *skip) for name, decision in written.items() for skip in decision.skips]
        if skips:
            await connection.execute(SQL["put_skips"], *map(list, zip(*skips, strict=True)))
            await connection.execute(SQL["drop_old_skips"], sorted({skip[0] for skip in skips}), SKIPS_KEPT)
        await connection.execute(SQL["move_schedules"], *self._moves(written, made))
        await _postpone(connection, refused)
        await _postpone(connection, locked, LOCKED_LATER)
        skipped = Counter[str]()
        for _, _, _, slots, reason in skips:
            skipped[reason] += slots
        return {"jobs": len(made), **skipped}

    def _moves(self, decisions: Mapping[str, Decision], made: Mapping[str, int]) -> list[list[Any]]:
        """Return the columns of ``move_schedules``."""
        moves = []
        for name, decision in decisions.items():
            row, next_at, last_at = self._rows[name], decision.next_slot_at, max(decision.new, default=None)
            due_at = None if next_at is None else next_at + row.offset - row.ahead
            job_id = None if last_at is None else made.get(slot_key(name, last_at))
            moves.append((name, next_at, due_at, last_at, job_id))
        return [list(column) for column in zip(*moves, strict=True)] or [[], [], [], [], []]

    async def next_in_s(self, connection: Connection) -> float | None:
        """Return the seconds until a schedule is due."""
        found: float | None = await connection.fetchval(SQL["next_due_in"])
        return found


class _OwnTransactions:
    """Transactions of a program that produces for itself, without the lease; the locks of rows suffice."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        async with self._pool.acquire() as connection, connection.transaction():
            yield connection


async def produce_due(pool: Pool) -> float | None:
    """Make the jobs that are due by schedules; return the seconds until more are, ``None`` if none ever are.

    For a program that drains its jobs itself. Beside schedulers it makes nothing twice.
    """
    source, lease = ScheduleSource(), _OwnTransactions(pool)
    while await OccurrenceProducer([source]).round(cast("HeldLease", lease)) == 0:
        pass
    async with pool.acquire() as connection:
        return await source.next_in_s(connection)


async def _put_jobs(connection: Connection, new: Sequence[_NewJob]) -> tuple[dict[str, int], dict[str, str]]:
    """Insert jobs in one statement; return their ids by key, and by name why PostgreSQL refuses those of a schedule.

    Where one row stops the statement, each schedule has a statement and a savepoint of its own.
    """
    if not new:
        return {}, {}
    try:
        return await _insert(connection, new), {}
    except _NOT_MADE as error:
        if len({job.name for job in new}) == 1:
            return {}, {new[0].name: f"{error}"}
    made: dict[str, int] = {}
    refused: dict[str, str] = {}
    by_name: dict[str, list[_NewJob]] = {}
    for job in new:
        by_name.setdefault(job.name, []).append(job)
    for name in sorted(by_name):
        try:
            made |= await _insert(connection, by_name[name])
        except _NOT_MADE as error:
            _log.error("schedules.job_refused", schedule=name, error=str(error))
            refused[name] = f"{error}"
    return made, refused


async def _insert(connection: Connection, new: Iterable[_NewJob]) -> dict[str, int]:
    names, dues, keys = map(list, zip(*new, strict=True))
    async with connection.transaction():
        rows = await connection.fetch(SQL["put_jobs"], names, dues, keys, KEY_WAIT)
        return {row["key"]: row["id"] for row in rows}


async def _cancel_open(connection: Connection, names: Sequence[str]) -> dict[str, str]:
    """Cancel the open jobs of schedules; return those with a job that another transaction has locked, and why.

    Where one row stops the statement, each schedule has a statement and a savepoint of its own.
    """
    try:
        if names:
            await _cancel(connection, names)
    except asyncpg.LockNotAvailableError as error:
        if len(names) == 1:
            _log.warning("schedules.job_locked", schedule=names[0], error=str(error))
            return {names[0]: f"another transaction has locked a job that is to be replaced: {error}"}
        return {name: text for one in names for name, text in (await _cancel_open(connection, [one])).items()}
    return {}


async def _cancel(connection: Connection, names: Sequence[str]) -> None:
    async with connection.transaction():
        await connection.execute(SQL["bound_waits"], LOCK_WAIT)
        opened = await connection.fetch(SQL["lock_open_jobs"], names)
        await connection.execute(SQL["cancel_jobs"], [row["id"] for row in opened])


async def _postpone(connection: Connection, problems: Mapping[str, str], later: timedelta = WRONG_LATER) -> None:
    if problems:
        texts = [text[:PROBLEM_CHARS_MAX] for text in problems.values()]
        await connection.execute(SQL["postpone"], [*problems], texts, later)
