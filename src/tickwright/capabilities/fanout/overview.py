"""The part of fan-out in the overview."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from tickwright.plugin import Context
from tickwright.plugin.findings import Finding, role_finding
from tickwright.plugin.overview import ANSWER_S, COUNT_MAX, OverviewBase, OverviewPart, Rates, Reading, Shown
from tickwright.store.pool import Connection
from tickwright.store.queries import load, with_shared

WALKS = load("tickwright.capabilities.fanout.sql", "walks.sql")
SQL = with_shared(load("tickwright.capabilities.fanout.sql", "overview.sql"), "lists", of=WALKS)


class FanoutNow(msgspec.Struct, frozen=True):
    """Entity fan-out; ``queued`` is ``None`` where no consumer has counted.

    ``succeeded``, ``failed``, ``superseded`` and ``expired`` are of the last minute. ``called_per_s`` counts ended
    calls of modules' functions, with any outcome.
    """

    entities: int
    modules: int
    consumers: int
    queued: int | None
    dead_letters: int | None
    succeeded: int
    failed: int
    superseded: int
    expired: int
    called_per_s: float | None = None


async def read_fanout(connection: Connection) -> FanoutNow:
    """Return the entities of fan-out, and the counters of its consumers."""
    return FanoutNow(**dict(await connection.fetchrow(SQL["overview"], COUNT_MAX, timeout=ANSWER_S)))


class FanoutPart(OverviewPart):
    """Entities, consumers and what became of the last minute's tasks."""

    fields: ClassVar = {"fanout": FanoutNow}
    counters: ClassVar = {"fanout": dict[str, int]}
    dead_letters: ClassVar = {"fanout": int | None}
    lists = ("fanout",)

    def readings(self) -> Mapping[str, Reading]:
        """Return the reading of fan-out."""
        return {"fanout": read_fanout}

    def show(self, read: Mapping[str, Any], rates: Rates) -> Shown:
        """Return the figures of fan-out."""
        found: FanoutNow = read["fanout"]
        called = rates.per_s(lambda counters: sum(counters.fanout.values()))
        fields = {"fanout": msgspec.structs.replace(found, called_per_s=called)}
        return Shown(fields, {"fanout": found}, {"fanout": found.dead_letters})

    def lines(self, view: OverviewBase) -> Sequence[str]:
        """Return one line where fan-out is in use."""
        return [line_of(view.fanout)] if view.fanout.entities or view.fanout.consumers else ()


def line_of(fanout: FanoutNow) -> str:
    """Return fan-out in one line."""
    at_least = "≥" if fanout.entities >= COUNT_MAX else ""
    parts = [f"entities {at_least}{fanout.entities} in {fanout.modules} modules", f"consumers {fanout.consumers}"]
    if fanout.queued is not None:
        parts.append(f"queued {fanout.queued}")
    if fanout.dead_letters:
        parts.append(f"dead letters {fanout.dead_letters}")
    if fanout.called_per_s is not None:
        parts.append(f"{fanout.called_per_s:.1f} calls/s")
    parts.append(
        f"last minute: succeeded {fanout.succeeded}, failed {fanout.failed}, "
        f"superseded {fanout.superseded}, expired {fanout.expired}"
    )
    return " · ".join(parts)


async def examine(context: Context, alive: Mapping[str, int]) -> list[Finding]:
    """Find whether entities have a consumer."""
    is_used = await context.pool.fetchval(SQL["is_used"])
    return [role_finding(alive, "fanout-consumer", "no entity is polled")] if is_used else []
