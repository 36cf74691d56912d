"""Figures of each task type: waiting and running jobs, rates, lateness, failures; and their REST route.

Counts come from the database, each up to a bound. Rates are differences of the counters in the workers' heartbeats, so
they are unknown until a worker has sent two. For any number of requests, the database is read once a second.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from fastapi import APIRouter, Depends
from fastapi.responses import Response

from tickwright.capabilities.jobs.overview import SQL, FinishedRates, JobCounters, LatenessNow, finished, lateness
from tickwright.plugin.overview import Rates
from tickwright.ports.caller import Role
from tickwright.ports.ids import monotonic
from tickwright.rest.gate import Gate
from tickwright.rest.routing import answer, answers
from tickwright.store.bounds import for_all_callers
from tickwright.store.pool import Connection, Pool

FIGURES_COUNT_MAX = 1_000
FRESH_S = 0.9


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


def figure_routes(types: "TypeFigureReader", gate: Gate) -> APIRouter:
    """Return the route."""
    router = APIRouter(tags=["task types"])

    @router.get("/v1/task-types:figures", dependencies=[Depends(gate.allow(Role.VIEWER))], **answers(TypeFiguresView))
    async def task_type_figures() -> Response:
        """Return for each task type its waiting and running jobs, rates, lateness and failures."""
        return answer(await types.figures())

    return router


class TypeFigureReader:
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
        counts = {row["task_type"]: row for row in await connection.fetch(SQL["gauges"], FIGURES_COUNT_MAX)}
        self._take(await connection.fetch(SQL["type_counters"]))
        names = sorted({*counts, *self._rates})
        items = [_figures(name, counts.get(name), self._rates.get(name)) for name in names]
        return TypeFiguresView(items, FIGURES_COUNT_MAX, any(row["cut"] for row in counts.values()))

    def _take(self, rows: Sequence[Any]) -> None:
        """Take each session's counters of each type; a known heartbeat is not counted twice."""
        counters = {row["id"]: _types(row["types"]) for row in rows}
        counted = {name for types in counters.values() for name in types}
        for name in {*self._rates, *counted}:
            self._rates.setdefault(name, Rates()).take(
                rows[0]["now_s"] if rows else 0.0,
                {row["id"]: (row["seen_s"], counters[row["id"]].get(name)) for row in rows},
            )
        self._rates = {name: rates for name, rates in self._rates.items() if name in counted}


def _types(text: str | None) -> Mapping[str, JobCounters]:
    try:
        return {} if text is None else msgspec.json.decode(text, type=dict[str, JobCounters])
    except msgspec.DecodeError:  # a process of a release with another format
        return {}


def _figures(name: str, counts: Any, rates: Rates | None) -> TypeFigures:
    ended = finished(rates, _identity) if rates is not None else None
    return TypeFigures(
        name,
        due=min(counts["due"], FIGURES_COUNT_MAX) if counts else 0,
        processing=min(counts["processing"], FIGURES_COUNT_MAX) if counts else 0,
        upcoming=min(counts["upcoming"], FIGURES_COUNT_MAX) if counts else 0,
        oldest_due_s=round(max(0.0, counts["oldest_due_s"]), 3) if counts else 0.0,
        started_per_s=rates.per_s(lambda counters: counters.starts) if rates is not None else None,
        finished_per_s=ended,
        failure_share=_failure_share(ended),
        lateness=lateness(rates, _identity) if rates is not None else None,
    )


def _identity(counters: JobCounters) -> JobCounters:
    return counters


def _failure_share(ended: FinishedRates | None) -> float | None:
    if ended is None:
        return None
    failed = ended.failed + ended.retried
    total = failed + ended.completed
    return round(failed / total, 4) if total else None
