"""Reports from the request to the file: parts in parallel, one file, and the reason of every failure."""

import asyncio
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from kit.probes import Stops
from kit.reports import ReportWorld, plan_of
from kit.waiting import eventually_async
from tickwright.capabilities.reports.handlers import ReportRequest
from tickwright.capabilities.reports.plan import Listener
from tickwright.domain.errors import Rejected, Unavailable

JOIN = "SELECT u.name, w.amount FROM users u JOIN withdrawals w ON w.user_id = u.id ORDER BY w.amount"


async def users(_request: ReportRequest) -> AsyncIterator[dict[str, Any]]:
    """Yield three users."""
    for number, name in enumerate(("ann", "ben", "=cmd|x"), start=1):
        yield {"id": number, "name": name}


async def withdrawals(_request: ReportRequest) -> AsyncIterator[dict[str, Any]]:
    """Yield two withdrawals."""
    yield {"user_id": 1, "amount": 5}
    yield {"user_id": 3, "amount": 7}


async def test_parts_of_two_listeners_become_one_file(reports: ReportWorld) -> None:
    """Requested, fetched, merged and stored, with size and checksum; a formula is escaped."""
    async with reports.process({"users": users, "withdrawals": withdrawals}) as process:
        row = await reports.finished(await reports.request(plan_of("users", "withdrawals", merge=JOIN)))
        assert await reports.table(row) == [["'=cmd|x", "7"], ["ann", "5"]]
        assert row["rows"] == 2
        assert row["bytes"] == len(await reports.file(row))
        assert row["started_at"] <= row["last_part_at"] <= row["finished_at"]
        await eventually_async(lambda: process.supervisor.counts["finished"] == 1)
        assert process.listener.counts == Counter(done=2)
    assert await reports.pool.fetchval("SELECT count(*) FROM tickwright.report_data") == 0


async def test_listeners_run_in_parallel(reports: ReportWorld) -> None:
    """Each begins before another one has ended."""
    begun = asyncio.Barrier(4)

    def waiting(name: str) -> Any:
        async def function(_request: ReportRequest) -> AsyncIterator[dict[str, Any]]:
            await begun.wait()
            yield {name: 1}

        return function

    names = ("a1", "b1", "c1", "d1")
    plan = plan_of(*names, merge="SELECT * FROM a1, b1, c1, d1")
    async with reports.process({name: waiting(name) for name in names}):
        assert await reports.table(await reports.finished(await reports.request(plan))) == [["1"] * 4]


async def test_an_equal_request_returns_the_record_of_the_first(reports: ReportWorld) -> None:
    """One running report per requester and query key, however many requests come at once; a new one after its end."""
    plan = plan_of("users")
    asked = await asyncio.gather(*(reports.ask(plan, {"a": 1, "b": 2}) for _ in range(4)))
    assert len({one.id for one in asked}) == 1
    assert [one.created for one in asked].count(True) == 1
    assert (await reports.ask(plan, {"b": 2, "a": 1})).id == asked[0].id
    assert (await reports.ask(plan, {"a": 1, "b": 2}, requester="you")).created
    assert (await reports.ask(plan, {"a": 2})).created
    async with reports.process({"users": users}):
        await reports.finished(asked[0].id)
        assert (await reports.ask(plan, {"a": 1, "b": 2})).created


async def test_the_feed_of_a_stage_reaches_the_listeners_of_the_next_stage(reports: ReportWorld) -> None:
    """The one row of a feed is part of the next stage's requests."""
    seen: list[Any] = []

    async def bought(request: ReportRequest) -> AsyncIterator[dict[str, Any]]:
        seen.append((request.stage, dict(request.feed), dict(request.conditions)))
        for number in request.feed["ids"]:
            yield {"user_id": number, "total": number * 10}

    plan = plan_of(
        "users",
        Listener(name="bought", kind="function", stage=2),
        merge="SELECT name, total FROM users JOIN bought ON user_id = id",
        feeds={2: "SELECT list(id ORDER BY id) AS ids FROM users WHERE id < 3"},
    )
    async with reports.process({"users": users, "bought": bought}):
        row = await reports.finished(await reports.request(plan, {"country": "GB"}))
        assert await reports.table(row) == [["ann", "10"], ["ben", "20"]]
    assert seen == [(2, {"ids": [1, 2]}, {"country": "GB"})]


async def test_a_feed_that_gives_a_condition_another_value_fails_the_report(alone: ReportWorld) -> None:
    """A type that accepts any condition cannot be refused earlier; the request's own value is never replaced."""
    plan = plan_of(
        "users",
        Listener(name="bought", kind="function", stage=2),
        merge="SELECT name FROM users",
        feeds={2: "SELECT max(id) AS country, 1 AS other FROM users"},
    )
    async with alone.process({"users": users, "bought": users}):
        row = await alone.over(await alone.request(plan, {"country": "GB", "max": 1}))
        assert (row["status"], row["error_code"]) == ("failed", "feed_replaces_condition")
        assert row["error"] == "the feed of stage 2 gives country, which the request gives, too"


async def test_an_optional_part_may_fail_and_the_manifest_names_it(reports: ReportWorld) -> None:
    """The file exists, and its manifest names the missing part and the error."""

    async def broken(request: ReportRequest) -> AsyncIterator[dict[str, Any]]:
        if request.attempt:
            raise Rejected("no_such_thing", "the scores are gone")
        yield {}

    plan = plan_of(
        "users",
        Listener(name="scores", kind="function", required=False, columns={"id": "BIGINT", "score": "DOUBLE"}),
        merge="SELECT name, score FROM users LEFT JOIN scores USING (id)",
    )
    async with reports.process({"users": users, "scores": broken}):
        row = await reports.finished(await reports.request(plan))
    assert [cells[1] for cells in await reports.table(row)] == ["", "", ""]
    assert '"missing": ["scores"]' in row["manifest"]
    assert "the scores are gone (no_such_thing)" in row["manifest"]


async def test_a_required_part_that_fails_for_good_fails_the_report_with_its_error(reports: ReportWorld) -> None:
    """The listener is named; other running parts are not waited for, and are cancelled."""
    cancelled = asyncio.Event()

    async def broken(request: ReportRequest) -> AsyncIterator[dict[str, Any]]:
        if request.attempt:
            raise ValueError("bad luck")
        yield {}

    async def slow(_request: ReportRequest) -> AsyncIterator[dict[str, Any]]:
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.set()
        yield {}

    plan = plan_of(Listener(name="broken", kind="function", attempts=1), "slow", merge="SELECT 1 FROM broken, slow")
    async with reports.process({"broken": broken, "slow": slow}):
        row = await reports.over(await reports.request(plan))
        assert (row["status"], row["error_code"]) == ("failed", "part_failed")
        assert row["error"] == "broken: ValueError: bad luck"
        await asyncio.wait_for(cancelled.wait(), 10)


class Unprintable(Exception):
    """An error without a readable text."""

    def __str__(self) -> str:
        """Raise."""
        raise TypeError


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (asyncio.CancelledError("mine"), "CancelledError: mine"),
        (SystemExit(3), "SystemExit: 3"),
        (Unprintable(), "Unprintable"),
        (RuntimeError("half \ud800 and \0 it"), "RuntimeError: half ? and   it"),
    ],
    ids=["a cancellation of its own", "an exit of the program", "no text", "text that cannot be stored"],
)
async def test_every_exception_of_a_function_is_a_failed_attempt(
    reports: ReportWorld, raised: BaseException, expected: str
) -> None:
    """The process goes on, the part has the error, and the attempt counts, so retries are bounded."""

    async def broken(_request: ReportRequest) -> AsyncIterator[dict[str, Any]]:
        yield {"id": 1}
        raise raised

    async with reports.process({"broken": broken, "users": users}) as process:
        plan = plan_of(Listener(name="broken", kind="function", attempts=1))
        row = await reports.over(await reports.request(plan))
        assert (row["status"], row["error_code"], row["error"]) == ("failed", "part_failed", f"broken: {expected}")
        await reports.finished(await reports.request(plan_of("users")))
        assert process.listener.counts == Counter(failed=1, done=1)


async def test_characters_that_cannot_be_stored_are_replaced_in_a_reason(
    reports: ReportWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A report fails with its reason, whatever the text of a store or of an SQL engine quotes."""

    async def refuse(_key: str, _path: Any) -> int:
        raise Rejected("object_store_refused", "no: half \ud800 and \0 it")

    monkeypatch.setattr(reports.objects, "put_file", refuse)
    async with reports.process({"users": users}):
        row = await reports.over(await reports.request(plan_of("users")))
    assert (row["status"], row["error_code"], row["error"]) == (
        "failed", "object_store_refused", "no: half ? and   it",
    )  # fmt: skip


async def test_a_part_is_tried_again_after_a_retriable_error(reports: ReportWorld) -> None:
    """The second attempt finishes the part."""
    attempts: list[int] = []

    async def flaky(request: ReportRequest) -> AsyncIterator[dict[str, Any]]:
        attempts.append(request.attempt)
        if request.attempt == 1:
            raise Unavailable("source_unavailable", "not now")
        yield {"id": 1}

    async with reports.process({"flaky": flaky}):
        report = await reports.request(plan_of("flaky"))
        row = await reports.finished(report)
    assert attempts == [1, 2]
    part = await reports.part(report, "flaky")
    assert (part["state"], part["attempts"], part["error"]) == ("done", 2, None)
    assert row["restarts"] == 0


@pytest.mark.parametrize("permanent", [False, True])
async def test_the_stored_and_logged_error_of_a_function_has_no_secret(alone: ReportWorld, permanent: bool) -> None:
    """Neither a secret of its source nor a password in a URL is in the record, the part or the log."""
    (alone.folder / "s3cr3t").mkdir()
    path = alone.folder / "s3cr3t" / "users.db"
    with sqlite3.connect(path) as users_database:
        users_database.execute("CREATE TABLE users (id integer)")
    users_database.close()

    async def failing(request: ReportRequest) -> AsyncIterator[dict[str, Any]]:
        async for row in request.rows("SELECT id FROM users"):
            yield dict(row)
        text = f"cannot read {path} nor postgresql://reader:hunter2@db/users"
        raise Rejected("no_access", text) if permanent else RuntimeError(text)

    plan = plan_of(Listener(name="failing", kind="function", source="plt", attempts=1))
    url = f"sqlite://{alone.folder}/${{env:PLACE}}/users.db"
    with capture_logs() as lines:
        async with alone.process({"failing": failing}, sources={"plt": url}, secrets={"PLACE": "s3cr3t"}):
            report = await alone.request(plan)
            row = await alone.over(report)
    part = await alone.part(report, "failing")
    texts = f"{row['error']} {part['error']} {row['manifest']} {lines}"
    assert "cannot read" in row["error"]
    assert "/***/users.db nor postgresql://reader:***@db/users" in part["error"]
    assert "s3cr3t" not in texts
    assert "hunter2" not in texts


async def test_an_attempt_that_takes_too_long_is_cancelled_and_fails(reports: ReportWorld) -> None:
    """The timeout is that of one attempt; the error of the last one names it."""

    async def slow(_request: ReportRequest) -> AsyncIterator[dict[str, Any]]:
        await asyncio.sleep(60)
        yield {}

    plan = plan_of(Listener(name="slow", kind="function", attempts=1, timeout_ms=100))
    async with reports.process({"slow": slow}):
        row = await reports.over(await reports.request(plan))
    assert row["error"] == "slow: it took longer than 0.1 s (listener_timeout)"


@pytest.mark.matrix
async def test_a_part_that_no_process_serves_is_announced_again_and_given_up(reports: ReportWorld) -> None:
    """The delayed check ends the report, and the error names the part that did not come."""
    plan = plan_of("unserved", check_every_s=1, checks=2)
    async with reports.process({}) as process:
        row = await reports.over(await reports.request(plan))
        assert row["error_code"] == "parts_missing"
        assert row["error"] == "unserved did not come within 2 checks of 1 s"
        await eventually_async(lambda: process.supervisor.counts["failed"] == 1)
        assert process.supervisor.counts["announced"] == 1


async def test_a_deadline_ends_a_report_whose_listeners_still_run(reports: ReportWorld) -> None:
    """Parts that come after it do not count."""
    gate = asyncio.Event()

    async def slow(_request: ReportRequest) -> AsyncIterator[dict[str, Any]]:
        await gate.wait()
        yield {"id": 1}

    async with reports.process({"slow": slow}) as process:
        row = await reports.over(await reports.request(plan_of("slow", deadline_s=1)))
        assert row["error_code"] == "deadline_passed"
        gate.set()
        await eventually_async(lambda: process.listener.running == 0)
        assert process.listener.counts["done"] == 0


async def test_a_report_cancelled_during_its_merge_never_gets_a_file(reports: ReportWorld) -> None:
    """The step that merges it discards its file."""
    stops = Stops()
    stops.close("reports.merged")
    async with reports.process({"users": users}, probe=stops) as process:
        report = await reports.request(plan_of("users"))
        await eventually_async(lambda: stops.reached_times["reports.merged"] == 1)
        assert (await reports.record(report))["status"] == "merging"
        assert await reports.cancel(report)
        assert not await reports.cancel(report)
        stops.open("reports.merged")
        await eventually_async(lambda: process.supervisor.running == 0)
        row = await reports.record(report)
        assert (row["status"], row["file_key"], row["checksum"]) == ("cancelled", None, None)
    assert await reports.objects.listing(f"reports/{report}/", 10) == []


async def test_a_large_part_goes_to_the_object_store_by_reference(reports: ReportWorld) -> None:
    """The hash has its key instead of its rows; the object is deleted after the end of the report."""
    many = 20_000

    async def large(_request: ReportRequest) -> AsyncIterator[dict[str, Any]]:
        for number in range(many):
            yield {"id": number, "text": "x" * 50}

    stops = Stops()
    stops.close("reports.merging")
    async with reports.process({"large": large}, probe=stops):
        report = await reports.request(plan_of("large", merge="SELECT count(*) AS n, sum(id) AS s FROM large"))
        await eventually_async(lambda: stops.reached_times["reports.merging"] == 1)
        part = await reports.part(report, "large")
        assert (part["place"], part["rows"]) == ("object", many)
        assert await reports.objects.size(part["object_key"]) == part["bytes"]
        if reports.shared is not None:
            found = await reports.hash(report)
            assert found["queryDoneCount"] == "1"
            assert f'"rows": {many}' in found["large"]
            assert len(found["large"]) < 1000
        stops.open("reports.merging")
        row = await reports.finished(report)
        assert await reports.table(row) == [[str(many), str(sum(range(many)))]]

        async def cleared() -> bool:
            return await reports.objects.listing(f"parts/{report}/", 10) == []

        await eventually_async(cleared, what="the part is deleted")


async def test_other_programs_can_read_the_hash_by_the_source_documents_names(reports: ReportWorld) -> None:
    """``queryDoneCount`` and a field per listener with its rows, while the report runs."""
    if reports.shared is None:
        return
    stops = Stops()
    stops.close("reports.merging")
    async with reports.process({"users": users, "withdrawals": withdrawals}, probe=stops):
        report = await reports.request(plan_of("users", "withdrawals", merge=JOIN))
        await eventually_async(lambda: stops.reached_times["reports.merging"] == 1)
        found = await reports.hash(report)
        assert found["queryDoneCount"] == "2"
        assert found["withdrawals"] == '[{"user_id":1,"amount":5},{"user_id":3,"amount":7}]'
        stops.open("reports.merging")
        await reports.finished(report)


async def test_twenty_reports_at_once_all_finish(reports: ReportWorld) -> None:
    """More than there are slots: the rest waits, and each file has its own rows."""

    async def mine(request: ReportRequest) -> AsyncIterator[dict[str, Any]]:
        yield {"number": request.conditions["number"]}

    async with reports.process({"mine": mine}):
        asked = [await reports.request(plan_of("mine"), {"number": number}) for number in range(20)]
        for number, report in enumerate(asked):
            assert await reports.table(await reports.finished(report, 60)) == [[str(number)]]
