"""What has to hold of parts in Redis, as checks that a test runs on the product and a mutant's test on less."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import count, product
from typing import Any

from redis.asyncio import Redis

from kit.redis_fanout import fresh_prefix
from tickwright.ports.reports import PartKey, Put, PutAnswer
from tickwright.transports.redis.connection import RedisClient
from tickwright.transports.redis.stores import RedisParts

LIFE = timedelta(minutes=10)
NONCE = "5f"
EPOCHS = (1, 2, 9, 10, 2**31 - 1)


@dataclass
class PartsWorld:
    """Parts under a prefix of the test's own, and the server as it is."""

    parts: RedisParts
    redis: Any  # its answers are not typed
    link: RedisClient
    prefix: str

    async def put(self, number: int, epoch: int, listener: str, data: bytes = b"[]", note: str = "") -> PutAnswer:
        """Put a part with a full life."""
        return await self.parts.put(PartKey(number, epoch, listener, NONCE), data, note, ttl=LIFE)

    async def said(self, number: int, epoch: int, listener: str, data: bytes = b"[]", note: str = "") -> Put:
        """Put a part; return what became of it."""
        return (await self.put(number, epoch, listener, data, note)).put

    async def get(self, number: int, epoch: int, listener: str) -> bytes | None:
        """Return a part's data."""
        return await self.parts.get(PartKey(number, epoch, listener, NONCE))

    async def hash_of(self, number: int) -> dict[bytes, bytes]:
        """Return a report's hash as it is."""
        found: dict[bytes, bytes] = await self.redis.hgetall(self.parts.key(number))
        return found

    async def life_ms(self, number: int) -> int:
        """Return for how long it lives; -1 for ever, -2 there is none."""
        found: int = await self.redis.pttl(self.parts.key(number))
        return found


@asynccontextmanager
async def parts_world(url: str, prefix: str | None = None) -> AsyncIterator[PartsWorld]:
    """Open parts of the test's own."""
    prefix = fresh_prefix() if prefix is None else prefix
    link = RedisClient(url)
    async with Redis.from_url(url) as redis:
        try:
            yield PartsWorld(RedisParts(link, prefix), redis, link, prefix)
        finally:
            await link.aclose()


async def check_counted_once(world: PartsWorld) -> None:
    """A listener that is redelivered three times counts once, and who was first stays."""
    assert await world.put(1, 1, "users", b"[1]", "first") == PutAnswer(Put.STORED, "first")
    for attempt in ("second", "third", "fourth"):
        assert await world.put(1, 1, "users", b"[2]", attempt) == PutAnswer(Put.ALREADY, "first")
    assert await world.put(1, 1, "tags", b"[3]", "n") == PutAnswer(Put.STORED, "n")
    assert await world.hash_of(1) == {
        b"record": NONCE.encode(),
        b"epoch": b"1",
        b"users": b"[1]",
        b"done:users": b"first",
        b"tags": b"[3]",
        b"done:tags": b"n",
        b"queryDoneCount": b"2",
    }


async def check_always_a_life(world: PartsWorld) -> None:
    """Whatever is said of a hash, it ends by itself."""
    full = LIFE / timedelta(milliseconds=1)
    numbers = count(1)

    async def lives(number: int) -> None:
        assert 0 < await world.life_ms(number) <= full

    for said, epoch in product(("users", "tags"), (1, 1, 2, 1)):
        await world.put(number := 1, epoch, said)
        await lives(number)
    for _ in range(3):
        number = next(numbers)
        await world.put(number, 3, "users")
        await lives(number)
    await world.redis.persist(world.parts.key(1))
    assert await world.said(1, 1, "users") is Put.STALE
    await lives(1)
    await world.parts.close(1, "finished", nonce=NONCE, ttl=LIFE)
    await lives(1)
    await world.redis.persist(world.parts.key(1))
    assert await world.said(1, 9, "users") is Put.STALE
    await lives(1)


async def check_epochs_never_meet(world: PartsWorld) -> None:
    """Every two epochs in both orders: nothing older is written, and what is newer begins with an empty hash."""
    for number, (first, second) in enumerate(product(EPOCHS, EPOCHS), 1):
        assert await world.said(number, first, "users", b"old") is Put.STORED
        expected: dict[str, Any] = {"said": Put.STORED, "users": b"old", "count": b"2", "epoch": first}
        if second < first:
            expected |= {"said": Put.STALE, "count": b"1"}
        elif second > first:
            expected |= {"users": None, "count": b"1", "epoch": second}
        assert await world.said(number, second, "tags", b"new") is expected["said"], (first, second)
        found = await world.hash_of(number)
        assert found[b"epoch"] == str(expected["epoch"]).encode(), (first, second)
        assert found[b"queryDoneCount"] == expected["count"], (first, second)
        assert await world.get(number, expected["epoch"], "users") == expected["users"], (first, second)
        for epoch in {*EPOCHS} - {expected["epoch"]}:
            assert await world.get(number, epoch, "users") is None, (first, second)
