"""Turns that were taken and not begun, or not given back, come to be carried out: nothing stays owned by nobody.

Each fault is one statement that fails, or whose answer is lost, while the session lives on or leaves in order.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest

from kit.consumers import LONG, done_times, queue_empty, running_consumer, seed
from kit.waiting import eventually_async
from tickwright import Answer, Poll
from tickwright.capabilities.polling.consumer import consumer
from tickwright.capabilities.polling.consumer import queue as poll_queue
from tickwright.capabilities.polling.consumer.consumer import PreparedGroup
from tickwright.capabilities.polling.consumer.queue import QueueSource
from tickwright.engine.claim_gate import ClaimGate
from tickwright.ports.polls import PollGroup
from tickwright.ports.session import Session
from tickwright.store.pool import Pool, open_pool

OWNED = "SELECT count(*) FROM tickwright.poll_queue WHERE owner IS NOT NULL"


class Faulty(QueueSource):
    """A source whose answers are lost: of the first ``takes`` claims, and of the first ``backs`` returns.

    Attributes:
        taken_times: Looks for turns.
    """

    def __init__(self, pool: Pool, session: Session, *, takes: int = 0, backs: int = 0) -> None:
        super().__init__(pool, session)
        self._takes, self._backs = takes, backs
        self.taken_times = 0

    async def take(self, room: Mapping[int, int]) -> Sequence[PollGroup]:
        """Claim, as any source does, and lose the answer."""
        self.taken_times += 1
        if self._takes and room and self._session.holds():
            async with self._gate.claiming() as (token, number):
                said = token, list(room), list(room.values()), number
                self._takes -= bool(await self._pool.fetch(poll_queue._SQL["take"], *said))
                raise ConnectionError("the answer was lost")
        return await super().take(room)

    async def _release_rows(self, turns: Sequence[PollGroup]) -> None:
        """Fail, or give back."""
        if self._backs:
            self._backs -= 1
            raise ConnectionError("cut off")
        await super()._release_rows(turns)


async def _answers(_poll: Poll) -> Answer:
    return Answer("moving")


async def _never_answers(_poll: Poll) -> Answer:
    await asyncio.Event().wait()
    raise AssertionError


async def test_turns_whose_preparation_fails_are_carried_out(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database is away for the statement after the claim, and for the one that would give the turns back."""
    prepare, failed = consumer.prepare, list[int]()

    async def fails_once(pool: Pool, turns: Sequence[PollGroup]) -> list[PreparedGroup]:
        if not failed:
            failed.append(len(turns))
            raise ConnectionError("cut off")
        return list(await prepare(pool, turns))

    monkeypatch.setattr(consumer, "prepare", fails_once)
    async with running_consumer(
        database_url,
        functions={"acme": _answers},
        terms=LONG,
        source_of=lambda pool, session: Faulty(pool, session, backs=1),
    ) as side:
        trackers = await seed(side.pool, 20)
        await eventually_async(lambda: queue_empty(side.pool), 20)
        assert await done_times(side.pool, trackers) == Counter(trackers.ids)
    assert failed


async def test_a_clean_stop_gives_back_although_the_first_try_fails(database_url: str) -> None:
    """Who leaves in order is never declared lost: what it could not give back would stay its own."""
    pool = await open_pool(database_url, max_size=1)
    async with running_consumer(
        database_url,
        functions={"acme": _never_answers},
        source_of=lambda pool, session: Faulty(pool, session, backs=1),
    ) as side:
        trackers = await seed(pool, 5)
        await eventually_async(lambda: side.contract.permits_of(trackers.partner_no).held == 5)
    assert await pool.fetchval(OWNED) == 0
    await pool.close()


async def test_turns_of_a_session_that_left_are_somebody_elses(database_url: str) -> None:
    """It could give nothing back itself: its session does so when it is closed, and whoever looks next finds them."""
    async with running_consumer(
        database_url,
        functions={"acme": _never_answers},
        source_of=lambda pool, session: Faulty(pool, session, backs=100),
    ) as side:
        trackers = await seed(side.pool, 5)
        await eventually_async(lambda: side.contract.permits_of(trackers.partner_no).held == 5)
    async with running_consumer(database_url, functions={"acme": _answers}) as other:
        await eventually_async(lambda: queue_empty(other.pool), 20)
        assert await done_times(other.pool, trackers) == Counter(trackers.ids)


async def test_a_claim_whose_answer_was_lost_is_healed_by_its_own_session(database_url: str) -> None:
    """The turns are ours by the row, and we do not know it: the next claim gives them back."""
    async with running_consumer(
        database_url,
        functions={"acme": _answers},
        terms=LONG,
        source_of=lambda pool, session: Faulty(pool, session, takes=1),
    ) as side:
        trackers = await seed(side.pool, 20)
        await eventually_async(lambda: queue_empty(side.pool), 20)
        assert await done_times(side.pool, trackers) == Counter(trackers.ids)


async def test_what_is_carried_out_is_not_taken_for_lost(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two consumers look as often as they can while both carry polls out: each poll is asked once."""
    monkeypatch.setattr(ClaimGate, "unsure", property(lambda _: True, lambda *_: None), raising=False)
    gate, asked, sources = asyncio.Event(), Counter[int](), list[Faulty]()

    async def slow(poll: Poll) -> Answer:
        asked[poll.tracker_id] += 1
        await gate.wait()
        return Answer("moving")

    def source_of(pool: Pool, session: Session) -> Faulty:
        sources.append(Faulty(pool, session))
        return sources[-1]

    async with (
        running_consumer(database_url, functions={"acme": slow}, terms=LONG, source_of=source_of) as one,
        running_consumer(database_url, functions={"acme": slow}, terms=LONG, source_of=source_of) as two,
    ):
        trackers = await seed(one.pool, 5)
        await eventually_async(lambda: len(asked) == 5)
        looked = [source.taken_times for source in sources]
        await eventually_async(
            lambda: all(source.taken_times >= times + 4 for source, times in zip(sources, looked, strict=True)), 20
        )
        gate.set()
        await eventually_async(lambda: queue_empty(one.pool), 20)
        assert (asked, one.consumer.writer.lost + two.consumer.writer.lost) == (Counter(trackers.ids), 0)
