"""Mutants of the actions on trackers: without a guard, the check of its promise has to fail."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from types import ModuleType
from typing import Any

import asyncpg
import pytest

from kit.api import ADMIN
from kit.polling import Ground
from kit.waiting import eventually_async
from tickwright.capabilities.polling import service
from tickwright.capabilities.polling.service import PollingService
from tickwright.capabilities.polling.trackers import events
from tickwright.capabilities.polling.trackers.events import EventVerdict, StatusEvent
from tickwright.capabilities.polling.trackers.requests import NewTracker
from tickwright.capabilities.polling.wheels import slices
from tickwright.domain.errors import Unavailable
from tickwright.store.pool import open_pool

PLACING = """
WITH taken AS (DELETE FROM tickwright.tracker_intake RETURNING *)
INSERT INTO tickwright.trackers (id, created_at, tracking_until, account_no, place, partner_no, status, external_id)
SELECT id, created_at, tracking_until, account_no, $1, partner_no, status, external_id FROM taken
"""
WAITERS = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
NEW = NewTracker("acme", "dhl", "A1", None, None)
Check = Callable[[Ground], Awaitable[None]]


async def while_it_is_locked(
    ground: Ground,
    hold: str,
    values: Sequence[Any],
    others: Sequence[Callable[[], Awaitable[Any]]],
    *,
    commit: bool = True,
) -> list[Any]:
    """Hold the locks of a statement until all others wait for them or are done; return the others' results."""
    async with ground.pool.acquire() as connection:
        holding = connection.transaction()
        await holding.start()
        await connection.execute(hold, *values)
        asked = [asyncio.ensure_future(other()) for other in others]

        async def all_wait() -> bool:
            waiters: int = await ground.pool.fetchval(WAITERS)
            return waiters + sum(task.done() for task in asked) >= len(asked)

        await eventually_async(all_wait)
        await (holding.commit() if commit else holding.rollback())
    return await asyncio.gather(*asked, return_exceptions=True)


async def check_registered_once(ground: Ground) -> None:
    """T1: a registration that meets the registrar finds the placed tracker."""
    service, slot = PollingService(ground.pool), await ground.wheel(2)
    first = (await service.register(NEW, caller=ADMIN)).tracker.id
    [again] = await while_it_is_locked(ground, PLACING, [slot * 60], [lambda: service.register(NEW, caller=ADMIN)])
    assert (again.tracker.id, again.created) == (first, False), "T1 broken"


async def check_events_in_order(ground: Ground) -> None:
    """T3: an event that waits for a later one is stale when that is written."""
    service, tracker = PollingService(ground.pool), await ground.place(await ground.wheel(2))
    later = "UPDATE tickwright.trackers SET status = 'Newer', status_at = '2026-01-01T12:00:00Z' WHERE id = $1"
    old = StatusEvent("Older", datetime(2026, 1, 1, 10, tzinfo=UTC))
    [said] = await while_it_is_locked(
        ground, later, [tracker], [lambda: service.take_event(tracker, old, caller=ADMIN)]
    )
    assert (said.outcome, (await service.get(tracker)).status) == ("stale", "Newer"), "T3 broken"


async def check_an_event_id_counts_once(ground: Ground) -> None:
    """T4: the sender's id twice is one event, also with another instant."""
    service, tracker = PollingService(ground.pool), await ground.place(await ground.wheel(2))
    for hour in (10, 11):
        await service.take_event(
            tracker, StatusEvent("Customs", datetime(2026, 1, 1, hour, tzinfo=UTC), "e1"), caller=ADMIN
        )
    assert len(await ground.events()) == 1, "T4 broken"


async def check_an_event_from_ahead_hides_nothing(ground: Ground) -> None:
    """T3: an event after one from a clock that runs ahead counts."""
    service, tracker = PollingService(ground.pool), await ground.place(await ground.wheel(2))
    now: datetime = await ground.pool.fetchval("SELECT clock_timestamp()")
    await service.take_event(tracker, StatusEvent("Ahead", now + timedelta(minutes=4)), caller=ADMIN)
    known = (await service.get(tracker)).status_at
    assert known is not None
    later = await ground.pool.fetchval("SELECT clock_timestamp()")
    assert (await service.take_event(tracker, StatusEvent("Later", later), caller=ADMIN)).outcome == "applied", (
        "T3 broken"
    )


async def check_a_terminal_status_wins(ground: Ground) -> None:
    """T7: it ends its tracker, however old it is."""
    service, tracker = PollingService(ground.pool), await ground.place(await ground.wheel(2))
    await service.take_event(tracker, StatusEvent("Depot", datetime(2026, 1, 1, 11, tzinfo=UTC)), caller=ADMIN)
    said = await service.take_event(
        tracker, StatusEvent("Delivered", datetime(2026, 1, 1, 10, tzinfo=UTC)), caller=ADMIN
    )
    assert (said.ended, (await service.get(tracker)).state) == (True, "ended"), "T7 broken"


async def check_the_last_of_one_instant_counts(ground: Ground) -> None:
    """T3: of two statuses of one instant the last to arrive counts."""
    service, tracker = PollingService(ground.pool), await ground.place(await ground.wheel(2))
    for status in ("Depot", "Customs"):
        await service.take_event(tracker, StatusEvent(status, datetime(2026, 1, 1, 10, tzinfo=UTC)), caller=ADMIN)
    assert (await service.get(tracker)).status == "Customs", "T3 broken"


async def check_uploads_do_not_deadlock(ground: Ground) -> None:
    """Two uploads of one file in opposite orders do not deadlock."""
    service = PollingService(ground.pool)
    await ground.pool.execute("INSERT INTO tickwright.polling_schedule_config (account_id) VALUES ('acme')")
    lines = [b'{"account_id":"acme","partner":"dhl","external_id":"X%d"}\n' % n for n in range(10, 60)]

    async def whole(order: list[bytes]) -> AsyncIterator[bytes]:
        yield b"".join(order)

    uploads = [
        lambda order=order: service.import_trackers(whole(order), caller=ADMIN, as_csv=False, now=None)
        for order in (lines, lines[::-1])
    ]
    middle = (
        "INSERT INTO tickwright.shipment_polling_tracker (account_id, partner, external_id) VALUES ('acme', 'dhl', $1)"
    )
    done = await while_it_is_locked(ground, middle, ["X35"], uploads, commit=False)
    assert not [error for error in done if isinstance(error, Unavailable)], "a deadlock: broken"
    assert sum(result.created for result in done) == 50


async def check_a_replay_sends_only_missing_polls(ground: Ground) -> None:
    """T6: a poll that is answered, in the outbox or in the queue is not sent again."""
    service, slot = PollingService(ground.pool), await ground.wheel(120)
    done, waiting, queued = [await ground.place(slot, 0, external=f"E{n}") for n in range(3)]
    due = await ground.turn(slot)
    await ground.slice(slot, due, selected=3)
    await ground.done(done, due)
    await ground.waiting(waiting, due)
    await ground.queued(queued, due)
    later = await ground.pool.fetchval("SELECT clock_timestamp()")
    said = await service.slices.replay(due, later, caller=ADMIN, dry_run=False)
    assert said.trackers == 0, "T6 broken"


def without_sql(module: ModuleType, query: str, guard: str, instead: str) -> dict[str, Any]:
    """Return the queries of a module with one guard replaced."""
    queries = dict(module.SQL)
    assert guard in queries[query], f"{query} has no {guard!r}"
    return {**queries, query: queries[query].replace(guard, instead)}


CHECKS: list[Check] = [
    check_registered_once, check_events_in_order, check_an_event_id_counts_once, check_uploads_do_not_deadlock,
    check_a_replay_sends_only_missing_polls, check_an_event_from_ahead_hides_nothing, check_a_terminal_status_wins,
    check_the_last_of_one_instant_counts,
]  # fmt: skip
MUTANTS: list[tuple[str, str, str, str, Check]] = [
    ("placed trackers are not read", "find", "SELECT 1 AS place", "SELECT 3 AS place", check_registered_once),
    ("events lock nothing", "lock_placed", "FOR UPDATE OF t", "", check_events_in_order),
    ("event ids are not kept", "note_event", "ON CONFLICT DO NOTHING RETURNING tracker_id",
     "ON CONFLICT (tracker_id, event_id) DO UPDATE SET received_at = now() RETURNING tracker_id",
     check_an_event_id_counts_once),
    ("lines are in the order of the file", "register_many", 'ORDER BY u.external_id COLLATE "C", p.partner_no', "",
     check_uploads_do_not_deadlock),
]  # fmt: skip


@pytest.fixture
async def ground(database_url: str) -> AsyncIterator[Ground]:
    """A database with the partner ``dhl``, and connections as a process has them."""
    pool: asyncpg.Pool = await open_pool(database_url, max_size=6)
    ground = Ground(pool)
    await ground.partner()
    yield ground
    await pool.close()


@pytest.mark.parametrize("check", CHECKS, ids=[check.__name__ for check in CHECKS])
async def test_the_promise_holds(ground: Ground, check: Check) -> None:
    """Each check passes without a mutant."""
    await check(ground)


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant[0] for mutant in MUTANTS])
async def test_a_missing_guard_is_found(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, mutant: tuple[str, str, str, str, Check]
) -> None:
    """The same check fails without its guard."""
    _, query, guard, instead, check = mutant
    monkeypatch.setattr(service, "SQL", without_sql(service, query, guard, instead))
    with pytest.raises(AssertionError, match="broken"):
        await check(ground)


def as_sent(_tracker: Mapping[str, Any], event: StatusEvent) -> datetime:
    """Trust every sender's clock."""
    return event.at


def never(_status: str, _terminal: str | None) -> bool:
    """Treat no status as terminal where events are judged."""
    return False


def newer_only(tracker: Mapping[str, Any], event: StatusEvent, *, seen: bool) -> EventVerdict:
    """Apply events that are newer than the known status, and no others."""
    at = tracker["status_at"]
    return EventVerdict.STALE if seen or (at is not None and event.at <= at) else EventVerdict.APPLIED


@pytest.mark.parametrize(
    "mutant",
    [
        (service, "counted_at", as_sent, check_an_event_from_ahead_hides_nothing),
        (events, "is_terminal", never, check_a_terminal_status_wins),
        (service, "decide_event", newer_only, check_the_last_of_one_instant_counts),
    ],
    ids=["every clock is trusted", "a terminal status is judged as others", "of one instant the first counts"],
)
async def test_a_missing_rule_of_events_is_found(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, mutant: tuple[ModuleType, str, Any, Check]
) -> None:
    """The same check fails where events are judged without its rule."""
    module, name, instead, check = mutant
    monkeypatch.setattr(module, name, instead)
    with pytest.raises(AssertionError, match="broken"):
        await check(ground)


@pytest.mark.parametrize("table", ["poll_done d", "scheduler_outbox o", "poll_queue q"])
async def test_a_replay_that_does_not_read_a_table_is_found(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    """Ledger, outbox and queue are all read."""
    name, _, short = table.partition(" ")
    guard = f"tickwright.{table}\n        WHERE"
    assert guard in slices._REPLAY
    broken = slices._REPLAY.replace(guard, f"tickwright.{name} {short}\n        WHERE false AND", 1)
    monkeypatch.setattr(slices, "_REPLAY", broken)
    with pytest.raises(AssertionError, match="broken"):
        await check_a_replay_sends_only_missing_polls(ground)
