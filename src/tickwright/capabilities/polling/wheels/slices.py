"""The slice ledger: what happened in each minute, as a list and as a heat map, and the replay of missing polls.

A replay is for polls that were lost, by hand or with a broker's disk. It polls a tracker again under the same message
id, and only when nothing shows that the poll was made or may still be made: no row in the ledger of answers, in the
outbox or in the queue, and no batch in Kafka that the consumers have not passed. Kafka's polls have no rows. So a
partner's polls of a slot are all skipped while one of its batches may contain one, or when its offsets are unknown,
unless the caller states that the topic lost them. Only the last minute of a slot can be replayed; an older one was
followed by another poll of the same trackers.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from tickwright.domain.errors import Rejected
from tickwright.ports.caller import Caller
from tickwright.ports.views import Page, view
from tickwright.store.audit import update_audit, write_audit
from tickwright.store.paging import LIMIT_DEFAULT, Cursors, checked_limit
from tickwright.store.pool import Pool
from tickwright.store.queries import load


class SliceCounts(msgspec.Struct, kw_only=True):
    """Counts of a slice's trackers.

    Attributes:
        expected: Trackers of its slots; before the selection, as the slot's last selection counted them.
        selected: Put into the outbox.
        skipped: Not selected: paused, too old, or postponed by an event of the partner.
        deferred: Left to a later slice, because their account reached its cap of five minutes.
        late: Answered more than a tenth of their interval after their due second.
        superseded: Dropped because the next poll was due.
        coalesced: Slots, not trackers, that were missed and replaced by a later selection.
    """

    expected: int = 0
    selected: int = 0
    skipped: int = 0
    deferred: int = 0
    published: int = 0
    polled: int = 0
    late: int = 0
    superseded: int = 0
    coalesced: int = 0


class SliceView(msgspec.Struct):
    """One slice of time: in total, and per partner."""

    due_at: datetime
    total: SliceCounts
    partners: dict[str, SliceCounts]


class Replay(msgspec.Struct):
    """What a replay did, or would do.

    Attributes:
        turns: Slots whose last minute is in the range.
        trackers: Polled again; in a dry run, would be.
        superseded_turns: Minutes in the range that have a later one, so that there is nothing to replay.
        unread_turns: Slots with skipped trackers, because their polls may still be in Kafka.
        unread_trackers: Skipped, because the consumers have not passed the batches that may hold their polls.
        unknown_trackers: Skipped, because the offsets of such a batch are unknown.
        released_until: When the last of them is released.
    """

    dry_run: bool
    turns: int
    trackers: int
    superseded_turns: int
    unread_turns: int
    unread_trackers: int
    unknown_trackers: int
    released_until: datetime | None


_SQL = load("tickwright.capabilities.polling.sql", "slices.sql")
_MISSING = _SQL["missing"][_SQL["missing"].index("unpassed AS") :]
_COUNT = _SQL["count_missing"].format(missing=_MISSING)
_REPLAY = _SQL["replay"].format(missing=_MISSING)
IDS_PER_ROW_MAX = 1_000
RANGE_MAX = timedelta(days=8)
MINUTE = timedelta(minutes=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_COUNTS = SliceCounts.__struct_fields__
DAY = timedelta(days=1)
CELLS_MAX = 2_000
HEAT_RANGE_MAX = timedelta(days=11)
"""The ledger's three days and one interval of a week, plus one day ahead."""
TENS_A_MINUTE = 6


class HeatCell(SliceCounts, kw_only=True):
    """One cell of a heat map.

    Attributes:
        unanswered: Selected, and neither answered nor dropped; a young cell's may still be answered.
        flatness: Its fullest ten seconds divided by its average ones, 1 when level; none without trackers.
        last_turns: Slots whose last minute is here: a replay can read these.
    """

    from_at: datetime
    unanswered: int
    flatness: float | None
    last_turns: int


class SliceHeat(msgspec.Struct, kw_only=True):
    """A range of the slice ledger in cells of equal length, oldest first; empty ones are skipped."""

    from_at: datetime
    to_at: datetime
    now: datetime
    step_minutes: int
    flatness: float | None
    cells: list[HeatCell]


class Slices:
    """The slice ledger, read and replayed; ``shards`` relays share the partners."""

    def __init__(self, pool: Pool, cursors: Cursors, *, shards: int = 1) -> None:
        self._pool, self._cursors, self._shards = pool, cursors, shards

    async def list(
        self,
        *,
        minutes: int = 1,
        from_at: datetime | None = None,
        to_at: datetime | None = None,
        partner: str | None = None,
        cursor: str | None = None,
        limit: int = LIMIT_DEFAULT,
    ) -> Page[SliceView]:
        """Return one page of slices, newest first; empty ones are skipped.

        Slices are 1 or 5 ``minutes`` long, from ``from_at`` (by default the start of the ledger) to before ``to_at``
        (by default now; a later instant includes coming slots).

        Raises:
            Rejected: ``invalid_limit``, ``invalid_cursor``, ``partner_not_found`` (404). Permanent.
        """
        limit, width = checked_limit(limit), timedelta(minutes=minutes)
        now, partner_no = await _clock_and_partner(self._pool, partner)
        listing = ("slices", minutes, from_at, to_at, partner)
        end = _ceil(to_at or now, width)
        if cursor is not None:
            end = await self._cursors.read(cursor, datetime, *listing)
        begin = end - limit * width
        if from_at is not None:
            begin = max(begin, from_at - (from_at - _EPOCH) % width)
        rows = await self._pool.fetch(_SQL["list"], begin, end, partner_no, minutes)
        older = await self._pool.fetchval(_SQL["before"], begin, partner_no)
        more = None
        if older is not None and (from_at is None or older >= from_at):
            more = await self._cursors.make(_ceil(older + MINUTE, width), *listing)
        return Page(_slices(rows), more)

    async def heat(
        self,
        *,
        from_at: datetime | None = None,
        to_at: datetime | None = None,
        step_minutes: int = 5,
        partner: str | None = None,
    ) -> SliceHeat:
        """Return a range as a heat map, in cells of ``step_minutes``.

        It is from ``from_at`` (by default a day before ``to_at``) to before ``to_at`` (by default now; a later instant
        includes coming slots).

        Raises:
            Rejected: ``invalid_range``: empty, above 11 days, or of more than 2,000 cells; ``partner_not_found`` (404).
                Permanent.
        """
        now, partner_no = await _clock_and_partner(self._pool, partner)
        width = timedelta(minutes=step_minutes)
        end = _ceil(to_at or now, width)
        begin = from_at - (from_at - _EPOCH) % width if from_at is not None else end - DAY
        if not timedelta() < end - begin <= min(HEAT_RANGE_MAX, CELLS_MAX * width):
            raise Rejected(
                "invalid_range",
                f"to: after from, at most {HEAT_RANGE_MAX.days} days and {CELLS_MAX} steps after it",
                field="to",
            )
        async with self._pool.acquire() as connection:
            rows = await connection.fetch(_SQL["heat"], begin, end, partner_no, step_minutes)
            last = dict(await connection.fetch(_SQL["count_last_minutes"], begin, end, step_minutes))
        return SliceHeat(
            from_at=begin,
            to_at=end,
            now=now,
            step_minutes=step_minutes,
            flatness=_flatness(rows),
            cells=[_cell(row, last.get(row["from_at"], 0)) for row in rows],
        )

    async def replay(
        self,
        from_at: datetime,
        to_at: datetime,
        *,
        caller: Caller,
        partner: str | None = None,
        dry_run: bool = True,
        topic_lost: bool = False,
    ) -> Replay:
        """Poll again what is missing of the slots whose last minute is in a range, one slot of each wheel a minute.

        The range is from ``from_at`` to before ``to_at``, 8 days at most. Each slot is a short transaction that
        excludes the selector; what is committed stays when the call is cut off, and another call continues. With
        ``topic_lost`` the caller states that unread polls are no longer in Kafka. If they are, they are sent twice.

        Raises:
            Rejected: ``invalid_range``, ``partner_not_found`` (404). Permanent.
        """
        if not timedelta() < to_at - from_at <= RANGE_MAX:
            raise Rejected("invalid_range", f"to: after from, and at most {RANGE_MAX.days} days after it", field="to")
        _, partner_no = await _clock_and_partner(self._pool, partner)
        slots = await self._pool.fetch(_SQL["last_minutes"], from_at, to_at)
        minutes = await self._pool.fetchval(_SQL["count_minutes"], from_at, to_at)
        done = Replay(dry_run, len(slots), 0, max(0, minutes - len(slots)), 0, 0, 0, None)
        if dry_run:
            for slot in slots:
                found = await self._pool.fetchrow(_COUNT, slot["slot_id"], slot["due_at"], partner_no, topic_lost)
                _count(done, found)
            return done
        given = {"from": from_at, "to": to_at, "partner": partner, "topic_lost": topic_lost}
        async with self._pool.acquire() as connection:
            line = await write_audit(connection, caller, "slices.replay", "slices", before=given, after=done)
        for slot in slots:
            await self._replay_slot(slot, partner_no, done, line, topic_lost=topic_lost)
        return done

    async def _replay_slot(
        self, slot: Any, partner_no: int | None, done: Replay, line: int, *, topic_lost: bool
    ) -> None:
        slot_id, due_at, wait = slot["slot_id"], slot["due_at"], slot["wait_minutes"]
        async with self._pool.acquire() as connection, connection.transaction():
            if await connection.fetchval(_SQL["lock_slot"], slot_id, due_at) is None:
                done.superseded_turns += 1
                return
            found = await connection.fetchrow(
                _REPLAY, slot_id, due_at, partner_no, topic_lost, wait, IDS_PER_ROW_MAX, self._shards
            )
            if not any(found):
                return
            _count(done, found)
            if found["trackers"]:
                done.released_until = await connection.fetchval(_SQL["released"], wait)
            await update_audit(connection, line, done)


async def _clock_and_partner(pool: Pool, partner: str | None) -> tuple[datetime, int | None]:
    """Return the database's clock and the number of the partner, if one is given."""
    row = await pool.fetchrow(_SQL["clock"], partner)
    if partner is not None and row["partner_no"] is None:
        raise Rejected("partner_not_found", f"there is no partner {partner[:50]!r}", status=404)
    return row["now"], row["partner_no"]


def _count(done: Replay, found: Any) -> None:
    done.trackers += found["trackers"]
    done.unread_trackers += found["unread"]
    done.unknown_trackers += found["unknown"]
    done.unread_turns += bool(found["unread"] or found["unknown"])


def _ceil(at: datetime, width: timedelta) -> datetime:
    """Return the first slice border that is not before ``at``."""
    return at + (_EPOCH - at) % width


def _slices(rows: Any) -> list[SliceView]:
    slices: dict[datetime, SliceView] = {}
    for row in rows:
        of_slice = slices.setdefault(row["due_at"], SliceView(row["due_at"], SliceCounts(), {}))
        for name in _COUNTS:
            setattr(of_slice.total, name, getattr(of_slice.total, name) + row[name])
        if row["partner"] is not None:
            of_slice.partners[row["partner"]] = view(SliceCounts, row)
    return list(slices.values())


def _cell(row: Any, last_turns: int) -> HeatCell:
    unanswered = max(0, row["selected"] - row["polled"] - row["superseded"])
    return view(HeatCell, row, unanswered=unanswered, flatness=_flatness([row]), last_turns=last_turns)


def _flatness(rows: Sequence[Any]) -> float | None:
    """Return the fullest ten seconds of cells divided by their average; ``None`` without trackers."""
    whole = sum(row["load"] for row in rows)
    tens = sum(row["minutes"] for row in rows) * TENS_A_MINUTE
    return None if not whole else max(row["peak"] for row in rows) * tens / whole
