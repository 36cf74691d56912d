"""Jobs with a group: their claim, and the order in which one worker runs what it claimed of a group.

::

    insert, end, retry ──hint──▶ a claim: hints ──▶ ready groups, in turns ──▶ jobs of each, in its limit ──▶ places
                                                                                  a place: jobs, one after another

A pending job with a group is parked, so that the claim of :mod:`.claims` does not read it (revision 0039). Here a claim
is one call of a function (0045) with three statements: a lock for the groups of the type, the hints, the jobs. It reads
what runs from the rows of the jobs, behind the lock, so a limit holds whatever crashed before.

A group with the limit n has n places. A claim gives the jobs that it takes of a group to its free places, several to
each where they end fast, and one worker runs the jobs of a place one after another. So a group with a limit of 1 and a
million jobs needs a claim for a thousand of them, not for each.
"""

import math
from collections.abc import Container, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

import asyncpg
import msgspec
import structlog

from tickwright.capabilities.jobs.model import ClaimedRow, TaskType
from tickwright.capabilities.jobs.worker.claims import ClaimedJobs, ClaimRequest
from tickwright.capabilities.jobs.worker.places import FreedPlaces, Place, PlaceQueues
from tickwright.capabilities.jobs.worker.shared_limits import claim_at_rate
from tickwright.capabilities.jobs.worker.type_state import TypeState
from tickwright.ports.ids import monotonic, record_database_time
from tickwright.store.pool import Connection, Pool
from tickwright.store.queries import load

_SQL = load("tickwright.capabilities.jobs.sql", "groups.sql")
DEPTH_MAX = 6000
"""Jobs that wait for each other in one place."""
HINT = _SQL["hint"]
ROWS_MAX = 2400
"""Jobs of one claim: due jobs of other groups, and claims of other workers, wait for it."""
AHEAD_S = 0.2
"""A place gets as many jobs as end in this time."""
SWEEP_S = 1.0
SWEEP_SHARE = 20
"""A claim from the beginning of the indexes, over what a long transaction keeps there, takes at most a twentieth."""
GROUPS_MIN = 16
TURN_JOBS = 32
"""Jobs that a claim takes of a group at its turn. A place of this worker that has room gets more."""
AGAIN_S = 0.02
LOCKED_S = 1.0
"""When to claim again of a type whose row another session has locked for as long as a claim waits."""
LOOKBACK_S = 5.0
"""How far behind the last claim the next one begins to read hints: a transaction may have taken so long to commit."""

NONE_FREED = FreedPlaces()
_log = structlog.get_logger("tickwright.jobs")
_CLAIMED_COLUMNS = len(ClaimedRow.__struct_fields__)


@dataclass(frozen=True)
class ClaimedGroups(ClaimedJobs):
    """The result of a claim of groups.

    Attributes:
        places: By id, of jobs whose group has a limit.
        unfinished: Groups with more jobs that are due than the claim took.
        depth: How many jobs a place may have.
        has_more: More jobs may start at once.
    """

    places: dict[int, Place] = field(default_factory=dict)
    unfinished: set[str] = field(default_factory=set)
    depth: int = 1
    has_more: bool = False

    def sort(self) -> None:
        """Keep the order of the claim: groups in turns, and the jobs of each in the order in which they run."""


class GroupClaims:
    """The claims of the groups of one type by one process."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._hints_s: float | None = None
        self._frontier_s: float | None = None
        self._sweep_at_s = 0.0
        self._per_group = 1.0
        """How many jobs of a group a claim found, of those in which this process has no place."""

    async def claim(
        self,
        request: ClaimRequest,
        connection: Connection,
        *,
        kind: TaskType,
        depth: int = 1,
        is_paced: bool = True,
        freed: FreedPlaces = NONE_FREED,
    ) -> ClaimedGroups:
        """Claim due jobs: one statement.

        Args:
            request: For one type.
            connection: Also inside a transaction of the caller.
            kind: That type, as the caller last read it.
            depth: How many jobs a place may get.
            is_paced: Whether rates of groups hold.
            freed: Places of the caller.
        """
        is_ordered = kind.group_order is not None
        began = monotonic()
        is_sweep = began >= self._sweep_at_s
        hints_from, ready_from = (None, None) if is_sweep else (_instant(self._hints_s), _instant(self._frontier_s))
        changed = list({place.group for place in freed.places})
        rows_max = min(ROWS_MAX, request.plan.rows_max[0])
        records = await connection.fetch(
            _SQL["claim"],
            request.token,
            request.number,
            self._name,
            is_ordered,
            is_paced,
            rows_max,
            max(GROUPS_MIN, min(rows_max, round(1.5 * rows_max / self._per_group))),
            request.long_max,
            depth,
            TURN_JOBS,
            request.horizon,
            hints_from,
            ready_from,
            changed,
            [] if is_ordered else [f"{place.group}\n{place.number}" for place in freed.places],
            msgspec.json.encode({place.group: job_id for place, job_id in freed.running.items()}).decode(),
            max(TURN_JOBS, rows_max // max(1, len(freed.unfinished))),
        )
        summary = records.pop()
        record_database_time(now_s := summary["execute_s"])
        if is_sweep:
            self._sweep_at_s = monotonic() + max(SWEEP_S, SWEEP_SHARE * (monotonic() - began))
        has_more, looked_s = summary["attempts"] == 1, summary["start_s"]
        snapshot_s = summary["expires_s"]
        self._hints_s = snapshot_s - LOOKBACK_S
        self._frontier_s = min(looked_s, snapshot_s) if looked_s is not None and has_more else self._hints_s
        claimed = ClaimedGroups([], now_s, summary["due_s"], summary["expires_s"], [], depth=depth, has_more=has_more)
        self._read(records, claimed, frozenset(changed))
        return claimed

    def _read(self, records: list[Any], claimed: "ClaimedGroups", changed: AbstractSet[str]) -> None:
        """Read the rows of a claim: those of the jobs, and behind them those of their groups."""
        groups = []
        while records and records[-1]["id"] is None:
            groups.append(records.pop())
        jobs = {record["id"]: ClaimedRow(*record[:_CLAIMED_COLUMNS]) for record in records}
        for found in reversed(groups):
            rows = [jobs[job] for job in found["ids"] if job in jobs]
            claimed.rows.extend(rows)
            if (rate := found["rate"]) is not None:
                start_s = found["start_s"]
                for row in rows:
                    claimed.fire_s[row.id] = start_s = max(start_s, row.due_s)
                    start_s += 1 / rate
            if found["places"] is None:
                continue
            names = {number: Place(self._name, found["group_key"], number) for number in set(found["places"])}
            claimed.places.update(
                {job: names[number] for job, number in zip(found["ids"], found["places"], strict=True)}
            )
            if found["more"]:
                claimed.unfinished.add(found["group_key"])
        if found_in := [len(found["ids"]) for found in groups if found["group_key"] not in changed]:
            self._per_group = sum(found_in) / len(found_in)


class WorkerGroups:
    """The claims of groups of one worker."""

    def __init__(self, pool: Pool, places: PlaceQueues) -> None:
        self._pool, self._places = pool, places
        self._claims: dict[str, GroupClaims] = {}
        self._next_s: dict[str, float] = {}
        self.later: set[str] = set()
        """Types that the last look left for :const:`AGAIN_S`."""
        self._turn = 0

    @property
    def next_s(self) -> float:
        """When a group is ready next, as far as the claims of this worker know (monotonic)."""
        return min(self._next_s.values(), default=math.inf)

    def due(self, types: Mapping[str, TypeState]) -> list[tuple[str, TypeState]]:
        """Return the types whose groups to claim now, the first one in turns."""
        now = monotonic()
        found = []
        left_over = self._places.types_left_over()
        self.later.clear()
        for name, state in types.items():
            if not state.task_type.has_groups or state.task_type.waits:
                continue
            if state.groups_again_s <= now or name in left_over:
                found.append((name, state))
            else:
                self.later.add(name)
                self._next_s[name] = min(self._next_s.get(name, math.inf), state.groups_again_s)
        for name in self._next_s.keys() - types.keys():
            del self._next_s[name]
        self._turn += 1
        turn = self._turn % len(found) if found else 0
        return found[turn:] + found[:turn]

    async def claim(self, state: TypeState, request: ClaimRequest, *, is_paced: bool = True) -> ClaimedGroups | None:
        """Claim jobs with groups of one type; ``None`` where the type's rate has no free start."""
        kind = state.task_type
        claims = self._claims.setdefault(kind.name, GroupClaims(kind.name))
        depth = depth_of(state.ended.mean_s)
        freed = self._places.take_freed(kind.name)
        claim = partial(claims.claim, kind=kind, depth=depth, freed=freed, is_paced=is_paced)
        claimed: ClaimedGroups | None = None
        wait_s = 0.0
        try:
            async with self._pool.acquire() as connection:
                if kind.rate_per_s is None:
                    claimed = await claim(request, connection)
                else:
                    async with connection.transaction():
                        claimed, _, wait_s = await claim_at_rate(claim, connection, kind, request)
        except asyncpg.LockNotAvailableError as error:  # a transaction of an operator has changed the type, for example
            _log.warning("jobs.claim_failed", task_type=kind.name, error=repr(error))
            claimed, wait_s = None, LOCKED_S
        except BaseException:
            claimed = None
            raise
        finally:
            if claimed is None:
                self._places.give_back(freed)
        if claimed is None:
            state.groups_again_s = self._next_s[kind.name] = monotonic() + wait_s
            return None
        now = monotonic()
        state.groups_again_s = 0.0 if claimed.has_more else now + AGAIN_S
        due_in_s = math.inf if claimed.next_due_s is None else claimed.next_due_s - claimed.now_s
        self._next_s[kind.name] = now + max(AGAIN_S, due_in_s - request.horizon.total_seconds())
        return claimed

    async def hint(self, *, but: Container[str] = ()) -> None:
        """Let other workers look at the groups of freed places, except those of the types that this one claims."""
        freed = {place for place in self._places.freed if place.task_type not in but}
        if freed:
            groups = {(place.task_type, place.group) for place in freed}
            await self._pool.execute(HINT, *map(list, zip(*groups, strict=True)))
            self._places.freed -= freed


def _instant(at_s: float | None) -> datetime | None:
    return None if at_s is None else datetime.fromtimestamp(at_s - 0.001, UTC)


def depth_of(mean_s: float | None) -> int:
    """Return how many jobs a place gets at a time, by the mean time of an attempt; one where that is not known."""
    return 1 if mean_s is None else max(1, min(DEPTH_MAX, int(AHEAD_S / max(mean_s, 1e-6))))
