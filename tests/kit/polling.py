"""Trackers for tests of operators' views: placed by hand, so that a test knows their slot, second and due minutes."""

from datetime import datetime, timedelta
from typing import Any

import asyncpg

WHEEL = """
INSERT INTO tickwright.poll_wheels (interval_minutes, first_slot_id)
SELECT $1, (SELECT coalesce(max(first_slot_id + interval_minutes), 0) FROM tickwright.poll_wheels)
RETURNING first_slot_id
"""
SLOTS = """
INSERT INTO tickwright.poll_slots (slot_id, interval_minutes, next_due_at)
SELECT $1 + n, $2, date_trunc('minute', clock_timestamp()) + make_interval(mins => 2 + n)
  FROM generate_series(0, $2 - 1) AS n
"""
TURN = """
UPDATE tickwright.poll_slots
   SET next_due_at = $2::timestamptz + make_interval(mins => interval_minutes), prev_due_at = $2
 WHERE slot_id = $1
"""
PLACE = """
INSERT INTO tickwright.trackers (id, created_at, tracking_until, account_no, place, partner_no, status, external_id)
VALUES (nextval('tickwright.tracker_ids'), now() - interval '1 day', now() + interval '60 days',
        tickwright.account_number($1), $2, tickwright.partner_number($3), 'registered', $4)
RETURNING id
"""
SLICE = """
INSERT INTO tickwright.poll_slices
       (due_at, slot_id, partner_no, interval_minutes, selected, skipped, published, polled, loads)
SELECT $2, s.slot_id, tickwright.partner_number($3), s.interval_minutes, $4, $5, $6, $7,
       ARRAY[$4::integer, 0, 0, 0, 0, 0]
  FROM tickwright.poll_slots s WHERE s.slot_id = $1
"""
DONE = """
INSERT INTO tickwright.poll_done (slot_id, due_at, partner_no, done_at, ids)
SELECT place / 60, $2, partner_no, clock_timestamp(), ARRAY[id] FROM tickwright.trackers WHERE id = $1
"""
WAITING = """
INSERT INTO tickwright.scheduler_outbox
       (release_at, due_at, slot_id, partner_no, ids, account_nos, external_ids, batch_no)
SELECT clock_timestamp() + interval '1 hour', $2, place / 60, partner_no, ARRAY[id], ARRAY[account_no],
       ARRAY[external_id::text], $3
  FROM tickwright.trackers WHERE id = $1
"""
QUEUED = """
INSERT INTO tickwright.poll_queue (due_at, slot_id, partner_no, ids, account_nos, external_ids, owner, taken_at)
SELECT $2, place / 60, partner_no, ARRAY[id], ARRAY[account_no], ARRAY[external_id::text], $3,
       CASE WHEN $3::bigint IS NOT NULL THEN now() END
  FROM tickwright.trackers WHERE id = $1
"""


class Ground:
    """A database with trackers that no loop has changed."""

    def __init__(self, pool: asyncpg.Pool) -> None:
        self.pool = pool

    async def wheel(self, interval_minutes: int) -> int:
        """Make a wheel; return its first slot."""
        first: int = await self.pool.fetchval(WHEEL, interval_minutes)
        await self.pool.execute(SLOTS, first, interval_minutes)
        return first

    async def partner(self, name: str = "dhl", settings: str = "{}") -> None:
        """Set a partner up."""
        await self.pool.execute(
            "INSERT INTO tickwright.partners (name, settings) VALUES ($1, $2::jsonb)", name, settings
        )

    async def place(
        self, slot_id: int, second: int = 0, *, account: str = "acme", partner: str = "dhl", external: str = "A1"
    ) -> int:
        """Place a tracker; return its id."""
        made: int = await self.pool.fetchval(PLACE, account, slot_id * 60 + second, partner, external)
        return made

    async def turn(self, slot_id: int, minutes_ago: int = 5) -> datetime:
        """Set a slot's last due minute to so many minutes ago; return it."""
        now: datetime = await self.pool.fetchval("SELECT date_trunc('minute', clock_timestamp())")
        due = now - timedelta(minutes=minutes_ago)
        await self.pool.execute(TURN, slot_id, due)
        return due

    async def slice(
        self,
        slot_id: int,
        due_at: datetime,
        *,
        partner: str = "dhl",
        selected: int = 1,
        skipped: int = 0,
        published: int = 0,
        polled: int = 0,
    ) -> None:
        """Write the slice of a due minute."""
        await self.pool.execute(SLICE, slot_id, due_at, partner, selected, skipped, published, polled)

    async def done(self, tracker_id: int, due_at: datetime) -> None:
        """Write that a poll was answered now."""
        await self.pool.execute(DONE, tracker_id, due_at)

    async def waiting(self, tracker_id: int, due_at: datetime, batch_no: int | None = None) -> None:
        """Put a poll into the outbox."""
        await self.pool.execute(WAITING, tracker_id, due_at, batch_no)

    async def queued(self, tracker_id: int, due_at: datetime, owner: int | None = None) -> None:
        """Put a poll into the queue of the consumers."""
        await self.pool.execute(QUEUED, tracker_id, due_at, owner)

    async def row(self, tracker_id: int) -> Any:
        """Return a placed tracker's row."""
        return await self.pool.fetchrow("SELECT * FROM tickwright.trackers WHERE id = $1", tracker_id)

    async def events(self) -> list[Any]:
        """Return the waiting messages for the topic of poll events."""
        rows = await self.pool.fetch("SELECT destination, key, payload::text FROM tickwright.outbox ORDER BY id")
        return list(rows)
