"""Polls that wait for a partner that takes none, moved out of the way of the others.

A partition is read in its order, and so much of it only as fits into memory. The polls of a courier that fails for
hours, or that nobody in this process asks, would fill that, and the reading of everybody's polls would stop. So when a
partition is half full, the piles that have waited for a minute go into the queue inside PostgreSQL, under the fence of
the partition; consumers take from there, too, and there the relay drops what is superseded.

After a crash between this and the offset's commit the same polls are read again, and come a second time: the ledger
lets each have its effect once, as ever.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tickwright.store.pool import Pool
from tickwright.store.queries import load
from tickwright.transports.kafka.poll_buffer import Pile, Waiting
from tickwright.transports.kafka.poll_partition import Holding
from tickwright.transports.kafka.poll_reader import HELD_MAX

PARK_FROM = HELD_MAX // 2
PARK_AFTER_S = 60.0
PARK_PILES_MAX = 1000

_SQL = load("tickwright.transports.kafka", "polls.sql")


def piles_to_park(holding: Holding, waiting: Waiting, room: Mapping[int, int], now_s: float) -> list[tuple[int, Pile]]:
    """Return the piles of a partition that is half full, whose partners have no room, and that have waited long."""
    if holding.epoch is None or holding.waiting < PARK_FROM:
        return []
    stuck = [
        (partner_no, pile)
        for partner_no, pile in waiting
        if pile.piles is holding.piles and not room.get(partner_no) and now_s - pile.since_s >= PARK_AFTER_S
    ]
    return sorted(stuck, key=lambda entry: entry[1].key[1])[:PARK_PILES_MAX]


async def park(
    pool: Pool, topic: str, holding: Holding, piles: Sequence[tuple[int, Pile]], accounts: Mapping[str, int]
) -> bool:
    """Move piles into the queue; false when the partition is somebody else's by its row."""
    async with pool.acquire() as connection, connection.transaction():
        if not await connection.fetch(_SQL["hold"], topic, [holding.assignment.partition], [holding.epoch]):
            return False
        await connection.executemany(_SQL["park"], [_turn(partner_no, pile, accounts) for partner_no, pile in piles])
    return True


def _turn(partner_no: int, pile: Pile, accounts: Mapping[str, int]) -> tuple[Any, ...]:
    slot_id, due_at, _ = pile.key
    return due_at, slot_id, partner_no, *pile.columns(accounts)
