"""One snapshot for all processes that show the overview: one of them reads it, the others find it in a table.

The process that has read last reads again, and so on while it shows the overview. The others find its snapshots with
one statement a second, which also checks their keys and sessions. When a snapshot is overdue, the first process that
finds this takes over: the fence rises, and the former one no longer writes. The database's clock decides.

A process that is the only one shares nothing, because no other one would find it. Processes know of each other from
their heartbeats; for these few seconds two of them may read. Processes of different releases or with different plugins
show different fields: they share with their equals only, or read for themselves.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec

from tickwright.capabilities.operations.overview import FRAGMENTS
from tickwright.plugin.overview import ANSWER_S, OverviewBase, OverviewParts
from tickwright.store.pool import Connection
from tickwright.store.queries import load, with_shared

GRACE = timedelta(seconds=0.5)
"""A snapshot that is later than this has lost its process: another one takes over."""

_SQL = with_shared(load("tickwright.capabilities.operations.sql", "shared_snapshot.sql"), "valid_callers", of=FRAGMENTS)


@dataclass(frozen=True, slots=True)
class Found:
    """The snapshot of another process.

    Attributes:
        view: ``None`` where it has taken none yet, or ``is_foreign``: it has other fields.
        point: Of the series.
        due_in_s: When the next one is due; ``None``: there is no such process.
        is_overdue: Another process should take over.
        good_keys: The API keys that are valid, of those asked for; ``good_sessions``: the sessions of browsers.
    """

    view: OverviewBase | None
    is_foreign: bool
    point: dict[str, Any]
    due_in_s: float | None
    is_overdue: bool
    good_keys: frozenset[int]
    good_sessions: frozenset[int]


class _Content(msgspec.Struct):
    view: Any
    point: dict[str, Any]


class SharedSnapshot:
    """The row of one format."""

    def __init__(self, format_: str, parts: OverviewParts) -> None:
        self._format, self._parts = format_, parts
        self._fence: int | None = None
        self._decode = msgspec.json.Decoder(_Content).decode

    @property
    def is_ours(self) -> bool:
        """Whether this process reads, as far as it knows."""
        return self._fence is not None

    async def find(self, connection: Connection, keys: Collection[int], sessions: Collection[int]) -> Found:
        """Return what another process has read; which of ``keys`` and ``sessions`` are valid."""
        values = self._format, GRACE, list(keys), list(sessions)
        row = await connection.fetchrow(_SQL["find"], *values, timeout=ANSWER_S)
        view, is_foreign, point = None, False, dict[str, Any]()
        if row["content"] is not None:
            try:
                content = self._decode(row["content"])
                view, point = self._parts.read(content.view), content.point
            except msgspec.MsgspecError:  # a plugin of another release, whose fields have the same names
                is_foreign = True
        return Found(
            view,
            is_foreign,
            point,
            row["due_in_s"],
            row["is_overdue"],
            frozenset(row["good_keys"]),
            frozenset(row["good_sessions"]),
        )

    async def take_over(self, connection: Connection) -> bool:
        """Become the process that reads, if there is none; return whether it is this one."""
        self._fence = await connection.fetchval(_SQL["take_over"], self._format, GRACE, timeout=ANSWER_S)
        return self._fence is not None

    async def share(
        self, connection: Connection, view: OverviewBase, point: Mapping[str, Any], next_in_s: float
    ) -> None:
        """Share a snapshot; no longer the process that reads if another one has taken over."""
        content = msgspec.json.encode(_Content(view, dict(point))).decode()
        values = self._format, self._fence, content, next_in_s
        self._fence = await connection.fetchval(_SQL["share"], *values, timeout=ANSWER_S)
