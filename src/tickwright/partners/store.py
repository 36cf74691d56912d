"""The shared rows of the partner contract: one transaction per exchange, for all partners of a process at once."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tickwright.partners.breaker import Shared
from tickwright.store.pool import Connection, Pool
from tickwright.store.queries import load

SQL = load("tickwright.partners.sql", "partners.sql")


@dataclass(frozen=True, slots=True)
class Known:
    """A partner as an exchange finds it."""

    partner_no: int
    settings: str
    paused: bool
    shared: Shared
    shares: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Decided:
    """What an exchange writes for a partner; ``granted`` is ``None`` when the session has no share."""

    partner_no: int
    shared: Shared
    granted: int | None
    error: str | None


@dataclass(frozen=True, slots=True)
class PartnerRow:
    """A partner as it is set up."""

    partner_no: int
    name: str
    settings: str
    paused: bool


Decide = Callable[[float, Sequence[Known]], Sequence[Decided]]


async def exchange(pool: Pool, token: int, partner_nos: Sequence[int], decide: Decide) -> bool:
    """Lock, decide, write; return whether it counts, which it does not for a session that was declared lost.

    Args:
        pool: Of the loops.
        token: Of the session.
        partner_nos: Of the partners to settle.
        decide: Called once with the database's clock and the partners that are there.
    """
    async with pool.acquire() as connection, connection.transaction():
        rows = await connection.fetch(SQL["lock_states"], partner_nos)
        if len(rows) < len(partner_nos):
            await connection.execute(SQL["open_states"], partner_nos)
            rows = await connection.fetch(SQL["lock_states"], partner_nos)
        around = await connection.fetchrow(SQL["read_shares"], partner_nos)
        shares: dict[int, dict[int, int]] = defaultdict(dict)
        for partner_no, worker, granted in around["shares"]:
            shares[partner_no][worker] = granted
        decided = decide(around["now_s"], [_known(row, shares[row["partner_no"]]) for row in rows])
        written = await connection.fetchval(SQL["write_exchange"], token, *_columns(decided))
    return bool(written == len(decided))


def _known(row: Any, shares: Mapping[int, int]) -> Known:
    shared = Shared(*(row[column] for column in _SHARED))
    return Known(row["partner_no"], row["settings"], row["paused"], shared, shares)


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


def _columns(decided: Sequence[Decided]) -> list[list[Any]]:
    shared = [[getattr(one.shared, name) for one in decided] for name in _ATTRIBUTES]
    return [
        [one.partner_no for one in decided],
        *shared,
        [one.granted for one in decided],
        [one.error for one in decided],
    ]


_ATTRIBUTES = tuple(Shared.__dataclass_fields__)


async def list_partners(connection: Connection | Pool) -> list[PartnerRow]:
    """Return every partner by name."""
    return [PartnerRow(*row) for row in await connection.fetch(SQL["list_partners"])]


async def declare_partner(connection: Connection | Pool, name: str, settings: str) -> None:
    """Set up a partner that a program brings, unless an operator or a file has done so."""
    await connection.execute(SQL["declare_partner"], name, settings)


async def put_partner(connection: Connection | Pool, name: str, settings: str) -> bool:
    """Set a partner's limits (checked JSON); return whether something changed."""
    return await connection.fetchval(SQL["put_partner"], name, settings) is not None
