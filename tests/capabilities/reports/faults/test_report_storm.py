"""Everything at once: a storm over reports, and the checker that says whether G1 to G3 held; it is tested, too."""

import asyncio
import hashlib
import json
import random
import secrets
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from kit.forks import Child
from kit.processes import kill_group
from kit.report_faults import LARGE, SMALL, ReportWorlds, ask, clean, start, truth
from kit.reports import OVER, TERMS, ReportWorld
from kit.servers import RedisServer
from kit.waiting import eventually_async

# What may be said of reports when a storm is over: G1 to G3 as a pure function of what was found.


@dataclass(frozen=True)
class Found:
    """What is left of one report.

    Attributes:
        sha256: Of its file as it is in the store; ``None`` where there is none.
        truth: What the file has to have, for the record's epoch.
        objects: Keys below its folder, behind upkeep.
        endless: Keys of Redis without an end.
    """

    id: int
    status: str
    error: str | None = None
    file_key: str | None = None
    sha256: str | None = None
    truth: str = ""
    objects: Sequence[str] = field(default=())
    endless: Sequence[str] = field(default=())


def complaints(found: Iterable[Found]) -> list[str]:
    """Return every broken promise in words; nothing means that G1, G2 and G3 hold."""
    return [text for one in found for text in _of(one)]


def _of(one: Found) -> list[str]:
    said = []
    if one.status not in {"finished", "failed", "cancelled"}:
        said.append(f"G3 broken: {one.id} is {one.status}")
    if one.status == "finished" and one.sha256 != one.truth:
        said.append(f"G1 broken: {one.id} has not the rows that it has to have")
    if one.status == "failed" and not one.error:
        said.append(f"G1 broken: {one.id} failed without a reason")
    wanted = [one.file_key] if one.status == "finished" else []
    if list(one.objects) != wanted:
        said.append(f"G2 broken: {one.id} has {len(one.objects)} objects instead of {len(wanted)}")
    return said + [f"G3 broken: {key} has no end" for key in one.endless]


pytestmark = pytest.mark.storm

STRIKES = ("kill", "stop", "flush", "kill", "stop", "kill", "flush", "kill")
REPORTS, CHILDREN, HEALED_S = 40, 3, 60
SLEEP_S = 1.5 * TERMS.ttl.total_seconds()
NOW = "SELECT date_part('epoch', clock_timestamp())"
SOUND = Found(1, "finished", None, "a/b", "x", "x", ["a/b"])


@pytest.fixture
def redis_server(mortal_redis: RedisServer) -> RedisServer:
    """The worlds of this module have a Redis that may be flushed."""
    return mortal_redis


class Storm:
    """Three processes; whoever is killed is replaced."""

    def __init__(self, world: ReportWorld, redis_url: str, chance: random.Random) -> None:
        self._world, self._redis_url, self._chance = world, redis_url, chance
        self.children = [self._start(number) for number in range(CHILDREN)]

    def _log(self, number: int) -> Path:
        return self._world.folder / f"child{number}.log"

    def _start(self, number: int) -> Child:
        return start(self._world, self._log(number), self._redis_url, REPORT_TAKES_S="0.3")

    async def strike(self, what: str) -> None:
        """Do one thing to one of them, or to Redis."""
        number = self._chance.randrange(CHILDREN)
        if what == "flush":
            async with Redis.from_url(self._redis_url) as client:
                await client.flushall()
        elif what == "kill":
            kill_group(self.children[number])
            self.children[number] = self._start(number)
        else:
            self.children[number].send_signal(signal.SIGSTOP)
            await self._until(SLEEP_S)
            self.children[number].send_signal(signal.SIGCONT)
        await self._until(1.0)

    async def _until(self, seconds: float) -> None:
        end_s = await self._world.pool.fetchval(NOW) + seconds

        async def reached() -> bool:
            return bool(await self._world.pool.fetchval(NOW) >= end_s)

        await eventually_async(reached, 30, what="the storm goes on")


async def found(world: ReportWorld, report: int) -> Found:
    """Return what is left of one."""
    row = await world.record(report)
    asked = json.loads(row["conditions"])
    there = hashlib.sha256(await world.file(row)).hexdigest() if row["status"] == "finished" else None
    keys = [one.key for one in await world.objects.listing(f"reports/{report}/", 10)]
    keys += [one.key for one in await world.objects.listing(f"parts/{report}/", 10)]
    client: Any = world.shared._redis._client  # type: ignore[union-attr]
    key = world.shared.key(report)  # type: ignore[union-attr]
    return Found(
        report,
        row["status"],
        row["error"],
        row["file_key"],
        there,
        truth(asked["rows"], asked["seed"], row["epoch"]),
        keys,
        [key] if await client.pttl(key) == -1 else [],
    )


@pytest.mark.timeout(240)
async def test_a_storm_breaks_no_promise(report_worlds: ReportWorlds) -> None:
    """G1, G2 and G3 over forty reports, small and large, while somebody is struck every second."""
    number = secrets.randbelow(1_000_000)
    print(f"chances from seed {number}")  # noqa: T201  shown when the test fails
    world, chance = await report_worlds.make("redis"), random.Random(number)
    storm = Storm(world, report_worlds.redis.url, chance)
    asked: list[int] = []
    try:
        each = REPORTS // len(STRIKES)
        for what in STRIKES:
            asked += [await ask(world, chance.choice((SMALL, SMALL, LARGE)), seed) for seed in range(each)]
            await storm.strike(what)

        async def all_over() -> bool:
            return not await world.pool.fetchval(
                "SELECT count(*) FROM tickwright.reports WHERE NOT status = ANY ($1)", [*OVER]
            )

        await eventually_async(all_over, HEALED_S, what="all are over")
    finally:
        for process in storm.children:
            kill_group(process)
    await clean(world)
    left = await asyncio.gather(*(found(world, report) for report in asked))
    assert complaints(left) == []
    finished = sum(one.status == "finished" for one in left)
    assert finished >= REPORTS * 3 // 4, [one.error for one in left if one.error]


# ---------------------------------------------------------------------------------------------- the checker itself


def test_sound_reports_have_no_complaints() -> None:
    """Finished, failed with a reason, cancelled."""
    assert complaints([SOUND, Found(2, "failed", "why"), Found(3, "cancelled")]) == []


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (replace(SOUND, status="merging"), "G3 broken: 1 is merging"),
        (replace(SOUND, sha256="y"), "G1 broken: 1 has not the rows"),
        (replace(SOUND, sha256=None), "G1 broken: 1 has not the rows"),
        (replace(SOUND, objects=["a/b", "a/c"]), "G2 broken: 1 has 2 objects instead of 1"),
        (replace(SOUND, objects=["a/c"]), "G2 broken"),
        (replace(SOUND, endless=["k"]), "G3 broken: k has no end"),
        (Found(1, "failed"), "G1 broken: 1 failed without a reason"),
        (Found(1, "cancelled", objects=["a/b"]), "G2 broken: 1 has 1 objects instead of 0"),
    ],
)
def test_an_injected_fault_is_found(broken: Found, said: str) -> None:
    """Each promise by itself."""
    assert said in " ".join(complaints([broken]))
