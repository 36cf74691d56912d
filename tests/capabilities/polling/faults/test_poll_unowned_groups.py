"""Poll groups that were taken and not begun, or not released, are carried out: none keeps an owner that is idle.

Each fault is one statement that fails, or whose answer is lost, while the session lives on or ends in order.
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
    """A source that loses the answers of the first ``takes`` claims, and fails the first ``releases`` releases.

    Attributes:
        taken_times: Calls of ``take``.
    """

    def __init__(self, pool: Pool, session: Session, *, takes: int = 0, releases: int = 0) -> None:
        super().__init__(pool, session)
        self._takes, self._failing = takes, releases
        self.taken_times = 0

    async def take(self, room: Mapping[int, int]) -> Sequence[PollGroup]:
        """Claim, as any source does, and lose the answer."""
        self.taken_times += 1
        if self._takes and room and self._session.holds():
            async with self._gate.claiming() as (token, number):
                arguments = token, list(room), list(room.values()), number
                self._takes -= bool(await self._pool.fetch(poll_queue._SQL["take"], *arguments))
                raise ConnectionError("the answer was lost")
        return await super().take(room)

    async def _release_rows(self, groups: Sequence[PollGroup]) -> None:
        """Fail, or release."""
        if self._failing:
            self._failing -= 1
            raise ConnectionError("cut off")
        await super()._release_rows(groups)


async def _answers(_poll: Poll) -> Answer:
    return Answer("moving")


async def _never_answers(_poll: Poll) -> Answer:
    await asyncio.Event().wait()
    raise AssertionError


async def test_groups_whose_preparation_fails_are_carried_out(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The statement after the claim fails, and so does the first one that would release the groups."""
    prepare, failed = consumer.prepare, list[int]()

    async def fails_once(pool: Pool, groups: Sequence[PollGroup]) -> list[PreparedGroup]:
        if not failed:
            failed.append(len(groups))
            raise ConnectionError("cut off")
        return list(await prepare(pool, groups))

    monkeypatch.setattr(consumer, "prepare", fails_once)
    async with running_consumer(
        database_url,
        functions={"acme": _answers},
        terms=LONG,
        source_of=lambda pool, session: Faulty(pool, session, releases=1),
    ) as side:
        trackers = await seed(side.pool, 20)
        await eventually_async(lambda: queue_empty(side.pool), 20)
        assert await done_times(side.pool, trackers) == Counter(trackers.ids)
    assert failed


async def test_a_clean_stop_releases_groups_although_the_first_try_fails(database_url: str) -> None:
    """A session that ends in order is never declared lost: groups that it does not release would stay its own."""
    pool = await open_pool(database_url, max_size=1)
    async with running_consumer(
        database_url,
        functions={"acme": _never_answers},
        source_of=lambda pool, session: Faulty(pool, session, releases=1),
    ) as side:
        trackers = await seed(pool, 5)
        await eventually_async(lambda: side.contract.permits_of(trackers.partner_no).held == 5)
    assert await pool.fetchval(OWNED) == 0
    await pool.close()


async def test_groups_of_a_session_that_ended_are_taken_by_another(database_url: str) -> None:
    """The consumer could release nothing: closing its session releases them, and the next consumer takes them."""
    async with running_consumer(
        database_url,
        functions={"acme": _never_answers},
        source_of=lambda pool, session: Faulty(pool, session, releases=100),
    ) as side:
        trackers = await seed(side.pool, 5)
        await eventually_async(lambda: side.contract.permits_of(trackers.partner_no).held == 5)
    async with running_consumer(database_url, functions={"acme": _answers}) as other:
        await eventually_async(lambda: queue_empty(other.pool), 20)
        assert await done_times(other.pool, trackers) == Counter(trackers.ids)


async def test_a_claim_whose_answer_was_lost_is_released_by_its_own_session(database_url: str) -> None:
    """The rows have its token, and it does not know of them: its next claim releases them."""
    async with running_consumer(
        database_url,
        functions={"acme": _answers},
        terms=LONG,
        source_of=lambda pool, session: Faulty(pool, session, takes=1),
    ) as side:
        trackers = await seed(side.pool, 20)
        await eventually_async(lambda: queue_empty(side.pool), 20)
        assert await done_times(side.pool, trackers) == Counter(trackers.ids)


async def test_groups_under_way_are_not_taken_for_lost(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two consumers check for lost groups with every claim while both carry out polls: each poll is made once."""
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
        before = [source.taken_times for source in sources]
        await eventually_async(
            lambda: all(source.taken_times >= times + 4 for source, times in zip(sources, before, strict=True)), 20
        )
        gate.set()
        await eventually_async(lambda: queue_empty(one.pool), 20)
        assert (asked, one.consumer.writer.lost + two.consumer.writer.lost) == (Counter(trackers.ids), 0)
