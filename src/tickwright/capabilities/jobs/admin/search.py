"""Looks for jobs with a bound: so many rows and so much time, then it says how far it came.

No index knows a job's text, its state or its time together with its type, and none is worth its price at each claim.
So a look walks the primary keys and gives up after ``LOOK_MAX`` rows or ``LOOK_TIME``, whichever is first; who asked
goes on from there with a cursor. Three shortcuts spare the walk: ids, a type with few live jobs, what a worker holds.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import asyncpg

from tickwright.capabilities.jobs.admin.filters import DONE, LIVE, JobFilter
from tickwright.domain.masking import SEPARATOR
from tickwright.domain.states import JobStatus
from tickwright.store.paging import fetch_page
from tickwright.store.pool import Pool
from tickwright.store.queries import load, with_lanes

LOOK_MAX = 20_000
LOOK_TIME = timedelta(milliseconds=80)
COUNT_TIME = timedelta(milliseconds=40)
FEW_MAX = 5_000
COUNT_MAX = 10_000
RUNNING = frozenset({JobStatus.PROCESSING})
FAILED = frozenset({JobStatus.FAILED})

LOOKS = {
    name: "\n".join(line for line in text.splitlines() if not line.startswith("--"))
    for name, text in with_lanes(load("tickwright.capabilities.jobs.sql", "looks.sql")).items()
}
_FAMILY, _LIVE, _DEAD = (
    "tickwright.scheduled_tasks",
    "ONLY tickwright.scheduled_tasks",
    "tickwright.scheduled_tasks_dead",
)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a look is for.

    Attributes:
        which: The filter.
        action: ``cancel``, ``run_now`` or ``move`` leave out what they would not change; ``""`` leaves out nothing.
        as_of: Leaves out what was changed at this instant or later.
        target: Where jobs are moved to; those that are there already are left out.
    """

    which: JobFilter
    action: str = ""
    as_of: datetime | None = None
    target: datetime | None = None

    def sql(self, name: str, **parts: str) -> str:
        """Return a statement with this condition in it."""
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
class Found:
    """What a look found.

    Attributes:
        ids: In the order of the look.
        position: The id behind which the next look begins; nothing where this one came to the end.
        searched: Rows looked at.
    """

    ids: list[int]
    position: int | None
    searched: int


@dataclass(frozen=True, slots=True)
class Counted:
    """Jobs by status, each at most ``COUNT_MAX``; of those in ``at_least`` there may be more."""

    counts: dict[str, int]
    at_least: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Place:
    """Where to look: a table expression, and the only ids there that matter."""

    source: str
    ids: list[int] | None = None
    rows_max: int = field(default_factory=lambda: LOOK_MAX)


class Looking:
    """Bounded looks at live and finished jobs."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def newest(self, which: JobFilter, before: int, limit: int) -> Found:
        """Return at most ``limit`` jobs below an id, from high to low."""
        try:
            return await self._newest(which, before, limit)
        except asyncpg.UndefinedTableError:  # retention dropped the oldest day just now
            return await self._newest(which, before, limit)

    async def oldest(self, wanted: Wanted, after: int, limit: int) -> Found:
        """Return at most ``limit`` live jobs above an id, from low to high; dead ones if the filter says ``failed``."""
        which = wanted.which
        place = _Place(_LIVE, await self._narrowed(which))
        if set(which.statuses) == FAILED:
            place = _Place(_DEAD, None if which.ids is None else list(which.ids))
        return await self._look("look_oldest", wanted, place, after, limit)

    async def count(self, which: JobFilter) -> Counted:
        """Count the jobs that match by status, each up to ``COUNT_MAX``, and each with bounded work."""
        try:
            return await self._count(which)
        except asyncpg.UndefinedTableError:
            return await self._count(which)

    async def status_of(self, wanted: Wanted, ids: Sequence[int]) -> dict[str, int]:
        """Return how many of certain jobs match, by status."""
        rows = await self._pool.fetch(wanted.sql("count_ids"), *wanted.arguments(), list(ids))
        return {row["status"]: row["jobs"] for row in rows}

    async def now(self) -> datetime:
        """Return the database's clock."""
        at: datetime = await self._pool.fetchval(LOOKS["now"])
        return at

    # ------------------------------------------------------------------ where

    async def _places(self, which: JobFilter) -> list[_Place]:
        if which.ids is not None and which.worker is None:
            return [_Place(_FAMILY, list(which.ids))]
        if which.worker is not None or set(which.statuses) == RUNNING:
            return [_Place(_LIVE, await self._narrowed(which))]
        few = await self._narrowed(which) if which.task_type is not None and which.wants(LIVE) else None
        if few is None:
            source = await self._source(which)
            return [_Place(source)] if source else []
        rest = replace(which, statuses=tuple(one for one in which.statuses or JobStatus if one not in LIVE))
        source = await self._source(rest) if rest.statuses else ""
        live = [_Place(_LIVE, few)]
        return [*live, _Place(source, rows_max=LOOK_MAX - len(few))] if source else live

    async def _narrowed(self, which: JobFilter) -> list[int] | None:
        """Return the only live jobs that matter, where an index names them: a worker's, by id, of a type with few."""
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
        """Return the smallest part of the family that can hold what matches; empty when there is none."""
        if which.wants(LIVE) and which.wants(FAILED) and which.wants(DONE):
            return _FAMILY
        tables = [name for name, states in ((_LIVE, LIVE), (_DEAD, FAILED)) if which.wants(states)]
        if which.wants(DONE):
            tables += [f"tickwright.{row['relname']}" for row in await self._pool.fetch(LOOKS["days"])]
        if len(tables) < 2:
            return "".join(tables)
        return "({})".format(" UNION ALL ".join(LOOKS["whole"].format(source=table) for table in tables))

    # ------------------------------------------------------------------ looks

    async def _newest(self, which: JobFilter, before: int, limit: int) -> Found:
        places = await self._places(which)
        return merge([await self._look("look_newest", Wanted(which), place, before, limit) for place in places], limit)

    async def _look(self, name: str, wanted: Wanted, place: _Place, start: int, limit: int) -> Found:
        within = "" if place.ids is None else LOOKS["within"]
        sql = wanted.sql(name, source=place.source, within=within)
        rows = await fetch_page(
            self._pool, sql, *wanted.arguments(), LOOK_TIME, start, place.rows_max, limit + 1,
            *(() if place.ids is None else (place.ids,)),
        )  # fmt: skip
        return read_look(rows, place.rows_max, limit, down=name == "look_newest")

    async def _count(self, which: JobFilter) -> Counted:
        asked = {str(state) for state in which.statuses or JobStatus}
        counts, more = dict.fromkeys(asked, 0), set[str]()
        if which.ids is not None or which.worker is not None:
            ids = await self._narrowed(which) or []
            return Counted(counts | await self.status_of(Wanted(which), ids), frozenset())
        for states, count in ((LIVE, self._count_live), (FAILED, self._count_walk), (DONE, self._count_walk)):
            if which.wants(states):
                found = await count(which, states)
                counts |= {state: jobs for state, jobs in found.counts.items() if state in asked}
                more |= found.at_least & asked
        more |= {state for state, jobs in counts.items() if jobs >= COUNT_MAX}
        return Counted({state: min(jobs, COUNT_MAX) for state, jobs in counts.items()}, frozenset(more))

    async def _count_live(self, which: JobFilter, _: frozenset[JobStatus]) -> Counted:
        wanted = Wanted(which)
        sql, values = wanted.sql("count_live"), wanted.arguments()
        rows = await fetch_page(self._pool, sql, *values, COUNT_TIME, COUNT_MAX, COUNT_MAX)
        more = frozenset(row["status"] for row in rows if row["at_least"])
        return Counted({row["status"]: row["jobs"] for row in rows}, more)

    async def _count_walk(self, which: JobFilter, states: frozenset[JobStatus]) -> Counted:
        source = await self._source(replace(which, statuses=tuple(sorted(states))))
        if not source:
            return Counted({}, frozenset())
        wanted = Wanted(which)
        sql, values = wanted.sql("count_walk", source=source), wanted.arguments()
        rows = await fetch_page(self._pool, sql, *values, COUNT_TIME, COUNT_MAX)
        seen = sum(row["seen"] for row in rows)
        whole = seen < COUNT_MAX and sum(row["looked"] for row in rows) == seen
        return Counted(
            {row["status"]: row["jobs"] for row in rows}, frozenset() if whole else frozenset(map(str, states))
        )


def read_look(rows: Sequence[Any], rows_max: int, limit: int, *, down: bool) -> Found:
    """Return what the rows of a look mean: up to ``limit`` matches, and where the next look begins."""
    ids: list[int] = []
    searched = 0
    for row in rows:
        if row["matches"] is None:
            return Found(ids, row["id"] + (1 if down else -1), row["looked"] - 1)
        if row["matches"] and len(ids) == limit:
            return Found(ids, ids[-1], searched)
        if row["matches"]:
            ids.append(row["id"])
        searched = row["looked"]
        if row["ended"]:
            return Found(ids, None, searched)
        if searched == rows_max:
            return Found(ids, row["id"], searched)
    return Found(ids, None, searched)


def merge(parts: Sequence[Found], limit: int) -> Found:
    """Return one look of several at different tables, from high ids to low ones.

    What lies below the place where one of them stopped is left to the next page: that one may still find something
    that belongs before it.
    """
    stopped = max((part.position for part in parts if part.position is not None), default=None)
    searched = sum(part.searched for part in parts)
    ids = sorted({one for part in parts for one in part.ids if stopped is None or one >= stopped}, reverse=True)
    if len(ids) > limit:
        return Found(ids[:limit], ids[limit - 1], searched)
    return Found(ids, stopped, searched)
