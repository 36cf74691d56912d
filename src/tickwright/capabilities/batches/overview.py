"""The part of campaigns and batches in the overview: their executions."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from tickwright.observe.metrics import Sample
from tickwright.plugin import Context
from tickwright.plugin.findings import Finding, role_finding
from tickwright.plugin.overview import ANSWER_S, COUNT_MAX, OverviewBase, OverviewPart, Rates, Reading, Shown
from tickwright.store.pool import Connection
from tickwright.store.queries import load

SQL = load("tickwright.capabilities.batches.sql", "overview.sql")
ERROR_CHARS = 120
NAMES_CHARS = 200


class ExecutionNow(msgspec.Struct, frozen=True):
    """One execution of a campaign or batch. ``took_s`` is ``None`` before it began."""

    id: int
    name: str
    status: str
    paused: bool
    chunks: int
    chunks_done: int
    members: int
    seen: int
    selected: int
    actions: int
    released: int
    took_s: float | None
    error_message: str | None


class ExecutionsNow(msgspec.Struct, frozen=True):
    """Executions: waiting and for how long, working, actions that have not left; and the last few."""

    waiting: int
    oldest_s: float
    working: int
    unreleased: int
    latest: list[ExecutionNow]


_LATEST = msgspec.json.Decoder(list[ExecutionNow])


async def read_executions(connection: Connection) -> ExecutionsNow:
    """Return the backlog of executions, and the last few."""
    row = await connection.fetchrow(SQL["overview"], COUNT_MAX, timeout=ANSWER_S)
    return ExecutionsNow(**{**row, "latest": _LATEST.decode(row["latest"])})


class BatchesPart(OverviewPart):
    """The backlog of executions, and the last few."""

    fields: ClassVar = {"executions": ExecutionsNow}
    lists = ("executions",)

    def readings(self) -> Mapping[str, Reading]:
        """Return the reading of executions."""
        return {"executions": read_executions}

    def show(self, read: Mapping[str, Any], rates: Rates) -> Shown:
        """Return the figures of executions."""
        now: ExecutionsNow = read["executions"]
        latest = [(one.id, one.status, one.paused, one.chunks_done, one.released) for one in now.latest]
        return Shown({"executions": now}, {"executions": (now.waiting, latest)})

    async def gauges(self, connection: Connection) -> Sequence[Sample]:
        """Return the backlog."""
        now = await read_executions(connection)
        return [
            Sample("tickwright_executions_waiting", now.waiting),
            Sample("tickwright_executions_oldest_waiting_seconds", now.oldest_s),
            Sample("tickwright_executions_working", now.working),
            Sample("tickwright_executions_unreleased_actions", now.unreleased),
        ]

    def lines(self, view: OverviewBase) -> Sequence[str]:
        """Return a line per execution."""
        return [line_of(one) for one in view.executions.latest]


def line_of(one: ExecutionNow) -> str:
    """Return one execution in one line."""
    parts = [f"batch {one.name} {one.id}: {one.status}{', paused' if one.paused else ''}"]
    if one.took_s is not None:
        parts[0] += f" in {one.took_s:.1f} s" if one.status != "IN_PROGRESS" else f" for {one.took_s:.1f} s"
    if one.chunks:
        parts.append(f"chunks {one.chunks_done}/{one.chunks}, seen {one.seen}/{one.members}, selected {one.selected}")
    if one.actions:
        parts.append(f"released {one.released}/{one.actions}")
    if one.error_message:
        parts.append(" ".join(one.error_message.split())[:ERROR_CHARS])
    return " · ".join(parts)


async def examine(context: Context, alive: Mapping[str, int]) -> list[Finding]:
    """Find what scheduled and open batches need and no live process has."""
    if not await context.pool.fetchval(SQL["is_used"]):
        return []
    found = [role_finding(alive, "campaign-consumer", "no campaign and no batch is executed")]
    unserved = await context.pool.fetch(SQL["unserved"])
    if not unserved:
        return [*found, Finding("batches", "ok", "a campaign-consumer has what every scheduled or open one needs")]
    remedy = "run campaign-consumer with the TOML file (TICKWRIGHT_CONFIG) or the program (TICKWRIGHT_APP) that has it"
    return found + [
        Finding(
            "batches", "warn", f"no live process has {row['served_by']}, for {row['batches'][:NAMES_CHARS]}", remedy
        )
        for row in unserved
    ]
