"""Searches for jobs with bounded rows and time; each search returns its position.

An index on a job's text, its state, or its time with its type would cost too much at every claim. So a search walks the
primary keys and stops after ``READ_MAX`` rows or ``READ_TIME``. The caller continues from there with a cursor. Four
shortcuts avoid the walk: ids, a type with few live jobs, the jobs of one worker, and tags or metadata that few jobs
have. Tables of days before revision 0037 have no index of tags, so these are walked.
"""

import json
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from typing import Any, TypeVar

import asyncpg

from tickwright.capabilities.jobs.queries import with_claim_ranges
from tickwright.capabilities.jobs.requests import METADATA_FILTERS_MAX, METADATA_TEXT_MAX, check_tags
from tickwright.capabilities.jobs.states import JobStatus
from tickwright.domain.errors import Rejected, storable
from tickwright.domain.masking import SEPARATOR
from tickwright.store.paging import LIMIT_DEFAULT, NEWEST, fetch_page
from tickwright.store.pool import Pool
from tickwright.store.queries import load

T = TypeVar("T")
MANY_MAX = 1000
LIVE = frozenset({JobStatus.PENDING, JobStatus.PROCESSING})
DONE = frozenset({JobStatus.COMPLETED, JobStatus.CANCELLED})
WAITING = frozenset({JobStatus.WAITING})


def check_many(limit: int) -> None:
    """Refuse a limit of a bulk action that is not 1 to 1,000."""
    if not 1 <= limit <= MANY_MAX:
        raise Rejected("invalid_limit", f"limit: 1 to {MANY_MAX}", field="limit")


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs a list, its counts or a bulk action mean; a field that is left out matches every job.

    Attributes:
        execute_from: Inclusive.
        execute_to: Exclusive.
        statuses: Empty is all.
        text: A part of the key, the last error or the payload's JSON, in any case.
        tags: All of them are among the job's tags.
        metadata: ``key=value`` of the metadata's first level, all of them; see :func:`metadata_path`.
        group: The whole name of its group.
        worker: The session that holds the job now.
        workflow: The workflow that it belongs to: the outermost one, or the one that it is directly in.
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
    tags: tuple[str, ...] = ()
    metadata: tuple[str, ...] = ()
    group: str | None = None
    worker: int | None = None
    workflow: int | None = None
    in_payload: bool = True
    in_addresses: bool = True

    def check(self, limit: int) -> None:
        """Refuse an empty filter, which would match every job, and jobs that wait for others.

        Raises:
            Rejected: ``empty_filter``, ``invalid_limit``, ``job_waits``. Permanent.
        """
        if JobStatus.WAITING in self.statuses:
            raise Rejected(
                "job_waits", "waiting jobs: cancel or retry their workflow, or one by its id", field="status"
            )
        if not self.shown():
            raise Rejected(
                "empty_filter",
                "say which jobs: ids, task_type, status, execute_from, execute_to, text, tag, group or a key",
            )
        check_many(limit)

    def shown(self) -> dict[str, Any]:
        """Return the fields that are set, for the audit trail."""
        names = [field.name for field in fields(JobFilter) if not field.name.startswith("in_")]
        values = {name: getattr(self, name) for name in names}
        return {name: value for name, value in values.items() if value not in {None, ()}}

    def listing(self) -> tuple[Any, ...]:
        """Return every field; a cursor is bound to them."""
        return tuple(getattr(self, field.name) for field in fields(JobFilter))

    @property
    def is_detailed(self) -> bool:
        """Whether only jobs with tags or metadata can match."""
        return bool(self.tags or self.metadata)

    def details(self) -> tuple[list[str] | None, str | None]:
        """Return the tags and the metadata to search for, as the queries take them.

        Raises:
            Rejected: ``invalid_tags``, ``invalid_metadata``; ``payload_hidden`` (403): the caller may not see it.
                Permanent.
        """
        check_tags(self.tags)
        if self.metadata and not self.in_payload:
            raise Rejected("payload_hidden", "metadata is data of users, which your role does not see", status=403)
        return list(self.tags) or None, metadata_path(self.metadata) if self.metadata else None

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
        values = {field.name: getattr(which, field.name) for field in fields(JobFilter)}
        return cls(**values, cursor=cursor, limit=limit)


READ_MAX = 20_000
READ_TIME = timedelta(milliseconds=80)
COUNT_TIME = timedelta(milliseconds=40)
FEW_MAX = 5_000
COUNT_MAX = 10_000
RUNNING = frozenset({JobStatus.PROCESSING})
FAILED = frozenset({JobStatus.FAILED})

SEARCHES = {
    name: "\n".join(line for line in text.splitlines() if not line.startswith("--"))
    for name, text in with_claim_ranges(load("tickwright.capabilities.jobs.sql", "search.sql")).items()
}
_FAMILY, _LIVE = "tickwright.scheduled_tasks", "ONLY tickwright.scheduled_tasks"
_DEAD, _WAITING = "tickwright.scheduled_tasks_dead", "ONLY tickwright.scheduled_tasks_waiting"


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
        fold = SEARCHES["fold"] if self.which.text is not None and self.which.text.isascii() else ""
        texts = {"key": "t.idempotency_key", "error": "t.error_message", "payload": "t.payload::text"}
        if not self.which.in_addresses:
            texts = {name: SEARCHES["masked"].format(text=text, separator=SEPARATOR) for name, text in texts.items()}
        matches = SEARCHES["matches"].format(fold=fold, state=SEARCHES["state"], **texts)
        return SEARCHES[name].format(matches=matches, state=SEARCHES["state"], **parts)

    def arguments(self) -> tuple[Any, ...]:
        """Return the values of the fragment ``matches``."""
        which = self.which
        return (
            [str(status) for status in which.statuses] or None, which.task_type, which.execute_from, which.execute_to,
            which.patterns(), self.action, self.as_of, self.target, *which.details(),
            which.group,
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
    rows_max: int = field(default_factory=lambda: READ_MAX)


class JobSearch:
    """Bounded searches for live and finished jobs."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def newest(self, which: JobFilter, before: int, limit: int) -> SearchPage:
        """Return at most ``limit`` jobs below an id, from high to low."""
        return await _again_where_dropped(lambda: self._newest(which, before, limit))

    async def oldest(self, query: JobQuery, after: int, limit: int) -> SearchPage:
        """Return at most ``limit`` live jobs above an id, from low to high; dead ones if the filter is ``failed``."""
        which = query.which
        source = _SearchSource(_LIVE, await self._narrowed(which))
        if set(which.statuses) == FAILED:
            ids = list(which.ids) if which.ids is not None else None
            if ids is None and which.is_detailed:
                ids = await self._detailed(which, [_DEAD])
            source = _SearchSource(_DEAD, ids)
        return await self._search("search_oldest", query, source, after, limit)

    async def count(self, which: JobFilter) -> SearchCounts:
        """Count the jobs that match by status, each up to ``COUNT_MAX`` and with bounded work."""
        return await _again_where_dropped(lambda: self._count(which))

    async def status_of(self, query: JobQuery, ids: Sequence[int]) -> dict[str, int]:
        """Return how many of these jobs match, by status."""
        rows = await self._pool.fetch(query.sql("count_ids"), *query.arguments(), list(ids))
        return {row["status"]: row["jobs"] for row in rows}

    async def now(self) -> datetime:
        """Return the database's clock."""
        at: datetime = await self._pool.fetchval(SEARCHES["now"])
        return at

    async def _sources(self, which: JobFilter) -> list[_SearchSource]:
        if which.ids is not None and which.worker is None:
            return [_SearchSource(_FAMILY, list(which.ids))]
        if which.worker is not None or set(which.statuses) == RUNNING:
            return [_SearchSource(_LIVE, await self._narrowed(which))]
        if which.is_detailed and (detailed := await self._detailed_sources(which)) is not None:
            return detailed
        few = await self._narrowed(which) if which.task_type is not None and which.wants(LIVE) else None
        if few is None:
            source = await self._source(which)
            return [_SearchSource(source)] if source else []
        rest = replace(which, statuses=tuple(status for status in which.statuses or JobStatus if status not in LIVE))
        source = await self._source(rest) if rest.statuses else ""
        live = [_SearchSource(_LIVE, few)]
        return [*live, _SearchSource(source, rows_max=READ_MAX - len(few))] if source else live

    async def _detailed_sources(self, which: JobFilter) -> list[_SearchSource] | None:
        """Return the jobs that the indexes of tags and metadata have, and tables without one; ``None``: too many."""
        tables = await self._tables(which)
        found = await self._detailed(which, [name for name, indexed in tables if indexed])
        if found is None:
            return None
        walked = _union([name for name, indexed in tables if not indexed])
        return [_SearchSource(_FAMILY, found), *([_SearchSource(walked)] if walked else [])]

    async def _detailed(self, which: JobFilter, tables: Sequence[str]) -> list[int] | None:
        """Return the jobs of these tables with the tags and metadata, where few have them and they are soon found."""
        tags, metadata = which.details()
        sql = details_sql(which, tables)
        try:
            async with self._pool.acquire() as connection, connection.transaction(readonly=True):
                await connection.execute(SEARCHES["bound_detailed"], f"{READ_TIME // timedelta(milliseconds=1)}ms")
                rows = await connection.fetch(sql, tags, metadata, FEW_MAX + 1) if sql else []
        except asyncpg.QueryCanceledError:
            return None
        return [row["id"] for row in rows] if len(rows) <= FEW_MAX else None

    async def _narrowed(self, which: JobFilter) -> list[int] | None:
        """Return the ids of the only live jobs that can match, where an index has them; else ``None``."""
        if which.ids is not None and which.worker is None:
            return list(which.ids)
        if which.worker is not None or set(which.statuses) == RUNNING:
            rows = await fetch_page(self._pool, SEARCHES["held_by"], which.worker, READ_MAX, COUNT_MAX)
            return [row["id"] for row in rows if which.ids is None or row["id"] in which.ids]
        if which.is_detailed and (found := await self._detailed(which, [_LIVE])) is not None:
            return found
        if which.task_type is None:
            return None
        rows = await fetch_page(self._pool, SEARCHES["of_type"], which.task_type, FEW_MAX + 1)
        return None if len(rows) > FEW_MAX else [row["id"] for row in rows]

    async def _source(self, which: JobFilter) -> str:
        """Return the smallest part of the family of tables that can have matches; empty when there is none."""
        if all(which.wants(some) for some in (LIVE, WAITING, FAILED, DONE)):
            return _FAMILY
        return _union([name for name, _ in await self._tables(which)])

    async def _tables(self, which: JobFilter) -> list[tuple[str, bool]]:
        """Return the tables that can have matches, and whether each has an index of tags and metadata."""
        tables = [(name, True) for name, states in ((_LIVE, LIVE), (_DEAD, FAILED)) if which.wants(states)]
        tables += [(_WAITING, False)] if which.wants(WAITING) else []
        if which.wants(DONE):
            days = await self._pool.fetch(SEARCHES["days"])
            tables += [(f"tickwright.{row['relname']}", row["indexed"]) for row in days]
        return tables

    async def _newest(self, which: JobFilter, before: int, limit: int) -> SearchPage:
        if which.workflow is not None:
            return await self._newest_of_workflow(which, before, limit)
        sources, query = await self._sources(which), JobQuery(which)
        return merge([await self._search("search_newest", query, source, before, limit) for source in sources], limit)

    async def _newest_of_workflow(self, which: JobFilter, before: int, limit: int) -> SearchPage:
        """Search the newest jobs of a workflow: as many as a page reads."""
        ids, more = await self._of_workflow(which, before, FEW_MAX)
        some = await self._held_among(which, ids)
        found = await self._search("search_newest", JobQuery(which), _SearchSource(_FAMILY, some), before, limit)
        if found.position is None and more and ids:
            return replace(found, position=ids[-1])
        return found

    async def _of_workflow(self, which: JobFilter, before: int, ids_max: int) -> tuple[list[int], bool]:
        """Return the newest jobs of a workflow below an id, and whether there are more."""
        rows = await fetch_page(self._pool, SEARCHES["of_workflow"], which.workflow, before, ids_max + 1)
        return [row["id"] for row in rows[:ids_max]], len(rows) > ids_max

    async def _held_among(self, which: JobFilter, ids: list[int]) -> list[int]:
        """Return those of some jobs that the filter's ids and worker allow."""
        if which.ids is None and which.worker is None:
            return ids
        held = set(await self._narrowed(replace(which, workflow=None)) or ())
        return [job_id for job_id in ids if job_id in held]

    async def _search(self, name: str, query: JobQuery, source: _SearchSource, start: int, limit: int) -> SearchPage:
        sql = query.sql(name, source=source.source, within="" if source.ids is None else SEARCHES["within"])
        rows = await fetch_page(
            self._pool, sql, *query.arguments(), READ_TIME, start, source.rows_max, limit + 1,
            *(() if source.ids is None else (source.ids,)),
        )  # fmt: skip
        return read_rows(rows, source.rows_max, limit, down=name == "search_newest")

    async def _count(self, which: JobFilter) -> SearchCounts:
        wanted = {str(state) for state in which.statuses or JobStatus}
        counts, more = dict.fromkeys(wanted, 0), set[str]()
        if which.workflow is not None:
            ids, is_cut = await self._of_workflow(which, NEWEST, COUNT_MAX)
            counts |= await self.status_of(JobQuery(which), await self._held_among(which, ids))
            return SearchCounts(counts, frozenset(wanted if is_cut else ()))
        if which.ids is not None or which.worker is not None:
            ids = await self._narrowed(which) or []
            return SearchCounts(counts | await self.status_of(JobQuery(which), ids), frozenset())
        others = tuple(state for state in which.statuses or JobStatus if state not in WAITING)
        rest = replace(which, statuses=others)
        if which.is_detailed and others and (sources := await self._detailed_sources(rest)) is not None:
            counts |= await self.status_of(JobQuery(rest), sources[0].ids or [])
            more = {str(state) for state in DONE} & wanted if len(sources) > 1 else set()
            parts: tuple[frozenset[JobStatus], ...] = (WAITING,)
        else:
            parts = LIVE, WAITING, FAILED, DONE
        for states in parts:
            if which.wants(states):
                found = await (self._count_live if states is LIVE else self._count_walk)(which, states)
                counts |= {state: jobs for state, jobs in found.counts.items() if state in wanted}
                more |= found.at_least & wanted
        more |= {state for state, jobs in counts.items() if jobs >= COUNT_MAX}
        return SearchCounts({state: min(jobs, COUNT_MAX) for state, jobs in counts.items()}, frozenset(more))

    async def _count_live(self, which: JobFilter, _: frozenset[JobStatus]) -> SearchCounts:
        query = JobQuery(which)
        bounds = COUNT_TIME, COUNT_MAX, COUNT_MAX
        rows = await fetch_page(self._pool, query.sql("count_live"), *query.arguments(), *bounds)
        more = frozenset(row["status"] for row in rows if row["at_least"])
        return SearchCounts({row["status"]: row["jobs"] for row in rows}, more)

    async def _count_walk(self, which: JobFilter, states: frozenset[JobStatus]) -> SearchCounts:
        source = await self._source(replace(which, statuses=tuple(sorted(states))))
        if not source:
            return SearchCounts({}, frozenset())
        query = JobQuery(which)
        sql = query.sql("count_walk", source=source)
        rows = await fetch_page(self._pool, sql, *query.arguments(), COUNT_TIME, COUNT_MAX)
        seen = sum(row["seen"] for row in rows)
        is_whole = seen < COUNT_MAX and sum(row["searched"] for row in rows) == seen
        counts = {row["status"]: row["jobs"] for row in rows}
        return SearchCounts(counts, frozenset() if is_whole else frozenset(map(str, states)))


def details_sql(which: JobFilter, tables: Sequence[str]) -> str:
    """Return the statement that reads the indexes of tags and metadata of some tables; empty without any."""
    parts = {"has_tags": SEARCHES["has_tags" if which.tags else "any_tags"]}
    parts["has_metadata"] = SEARCHES["has_metadata" if which.metadata else "any_metadata"]
    return " UNION ALL ".join(SEARCHES["detailed"].format(source=table, **parts) for table in tables)


def _union(tables: Sequence[str]) -> str:
    """Return tables as one source; empty without any."""
    if len(tables) < 2:
        return "".join(tables)
    return "({})".format(" UNION ALL ".join(SEARCHES["whole"].format(source=table) for table in tables))


_SCALAR = re.compile(r"true|false|null|-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,17})?")


def metadata_path(filters: Sequence[str]) -> str:
    """Return the JSON path for ``key=value`` filters, all of which have to match.

    The value is that text, or the number, ``true``, ``false`` or ``null`` that it spells.

    Raises:
        Rejected: ``invalid_metadata``: no ``=``, no key, too long, or more than five. Permanent.
    """
    if len(filters) > METADATA_FILTERS_MAX:
        raise Rejected("invalid_metadata", f"metadata: at most {METADATA_FILTERS_MAX} values", field="metadata")
    return f"strict {' && '.join(map(_condition, filters))}"


def _condition(text: str) -> str:
    key, sign, value = text.partition("=")
    if not sign or not key or len(text) > METADATA_TEXT_MAX or storable(text) != text:
        raise Rejected(
            "invalid_metadata", f"metadata: key=value, at most {METADATA_TEXT_MAX} characters", field="metadata"
        )
    place = f"$.{json.dumps(key)}"
    scalar = f" || {place} == {value}" if _SCALAR.fullmatch(value) else ""
    return f"({place} == {json.dumps(value)}{scalar})"


async def _again_where_dropped(search: Callable[[], Awaitable[T]]) -> T:
    try:
        return await search()
    except asyncpg.UndefinedTableError:  # retention has just dropped the oldest day
        return await search()


def read_rows(rows: Sequence[Any], rows_max: int, limit: int, *, down: bool) -> SearchPage:
    """Return the result of a search's rows: up to ``limit`` matches, and where the next search begins."""
    ids: list[int] = []
    searched = 0
    for row in rows:
        if row["matches"] is None:
            return SearchPage(ids, row["id"] + (1 if down else -1), row["searched"] - 1)
        if row["matches"] and len(ids) == limit:
            return SearchPage(ids, ids[-1], searched)
        if row["matches"]:
            ids.append(row["id"])
        searched = row["searched"]
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
    found = {job_id for part in parts for job_id in part.ids if stopped is None or job_id >= stopped}
    ids = sorted(found, reverse=True)
    if len(ids) > limit:
        return SearchPage(ids[:limit], ids[limit - 1], searched)
    return SearchPage(ids, stopped, searched)


QUERIES = load("tickwright.capabilities.jobs.sql", "jobs.sql")
_SHOWN = "\n".join(QUERIES["shown"].splitlines()[1:])
_UNIQUE_NOW = "\n".join(QUERIES["unique_now"].splitlines()[1:])
GET, EXPLAIN, GET_MANY = (
    QUERIES[name].format(shown=_SHOWN, unique_now=_UNIQUE_NOW) for name in ("get", "explain", "get_many")
)


async def with_ids(pool: Pool, which: JobFilter) -> JobFilter:
    """Replace an idempotency key in a filter by the id of its job: a key has one job, or none."""
    if which.idempotency_key is None:
        return which
    holder: int | None = await pool.fetchval(QUERIES["key_holder"], which.idempotency_key)
    ids = () if holder is None or (which.ids is not None and holder not in which.ids) else (holder,)
    return replace(which, ids=ids, idempotency_key=None)
