"""Redis flushed, restarted or stopped while a report is made: epochs never mix, and the report always ends."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

from kit.mutants import mutate
from kit.probes import Stops
from kit.report_faults import AGAIN_S, ReportWorlds, ask, functions, is_clean, is_made, plan
from kit.reports import ReportWorld
from kit.servers import RedisServer, started
from kit.waiting import eventually_async
from tickwright.capabilities.reports.handlers import ReportRequest
from tickwright.capabilities.reports.merge.steps import Part
from tickwright.capabilities.reports.parts.store import HASH_TTL, LostPartError, PartStorage, _noted
from tickwright.ports.reports import PartFacts, PartKey


@pytest.fixture
def redis_server(mortal_redis: RedisServer) -> RedisServer:
    """The worlds of this module have a Redis that may be flushed."""
    return mortal_redis


async def flush(url: str) -> None:
    """Delete all keys."""
    async with Redis.from_url(url) as client:
        await client.flushall()


class FlushesAt:
    """A probe that flushes Redis at a point, ``times`` times."""

    def __init__(self, url: str, name: str, times: int) -> None:
        self._url, self._name, self._left = url, name, times

    async def reached(self, name: str, /, **_facts: object) -> None:
        """Flush."""
        if name == self._name and self._left > 0:
            self._left -= 1
            await flush(self._url)


async def test_a_flush_after_one_of_two_parts_costs_an_epoch(report_worlds: ReportWorlds) -> None:
    """The lost part is fetched again, and the other one, too, although it was just fetched."""
    world, url, gate = await report_worlds.make("redis"), report_worlds.redis.url, asyncio.Event()

    async def wait(name: str, _request: ReportRequest) -> None:
        if name == "rights":
            await gate.wait()

    async with world.process(functions(wait)):
        report = await ask(world)

        async def one_is_done() -> bool:
            return bool((await world.part(report, "lefts"))["state"] == "done")

        await eventually_async(one_is_done)
        await flush(url)
        gate.set()
        row = await is_made(world, report)
    assert (row["epoch"], row["restarts"]) == (2, 1)
    await is_clean(world, report)


@pytest.mark.parametrize("times", [1, 3])
async def test_each_flush_after_the_last_part_costs_an_epoch(report_worlds: ReportWorlds, times: int) -> None:
    """Before the merge, three times at most."""
    world = await report_worlds.make("redis")
    probe = FlushesAt(report_worlds.redis.url, "reports.merging", times)
    async with world.process(functions(), probe=probe):
        report = await ask(world)
        row = await is_made(world, report)
    assert (row["epoch"], row["restarts"]) == (times + 1, times)
    await is_clean(world, report)


async def test_parts_that_are_lost_four_times_fail_the_report_with_a_reason(report_worlds: ReportWorlds) -> None:
    """After three more epochs it fails."""
    world = await report_worlds.make("redis")
    async with world.process(functions(), probe=FlushesAt(report_worlds.redis.url, "reports.merging", 99)):
        report = await ask(world)
        row = await world.over(report, AGAIN_S)
    assert (row["status"], row["error_code"], row["restarts"]) == ("failed", "parts_lost", 3)
    assert "parts were lost 4 times" in row["error"]
    assert "not in Redis any more" in row["error"]
    await is_clean(world, report)


async def test_a_late_part_of_an_older_epoch_is_not_accepted(report_worlds: ReportWorlds, tmp_path: Path) -> None:
    """Neither the hash nor the ledger accepts it while the next epoch is under way."""
    world = await report_worlds.make("redis")
    old: list[Any] = []

    class FlushesOnce(Stops):
        async def reached(self, name: str, /, **facts: object) -> None:
            if name == "reports.part_claimed":
                old.append(facts["key"])
            if name == "reports.merging" and self.reached_times[name] == 0:
                await flush(report_worlds.redis.url)
                self.reached_times[name] += 1
                return
            await super().reached(name, **facts)

    probe = FlushesOnce()
    probe.close("reports.merged")
    async with world.process(functions(), probe=probe):
        report = await ask(world)
        await eventually_async(lambda: probe.reached_times["reports.merged"] == 1, AGAIN_S)
        path = tmp_path / "late.ndjson"
        path.write_bytes(b'{"id":1,"epoch":1}\n')
        places = PartStorage(world.parts, world.shared, world.objects)
        facts = PartFacts((), 1, path.stat().st_size, "0" * 64)
        row = await world.record(report)
        assert row["epoch"] == 2
        assert await places.put(PartKey(report, 1, "lefts", row["nonce"]), path, facts, plan=plan()) is None
        probe.open("reports.merged")
        await is_made(world, report)
    assert {key.epoch for key in old} == {1, 2}


async def kill(server: RedisServer, *, restart: bool) -> None:
    """Kill the server, and with ``restart`` start it again."""
    await asyncio.to_thread(server.kill9)
    if restart:
        await asyncio.to_thread(server.start)


@pytest.mark.parametrize("keeps", [True, False])
async def test_a_restart_of_redis_before_the_merge_costs_an_epoch_at_most(
    report_worlds: ReportWorlds, mortal_redis: RedisServer, keeps: bool
) -> None:
    """A server that kept its data costs nothing; one that lost it costs an epoch."""
    with started(RedisServer({"appendonly": "no"})) as volatile:
        server = mortal_redis if keeps else volatile
        report_worlds.redis = server
        world: ReportWorld = await report_worlds.make("redis")
        stops = Stops()
        stops.close("reports.merging")
        async with world.process(functions(), probe=stops):
            report = await ask(world)
            await eventually_async(lambda: stops.reached_times["reports.merging"] == 1)
            await kill(server, restart=True)
            stops.open("reports.merging")
            row = await is_made(world, report)
        assert row["epoch"] == (1 if keeps else 2)
        await is_clean(world, report)


async def test_reports_are_made_while_redis_is_stopped(report_worlds: ReportWorlds) -> None:
    """Meanwhile PostgreSQL stores the parts; a report with parts in Redis waits for it."""
    world, server, stops = await report_worlds.make("redis"), report_worlds.redis, Stops()
    stops.close("reports.merging")
    async with world.process(functions(), probe=stops):
        waiting = await ask(world)
        await eventually_async(lambda: stops.reached_times["reports.merging"] == 1)
        await kill(server, restart=False)
        stops.open("reports.merging")
        meanwhile = await ask(world)
        row = await is_made(world, meanwhile)
        assert (row["epoch"], (await world.part(meanwhile, "lefts"))["place"]) == (1, "postgres")
        assert (await world.record(waiting))["status"] == "merging"
        await asyncio.to_thread(server.start)
        assert (await is_made(world, waiting))["epoch"] == 1
        after = await ask(world)
        await is_made(world, after)
        assert (await world.part(after, "lefts"))["place"] == "redis"
    for report in (waiting, meanwhile, after):
        await is_clean(world, report)


async def test_two_databases_with_one_prefix_do_not_take_each_others_parts(report_worlds: ReportWorlds) -> None:
    """Both have a report 1: the second one has its parts in PostgreSQL, and each file has its own rows."""
    worlds = [await report_worlds.make("redis", prefix="both") for _ in range(2)]
    first, second = worlds
    stops = Stops()
    stops.close("reports.merging")
    async with first.process(functions(), probe=stops):
        mine = await ask(first, seed=3)
        await eventually_async(lambda: stops.reached_times["reports.merging"] == 1)
        with capture_logs() as lines:
            async with second.process(functions()):
                theirs = await ask(second, seed=5)
                await is_made(second, theirs)
        stops.open("reports.merging")
        row = await is_made(first, mine)
    assert mine == theirs == 1
    assert row["epoch"] == 1, "the second one's end cost the first one its parts"
    assert (await second.part(theirs, "lefts"))["place"] == "postgres"
    assert {line.get("code") for line in lines if line["event"] == "reports.redis_unavailable"} == {"hash_not_ours"}
    assert (await first.hash(1))["status"] == "finished"
    for world in worlds:
        await is_clean(world, 1)


PARTS = f"parts/{2**40}/1"
KEYS: list[str | None] = [
    "reports/1/1-1/lefts.csv",
    f"{PARTS}/rights-a.ndjson",
    f"parts/{2**40}/2/lefts-a.ndjson",
    f"{PARTS}/lefts-",
]
KEYS += [f"{PARTS}/lefts-a/../../b.ndjson", f"{PARTS}/lefts-.ndjson", f"{PARTS}/lefts-a.ndjson\0", "", None]
NOTES = ["", "abc", "[]", "nan", "[" * 9000, '["1",2,"",[],"redis",null]', '[1,2,"",[],"elsewhere",null]']
NOTES += [json.dumps([1, 2, "", [], "object", key]) for key in KEYS]
NOTES += [json.dumps([1, 2, "", [], "redis", f"{PARTS}/lefts-a.ndjson"])]


async def check_note(world: ReportWorld, tmp_path: Path, note: str) -> None:
    """The rows go to PostgreSQL, as without Redis; data in the hash that is no array of rows is a lost part."""
    assert world.shared is not None
    key, path = PartKey(2**40, 1, "lefts", "5f"), tmp_path / "part.ndjson"
    path.write_bytes(b'{"id":1}\n')
    await world.shared.put(key, b"[" * 9000, note, ttl=HASH_TTL)
    places = PartStorage(world.parts, world.shared, world.objects)
    kept = await places.put(key, path, PartFacts((), 1, path.stat().st_size, "0" * 64), plan=plan())
    assert kept is not None
    assert (kept.place, kept.data) == ("postgres", path.read_bytes())
    with pytest.raises(LostPartError):
        await places.fetch(key, Part("lefts", 1, required=True, state="done", place="redis"), path)


@pytest.mark.parametrize("note", NOTES)
async def test_a_foreign_note_costs_no_part(report_worlds: ReportWorlds, tmp_path: Path, note: str) -> None:
    """Neither a text that is no note, nor a note that names an object of another part."""
    await check_note(await report_worlds.make("redis"), tmp_path, note)


async def test_the_suite_notices_a_note_that_names_the_file_of_a_report(
    report_worlds: ReportWorlds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant accepts any object as the rows of the part."""
    mutate(monkeypatch, _noted, "_is_of(key, place, object_key)", "True")
    with pytest.raises(AssertionError):
        await check_note(await report_worlds.make("redis"), tmp_path, json.dumps([1, 2, "", [], "object", KEYS[0]]))


async def test_a_part_with_a_larger_object_is_lost_before_it_is_fetched(
    report_worlds: ReportWorlds, tmp_path: Path
) -> None:
    """The other object may be larger than the disk: its size is compared first."""
    world = await report_worlds.make("redis")
    path, fetched = tmp_path / "other.ndjson", tmp_path / "fetched.ndjson"
    path.write_bytes(b"[1]\n" * 100)
    await world.objects.put_file("parts/1/1/lefts-a.ndjson", path)
    part = Part("lefts", 1, required=True, state="done", bytes=4, place="object", object_key="parts/1/1/lefts-a.ndjson")
    with pytest.raises(LostPartError):
        await PartStorage(world.parts, None, world.objects).fetch(PartKey(1, 1, "lefts", ""), part, fetched)
    assert not fetched.exists()
