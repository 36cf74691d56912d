"""Figures of each task type: waiting and running jobs, rates, lateness, failures.

Counts come from the database, each up to a bound. Rates are differences of the counters in the workers' heartbeats
(:mod:`tickwright.process.counters`), so they are unknown until a worker has sent two. For any number of requests, the
database is read once a second.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tickwright.capabilities.operations.overview.rates import CountersSaid, JobsSaid, Rates
from tickwright.capabilities.operations.overview.reads import SQL as OVERVIEW
from tickwright.capabilities.operations.overview.views import FinishedRates, LatenessNow
from tickwright.ports.ids import monotonic
from tickwright.store.bounds import for_all_callers
from tickwright.store.pool import Connection, Pool
from tickwright.store.queries import load

COUNT_MAX = 1_000
FRESH_S = 0.9
_SQL = load("tickwright.capabilities.operations.sql", "type_figures.sql")


class TypeFigures(msgspec.Struct, frozen=True):
    """The figures of one task type. Counts stop at ``capped_at``; unknown figures are null.

    ``failure_share`` is the share of failed attempts among those that failed or succeeded, over about ten seconds.
    """

    name: str
    due: int
    processing: int
    upcoming: int
    oldest_due_s: float
    started_per_s: float | None
    finished_per_s: FinishedRates | None
    failure_share: float | None
    lateness: LatenessNow | None


class TypeFiguresView(msgspec.Struct, frozen=True):
    """Every type that has live jobs or counters of a living worker.

    ``partial``: jobs have more task types and priorities than were counted; unregistered types may be missing.
    """

    items: list[TypeFigures]
    capped_at: int
    partial: bool


class TypesNow:
    """Computes the figures, and keeps the heartbeats of the last minute."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._rates: dict[str, Rates] = {}
        self._view: TypeFiguresView | None = None
        self._read_s = float("-inf")
        self._reading = asyncio.Lock()

    async def figures(self) -> TypeFiguresView:
        """Return the figures, at most a second old."""
        async with self._reading:
            if self._view is None or monotonic() - self._read_s > FRESH_S:
                with for_all_callers():
                    async with self._pool.acquire() as connection:
                        self._view = await self._read(connection)
                self._read_s = monotonic()
            return self._view

    async def _read(self, connection: Connection) -> TypeFiguresView:
        counts = {row["task_type"]: row for row in await connection.fetch(OVERVIEW["job_gauges"], COUNT_MAX)}
        self._take(await connection.fetch(_SQL["type_counters"]))
        names = sorted({*counts, *self._rates})
        items = [_figures(name, counts.get(name), self._rates.get(name)) for name in names]
        return TypeFiguresView(items, COUNT_MAX, any(row["cut"] for row in counts.values()))

    def _take(self, rows: Sequence[Any]) -> None:
        """Take each session's counters of each type; a known heartbeat is not counted twice."""
        said = {row["id"]: _types(row["types"]) for row in rows}
        for name in {*self._rates, *(name for types in said.values() for name in types)}:
            rates = self._rates.setdefault(name, Rates())
            rates.take(
                rows[0]["now_s"] if rows else 0.0,
                {row["id"]: (row["seen_s"], _of(said[row["id"]], name)) for row in rows},
            )
        spoken = {name for types in said.values() for name in types}
        self._rates = {name: rates for name, rates in self._rates.items() if name in spoken}


def _of(types: Mapping[str, JobsSaid], name: str) -> CountersSaid | None:
    return CountersSaid(jobs=types[name]) if name in types else None


def _types(text: str | None) -> Mapping[str, JobsSaid]:
    try:
        return {} if text is None else msgspec.json.decode(text, type=dict[str, JobsSaid])
    except msgspec.DecodeError:  # a process of a release with another format
        return {}


def _figures(name: str, counts: Any, rates: Rates | None) -> TypeFigures:
    finished = rates.finished() if rates is not None else None
    return TypeFigures(
        name,
        due=min(counts["due"], COUNT_MAX) if counts else 0,
        processing=min(counts["processing"], COUNT_MAX) if counts else 0,
        upcoming=min(counts["upcoming"], COUNT_MAX) if counts else 0,
        oldest_due_s=round(max(0.0, counts["oldest_due_s"]), 3) if counts else 0.0,
        started_per_s=rates.per_s("started") if rates is not None else None,
        finished_per_s=finished,
        failure_share=_failure_share(finished),
        lateness=rates.lateness() if rates is not None else None,
    )


def _failure_share(finished: FinishedRates | None) -> float | None:
    if finished is None:
        return None
    failed = finished.failed + finished.retried
    ended = failed + finished.completed
    return round(failed / ended, 4) if ended else None
