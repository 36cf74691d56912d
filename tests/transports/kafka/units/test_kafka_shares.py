"""How the queue of a producer is shared between topics."""

import asyncio

import pytest

from tickwright.transports.kafka.producer import QueueShares


async def fill(shares: QueueShares, topic: str, size_bytes: int, most: int = 10_000) -> int:
    """Take room until none is free; return how often there was room."""
    for taken in range(most):
        task = asyncio.ensure_future(shares.take(topic, size_bytes))
        await asyncio.sleep(0)
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
            return taken
    return most


async def test_one_topic_fills_half_of_the_queue_and_two_a_third_each() -> None:
    """KFK-7: there is always room for one more topic."""
    shares = QueueShares(600, 10**9)
    assert await fill(shares, "a", 1) == 300
    assert await fill(shares, "b", 1) == 150
    assert await fill(shares, "c", 1) == 75


async def test_bytes_count_like_messages() -> None:
    """A few large messages fill the queue as well as many small ones."""
    assert await fill(QueueShares(10_000, 6000), "a", 100) == 30


async def test_a_hundred_late_topics_leave_room_for_one_that_is_not() -> None:
    """KFK-7: large messages of topics that time out also leave a part of the queue."""
    shares = QueueShares(10_000, 64_000)
    for number in range(100):
        shares.note(f"late{number}", late=True)
        await fill(shares, f"late{number}", 400)
    assert await fill(shares, "good", 400) >= 7


async def test_a_late_topic_may_always_have_a_large_message_in_an_empty_queue() -> None:
    """Without one it could not show that it takes messages again."""
    shares = QueueShares(10_000, 64)
    shares.note("late", late=True)
    assert await fill(shares, "late", 16) == 1
    shares.note("late", late=False)
    assert await fill(shares, "late", 16) == 1, "half of the queue in all"


async def test_waiting_messages_go_on_in_their_order_when_there_is_room() -> None:
    """Records of one key stay in order: a small one does not pass a large one that waits."""
    shares, order = QueueShares(100, 100), list[str]()

    async def send(name: str, size_bytes: int) -> None:
        await shares.take("a", size_bytes)
        order.append(name)

    await shares.take("a", 40)
    tasks = [asyncio.ensure_future(send("large", 45)), asyncio.ensure_future(send("small", 1))]
    await asyncio.sleep(0)
    assert order == []
    shares.release("a", 40)
    shares.grant()
    await asyncio.gather(*tasks)
    assert order == ["large", "small"]


@pytest.mark.parametrize("granted", [False, True])
async def test_a_cancelled_wait_takes_no_room(granted: bool) -> None:
    """Also if the room was granted at the same moment."""
    shares = QueueShares(100, 100)
    await shares.take("a", 50)
    first, second = asyncio.ensure_future(shares.take("a", 50)), asyncio.ensure_future(shares.take("a", 1))
    await asyncio.sleep(0)
    if granted:
        shares.release("a", 50)
        shares.grant()
    first.cancel()
    await asyncio.wait({first})
    assert first.cancelled()
    if granted:
        await second
        shares.release("a", 1)
    else:
        second.cancel()
        await asyncio.wait({second})
        shares.release("a", 50)
    assert await fill(shares, "a", 1) == 50, "all is free again"
