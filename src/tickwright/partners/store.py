"""The shared rows of the partner contract: one exchange for all partners of a process at once."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tickwright.partners.model import SharedState
from tickwright.ports.ids import monotonic
from tickwright.store.pool import Connection, Pool
from tickwright.store.queries import load

SQL = load("tickwright.partners.sql", "partners.sql")


@dataclass(frozen=True, slots=True)
class PartnerState:
    """A partner as an exchange reads it."""

    partner_no: int
    settings: str
    paused: bool
    shared: SharedState
    shares: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class PartnerDecision:
    """What an exchange writes for a partner; ``granted`` is ``None`` without a share."""

    partner_no: int
    shared: SharedState
    granted: int | None
    error: str | None


@dataclass(frozen=True, slots=True)
class PartnerRow:
    """A row of ``tickwright.partners``."""

    partner_no: int
    name: str
    settings: str
    paused: bool


@dataclass(frozen=True, slots=True)
class ClockReading:
    """The database's clock, read between two monotonic instants."""

    now_s: float
    asked_s: float
    received_s: float


Decide = Callable[[ClockReading, Sequence[PartnerState]], Sequence[PartnerDecision]]


async def exchange(pool: Pool, token: int, partner_nos: Sequence[int], decide: Decide) -> bool:
    """Read, decide, write; return whether it counts: it does not for a session that was declared lost.

    Two round trips. If another process wrote in between, the exchange starts again with locked rows, so that a process
    far from the database also succeeds. Then ``decide`` is called a second time, and its last result is written.
    """
    async with pool.acquire() as connection:
        if await _decide_and_write(connection, token, partner_nos, decide):
            return True
        async with connection.transaction():
            await connection.execute(SQL["lock_states"], partner_nos)
            return await _decide_and_write(connection, token, partner_nos, decide)


async def _decide_and_write(connection: Connection, token: int, partner_nos: Sequence[int], decide: Decide) -> bool:
    asked_s = monotonic()
    rows = await connection.fetch(SQL["read_states"], partner_nos)
    if len(rows) < len(partner_nos):
        await connection.execute(SQL["open_states"], partner_nos)
        asked_s = monotonic()
        rows = await connection.fetch(SQL["read_states"], partner_nos)
    if not rows:  # these partners were deleted
        return True
    decided = decide(ClockReading(rows[0]["now_s"], asked_s, monotonic()), [_known(row) for row in rows])
    versions = [row["version"] for row in rows]
    return bool(await connection.fetchval(SQL["write_exchange"], token, *_columns(decided, versions)) == len(rows))


def _known(row: Any) -> PartnerState:
    shared = SharedState(*(row[column] for column in _SHARED))
    return PartnerState(row["partner_no"], row["settings"], row["paused"], shared, dict(row["shares"]))


_SHARED = (
    "next_free_s",
    "blocked_until_s",
    "breaker",
    "open_until_s",
    "opened_times",
    "trial_owner",
    "trial_until_s",
    "window_at_s",
    "window_ok",
    "window_failed",
)


def _columns(decided: Sequence[PartnerDecision], versions: list[str]) -> list[list[Any]]:
    shared = [[getattr(one.shared, name) for one in decided] for name in _ATTRIBUTES]
    return [
        [one.partner_no for one in decided],
        versions,
        *shared,
        [one.granted for one in decided],
        [one.error for one in decided],
    ]


_ATTRIBUTES = tuple(SharedState.__dataclass_fields__)


async def list_partners(connection: Connection | Pool) -> list[PartnerRow]:
    """Return every partner by name."""
    return [PartnerRow(*row) for row in await connection.fetch(SQL["list_partners"])]


async def declare_partner(connection: Connection | Pool, name: str, settings: str) -> None:
    """Create a partner that a program declares, unless it has settings already."""
    await connection.execute(SQL["declare_partner"], name, settings)


async def put_partner(connection: Connection | Pool, name: str, settings: str) -> bool:
    """Set a partner's settings (checked JSON); return whether something changed."""
    return await connection.fetchval(SQL["put_partner"], name, settings) is not None
