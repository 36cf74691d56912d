"""Parts from services in other languages: delivered by HTTP, once, whole, for the current epoch."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest

from kit.api import Answer
from kit.mutants import mutate
from kit.probes import Stops
from kit.report_api import USERS, ReportApi, report_api, users
from kit.reports import ReportWorld, report_world
from kit.servers import RedisServer
from kit.waiting import eventually_async
from tickwright.capabilities.reports.parts import deliveries
from tickwright.capabilities.reports.parts.deliveries import Deliveries
from tickwright.capabilities.reports.parts.store import INLINE_BYTES_MAX
from tickwright.capabilities.reports.parts.values import COLUMNS_MAX
from tickwright.transports.redis.stores import RedisParts

NDJSON = {"Content-Type": "application/x-ndjson"}
ROWS = b'{"user_id":1,"amount":"10.50"}\n{"user_id":2,"amount":"7.00"}\n'
LONG = b"".join(b'{"user_id":%d,"amount":"1.00"}\n' % number for number in range(20_000))
PAID = {
    "parameters": {"country": "text"},
    "listeners": {
        "users": {},
        "payments": {"service": True, "columns": {"user_id": "BIGINT", "amount": "DECIMAL(12,2)"}},
    },
    "merge": "SELECT u.id, u.country, p.amount FROM users u JOIN payments p ON p.user_id = u.id ORDER BY u.id",
}
SECOND = {
    "stages": [{"users": {}}, {"payments": {"service": True}}],
    "feeds": {"2": "SELECT list(id ORDER BY id) AS ids FROM users"},
    "parameters": {"country": "text"},
    "merge": "SELECT user_id FROM payments",
}


@asynccontextmanager
async def paid_api(world: ReportWorld, **more: Any) -> AsyncIterator[ReportApi]:
    """Run an API with types that have a part of a service."""
    async with report_api(world, **more) as opened:
        await opened.put("paid", PAID)
        await opened.put("second", SECOND)
        yield opened


@pytest.fixture
async def each_api(reports: ReportWorld) -> AsyncIterator[ReportApi]:
    """An API with Redis, and one without."""
    async with paid_api(reports) as opened:
        yield opened


@pytest.fixture
async def reports_api(alone: ReportWorld) -> AsyncIterator[ReportApi]:
    """An API on PostgreSQL alone."""
    async with paid_api(alone) as opened:
        yield opened


def part_path(report_id: int, listener: str = "payments") -> str:
    """Return the path of a part."""
    return f"/v1/reports/{report_id}/parts/{listener}"


async def deliver(
    reports_api: ReportApi, report_id: int, body: Any = ROWS, *, epoch: int = 1, listener: str = "payments"
) -> Answer:
    """Deliver rows."""
    return await reports_api.api.operator.send(
        "PUT", f"{part_path(report_id, listener)}?epoch={epoch}", body, headers=NDJSON
    )


async def left(reports_api: ReportApi) -> list[str]:
    """Return the files of the spool and the objects of parts."""
    spool = reports_api.world.folder / "spool"
    files = [path.name for path in spool.iterdir()] if spool.exists() else []
    return files + [found.key for found in await reports_api.world.objects.listing("parts/", 100)]


@pytest.mark.matrix
async def test_a_services_rows_are_joined_with_the_others(each_api: ReportApi) -> None:
    """It reads what to deliver, delivers it, and the file has its rows with the declared types."""
    report_id = await each_api.asked("paid", conditions={"country": "NL"})
    wanted = await each_api.get(f"/{report_id}/parts/payments")
    assert (wanted["epoch"], wanted["state"], wanted["conditions"]) == (1, "due", {"country": "NL"})
    assert (wanted["feed"], wanted["columns"]) == ({}, {"user_id": "BIGINT", "amount": "DECIMAL(12,2)"})
    answer = await deliver(each_api, report_id)
    assert (answer.status, answer.json["already"], answer.json["rows"]) == (200, False, 2)
    async with each_api.world.process({"users": users}):
        row = await each_api.world.finished(report_id)
    assert await each_api.world.table(row) == [["1", "NL", "10.50"], ["2", "NL", "7.00"]]
    assert await left(each_api) == []


async def test_the_last_delivered_part_starts_the_merge_at_once(reports_api: ReportApi) -> None:
    """The merge does not wait for the delayed check, which comes after a minute."""
    report_id = await reports_api.asked("paid", conditions={"country": "NL"})
    async with reports_api.world.process({"users": users}):
        await eventually_async(lambda: _state(reports_api, report_id, "users", "done"))
        await deliver(reports_api, report_id)
        await reports_api.world.finished(report_id, within_s=20)


async def _state(reports_api: ReportApi, report_id: int, listener: str, state: str) -> bool:
    return bool((await reports_api.world.part(report_id, listener))["state"] == state)


async def test_the_first_delivery_counts_and_the_second_gets_its_figures(each_api: ReportApi) -> None:
    """The same rows or other ones: 200, ``already``, and the figures of those that count; also after the end."""
    report_id = await each_api.asked("paid", conditions={"country": "NL"})
    first = (await deliver(each_api, report_id)).json
    for body in (ROWS, b'{"user_id":3,"amount":"1.00"}\n', b"no rows at all"):
        again = await deliver(each_api, report_id, body)
        assert (again.status, again.json) == (200, {**first, "already": True})
    async with each_api.world.process({"users": users}):
        row = await each_api.world.finished(report_id)
    assert (await deliver(each_api, report_id)).json == {**first, "already": True}
    assert len(await each_api.world.table(row)) == 2


@pytest.mark.matrix
@pytest.mark.parametrize("rows", [2, 20_000])
async def test_of_many_deliveries_at_once_one_counts(each_api: ReportApi, rows: int) -> None:
    """Small parts and those of the object store: all answers have the same figures, and no other rows stay."""
    report_id = await each_api.asked("paid", conditions={"country": "NL"})
    bodies = [b"".join(b'{"user_id":%d,"amount":"%d.00"}\n' % (n, sender) for n in range(rows)) for sender in range(6)]
    assert (len(bodies[0]) > INLINE_BYTES_MAX) == (rows > 2)
    answers = await asyncio.gather(*(deliver(each_api, report_id, body) for body in bodies))
    assert [answer.status for answer in answers] == [200] * 6
    assert len({answer.json["checksum"] for answer in answers}) == 1
    assert [answer.json["already"] for answer in answers].count(False) == 1
    assert len(await left(each_api)) == (0 if rows == 2 else 1)
    part = await each_api.world.part(report_id, "payments")
    assert (part["state"], part["rows"], part["checksum"]) == ("done", rows, answers[0].json["checksum"])


@asynccontextmanager
async def slow_delivery(reports_api: ReportApi, report_id: int) -> AsyncIterator[asyncio.Task[Answer]]:
    """Begin a delivery of ``LONG``; the rest of its rows is sent after the block."""
    began, may_end = asyncio.Event(), asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield LONG[: len(LONG) // 2]
        began.set()
        await may_end.wait()
        yield LONG[len(LONG) // 2 :]

    task = asyncio.create_task(deliver(reports_api, report_id, slow()))
    await began.wait()
    await eventually_async(lambda: spooled(reports_api, report_id) == 1, what="its rows are written to a file")
    try:
        yield task
    finally:
        may_end.set()
        await task


def spooled(reports_api: ReportApi, report_id: int) -> int:
    """Return how many files with rows of a report there are."""
    return len([*(reports_api.world.folder / "spool").glob(f"{report_id}-*")])


async def test_a_second_delivery_waits_for_the_first_one_and_other_parts_do_not(each_api: ReportApi) -> None:
    """One file on the disk, one set of stored rows; the second answer has their figures, its own rows are not read."""
    report_id, other = [await each_api.asked("paid", conditions={"country": name}) for name in ("NL", "BE")]
    async with slow_delivery(each_api, report_id) as first:
        again = [asyncio.create_task(deliver(each_api, report_id, b"no rows at all")) for _ in range(3)]
        assert (await deliver(each_api, other, LONG)).json["already"] is False
        assert spooled(each_api, report_id) == 1
        assert not any(task.done() for task in again)
    answers = await asyncio.gather(*again)
    assert first.result().json["already"] is False
    assert [answer.json for answer in answers] == [{**first.result().json, "already": True}] * 3
    assert len(await left(each_api)) == 2, "an object for each report, and no file"


async def test_a_delivery_that_waits_too_long_for_another_is_a_503(
    reports_api: ReportApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one goes on and counts."""
    monkeypatch.setattr(deliveries, "DELIVERY_WAIT_S", 0.1)
    report_id = await reports_api.asked("paid", conditions={"country": "NL"})
    async with slow_delivery(reports_api, report_id) as first:
        (await deliver(reports_api, report_id)).says(503, "part_in_flight")
    assert first.result().json["already"] is False
    assert (await deliver(reports_api, report_id)).json["already"] is True


async def test_an_interrupted_delivery_leaves_nothing(reports_api: ReportApi) -> None:
    """Neither rows nor files; the next delivery counts."""
    report_id = await reports_api.asked("paid", conditions={"country": "NL"})

    async def half() -> AsyncIterator[bytes]:
        yield ROWS[:40]
        raise ConnectionError

    with pytest.raises((ConnectionError, aiohttp.ClientError)):
        await deliver(reports_api, report_id, half())

    async def gone() -> bool:
        return await left(reports_api) == []

    await eventually_async(gone)
    assert (await reports_api.world.part(report_id, "payments"))["state"] == "due"
    assert (await deliver(reports_api, report_id)).json["already"] is False


BAD: list[tuple[bytes, int, str]] = [
    (b'{"user_id":1,"amount":NaN}\n', 400, "non_finite_number"),
    (b'{"user_id":1,"user_id":2,"amount":1}\n', 400, "duplicate_key"),
    (b"[1]\n", 422, "row_value"),
    (b'{"user_id":1,"amount":1}\n{"user_id":1,"price":1}\n', 422, "row_columns_differ"),
    (b'{"user_id":1}\n', 422, "row_columns_differ"),
    (b'{"user_id":1,"amount":1}\n{"user_id":', 400, "invalid_json"),
    (json.dumps({f"c{number}": number for number in range(COLUMNS_MAX + 1)}).encode(), 422, "too_many_columns"),
]


async def test_invalid_rows_are_refused_and_leave_nothing(reports_api: ReportApi) -> None:
    """A code for each, and the part is still expected."""
    report_id = await reports_api.asked("paid", conditions={"country": "NL"})
    for body, status, code in BAD:
        (await deliver(reports_api, report_id, body)).says(status, code)
    assert await left(reports_api) == []
    assert (await deliver(reports_api, report_id, b"")).json["rows"] == 0


async def test_a_delivery_or_a_refusal_for_another_epoch_is_a_409(reports_api: ReportApi) -> None:
    """409 with the current epoch, for an older and for a newer one."""
    report_id = await reports_api.asked("paid", conditions={"country": "NL"})
    await reports_api.world.pool.execute("UPDATE tickwright.reports SET epoch = 2 WHERE id = $1", report_id)
    await reports_api.world.pool.execute("UPDATE tickwright.report_parts SET epoch = 2 WHERE report_id = $1", report_id)
    for epoch in (1, 3):
        assert (await deliver(reports_api, report_id, epoch=epoch)).says(409, "part_stale").json["epoch"] == 2
        refused = await reports_api.api.operator.post(f"{part_path(report_id)}/fail", {"epoch": epoch, "error": "no"})
        refused.says(409, "part_stale")
    assert (await deliver(reports_api, report_id, epoch=2)).json["already"] is False


async def test_a_delivery_of_a_part_that_is_not_expected_is_refused(reports_api: ReportApi) -> None:
    """Before its stage, not of a service, not in the report, no such report, or the report has ended."""
    report_id = await reports_api.asked("paid", conditions={"country": "NL"})
    later = await reports_api.asked("second", conditions={"country": "NL"})
    (await deliver(reports_api, later)).says(409, "stage_not_open")
    (await deliver(reports_api, report_id, listener="users")).says(422, "not_a_service")
    (await deliver(reports_api, report_id, listener="unknown")).says(404, "part_not_found")
    (await deliver(reports_api, 999)).says(404, "report_not_found")
    (await reports_api.api.viewer.get(part_path(report_id, "users"))).says(422, "not_a_service")
    (await reports_api.api.operator.send("PUT", part_path(report_id), ROWS, headers=NDJSON)).says(
        422, "invalid_parameter"
    )
    await reports_api.api.operator.post(f"/v1/reports/{report_id}/cancel")
    over = (await deliver(reports_api, report_id)).says(409, "report_over")
    assert over.json["report_status"] == "cancelled"
    assert await left(reports_api) == []


async def test_a_part_of_a_later_stage_shows_its_feed(reports_api: ReportApi) -> None:
    """The whole feed; from then on a delivery counts."""
    report_id = await reports_api.asked("second", conditions={"country": "NL"})
    async with reports_api.world.process({"users": users}):
        await eventually_async(lambda: _state(reports_api, report_id, "payments", "due"))
        assert (await reports_api.get(f"/{report_id}/parts/payments"))["feed"] == {"ids": [1, 2]}
        await deliver(reports_api, report_id)
        row = await reports_api.world.finished(report_id)
    assert await reports_api.world.table(row) == [["1"], ["2"]]


async def test_a_service_can_refuse_a_part(reports_api: ReportApi) -> None:
    """The report fails at once with its error; a second refusal is harmless; a later delivery is refused."""
    report_id = await reports_api.asked("paid", conditions={"country": "NL"})
    body = {"epoch": 1, "error": "the ledger of payments is closed"}
    assert (await reports_api.api.operator.post(f"{part_path(report_id)}/fail", body)).json["already"] is False
    assert (await reports_api.api.operator.post(f"{part_path(report_id)}/fail", body)).json["already"] is True
    (await deliver(reports_api, report_id)).says(409, "part_given_up")
    async with reports_api.world.process({"users": users}):
        row = await reports_api.world.over(report_id)
    assert (row["status"], row["error_code"]) == ("failed", "part_failed")
    assert "the ledger of payments is closed" in row["error"]
    (await deliver(reports_api, report_id)).says(409, "report_over")
    done = await reports_api.asked("paid", conditions={"country": "BE"})
    await deliver(reports_api, done)
    (await reports_api.api.operator.post(f"{part_path(done)}/fail", body)).says(409, "part_done")


async def test_the_audit_trail_names_deliveries_and_refusals(reports_api: ReportApi) -> None:
    """One line for each that counted, a delivery with its figures; one that changed nothing has none."""
    report = await reports_api.asked("paid", conditions={"country": "DE"})
    first = await deliver(reports_api, report)
    assert (await deliver(reports_api, report)).json["already"]
    other = await reports_api.asked("paid", conditions={"country": "FR"})
    for _ in range(2):
        await reports_api.api.operator.post(f"{part_path(other)}/fail", {"epoch": 1, "error": "no ledger today"})
    [delivered] = (await reports_api.api.viewer.get("/v1/audit?action=reports.deliver")).json["items"]
    assert (delivered["subject"], delivered["actor"]) == (f"report:{report}", "operator")
    figures = {name: first.json[name] for name in ("rows", "bytes", "checksum")}
    assert delivered["after"] == {"listener": "payments", "epoch": 1, **figures}
    [refused] = (await reports_api.api.viewer.get("/v1/audit?action=reports.refuse_part")).json["items"]
    assert refused["subject"] == f"report:{other}"
    assert refused["after"] == {"listener": "payments", "epoch": 1, "error": "no ledger today"}


async def test_a_part_has_a_bound_in_bytes(alone: ReportWorld) -> None:
    """413, with and without ``Content-Length``; nothing stays."""

    async def pieces() -> AsyncIterator[bytes]:
        for first in range(0, len(ROWS), 20):
            yield ROWS[first : first + 20]

    async with paid_api(alone, part_bytes_max=50) as reports_api:
        report_id = await reports_api.asked("paid", conditions={"country": "NL"})
        for body in (ROWS, pieces()):
            (await deliver(reports_api, report_id, body)).says(413, "body_too_large")
        assert await left(reports_api) == []


@pytest.mark.matrix
@pytest.mark.parametrize("point", ["reports.delivery_spooled", "reports.delivery_stored"])
async def test_a_report_that_ends_during_a_delivery_accepts_no_rows(reports: ReportWorld, point: str) -> None:
    """Cancelled between the first byte and the write to the ledger: 409, and no rows stay anywhere."""
    stops = Stops()
    async with paid_api(reports, probe=stops) as reports_api:
        report_id = await reports_api.asked("paid", conditions={"country": "NL"})
        stops.close(point)
        delivering = asyncio.create_task(deliver(reports_api, report_id, LONG))
        await eventually_async(lambda: stops.reached_times[point])
        assert (await reports_api.api.operator.post(f"/v1/reports/{report_id}/cancel")).status == 200
        stops.open(point)
        (await delivering).says(409, "report_over")
        assert await left(reports_api) == []
        assert (await reports_api.world.part(report_id, "payments"))["state"] == "dropped"


class FailsAt:
    """A probe that fails once, as if the process had ended there."""

    def __init__(self, name: str) -> None:
        self._name, self._times = name, 0

    async def reached(self, name: str, /, **_facts: object) -> None:
        """Raise, the first time."""
        if name == self._name and not self._times:
            self._times += 1
            raise OSError("gone")


async def test_a_delivery_without_an_answer_can_be_repeated(reports: ReportWorld) -> None:
    """It failed between the mark and the ledger: the next delivery finds the mark, and the marked rows count."""
    async with paid_api(reports, probe=FailsAt("reports.delivery_stored")) as reports_api:
        report_id = await reports_api.asked("paid", conditions={"country": "NL"})
        assert (await deliver(reports_api, report_id)).status == 503
        assert (await reports_api.world.part(report_id, "payments"))["state"] == "due"
        marked = reports.shared is not None
        answer = (await deliver(reports_api, report_id, b'{"user_id":1,"amount":"99.00"}\n')).json
        assert (answer["already"], answer["rows"]) == ((True, 2) if marked else (False, 1))
        async with reports_api.world.process({"users": users}):
            row = await reports_api.world.finished(report_id)
        assert [line[2] for line in await reports_api.world.table(row)] == (["10.50", "7.00"] if marked else ["99.00"])


class Changed(NamedTuple):
    """A delivered part, an object of another report, and the answer to a delivery whose note was changed."""

    report_id: int
    victim: str
    answer: Answer


async def delivered_with_a_changed_note(reports_api: ReportApi, note: dict[int, Any]) -> Changed:
    """Deliver twice at once; when the second one is done, its note in Redis is changed, and then the first one ends.

    The second one goes to another process, where it does not wait for the first one.
    """
    assert isinstance(reports_api.world.shared, RedisParts)
    await reports_api.put("users", USERS)
    other = await reports_api.given_file(b"id\n1\n")
    report_id = await reports_api.asked("paid", conditions={"country": "NL"})
    async with slow_delivery(reports_api, report_id) as first:
        async with report_api(reports_api.world) as elsewhere:
            assert (await deliver(elsewhere, report_id, LONG)).status == 200
        victim, key = f"reports/{other}/1-1/users-{other}.csv", reports_api.world.shared.key(report_id)
        redis = reports_api.world.shared._redis._client
        members = json.loads(await redis.hget(key, "done:payments"))
        for place, value in note.items():
            members[place] = victim if value == "victim" else value
        await redis.hset(key, "done:payments", json.dumps(members))
    return Changed(report_id, victim, first.result())


async def check_the_file_of_another_report(reports_api: ReportApi) -> None:
    """An object of another report is neither used as rows of this part nor deleted."""
    found = await delivered_with_a_changed_note(reports_api, {5: "victim"})
    assert (found.answer.status, found.answer.json["already"]) == (200, True)
    assert await reports_api.world.objects.size(found.victim) is not None, "the file of another report was deleted"


async def check_the_object_that_counts(reports_api: ReportApi) -> None:
    """A delivery does not delete the object of another one, whatever checksum the note has."""
    found = await delivered_with_a_changed_note(reports_api, {2: "0" * 64})
    assert (found.answer.status, found.answer.json["already"]) == (200, True)
    part = await reports_api.world.part(found.report_id, "payments")
    assert await reports_api.world.objects.size(part["object_key"]) == part["bytes"], (
        "the part's own object was deleted"
    )


@pytest.fixture
async def redis_api(database_url: str, tmp_path: Path, redis_server: RedisServer) -> AsyncIterator[ReportApi]:
    """An API with Redis."""
    name = database_url.rpartition("/")[2]
    async with (
        report_world(database_url, tmp_path, redis_server.url, redis_prefix=name) as world,
        paid_api(world) as opened,
    ):
        yield opened


Check = Callable[[ReportApi], Awaitable[None]]


@pytest.mark.matrix
@pytest.mark.parametrize("check", [check_the_file_of_another_report, check_the_object_that_counts])
async def test_a_changed_note_in_redis_deletes_no_object_of_others(redis_api: ReportApi, check: Check) -> None:
    """A program that writes to Redis can change the rows of this part, and deletes no object of another report."""
    await check(redis_api)


async def test_the_suite_notices_a_delivery_that_deletes_objects_of_others(
    redis_api: ReportApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant deletes the object that the ledger names."""
    mutate(monkeypatch, Deliveries._not_taken, "ours and stored", "stored")
    with pytest.raises(AssertionError, match="was deleted"):
        await check_the_object_that_counts(redis_api)
