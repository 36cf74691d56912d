"""Scan events of polls: each new one is published once, whatever their order and the tracker's status."""

import json
import random
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any

import pytest

from kit.api import ADMIN
from kit.consumers import EVENTS_TO, Trackers, events, seed
from kit.waiting import eventually_async
from tickwright import Answer, ScanEvent
from tickwright.capabilities.polling.consumer import result_writer
from tickwright.capabilities.polling.consumer.result_writer import (
    EVENTS_KEPT,
    GroupAnswers,
    WrittenResults,
    write_results,
)
from tickwright.capabilities.polling.service import PollingService
from tickwright.capabilities.polling.trackers.events import StatusEvent
from tickwright.store.pool import Connection, Pool, open_pool

NOW = datetime.now(UTC).replace(microsecond=0)
AT = NOW - timedelta(hours=1)


class World:
    """One tracker, and a courier that answers its polls one after the other."""

    def __init__(self, pool: Pool, trackers: Trackers) -> None:
        self.pool, self._trackers = pool, trackers
        self._polls = 0

    async def poll(
        self, status: str, *scans: ScanEvent, at: datetime | None = None, terminal: bool = False
    ) -> list[str]:
        """Write the effect of one answer; return the texts of the events that it published."""
        before = len(await events(self.pool))
        async with self.pool.acquire() as connection, connection.transaction():
            await self.write(connection, Answer(status, at, scans), terminal=terminal)
        return [event["text"] for message in (await events(self.pool))[before:] for event in message["events"]]

    async def write(self, connection: Connection, *answers: Answer, terminal: bool = False) -> WrittenResults:
        """Write the answers of polls of different minutes in one transaction."""
        effects = {}
        for answer in answers:
            self._polls += 1
            due_at = self._trackers.due_at - timedelta(minutes=self._polls)
            key = (self._trackers.slot_id, due_at, self._trackers.partner_no)
            effects[key] = GroupAnswers(120, {self._trackers.ids[0]: (answer, terminal)})
        return await write_results(connection, effects, EVENTS_TO)

    async def kept(self) -> list[str]:
        """Return the texts of the events that the tracker keeps."""
        return [event["text"] for event in json.loads(await self.pool.fetchval(_KEPT))]


_KEPT = "SELECT coalesce(events, '[]')::text FROM tickwright.trackers"


@pytest.fixture
async def world(database_url: str) -> Any:
    """A tracker without a status or events of a poll."""
    pool = await open_pool(database_url)
    yield World(pool, await seed(pool, 1))
    await pool.close()


async def test_events_of_one_instant_are_published_once_each(world: World) -> None:
    """Also one that comes later, with the same status or another; the same instant and text is the same event."""
    assert await world.poll("moving", ScanEvent(AT, "arrived"), at=AT) == ["arrived"]
    assert await world.poll("moving", ScanEvent(AT, "arrived"), ScanEvent(AT, "sorted"), at=AT) == ["sorted"]
    customs = ScanEvent(AT, "customs")
    assert await world.poll("customs", ScanEvent(AT, "arrived"), customs, customs, at=AT) == ["customs"]
    assert await world.kept() == ["arrived", "customs", "sorted"]


async def test_a_scan_from_before_the_status_is_published(world: World) -> None:
    """A status hides no event, whether it counts from its receipt or came by webhook."""
    assert await world.poll("moving") == []
    assert await world.poll("moving", ScanEvent(AT, "scanned")) == ["scanned"]
    said = await PollingService(world.pool).take_event(1, StatusEvent("customs", datetime.now(UTC)), caller=ADMIN)
    assert said.outcome == "applied"
    published = await world.poll(
        "moving", ScanEvent(AT, "scanned"), ScanEvent(AT + timedelta(minutes=1), "late"), at=AT
    )
    assert published == ["late"]
    assert (await events(world.pool))[-1]["event"] == "events"
    assert (await PollingService(world.pool).get(1)).status == "customs"


async def test_the_scan_of_an_older_terminal_status_is_published_with_the_end(world: World) -> None:
    """The event "delivered at door" is published although a later scan is known."""
    await world.poll("moving", ScanEvent(AT, "depot scan"), at=AT)
    door = ScanEvent(AT - timedelta(minutes=1), "delivered at door")
    assert await world.poll("Delivered", door, ScanEvent(AT, "depot scan"), at=door.at, terminal=True) == [door.text]
    assert (await events(world.pool))[-1]["event"] == "ended"


async def test_an_event_ahead_of_the_clock_is_published_when_its_time_has_come(world: World) -> None:
    """The same answer has nothing new before, and one event afterwards."""
    ahead = ScanEvent(await world.pool.fetchval("SELECT clock_timestamp() + interval '2 seconds'"), "soon")
    assert await world.poll("moving", ScanEvent(AT, "scanned"), ahead) == ["scanned"]
    await eventually_async(lambda: world.pool.fetchval("SELECT clock_timestamp() > $1", ahead.at))
    assert await world.poll("moving", ScanEvent(AT, "scanned"), ahead) == ["soon"]


async def check_each_event_is_published_once(world: World, seed_of: int) -> None:
    """The promise: published once, or never when ten later ones are known already.

    The courier repeats its history, whole or in part, with additions at any place, of few instants; webhooks come
    between.
    """
    chance = random.Random(seed_of)
    history: list[ScanEvent] = []
    published: list[tuple[datetime, str]] = []
    for step in range(25):
        for n in range(chance.choice([0, 0, 1, 2, 4])):
            at = AT + timedelta(seconds=chance.randrange(8)) + timedelta(microseconds=chance.choice([0, 0, 5]))
            history.append(ScanEvent(at, f"{chance.choice('aÄz')}{step}.{n}"))
        if chance.random() < 0.2:
            await PollingService(world.pool).take_event(
                1, StatusEvent(f"s{step}", AT + timedelta(seconds=step)), caller=ADMIN
            )
        answer = chance.sample(history, chance.choice([len(history)] * 3 + [len(history) // 2]))
        latest = sorted(published)[-EVENTS_KEPT:]
        known, full = set(published), len(latest) == EVENTS_KEPT
        expected = {(scan.at, scan.text) for scan in answer} - known
        expected = {one for one in expected if not full or one > latest[0]}
        status, since = f"s{chance.randrange(3)}", chance.choice([None, AT, AT + timedelta(seconds=9)])
        assert Counter(await world.poll(status, *answer, at=since)) == Counter(text for _, text in expected)
        published += expected
        assert await world.kept() == [text for _, text in sorted(published)[-EVENTS_KEPT:]]
    assert len(published) > EVENTS_KEPT


@pytest.mark.parametrize("seed_of", range(6))
async def test_a_courier_that_repeats_its_history_has_each_event_published_once(world: World, seed_of: int) -> None:
    """T8: whatever the order and the parts of its history that it sends."""
    await check_each_event_is_published_once(world, seed_of)


async def test_a_history_longer_than_what_is_kept_is_published_once(world: World) -> None:
    """A hundred events are published; sent again with one more, only that one is."""
    scans = [ScanEvent(AT + timedelta(seconds=n), f"scan {n}") for n in range(100)]
    assert len(await world.poll("moving", *scans)) == 100
    assert await world.poll("moving", *reversed(scans)) == []
    assert await world.poll("moving", *scans[1:], ScanEvent(NOW, "one more")) == ["one more"]


async def check_two_polls_of_one_tracker(world: World, scans: Sequence[ScanEvent]) -> None:
    """In one transaction the second is compared with what the first wrote; from another one it is skipped meanwhile."""
    async with world.pool.acquire() as one, world.pool.acquire() as other:
        writing = one.transaction()
        await writing.start()
        await world.write(one, Answer("moving", events=(scans[0],)), Answer("moving", events=(scans[0], scans[1])))
        assert (await world.write(other, Answer("moving", events=tuple(scans)))).locked
        await writing.commit()
        assert not (await world.write(other, Answer("moving", events=tuple(scans)))).locked
    published = [event["text"] for message in await events(world.pool) for event in message["events"]]
    assert Counter(published) == Counter(scan.text for scan in scans)


async def test_two_polls_of_one_tracker_at_once_publish_each_event_once(world: World) -> None:
    """T8, under the tracker's lock."""
    await check_two_polls_of_one_tracker(world, [ScanEvent(AT, text) for text in "abc"])


MUTANTS = {
    "an event is new by its instant alone": (
        "EXCEPT SELECT jsonb_array_elements(k.events)) AS unknown) AS s\n        WHERE",
        ") AS unknown) AS s\n        WHERE (k.status_at IS NULL OR s.at > k.status_at) AND",
    ),
    "an event that is not kept any more is new again": ("(coalesce(jsonb_array_length(k.events), 0) < 10", "(true"),
    "an event that is older than the kept ones is old": (
        "(coalesce(jsonb_array_length(k.events), 0) < 10",
        "(k.events IS NULL",
    ),
    "the mark counts for other answers": ("(k.told_mark = f.mark) IS NOT TRUE", "k.told_mark IS NULL"),
}


@pytest.mark.parametrize("mutant", MUTANTS)
async def test_the_suite_notices_a_rule_of_events_that_is_missing(
    world: World, monkeypatch: pytest.MonkeyPatch, mutant: str
) -> None:
    """A mutant of each part of the rule is found by the histories."""
    mutated = result_writer.SQL["write_results"].replace(*MUTANTS[mutant])
    assert mutated != result_writer.SQL["write_results"]
    monkeypatch.setattr(result_writer, "SQL", MappingProxyType({**result_writer.SQL, "write_results": mutated}))
    with pytest.raises(AssertionError):
        await check_each_event_is_published_once(world, 1)
