"""The object store refuses, breaks off or is slow: an upload is repeated or fails with a reason; no file is partial."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from kit.object_store import BUCKET, ObjectServer
from kit.probes import Stops
from kit.report_faults import AGAIN_S, LARGE, ReportWorlds, ask, functions, is_clean, is_made
from kit.reports import ReportWorld
from kit.tcp_proxy import TcpProxy
from kit.waiting import eventually_async
from tickwright.transports.objectstore.plugin import open_store

PART, FILE = "reports.part_fetched", "reports.merged"
CUT_BYTES = 100_000


@dataclass
class Bucket:
    """A world whose processes reach its bucket through a proxy; the test reaches it directly."""

    world: ReportWorld
    proxy: TcpProxy
    objects: Any


@asynccontextmanager
async def bucket(worlds: ReportWorlds, server: ObjectServer) -> AsyncIterator[Bucket]:
    """Open one for this test alone."""
    place = f"s3://{BUCKET}/{secrets.token_hex(8)}"
    async with TcpProxy("127.0.0.1", server.port) as proxy:
        world = await worlds.make("redis")
        direct = open_store(place, server.environment)
        there = open_store(place, {**server.environment, "AWS_ENDPOINT_URL": proxy.rewrite(server.url)})
        world.objects = direct
        try:
            yield Bucket(world, proxy, there)
        finally:
            there.close()
            direct.close()


def refuse(proxy: TcpProxy) -> None:
    """Refuse all connections."""
    proxy.refuse()
    proxy.reset()


def cut(proxy: TcpProxy) -> None:
    """Break off in the middle of the next upload."""
    proxy.cut_after(CUT_BYTES, "to_server")


def slow(proxy: TcpProxy) -> None:
    """Delay every piece."""
    proxy.delay(0.3)


def hold(proxy: TcpProxy) -> None:
    """Accept everything and answer nothing."""
    proxy.hold("to_client")


async def check(made: Bucket, point: str, fault: Callable[[TcpProxy], None]) -> None:
    """The fault begins at the point and ends some time later: the report finishes, and no part is fetched twice."""
    stops = Stops()
    stops.close(point)
    async with made.world.process(functions(), probe=stops, objects=made.objects):
        report = await ask(made.world, LARGE)
        await eventually_async(lambda: stops.reached_times[point] >= 1)
        fault(made.proxy)
        accepted = made.proxy.accepted_count
        stops.open(point)
        if fault is refuse:
            await eventually_async(lambda: made.proxy.accepted_count > accepted, what="it was tried")
        elif fault is hold:
            await eventually_async(lambda: made.proxy.flows["to_server"].seen_bytes > 0, what="it was tried")
            made.proxy.reset()
        if fault in {refuse, hold}:
            made.proxy.heal()
        row = await is_made(made.world, report)
        attempts = [(await made.world.part(report, name))["attempts"] for name in ("lefts", "rights")]
    made.proxy.heal()
    assert (attempts, row["restarts"]) == ([1, 1], 0)
    await is_clean(made.world, report)


@pytest.mark.storm
async def test_a_store_that_recovers_costs_time_and_nothing_else(
    report_worlds: ReportWorlds, object_server: ObjectServer
) -> None:
    """Refusing, cut half way, slow or silent, during the upload of a part and of the file."""

    async def one(point: str, fault: Callable[[TcpProxy], None]) -> None:
        async with bucket(report_worlds, object_server) as made:
            try:
                await check(made, point, fault)
            except Exception as error:
                error.add_note(f"{point} {fault.__name__}")
                raise

    async with asyncio.TaskGroup() as group:
        for point in (PART, FILE):
            for fault in (refuse, cut, slow, hold):
                group.create_task(one(point, fault))


@pytest.mark.matrix
@pytest.mark.parametrize("point", [PART, FILE])
async def test_a_store_that_stays_unavailable_fails_the_report_with_a_reason(
    report_worlds: ReportWorlds, object_server: ObjectServer, point: str
) -> None:
    """At its deadline, in whatever step; no file, and an error that names the deadline."""
    async with bucket(report_worlds, object_server) as made:
        stops = Stops()
        stops.close(point)
        async with made.world.process(functions(), probe=stops, objects=made.objects):
            report = await ask(made.world, LARGE, words={"deadline_s": 4})
            await eventually_async(lambda: stops.reached_times[point] >= 1)
            refuse(made.proxy)
            stops.open(point)
            row = await made.world.over(report, AGAIN_S)
            assert (row["status"], row["file_key"]) == ("failed", None)
            assert row["error_code"] == "deadline_passed"
            assert "was not finished within 4 s" in row["error"]
            made.proxy.heal()
        await is_clean(made.world, report)


async def test_reports_finish_again_after_the_repair_of_an_unwritable_folder(report_worlds: ReportWorlds) -> None:
    """A part of the path is a file: the report fails with an error; after the repair the next one finishes."""
    world = await report_worlds.make("postgres")
    objects = world.folder / "objects"
    objects.mkdir(exist_ok=True)
    (objects / "reports").write_text("in the way")
    async with world.process(functions()):
        report = await ask(world, words={"deadline_s": 5})
        row = await world.over(report, AGAIN_S)
        assert (row["status"], row["file_key"]) == ("failed", None)
        assert row["error"]
        (objects / "reports").unlink()
        await is_made(world, await ask(world))
    await is_clean(world, report)
