"""A storm of faults over reports, and the checker of G1 to G3, which is tested, too."""

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

# G1 to G3 after a storm, as a pure function of what was found.


@dataclass(frozen=True)
class Found:
    """The state of one report after a storm.

    Attributes:
        sha256: Of its file in the store; ``None`` without a file.
        truth: The SHA-256 that the file must have, for the record's epoch.
        objects: Keys below its folder, after retention.
        endless: Keys of Redis without a time to live.
    """

    id: int
    status: str
    error: str | None = None
    file_key: str | None = None
    sha256: str | None = None
    truth: str = ""
    objects: Sequence[str] = field(default=())
    endless: Sequence[str] = field(default=())


def violations(found: Iterable[Found]) -> list[str]:
    """Return a text for every broken promise; without one G1, G2 and G3 hold."""
    return [text for one in found for text in _of(one)]


def _of(one: Found) -> list[str]:
    texts = []
    if one.status not in {"finished", "failed", "cancelled"}:
        texts.append(f"G3 broken: {one.id} is {one.status}")
    if one.status == "finished" and one.sha256 != one.truth:
        texts.append(f"G1 broken: {one.id} has not the rows that it has to have")
    if one.status == "failed" and not one.error:
        texts.append(f"G1 broken: {one.id} failed without a reason")
    wanted = [one.file_key] if one.status == "finished" else []
    if list(one.objects) != wanted:
        texts.append(f"G2 broken: {one.id} has {len(one.objects)} objects instead of {len(wanted)}")
    return texts + [f"G3 broken: {key} has no end" for key in one.endless]


pytestmark = pytest.mark.storm

STRIKES = ("kill", "stop", "flush", "kill", "stop", "kill", "flush", "kill")
REPORTS, CHILDREN, HEALED_S = 40, 3, 60
SLEEP_S = 1.5 * TERMS.ttl.total_seconds()
NOW = "SELECT date_part('epoch', clock_timestamp())"
CORRECT = Found(1, "finished", None, "a/b", "x", "x", ["a/b"])


@pytest.fixture
def redis_server(mortal_redis: RedisServer) -> RedisServer:
    """The worlds of this module have a Redis that may be flushed."""
    return mortal_redis


class Storm:
    """Three processes; a killed one is replaced."""

    def __init__(self, world: ReportWorld, redis_url: str, chance: random.Random) -> None:
        self._world, self._redis_url, self._chance = world, redis_url, chance
        self.children = [self._start(number) for number in range(CHILDREN)]

    def _log(self, number: int) -> Path:
        return self._world.folder / f"child{number}.log"

    def _start(self, number: int) -> Child:
        return start(self._world, self._log(number), self._redis_url, REPORT_TAKES_S="0.3")

    async def strike(self, what: str) -> None:
        """Kill or stop one of them, or flush Redis."""
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

        await eventually_async(reached, 30, what="the pause is over")


async def found(world: ReportWorld, report: int) -> Found:
    """Return the state of one report."""
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
    """G1, G2 and G3 over forty reports, small and large, with a fault every second."""
    number = secrets.randbelow(1_000_000)
    print(f"random seed {number}")  # noqa: T201  shown when the test fails
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

        await eventually_async(all_over, HEALED_S, what="all have ended")
    finally:
        for process in storm.children:
            kill_group(process)
    await clean(world)
    left = await asyncio.gather(*(found(world, report) for report in asked))
    assert violations(left) == []
    finished = sum(one.status == "finished" for one in left)
    assert finished >= REPORTS * 3 // 4, [one.error for one in left if one.error]


# ---------------------------------------------------------------------------------------------- the checker itself


def test_correct_reports_have_no_violations() -> None:
    """Finished, failed with a reason, cancelled."""
    assert violations([CORRECT, Found(2, "failed", "why"), Found(3, "cancelled")]) == []


@pytest.mark.parametrize(
    ("broken", "expected"),
    [
        (replace(CORRECT, status="merging"), "G3 broken: 1 is merging"),
        (replace(CORRECT, sha256="y"), "G1 broken: 1 has not the rows"),
        (replace(CORRECT, sha256=None), "G1 broken: 1 has not the rows"),
        (replace(CORRECT, objects=["a/b", "a/c"]), "G2 broken: 1 has 2 objects instead of 1"),
        (replace(CORRECT, objects=["a/c"]), "G2 broken"),
        (replace(CORRECT, endless=["k"]), "G3 broken: k has no end"),
        (Found(1, "failed"), "G1 broken: 1 failed without a reason"),
        (Found(1, "cancelled", objects=["a/b"]), "G2 broken: 1 has 1 objects instead of 0"),
    ],
)
def test_an_injected_fault_is_found(broken: Found, expected: str) -> None:
    """Each promise by itself."""
    assert expected in " ".join(violations([broken]))
