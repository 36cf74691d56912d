"""The commands that request, show and download reports, on the database and through an API."""

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


def direct_environment(world: ReportWorld) -> dict[str, str]:
    """Return an environment in which commands use the database directly."""
    return environment(DATABASE_URL=world.url, HOME=str(world.folder), OBJECT_STORE=(world.folder / "objects").as_uri())


def api_environment(reports_api: ReportApi) -> dict[str, str]:
    """Return an environment in which commands use the API."""
    operator = reports_api.api.operator
    return environment(API_URL=operator.base, API_KEY=operator.key or "")


def names_in(folder: Path) -> list[str]:
    """Return the names in a folder."""
    return sorted(path.name for path in folder.iterdir())


async def run(*arguments: str, env: dict[str, str], stdin: str | None = None, cwd: str = "/") -> Said:
    """Run a command beside the servers of this process."""
    return await asyncio.to_thread(tickwright, "reports", *arguments, env=env, stdin=stdin, cwd=cwd)


async def ok(*arguments: str, env: dict[str, str], stdin: str | None = None, cwd: str = "/") -> Said:
    """Run a command that must succeed."""
    result = await run(*arguments, env=env, stdin=stdin, cwd=cwd)
    assert result.code == 0, result
    return result


async def test_a_report_is_requested_shown_listed_and_cancelled_by_commands(reports_api: ReportApi) -> None:
    """``-c NAME=VALUE`` gives a condition as text, ``-c NAME:=VALUE`` as JSON."""
    env = direct_environment(reports_api.world)
    typed = {"parameters": {"country": "text", "limit": "integer"}, "listeners": {"users": {}}}
    await reports_api.put("typed", typed)
    options = ("request", "typed", "-c", "country=NL=x", "-c", "limit:=5", "--requester", "me", "--department", "sales")
    made = (await ok(*options, "--json", env=env)).json
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
    trail = (await reports_api.api.viewer.get("/v1/audit?action=reports.cancel")).json["items"]
    assert trail[0]["actor"].startswith("cli:")


@pytest.mark.parametrize("way", ["database", "api"])
async def test_a_file_is_downloaded_on_the_database_and_through_an_api(
    reports_api: ReportApi, tmp_path: Path, way: str
) -> None:
    """Under its own name, into a folder, or under a given name; whole, and without other files beside it."""
    env = direct_environment(reports_api.world) if way == "database" else api_environment(reports_api)
    report_id, target = await reports_api.given_file(DATA * 40_000), tmp_path / "out"
    target.mkdir()
    for options, name in (((), f"users-{report_id}.csv"), (("--output", "my.csv"), "my.csv"), (("-o", "."), "")):
        done = (await ok("download", str(report_id), *options, "--json", env=env, cwd=str(target))).json
        data = (target / (name or f"users-{report_id}.csv")).read_bytes()
        assert hashlib.sha256(data).hexdigest() == done["checksum"]
        assert (len(data), done["rows"]) == (done["bytes"], 1)
    assert names_in(target) == ["my.csv", f"users-{report_id}.csv"]


@pytest.mark.parametrize("way", ["database", "api"])
async def test_one_command_requests_waits_and_downloads(reports_api: ReportApi, tmp_path: Path, way: str) -> None:
    """``--output`` waits until the report has ended."""
    env = direct_environment(reports_api.world) if way == "database" else api_environment(reports_api)
    async with reports_api.world.process({"users": users}):
        options = ("request", "users", "-c", "country=NL", "--output", str(tmp_path / "users.csv"))
        done = (await ok(*options, "--json", env=env)).json
    assert done["status"] == "finished"
    assert done["download"]["file"] == str(tmp_path / "users.csv")
    assert (tmp_path / "users.csv").read_bytes() == b"id,country\r\n1,NL\r\n2,NL\r\n"


async def test_a_report_without_a_file_exits_with_1(reports_api: ReportApi) -> None:
    """Exit code 1 and the reason, for a report that fails during ``--wait`` and for a download of it."""

    async def broken(request: ReportRequest) -> AsyncIterator[dict[str, Any]]:
        if request.conditions:
            raise ValueError("no such table")
        yield {}

    env = direct_environment(reports_api.world)
    await reports_api.put("once", {**USERS, "listeners": {"users": {"attempts": 1}}})
    async with reports_api.world.process({"users": broken}):
        result = await run("request", "once", "-c", "country=NL", "--wait", "--json", env=env)
    assert result.code == 1
    assert "no such table" in result.json["error"]
    report_id = result.json["id"]
    fetched = await run("download", str(report_id), "--json", env=env)
    assert (fetched.code, fetched.error["code"]) == (1, "report_not_finished")


async def test_a_damaged_download_never_replaces_a_file(reports_api: ReportApi, tmp_path: Path) -> None:
    """Same size, other bytes: refused; the earlier file stays, and no partial file is left."""
    report_id, target = await reports_api.given_file(DATA), tmp_path / "kept.csv"
    reports_api.path_of(report_id).write_bytes(DATA[::-1])
    target.write_text("before", encoding="utf-8")
    for env in (direct_environment(reports_api.world), api_environment(reports_api)):
        result = await run("download", str(report_id), "-o", str(target), "--json", env=env)
        assert (result.code, result.error["code"]) == (1, "download_damaged")
        assert target.read_text(encoding="utf-8") == "before"
        assert [name for name in names_in(tmp_path) if name.endswith(".part")] == []


async def test_wrong_arguments_exit_with_2_and_refusals_with_1(alone: ReportWorld, tmp_path: Path) -> None:
    """2 for wrong arguments, 1 for a request that the product refuses."""
    env = direct_environment(alone)
    (tmp_path / "list.json").write_text("[1]", encoding="utf-8")
    for arguments in (
        ("request", "users", "-c", "country"),
        ("request", "users", "-c", "limit:=five"),
        ("request", "users", "--conditions", "/no/such/file"),
        ("request", "users", "--conditions", str(tmp_path / "list.json")),
        ("request",),
        ("show", "x"),
    ):
        assert (await run(*arguments, env=env)).code == 2, arguments
    result = await run("request", "nothing", "--json", env=env)
    assert (result.code, result.error["code"]) == (1, "unknown_report_type")
    assert (await run("show", "9", env=env)).code == 1


async def test_a_file_in_a_bucket_is_downloaded_from_the_bucket(
    reports_api: ReportApi, object_server: ObjectServer, tmp_path: Path
) -> None:
    """Both ways the bucket signs a link, no API key is sent, and the bytes are checked."""
    place = f"s3://{BUCKET}/{tmp_path.name}"
    bucket = await asyncio.to_thread(open_store, place, object_server.environment)
    async with report_api(reports_api.world, objects=bucket) as signing:
        report_id = await signing.given_file(DATA, store=bucket)
        env = direct_environment(reports_api.world) | {"TICKWRIGHT_OBJECT_STORE": place, **object_server.environment}
        for name, way in (("one.csv", env), ("two.csv", api_environment(signing))):
            done = (await ok("download", str(report_id), "-o", str(tmp_path / name), "--json", env=way)).json
            assert (tmp_path / name).read_bytes() == DATA
            assert done["checksum"] == hashlib.sha256(DATA).hexdigest()
        link = await signing.link(report_id)
        assert link["url"].startswith(object_server.url)
        sent = await signing.api.viewer.get(f"/v1/reports/{report_id}/file")
        assert (sent.status, sent.headers["location"].startswith(object_server.url)) == (307, True)
        row = await reports_api.world.record(report_id)
        await bucket.delete([row["file_key"]])
        (await signing.api.viewer.get(f"/v1/reports/{report_id}/file")).says(502, "object_missing")
    bucket.close()


async def test_a_cancel_on_the_database_closes_the_hash_in_redis(
    database_url: str, redis_server: RedisServer, tmp_path: Path
) -> None:
    """The hash becomes a tombstone, so that a late part is refused."""
    prefix = database_url.rpartition("/")[2]
    async with report_world(database_url, tmp_path, redis_server.url, redis_prefix=prefix) as world:
        async with report_api(world) as reports_api:
            report_id = await reports_api.asked(conditions={"country": "NL"})
        redis = {"TICKWRIGHT_REDIS_URL": redis_server.url, "TICKWRIGHT_REPORT_PREFIX": prefix}
        await ok("cancel", str(report_id), env=direct_environment(world) | redis)
        assert (await world.hash(report_id))["status"] == "cancelled"
