"""Searches for jobs with bounded rows and time; each search returns its position.

An index on a job's text, its state, or its time with its type would cost too much at every claim. So a search walks the
primary keys and stops after ``LOOK_MAX`` rows or ``LOOK_TIME``. The caller continues from there with a cursor. Three
shortcuts avoid the walk: ids, a type with few live jobs, the jobs of one worker.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from typing import Any

import asyncpg

from tickwright.domain.errors import Rejected
from tickwright.domain.masking import SEPARATOR
from tickwright.domain.states import JobStatus
from tickwright.store.paging import LIMIT_DEFAULT, fetch_page
from tickwright.store.pool import Connection, Pool
from tickwright.store.queries import load, with_lanes

MANY_MAX = 1000
LIVE = frozenset({JobStatus.PENDING, JobStatus.PROCESSING})
DONE = frozenset({JobStatus.COMPLETED, JobStatus.CANCELLED})


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs a list, its counts or a bulk action mean; a field that is left out matches every job.

    Attributes:
        execute_from: Inclusive.
        execute_to: Exclusive.
        statuses: Empty is all.
        text: A part of the key, the last error or the payload's JSON, in any case.
        worker: The session that holds the job now.
        in_payload: Whether ``text`` is searched in payloads, too; not for callers that may not read them.
        in_addresses: Whether it is searched behind the hosts of addresses, too; likewise.
    """

    ids: tuple[int, ...] | None = None
    task_type: str | None = None
    execute_from: datetime | None = None
    execute_to: datetime | None = None
    statuses: tuple[JobStatus, ...] = ()
    idempotency_key: str | None = None
    text: str | None = None
    worker: int | None = None
    in_payload: bool = True
    in_addresses: bool = True

    def check(self, limit: int) -> None:
        """Refuse an empty filter, which would match every job.

        Raises:
            Rejected: ``empty_filter``, ``invalid_limit``. Permanent.
        """
        if not self.shown():
            raise Rejected(
                "empty_filter", "say which jobs: ids, task_type, status, execute_from, execute_to, text or a key"
            )
        if not 1 <= limit <= MANY_MAX:
            raise Rejected("invalid_limit", f"limit: 1 to {MANY_MAX}", field="limit")

    def shown(self) -> dict[str, Any]:
        """Return the fields that are set, for the audit trail."""
        values = {one.name: getattr(self, one.name) for one in fields(JobFilter) if not one.name.startswith("in_")}
        return {name: value for name, value in values.items() if value not in {None, ()}}

    def listing(self) -> tuple[Any, ...]:
        """Return every field; a cursor is bound to them."""
        return tuple(getattr(self, one.name) for one in fields(JobFilter))

    def wants(self, some: frozenset[JobStatus]) -> bool:
        """Whether a job in one of these states could match."""
        return not self.statuses or bool(some & set(self.statuses))

    def patterns(self) -> list[str | None] | None:
        """Return the ``ILIKE`` patterns for public fields and for payloads; wildcards are escaped."""
        if self.text is None:
            return None
        plain = self.text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
        return [f"%{plain}%", f"%{plain}%" if self.in_payload else None]


@dataclass(frozen=True, slots=True)
class ListQuery(JobFilter):
    """The query of one page; ``limit`` is 1 to 200."""

    cursor: str | None = None
    limit: int = LIMIT_DEFAULT

    @classmethod
    def of(cls, which: JobFilter, cursor: str | None, limit: int) -> "ListQuery":
        """Return the query of one page of the jobs that ``which`` matches."""
        return cls(**{one.name: getattr(which, one.name) for one in fields(JobFilter)}, cursor=cursor, limit=limit)


LOOK_MAX = 20_000
LOOK_TIME = timedelta(milliseconds=80)
COUNT_TIME = timedelta(milliseconds=40)
FEW_MAX = 5_000
COUNT_MAX = 10_000
RUNNING = frozenset({JobStatus.PROCESSING})
FAILED = frozenset({JobStatus.FAILED})

LOOKS = {
    name: "\n".join(line for line in text.splitlines() if not line.startswith("--"))
    for name, text in with_lanes(load("tickwright.capabilities.jobs.sql", "search.sql")).items()
}
_FAMILY, _LIVE, _DEAD = (
    "tickwright.scheduled_tasks",
    "ONLY tickwright.scheduled_tasks",
    "tickwright.scheduled_tasks_dead",
)


@dataclass(frozen=True, slots=True)
class JobQuery:
    """The conditions of a search.

    Attributes:
        action: ``cancel``, ``run_now`` and ``move`` leave out jobs that they would not change; ``""`` leaves out none.
        as_of: Leaves out jobs that were changed at this instant or later.
        target: Where jobs are moved to; those that are there already are left out.
    """

    which: JobFilter
    action: str = ""
    as_of: datetime | None = None
    target: datetime | None = None

    def sql(self, name: str, **parts: str) -> str:
        """Return a statement with these conditions."""
        fold = LOOKS["fold"] if self.which.text is not None and self.which.text.isascii() else ""
        places = {"key": "t.idempotency_key", "error": "t.error_message", "payload": "t.payload::text"}
        if not self.which.in_addresses:
            places = {place: LOOKS["masked"].format(text=text, separator=SEPARATOR) for place, text in places.items()}
        return LOOKS[name].format(matches=LOOKS["matches"].format(fold=fold, **places), **parts)

    def arguments(self) -> tuple[Any, ...]:
        """Return the values of the fragment ``matches``."""
        which = self.which
        return (
            [str(one) for one in which.statuses] or None, which.task_type, which.execute_from, which.execute_to,
            which.patterns(), self.action, self.as_of, self.target,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class SearchPage:
    """The result of a search.

    Attributes:
        ids: In the order of the search.
        position: The id behind which the next search begins; ``None`` at the end.
        searched: Rows read.
    """

    ids: list[int]
    position: int | None
    searched: int


@dataclass(frozen=True, slots=True)
class SearchCounts:
    """Jobs by status, each at most ``COUNT_MAX``; the states in ``at_least`` may have more."""

    counts: dict[str, int]
    at_least: frozenset[str]


@dataclass(frozen=True, slots=True)
class _SearchSource:
    """The source of a search: a table expression, and the ids to which it is limited."""

    source: str
    ids: list[int] | None = None
    rows_max: int = field(default_factory=lambda: LOOK_MAX)


class JobSearch:
    """Bounded searches for live and finished jobs."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def newest(self, which: JobFilter, before: int, limit: int) -> SearchPage:
        """Return at most ``limit`` jobs below an id, from high to low."""
        try:
            return await self._newest(which, before, limit)
        except asyncpg.UndefinedTableError:  # retention has just dropped the oldest day
            return await self._newest(which, before, limit)

    async def oldest(self, wanted: JobQuery, after: int, limit: int) -> SearchPage:
        """Return at most ``limit`` live jobs above an id, from low to high; dead ones if the filter is ``failed``."""
        which = wanted.which
        place = _SearchSource(_LIVE, await self._narrowed(which))
        if set(which.statuses) == FAILED:
            place = _SearchSource(_DEAD, None if which.ids is None else list(which.ids))
        return await self._look("look_oldest", wanted, place, after, limit)

    async def count(self, which: JobFilter) -> SearchCounts:
        """Count the jobs that match by status, each up to ``COUNT_MAX`` and with bounded work."""
        try:
            return await self._count(which)
        except asyncpg.UndefinedTableError:
            return await self._count(which)

    async def status_of(self, wanted: JobQuery, ids: Sequence[int]) -> dict[str, int]:
        """Return how many of these jobs match, by status."""
        rows = await self._pool.fetch(wanted.sql("count_ids"), *wanted.arguments(), list(ids))
        return {row["status"]: row["jobs"] for row in rows}

    async def now(self) -> datetime:
        """Return the database's clock."""
        at: datetime = await self._pool.fetchval(LOOKS["now"])
        return at

    async def _places(self, which: JobFilter) -> list[_SearchSource]:
        if which.ids is not None and which.worker is None:
            return [_SearchSource(_FAMILY, list(which.ids))]
        if which.worker is not None or set(which.statuses) == RUNNING:
            return [_SearchSource(_LIVE, await self._narrowed(which))]
        few = await self._narrowed(which) if which.task_type is not None and which.wants(LIVE) else None
        if few is None:
            source = await self._source(which)
            return [_SearchSource(source)] if source else []
        rest = replace(which, statuses=tuple(one for one in which.statuses or JobStatus if one not in LIVE))
        source = await self._source(rest) if rest.statuses else ""
        live = [_SearchSource(_LIVE, few)]
        return [*live, _SearchSource(source, rows_max=LOOK_MAX - len(few))] if source else live

    async def _narrowed(self, which: JobFilter) -> list[int] | None:
        """Return the ids of the only live jobs that can match, where an index has them; else ``None``."""
        if which.ids is not None and which.worker is None:
            return list(which.ids)
        if which.worker is not None or set(which.statuses) == RUNNING:
            rows = await fetch_page(self._pool, LOOKS["held_by"], which.worker, LOOK_MAX, COUNT_MAX)
            return [row["id"] for row in rows if which.ids is None or row["id"] in which.ids]
        if which.task_type is None:
            return None
        rows = await fetch_page(self._pool, LOOKS["of_type"], which.task_type, FEW_MAX + 1)
        return None if len(rows) > FEW_MAX else [row["id"] for row in rows]

    async def _source(self, which: JobFilter) -> str:
        """Return the smallest part of the family of tables that can have matches; empty when there is none."""
        if which.wants(LIVE) and which.wants(FAILED) and which.wants(DONE):
            return _FAMILY
        tables = [name for name, states in ((_LIVE, LIVE), (_DEAD, FAILED)) if which.wants(states)]
        if which.wants(DONE):
            tables += [f"tickwright.{row['relname']}" for row in await self._pool.fetch(LOOKS["days"])]
        if len(tables) < 2:
            return "".join(tables)
        return "({})".format(" UNION ALL ".join(LOOKS["whole"].format(source=table) for table in tables))

    async def _newest(self, which: JobFilter, before: int, limit: int) -> SearchPage:
        places = await self._places(which)
        return merge(
            [await self._look("look_newest", JobQuery(which), place, before, limit) for place in places], limit
        )

    async def _look(self, name: str, wanted: JobQuery, place: _SearchSource, start: int, limit: int) -> SearchPage:
        within = "" if place.ids is None else LOOKS["within"]
        sql = wanted.sql(name, source=place.source, within=within)
        rows = await fetch_page(
            self._pool, sql, *wanted.arguments(), LOOK_TIME, start, place.rows_max, limit + 1,
            *(() if place.ids is None else (place.ids,)),
        )  # fmt: skip
        return read_look(rows, place.rows_max, limit, down=name == "look_newest")

    async def _count(self, which: JobFilter) -> SearchCounts:
        asked = {str(state) for state in which.statuses or JobStatus}
        counts, more = dict.fromkeys(asked, 0), set[str]()
        if which.ids is not None or which.worker is not None:
            ids = await self._narrowed(which) or []
            return SearchCounts(counts | await self.status_of(JobQuery(which), ids), frozenset())
        for states, count in ((LIVE, self._count_live), (FAILED, self._count_walk), (DONE, self._count_walk)):
            if which.wants(states):
                found = await count(which, states)
                counts |= {state: jobs for state, jobs in found.counts.items() if state in asked}
                more |= found.at_least & asked
        more |= {state for state, jobs in counts.items() if jobs >= COUNT_MAX}
        return SearchCounts({state: min(jobs, COUNT_MAX) for state, jobs in counts.items()}, frozenset(more))

    async def _count_live(self, which: JobFilter, _: frozenset[JobStatus]) -> SearchCounts:
        wanted = JobQuery(which)
        sql, values = wanted.sql("count_live"), wanted.arguments()
        rows = await fetch_page(self._pool, sql, *values, COUNT_TIME, COUNT_MAX, COUNT_MAX)
        more = frozenset(row["status"] for row in rows if row["at_least"])
        return SearchCounts({row["status"]: row["jobs"] for row in rows}, more)

    async def _count_walk(self, which: JobFilter, states: frozenset[JobStatus]) -> SearchCounts:
        source = await self._source(replace(which, statuses=tuple(sorted(states))))
        if not source:
            return SearchCounts({}, frozenset())
        wanted = JobQuery(which)
        sql, values = wanted.sql("count_walk", source=source), wanted.arguments()
        rows = await fetch_page(self._pool, sql, *values, COUNT_TIME, COUNT_MAX)
        seen = sum(row["seen"] for row in rows)
        whole = seen < COUNT_MAX and sum(row["looked"] for row in rows) == seen
        return SearchCounts(
            {row["status"]: row["jobs"] for row in rows}, frozenset() if whole else frozenset(map(str, states))
        )


def read_look(rows: Sequence[Any], rows_max: int, limit: int, *, down: bool) -> SearchPage:
    """Return the result of a search's rows: up to ``limit`` matches, and where the next search begins."""
    ids: list[int] = []
    searched = 0
    for row in rows:
        if row["matches"] is None:
            return SearchPage(ids, row["id"] + (1 if down else -1), row["looked"] - 1)
        if row["matches"] and len(ids) == limit:
            return SearchPage(ids, ids[-1], searched)
        if row["matches"]:
            ids.append(row["id"])
        searched = row["looked"]
        if row["ended"]:
            return SearchPage(ids, None, searched)
        if searched == rows_max:
            return SearchPage(ids, row["id"], searched)
    return SearchPage(ids, None, searched)


def merge(parts: Sequence[SearchPage], limit: int) -> SearchPage:
    """Merge searches of different tables into one, from high ids to low ones.

    Matches below the position of a search that stopped are left to the next page: it may still find one before them.
    """
    stopped = max((part.position for part in parts if part.position is not None), default=None)
    searched = sum(part.searched for part in parts)
    ids = sorted({one for part in parts for one in part.ids if stopped is None or one >= stopped}, reverse=True)
    if len(ids) > limit:
        return SearchPage(ids[:limit], ids[limit - 1], searched)
    return SearchPage(ids, stopped, searched)


_QUERIES = load("tickwright.capabilities.jobs.sql", "jobs.sql")
_SHOWN = "\n".join(_QUERIES["shown"].splitlines()[1:])
_GET = _QUERIES["get"].format(shown=_SHOWN)
_EXPLAIN = _QUERIES["explain"].format(shown=_SHOWN)
_GET_MANY = _QUERIES["get_many"].format(shown=_SHOWN)

_KEY = ("idempotency_key", "request_digest")

Row = Any


@dataclass(frozen=True, slots=True)
class RevivedRows:
    """The result of reviving dead letters.

    Attributes:
        rows: The former rows of the revived ones, by id.
        key_reused: Ids of those that stay, because another job has their idempotency key.
        unfit: Ids of those that stay, because they break a rule that is newer than they are.
        last_id: The last id, where the limit left some over; else ``None``.
    """

    rows: "list[Row]"
    key_reused: list[int]
    unfit: list[int]
    last_id: int | None


class JobStore:
    """The operators' queries on live and finished jobs."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def get(self, job_id: int) -> Row | None:
        """Return one job."""
        return await self._pool.fetchrow(_GET, job_id)

    async def explain(self, job_id: int) -> Row | None:
        """Return the facts of one job's explanation."""
        return await self._pool.fetchrow(_EXPLAIN, job_id)

    async def get_many(self, ids: Sequence[int]) -> Sequence[Row]:
        """Return the jobs of a page, newest first."""
        rows: Sequence[Row] = await self._pool.fetch(_GET_MANY, list(ids))
        return rows

    async def key_holder(self, key: str) -> int | None:
        """Return the id of the job that holds an idempotency key."""
        found: int | None = await self._pool.fetchval(_QUERIES["key_holder"], key)
        return found

    async def lock(self, connection: Connection, job_id: int) -> Row | None:
        """Lock a live job."""
        return await connection.fetchrow(_QUERIES["lock"], job_id)

    async def status(self, connection: Connection, job_id: int) -> str | None:
        """Return the status of a live or finished job."""
        found: str | None = await connection.fetchval(_QUERIES["finished_status"], job_id)
        return found

    async def cancel(self, connection: Connection, ids: Sequence[int]) -> "list[tuple[int, str]]":
        """Cancel locked live jobs; return ``(id, status after)``."""
        return [(row[0], row[1]) for row in await connection.fetch(_QUERIES["cancel"], list(ids))]

    async def reschedule(
        self, connection: Connection, job_id: int, execute_at: datetime | None, delay: timedelta | None
    ) -> datetime:
        """Move a locked pending job."""
        moved: datetime = await connection.fetchval(_QUERIES["reschedule"], job_id, execute_at, delay)
        return moved

    async def with_ids(self, which: JobFilter) -> JobFilter:
        """Replace an idempotency key in a filter by the id of its job: a key has one job, or none."""
        if which.idempotency_key is None:
            return which
        holder = await self.key_holder(which.idempotency_key)
        ids = () if holder is None or (which.ids is not None and holder not in which.ids) else (holder,)
        return replace(which, ids=ids, idempotency_key=None)

    async def lock_many(self, connection: Connection, wanted: JobQuery, ids: Sequence[int]) -> list[int]:
        """Lock those of these live jobs that still match, except rows that another session has locked."""
        rows = await connection.fetch(wanted.sql("lock_many"), *wanted.arguments(), list(ids))
        return [row["id"] for row in rows]

    async def move_many(
        self, connection: Connection, ids: Sequence[int], at: datetime | None, shift: timedelta | None
    ) -> list[int]:
        """Move locked pending jobs; return their ids, sorted."""
        return sorted(row["id"] for row in await connection.fetch(LOOKS["move_many"], list(ids), at, shift))

    async def revive(
        self, connection: Connection, ids: Sequence[int] | None, task_type: str | None, limit: int, after: int = 0
    ) -> RevivedRows:
        """Make dead letters pending again, by id or of a type, behind the id ``after``.

        Where another job has its idempotency key, a letter stays: a key has one job. It also stays where it breaks a
        rule of new jobs, such as a payload that an earlier release accepted.
        """
        some = None if ids is None else list(ids)
        rows: list[Row] = await connection.fetch(_QUERIES["pick_dead"], some, task_type, limit, after)
        unfit = [row["id"] for row in rows if not row["fits"]]
        back = await self._with_keys(connection, [row for row in rows if row["fits"]])
        if back:
            await connection.execute(_QUERIES["revive"], [row["id"] for row in back])
            await connection.execute(_QUERIES["revive_fences"], *_columns(back, "id", "fence", *_KEY))
        ids_back = {row["id"] for row in back}
        stay = [row["id"] for row in rows if row["fits"] and row["id"] not in ids_back]
        return RevivedRows(back, stay, unfit, rows[-1]["id"] if len(rows) == limit else None)

    async def _with_keys(self, connection: Connection, rows: "list[Row]") -> "list[Row]":
        """Hold the keys of these dead letters again; return the rows without a key, or whose key no other job holds."""
        keyed = [row for row in rows if row["idempotency_key"] is not None]
        if not keyed:
            return rows
        held = await connection.fetch(_QUERIES["hold_keys"], *_columns(keyed, "id", *_KEY))
        ours = {row["job_id"] for row in held}
        return [row for row in rows if row["idempotency_key"] is None or row["id"] in ours]


def _columns(rows: "Sequence[Row]", *names: str) -> list[list[Any]]:
    return [[row[name] for row in rows] for name in names]
