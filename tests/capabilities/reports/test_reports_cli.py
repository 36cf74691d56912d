"""The commands of reports: asked for, looked at, fetched; on the database and through an API."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kit.cli import Said, environment, tickwright
from kit.object_store import BUCKET, ObjectServer
from kit.report_api import USERS, ReportApi, report_api, users
from kit.reports import ReportWorld, report_world
from kit.servers import RedisServer
from tickwright import ReportRequest
from tickwright.transports.objectstore.plugin import open_store

DATA = b"id,country\r\n1,NL\r\n"


def straight(world: ReportWorld) -> dict[str, str]:
    """An environment that goes straight to the database."""
    return environment(DATABASE_URL=world.url, HOME=str(world.folder), OBJECT_STORE=(world.folder / "objects").as_uri())


def through(desk: ReportApi) -> dict[str, str]:
    """An environment that goes through the API."""
    return environment(API_URL=desk.api.operator.base, API_KEY=desk.api.operator.key or "")


def names(folder: Path) -> list[str]:
    """What lies in a folder."""
    return sorted(path.name for path in folder.iterdir())


async def run(*words: str, env: dict[str, str], stdin: str | None = None, cwd: str = "/") -> Said:
    """Run a command beside the servers of this process."""
    return await asyncio.to_thread(tickwright, "reports", *words, env=env, stdin=stdin, cwd=cwd)


async def ok(*words: str, env: dict[str, str], stdin: str | None = None, cwd: str = "/") -> Said:
    """Run a command that must succeed."""
    said = await run(*words, env=env, stdin=stdin, cwd=cwd)
    assert said.code == 0, said
    return said


async def test_a_reports_life_in_commands(desk: ReportApi) -> None:
    """Asked for, shown, explained, listed, cancelled; options say conditions as text or as JSON."""
    env = straight(desk.world)
    typed = {"parameters": {"country": "text", "limit": "integer"}, "listeners": {"users": {}}}
    await desk.put("typed", typed)
    words = ("request", "typed", "-c", "country=NL=x", "-c", "limit:=5", "--requester", "me", "--department", "sales")
    made = (await ok(*words, "--json", env=env)).json
    report = made
    assert (made["created"], report["conditions"]) == (True, {"country": "NL=x", "limit": 5})
    again = await ok("request", "typed", "--conditions", "-", "--requester", "me", env=env,
                     stdin=json.dumps(report["conditions"]))  # fmt: skip
    assert again.out == f"report {report['id']} is pending (an equal one was asked for before)\n"
    assert "users" in (await ok("show", str(report["id"]), env=env)).out
    explained = (await ok("explain", str(report["id"]), env=env)).out
    assert explained.startswith("pending: ")
    assert "nobody_serves" in explained
    listed = (await ok("list", "--requester", "me", "--status", "pending", "--json", env=env)).json["items"]
    assert [item["id"] for item in listed] == [report["id"]]
    assert (await ok("cancel", str(report["id"]), env=env)).out == f"report {report['id']} is cancelled\n"
    trail = (await desk.api.viewer.get("/v1/audit?action=reports.cancel")).json["items"]
    assert trail[0]["actor"].startswith("cli:")


@pytest.mark.parametrize("way", ["database", "api"])
async def test_a_file_is_fetched_either_way(desk: ReportApi, tmp_path: Path, way: str) -> None:
    """Under its own name, into a folder, or where one says; whole, and nothing else stays beside it."""
    env = straight(desk.world) if way == "database" else through(desk)
    report_id, target = await desk.given_file(DATA * 40_000), tmp_path / "out"
    target.mkdir()
    for words, name in (((), f"users-{report_id}.csv"), (("--output", "my.csv"), "my.csv"), (("-o", "."), "")):
        done = (await ok("download", str(report_id), *words, "--json", env=env, cwd=str(target))).json
        data = (target / (name or f"users-{report_id}.csv")).read_bytes()
        assert hashlib.sha256(data).hexdigest() == done["checksum"]
        assert (len(data), done["rows"]) == (done["bytes"], 1)
    assert names(target) == ["my.csv", f"users-{report_id}.csv"]


@pytest.mark.parametrize("way", ["database", "api"])
async def test_one_command_asks_waits_and_fetches(desk: ReportApi, tmp_path: Path, way: str) -> None:
    """``--output`` waits until the report is over."""
    env = straight(desk.world) if way == "database" else through(desk)
    async with desk.world.process({"users": users}):
        words = ("request", "users", "-c", "country=NL", "--output", str(tmp_path / "users.csv"))
        done = (await ok(*words, "--json", env=env)).json
    assert done["status"] == "finished"
    assert done["download"]["file"] == str(tmp_path / "users.csv")
    assert (tmp_path / "users.csv").read_bytes() == b"id,country\r\n1,NL\r\n2,NL\r\n"


async def test_a_report_without_a_file_is_a_failure(desk: ReportApi) -> None:
    """Exit code 1 and the reason, for a report that failed while one waited, and for one that has no file."""

    async def broken(request: ReportRequest) -> AsyncIterator[dict[str, Any]]:
        if request.conditions:
            raise ValueError("no such table")
        yield {}

    env = straight(desk.world)
    await desk.put("once", {**USERS, "listeners": {"users": {"attempts": 1}}})
    async with desk.world.process({"users": broken}):
        said = await run("request", "once", "-c", "country=NL", "--wait", "--json", env=env)
    assert said.code == 1
    assert "no such table" in said.json["error"]
    report_id = said.json["id"]
    fetched = await run("download", str(report_id), "--json", env=env)
    assert (fetched.code, fetched.error["code"]) == (1, "report_not_finished")


async def test_what_came_damaged_never_has_the_files_name(desk: ReportApi, tmp_path: Path) -> None:
    """Same size, other bytes: refused, what was there before stays, and nothing is left beside it."""
    report_id, target = await desk.given_file(DATA), tmp_path / "kept.csv"
    desk.path_of(report_id).write_bytes(DATA[::-1])
    target.write_text("before", encoding="utf-8")
    for env in (straight(desk.world), through(desk)):
        said = await run("download", str(report_id), "-o", str(target), "--json", env=env)
        assert (said.code, said.error["code"]) == (1, "download_damaged")
        assert target.read_text(encoding="utf-8") == "before"
        assert [name for name in names(tmp_path) if name.endswith(".part")] == []


async def test_wrong_use_is_told_apart(alone: ReportWorld, tmp_path: Path) -> None:
    """Exit code 2 for what was typed wrong, 1 for what the product refuses."""
    env = straight(alone)
    (tmp_path / "list.json").write_text("[1]", encoding="utf-8")
    for words in (
        ("request", "users", "-c", "country"),
        ("request", "users", "-c", "limit:=five"),
        ("request", "users", "--conditions", "/no/such/file"),
        ("request", "users", "--conditions", str(tmp_path / "list.json")),
        ("request",),
        ("show", "x"),
    ):
        assert (await run(*words, env=env)).code == 2, words
    said = await run("request", "nothing", "--json", env=env)
    assert (said.code, said.error["code"]) == (1, "unknown_report_type")
    assert (await run("show", "9", env=env)).code == 1


async def test_a_bucket_is_asked_for_the_file_directly(
    desk: ReportApi, object_server: ObjectServer, tmp_path: Path
) -> None:
    """Either way: a link that the bucket signs, no key of ours in the request, the bytes checked as any others."""
    place = f"s3://{BUCKET}/{tmp_path.name}"
    bucket = await asyncio.to_thread(open_store, place, object_server.environment)
    async with report_api(desk.world, objects=bucket) as signing:
        report_id = await signing.given_file(DATA, store=bucket)
        env = straight(desk.world) | {"TICKWRIGHT_OBJECT_STORE": place, **object_server.environment}
        for name, way in (("one.csv", env), ("two.csv", through(signing))):
            done = (await ok("download", str(report_id), "-o", str(tmp_path / name), "--json", env=way)).json
            assert (tmp_path / name).read_bytes() == DATA
            assert done["checksum"] == hashlib.sha256(DATA).hexdigest()
        link = await signing.link(report_id)
        assert link["url"].startswith(object_server.url)
        sent = await signing.api.viewer.get(f"/v1/reports/{report_id}/file")
        assert (sent.status, sent.headers["location"].startswith(object_server.url)) == (307, True)
        row = await desk.world.record(report_id)
        await bucket.delete([row["file_key"]])
        (await signing.api.viewer.get(f"/v1/reports/{report_id}/file")).says(502, "object_missing")
    bucket.close()


async def test_a_command_closes_what_redis_keeps(database_url: str, redis_server: RedisServer, tmp_path: Path) -> None:
    """A report that is cancelled straight in the database leaves a tombstone, so that what comes late finds it over."""
    prefix = database_url.rpartition("/")[2]
    async with report_world(database_url, tmp_path, redis_server.url, redis_prefix=prefix) as world:
        async with report_api(world) as desk:
            report_id = await desk.asked(conditions={"country": "NL"})
        redis = {"TICKWRIGHT_REDIS_URL": redis_server.url, "TICKWRIGHT_REPORT_PREFIX": prefix}
        await ok("cancel", str(report_id), env=straight(world) | redis)
        assert (await world.hash(report_id))["status"] == "cancelled"
