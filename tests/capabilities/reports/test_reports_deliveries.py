"""Parts from services in other languages: delivered by HTTP, once, whole, for the epoch that counts."""

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
    """Run an API with types that a service takes part in."""
    async with report_api(world, **more) as asking:
        await asking.put("paid", PAID)
        await asking.put("second", SECOND)
        yield asking


@pytest.fixture
async def each(reports: ReportWorld) -> AsyncIterator[ReportApi]:
    """One with Redis and one without."""
    async with paid_api(reports) as asking:
        yield asking


@pytest.fixture
async def desk(alone: ReportWorld) -> AsyncIterator[ReportApi]:
    """An API on it."""
    async with paid_api(alone) as asking:
        yield asking


def where(report_id: int, listener: str = "payments") -> str:
    """A part's path."""
    return f"/v1/reports/{report_id}/parts/{listener}"


async def deliver(
    desk: ReportApi, report_id: int, body: Any = ROWS, *, epoch: int = 1, listener: str = "payments"
) -> Answer:
    """Deliver rows."""
    return await desk.api.operator.send("PUT", f"{where(report_id, listener)}?epoch={epoch}", body, headers=NDJSON)


async def left(desk: ReportApi) -> list[str]:
    """What lies in the spool and among the objects of parts."""
    spool = desk.world.folder / "spool"
    files = [path.name for path in spool.iterdir()] if spool.exists() else []
    return files + [found.key for found in await desk.world.objects.listing("parts/", 100)]


@pytest.mark.matrix
async def test_a_services_rows_are_joined_with_the_others(each: ReportApi) -> None:
    """It is told what to bring, delivers, and the file has its rows with the types that were declared."""
    report_id = await each.asked("paid", conditions={"country": "NL"})
    wanted = await each.get(f"/{report_id}/parts/payments")
    assert (wanted["epoch"], wanted["state"], wanted["conditions"]) == (1, "due", {"country": "NL"})
    assert (wanted["feed"], wanted["columns"]) == ({}, {"user_id": "BIGINT", "amount": "DECIMAL(12,2)"})
    answer = await deliver(each, report_id)
    assert (answer.status, answer.json["already"], answer.json["rows"]) == (200, False, 2)
    async with each.world.process({"users": users}):
        row = await each.world.finished(report_id)
    assert await each.world.table(row) == [["1", "NL", "10.50"], ["2", "NL", "7.00"]]
    assert await left(each) == []


async def test_the_last_part_from_outside_rings_at_once(desk: ReportApi) -> None:
    """Nobody waits for the delayed check, which comes after a minute."""
    report_id = await desk.asked("paid", conditions={"country": "NL"})
    async with desk.world.process({"users": users}):
        await eventually_async(lambda: _state(desk, report_id, "users", "done"))
        await deliver(desk, report_id)
        await desk.world.finished(report_id, within_s=20)


async def _state(desk: ReportApi, report_id: int, listener: str, state: str) -> bool:
    return bool((await desk.world.part(report_id, listener))["state"] == state)


async def test_the_first_delivery_counts_and_the_second_hears_so(each: ReportApi) -> None:
    """The same rows or other ones: 200, ``already``, and the figures of those that count; also when all is over."""
    report_id = await each.asked("paid", conditions={"country": "NL"})
    first = (await deliver(each, report_id)).json
    for body in (ROWS, b'{"user_id":3,"amount":"1.00"}\n', b"no rows at all"):
        again = await deliver(each, report_id, body)
        assert (again.status, again.json) == (200, {**first, "already": True})
    async with each.world.process({"users": users}):
        row = await each.world.finished(report_id)
    assert (await deliver(each, report_id)).json == {**first, "already": True}
    assert len(await each.world.table(row)) == 2


@pytest.mark.matrix
@pytest.mark.parametrize("rows", [2, 20_000])
async def test_of_many_deliveries_at_once_one_counts(each: ReportApi, rows: int) -> None:
    """Small parts and ones that go to the object store: all hear the same figures, and nothing of the others stays."""
    report_id = await each.asked("paid", conditions={"country": "NL"})
    bodies = [b"".join(b'{"user_id":%d,"amount":"%d.00"}\n' % (n, who) for n in range(rows)) for who in range(6)]
    assert (len(bodies[0]) > INLINE_BYTES_MAX) == (rows > 2)
    answers = await asyncio.gather(*(deliver(each, report_id, body) for body in bodies))
    assert [answer.status for answer in answers] == [200] * 6
    assert len({answer.json["checksum"] for answer in answers}) == 1
    assert [answer.json["already"] for answer in answers].count(False) == 1
    assert len(await left(each)) == (0 if rows == 2 else 1)
    part = await each.world.part(report_id, "payments")
    assert (part["state"], part["rows"], part["checksum"]) == ("done", rows, answers[0].json["checksum"])


@asynccontextmanager
async def slow_delivery(desk: ReportApi, report_id: int) -> AsyncIterator[asyncio.Task[Answer]]:
    """Begin a delivery of ``LONG``, whose rows come to their end behind the block."""
    began, may_end = asyncio.Event(), asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield LONG[: len(LONG) // 2]
        began.set()
        await may_end.wait()
        yield LONG[len(LONG) // 2 :]

    task = asyncio.create_task(deliver(desk, report_id, slow()))
    await began.wait()
    await eventually_async(lambda: spooled(desk, report_id) == 1, what="its rows are written to a file")
    try:
        yield task
    finally:
        may_end.set()
        await task


def spooled(desk: ReportApi, report_id: int) -> int:
    """Return how many files with rows of a report there are."""
    return len([*(desk.world.folder / "spool").glob(f"{report_id}-*")])


async def test_a_second_delivery_waits_for_the_first_one_and_other_parts_do_not(each: ReportApi) -> None:
    """One file on the disk, one set of rows put away, and the second one hears of it; its own rows are not read."""
    report_id, other = [await each.asked("paid", conditions={"country": name}) for name in ("NL", "BE")]
    async with slow_delivery(each, report_id) as first:
        again = [asyncio.create_task(deliver(each, report_id, b"no rows at all")) for _ in range(3)]
        assert (await deliver(each, other, LONG)).json["already"] is False
        assert spooled(each, report_id) == 1
        assert not any(task.done() for task in again)
    answers = await asyncio.gather(*again)
    assert first.result().json["already"] is False
    assert [answer.json for answer in answers] == [{**first.result().json, "already": True}] * 3
    assert len(await left(each)) == 2, "an object for each report, and no file"


async def test_a_delivery_whose_turn_does_not_come_is_asked_to_come_again(
    desk: ReportApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one goes on; where it breaks off, the next one counts."""
    monkeypatch.setattr(deliveries, "DELIVERY_WAIT_S", 0.1)
    report_id = await desk.asked("paid", conditions={"country": "NL"})
    async with slow_delivery(desk, report_id) as first:
        (await deliver(desk, report_id)).says(503, "part_in_flight")
    assert first.result().json["already"] is False
    assert (await deliver(desk, report_id)).json["already"] is True


async def test_what_breaks_off_leaves_nothing(desk: ReportApi) -> None:
    """Neither rows nor files; the same service delivers again and counts."""
    report_id = await desk.asked("paid", conditions={"country": "NL"})

    async def half() -> AsyncIterator[bytes]:
        yield ROWS[:40]
        raise ConnectionError

    with pytest.raises((ConnectionError, aiohttp.ClientError)):
        await deliver(desk, report_id, half())

    async def gone() -> bool:
        return await left(desk) == []

    await eventually_async(gone)
    assert (await desk.world.part(report_id, "payments"))["state"] == "due"
    assert (await deliver(desk, report_id)).json["already"] is False


BAD: list[tuple[bytes, int, str]] = [
    (b'{"user_id":1,"amount":NaN}\n', 400, "non_finite_number"),
    (b'{"user_id":1,"user_id":2,"amount":1}\n', 400, "duplicate_key"),
    (b"[1]\n", 422, "row_value"),
    (b'{"user_id":1,"amount":1}\n{"user_id":1,"price":1}\n', 422, "row_columns_differ"),
    (b'{"user_id":1}\n', 422, "row_columns_differ"),
    (b'{"user_id":1,"amount":1}\n{"user_id":', 400, "invalid_json"),
    (json.dumps({f"c{number}": number for number in range(COLUMNS_MAX + 1)}).encode(), 422, "too_many_columns"),
]


async def test_rows_that_are_wrong_are_refused_and_leave_nothing(desk: ReportApi) -> None:
    """A code for each, and the part is still expected."""
    report_id = await desk.asked("paid", conditions={"country": "NL"})
    for body, status, code in BAD:
        (await deliver(desk, report_id, body)).says(status, code)
    assert await left(desk) == []
    assert (await deliver(desk, report_id, b"")).json["rows"] == 0


async def test_a_part_of_another_epoch_counts_no_more(desk: ReportApi) -> None:
    """409 with the epoch that counts; a newer one that nobody asked for is as wrong."""
    report_id = await desk.asked("paid", conditions={"country": "NL"})
    await desk.world.pool.execute("UPDATE tickwright.reports SET epoch = 2 WHERE id = $1", report_id)
    await desk.world.pool.execute("UPDATE tickwright.report_parts SET epoch = 2 WHERE report_id = $1", report_id)
    for epoch in (1, 3):
        assert (await deliver(desk, report_id, epoch=epoch)).says(409, "part_stale").json["epoch"] == 2
        refused = await desk.api.operator.post(f"{where(report_id)}/fail", {"epoch": epoch, "error": "no"})
        refused.says(409, "part_stale")
    assert (await deliver(desk, report_id, epoch=2)).json["already"] is False


async def test_what_is_not_expected_is_refused(desk: ReportApi) -> None:
    """Over, before its stage, not a service, not in the report, no report."""
    report_id = await desk.asked("paid", conditions={"country": "NL"})
    later = await desk.asked("second", conditions={"country": "NL"})
    (await deliver(desk, later)).says(409, "stage_not_open")
    (await deliver(desk, report_id, listener="users")).says(422, "not_a_service")
    (await deliver(desk, report_id, listener="nobody")).says(404, "part_not_found")
    (await deliver(desk, 999)).says(404, "report_not_found")
    (await desk.api.viewer.get(where(report_id, "users"))).says(422, "not_a_service")
    (await desk.api.operator.send("PUT", where(report_id), ROWS, headers=NDJSON)).says(422, "invalid_parameter")
    await desk.api.operator.post(f"/v1/reports/{report_id}/cancel")
    over = (await deliver(desk, report_id)).says(409, "report_over")
    assert over.json["report_status"] == "cancelled"
    assert await left(desk) == []


async def test_a_later_stage_tells_its_feed(desk: ReportApi) -> None:
    """The whole of it, however long it is; and the delivery that was too early counts now."""
    report_id = await desk.asked("second", conditions={"country": "NL"})
    async with desk.world.process({"users": users}):
        await eventually_async(lambda: _state(desk, report_id, "payments", "due"))
        assert (await desk.get(f"/{report_id}/parts/payments"))["feed"] == {"ids": [1, 2]}
        await deliver(desk, report_id)
        row = await desk.world.finished(report_id)
    assert await desk.world.table(row) == [["1"], ["2"]]


async def test_a_service_that_cannot_says_so(desk: ReportApi) -> None:
    """The report fails at once with its words; twice is harmless; what is delivered afterwards is refused."""
    report_id = await desk.asked("paid", conditions={"country": "NL"})
    body = {"epoch": 1, "error": "the ledger of payments is closed"}
    assert (await desk.api.operator.post(f"{where(report_id)}/fail", body)).json["already"] is False
    assert (await desk.api.operator.post(f"{where(report_id)}/fail", body)).json["already"] is True
    (await deliver(desk, report_id)).says(409, "part_given_up")
    async with desk.world.process({"users": users}):
        row = await desk.world.over(report_id)
    assert (row["status"], row["error_code"]) == ("failed", "part_failed")
    assert "the ledger of payments is closed" in row["error"]
    (await deliver(desk, report_id)).says(409, "report_over")
    done = await desk.asked("paid", conditions={"country": "BE"})
    await deliver(desk, done)
    (await desk.api.operator.post(f"{where(done)}/fail", body)).says(409, "part_done")


async def test_the_audit_trail_says_who_delivered_and_who_refused(desk: ReportApi) -> None:
    """One line for what counted, with its figures; a delivery that changed nothing has none."""
    report = await desk.asked("paid", conditions={"country": "DE"})
    first = await deliver(desk, report)
    assert (await deliver(desk, report)).json["already"]
    other = await desk.asked("paid", conditions={"country": "FR"})
    for _ in range(2):
        await desk.api.operator.post(f"{where(other)}/fail", {"epoch": 1, "error": "no ledger today"})
    [brought] = (await desk.api.viewer.get("/v1/audit?action=reports.deliver")).json["items"]
    assert (brought["subject"], brought["actor"]) == (f"report:{report}", "operator")
    figures = {name: first.json[name] for name in ("rows", "bytes", "checksum")}
    assert brought["after"] == {"listener": "payments", "epoch": 1, **figures}
    [refused] = (await desk.api.viewer.get("/v1/audit?action=reports.refuse_part")).json["items"]
    assert refused["subject"] == f"report:{other}"
    assert refused["after"] == {"listener": "payments", "epoch": 1, "error": "no ledger today"}


async def test_a_part_has_a_bound(alone: ReportWorld) -> None:
    """413, whether the sender says its length or not; nothing stays."""

    async def pieces() -> AsyncIterator[bytes]:
        for first in range(0, len(ROWS), 20):
            yield ROWS[first : first + 20]

    async with paid_api(alone, part_bytes_max=50) as desk:
        report_id = await desk.asked("paid", conditions={"country": "NL"})
        for body in (ROWS, pieces()):
            (await deliver(desk, report_id, body)).says(413, "body_too_large")
        assert await left(desk) == []


@pytest.mark.matrix
@pytest.mark.parametrize("point", ["reports.delivery_spooled", "reports.delivery_stored"])
async def test_a_report_that_ends_while_rows_come_takes_none(reports: ReportWorld, point: str) -> None:
    """Cancelled between the first byte and the ledger's write: 409, and nothing stays, in no place."""
    stops = Stops()
    async with paid_api(reports, probe=stops) as desk:
        report_id = await desk.asked("paid", conditions={"country": "NL"})
        stops.close(point)
        delivering = asyncio.create_task(deliver(desk, report_id, LONG))
        await eventually_async(lambda: stops.reached_times[point])
        assert (await desk.api.operator.post(f"/v1/reports/{report_id}/cancel")).status == 200
        stops.open(point)
        (await delivering).says(409, "report_over")
        assert await left(desk) == []
        assert (await desk.world.part(report_id, "payments"))["state"] == "dropped"


class GoneAt:
    """A probe at which the process is gone once, as far as whoever waits for its answer can tell."""

    def __init__(self, name: str) -> None:
        self._name, self._times = name, 0

    async def reached(self, name: str, /, **_facts: object) -> None:
        """Break off here, the first time."""
        if name == self._name and not self._times:
            self._times += 1
            raise OSError("gone")


async def test_an_answer_that_was_lost_costs_nothing(reports: ReportWorld) -> None:
    """Broken off between the mark and the ledger: the next delivery finds what was marked first, and that counts."""
    async with paid_api(reports, probe=GoneAt("reports.delivery_stored")) as desk:
        report_id = await desk.asked("paid", conditions={"country": "NL"})
        assert (await deliver(desk, report_id)).status == 503
        assert (await desk.world.part(report_id, "payments"))["state"] == "due"
        marked = reports.shared is not None
        answer = (await deliver(desk, report_id, b'{"user_id":1,"amount":"99.00"}\n')).json
        assert (answer["already"], answer["rows"]) == ((True, 2) if marked else (False, 1))
        async with desk.world.process({"users": users}):
            row = await desk.world.finished(report_id)
        assert [line[2] for line in await desk.world.table(row)] == (["10.50", "7.00"] if marked else ["99.00"])


class Changed(NamedTuple):
    """A part that is there, an object of another report, and the answer to a delivery whose note was changed."""

    report_id: int
    victim: str
    answer: Answer


async def delivered_beside(desk: ReportApi, note: dict[int, Any]) -> Changed:
    """Deliver twice at once; when the second one is done, its note in Redis is changed, and then the first one ends.

    The second one goes to another process, where it does not wait for the first one.
    """
    assert isinstance(desk.world.shared, RedisParts)
    await desk.put("users", USERS)
    other = await desk.given_file(b"id\n1\n")
    report_id = await desk.asked("paid", conditions={"country": "NL"})
    async with slow_delivery(desk, report_id) as first:
        async with report_api(desk.world) as elsewhere:
            assert (await deliver(elsewhere, report_id, LONG)).status == 200
        victim, key = f"reports/{other}/1-1/users-{other}.csv", desk.world.shared.key(report_id)
        redis = desk.world.shared._redis._client
        members = json.loads(await redis.hget(key, "done:payments"))
        for place, value in note.items():
            members[place] = victim if value == "victim" else value
        await redis.hset(key, "done:payments", json.dumps(members))
    return Changed(report_id, victim, first.result())


async def check_the_file_of_another_report(desk: ReportApi) -> None:
    """What is no object of this part is neither taken for its rows nor deleted."""
    found = await delivered_beside(desk, {5: "victim"})
    assert (found.answer.status, found.answer.json["already"]) == (200, True)
    assert await desk.world.objects.size(found.victim) is not None, "the file of another report was deleted"


async def check_the_object_that_counts(desk: ReportApi) -> None:
    """What another delivery has put away is not deleted by this one, whatever the note says of its checksum."""
    found = await delivered_beside(desk, {2: "0" * 64})
    assert (found.answer.status, found.answer.json["already"]) == (200, True)
    part = await desk.world.part(found.report_id, "payments")
    assert await desk.world.objects.size(part["object_key"]) == part["bytes"], "the part's own object was deleted"


@pytest.fixture
async def noted(database_url: str, tmp_path: Path, redis_server: RedisServer) -> AsyncIterator[ReportApi]:
    """An API with Redis."""
    name = database_url.rpartition("/")[2]
    async with (
        report_world(database_url, tmp_path, redis_server.url, redis_prefix=name) as world,
        paid_api(world) as asking,
    ):
        yield asking


Check = Callable[[ReportApi], Awaitable[None]]


@pytest.mark.matrix
@pytest.mark.parametrize("check", [check_the_file_of_another_report, check_the_object_that_counts])
async def test_a_note_in_redis_deletes_nothing_but_what_a_delivery_has_put_away(noted: ReportApi, check: Check) -> None:
    """A program that writes to Redis can change rows of this part, and no object of another report."""
    await check(noted)


async def test_a_delivery_that_deletes_what_others_have_put_away_is_found(
    noted: ReportApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant: the object that the ledger names is gone."""
    mutate(monkeypatch, Deliveries._not_taken, "ours and stored", "stored")
    with pytest.raises(AssertionError, match="was deleted"):
        await check_the_object_that_counts(noted)
