"""Imports: NDJSON in constant memory, where a bad line affects no good one."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from kit.api import RunningApi, running_api
from kit.waiting import eventually_async
from tickwright.engine.bulk_import import BatchedImport
from tickwright.ports.caller import Caller, Role

LINE = b'{"task_type":"noop","execute_at":"2030-01-31T09:00:00Z","payload":{"n":%d}}\n'


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[RunningApi]:
    """A running API."""
    async with running_api(database_url) as running:
        yield running


async def count(api: RunningApi) -> int:
    """Return the number of jobs."""
    return int(await api.pool.fetchval("SELECT count(*) FROM tickwright.scheduled_tasks"))


async def test_good_lines_become_jobs_and_bad_ones_are_reported(api: RunningApi) -> None:
    """Each bad line is rejected with its number, code and reason; the others are jobs."""
    lines = [
        LINE % 1,
        b"nonsense\n",
        b"\n",
        b'{"task_type":"nobody"}\n',
        b'{"task_type":"noop","fence":1}\n',
        b'{"task_type":"noop","payload":"' + b"x" * 300_000 + b'"}\n',
        b'{"task_type":"noop","execute_at":"2030-01-31T09:00:00"}\n',
        b'{"task_type":"noop","idempotency_key":"k","payload":1}\n',
        b'{"task_type":"noop","idempotency_key":"k","payload":1}\n',
        b'{"task_type":"noop","idempotency_key":"k","payload":2}\n',
        (LINE % 2).rstrip(),
    ]
    done = await api.operator.bulk(b"".join(lines))
    assert done.status == 200, done.body
    counts = done.json
    assert (counts["lines"], counts["created"], counts["existing"], counts["rejected"]) == (11, 3, 1, 6)
    assert {(r["line"], r["code"]) for r in counts["rejects"]} == {
        (2, "invalid_json"), (4, "unknown_task_type"), (5, "unknown_field"), (6, "line_too_long"),
        (7, "naive_datetime"), (10, "key_reused"),
    }  # fmt: skip
    assert all(reject["message"] for reject in counts["rejects"])
    assert counts["committed_lines"] == 11
    assert await count(api) == 3


@pytest.mark.parametrize("line", [b"\n", b"x\n"])
async def test_lines_without_a_job_leave_the_event_loop_free(api: RunningApi, line: bytes) -> None:
    """However short the lines of a piece are, other requests run every thousand lines."""
    steps = 0

    async def count_steps() -> None:
        nonlocal steps
        while True:
            steps += 1
            await asyncio.sleep(0)

    async def one_piece() -> AsyncIterator[bytes]:
        counting.append(asyncio.create_task(count_steps()))
        await asyncio.sleep(0)
        yield line * 100_000
        counting.pop().cancel()

    counting: list[asyncio.Task[None]] = []
    done = await api.service.enqueuer.import_lines(one_piece(), caller=Caller("test", Role.OPERATOR))
    assert (done.lines, done.created, done.committed_lines) == (100_000, 0, 100_000)
    assert steps >= 100


async def test_empty_lines_are_only_counted(api: RunningApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """A body of line feeds costs one comparison for each: none is parsed as a line."""
    taken = []
    take = BatchedImport._take

    async def counted(self: BatchedImport[Any], line: bytes | None) -> None:
        taken.append(line)
        await take(self, line)

    monkeypatch.setattr(BatchedImport, "_take", counted)
    counts = (await api.operator.bulk(b"\n" * 500_000 + LINE % 1)).json
    assert (counts["lines"], counts["created"], counts["committed_lines"]) == (500_001, 1, 500_001)
    assert len(taken) == 1


async def test_a_large_import_is_complete(api: RunningApi) -> None:
    """12,345 lines in pieces of any length: every one is there once."""
    body = b"".join(LINE % n for n in range(12_345))

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 9_973):
            yield body[start : start + 9_973]

    counts = (await api.operator.bulk(pieces())).json
    assert (counts["created"], counts["rejected"]) == (12_345, 0)
    found = await api.pool.fetchval("SELECT count(DISTINCT payload->'n') FROM tickwright.scheduled_tasks")
    assert (await count(api), found) == (12_345, 12_345)


async def test_rejects_beyond_the_cap_are_counted(api: RunningApi) -> None:
    """The answer stays small for any body."""
    counts = (await api.operator.bulk(b"x\n" * 1_500 + LINE % 1)).json
    assert (counts["rejected"], len(counts["rejects"]), counts["rejects_left_out"], counts["created"]) == (
        1500,
        1000,
        500,
        1,
    )


async def test_a_row_that_the_database_refuses_costs_no_other(api: RunningApi) -> None:
    """The batch is halved until only such rows are left out, with or without keys; the audit trail counts them."""
    await api.pool.execute("ALTER TABLE tickwright.scheduled_tasks ADD CHECK (payload->>'n' NOT IN ('3', '17'))")
    body = b"".join(LINE % n for n in range(20))
    for key in ({}, {"Idempotency-Key": "refused"}):
        counts = (await api.operator.bulk(body, **key)).json
        assert (counts["created"], counts["committed_lines"]) == (18, 20)
        assert [(r["line"], r["code"]) for r in counts["rejects"]] == [
            (4, "refused_by_database"),
            (18, "refused_by_database"),
        ]
        line = (await api.viewer.get("/v1/audit?action=jobs.import")).json["items"][0]
        assert line["after"] == {"committed_lines": 20, "created": 18, "existing": 0, "rejected": 2, "finished": True}
    assert await count(api) == 36


async def test_an_upload_with_a_key_can_be_sent_again(api: RunningApi) -> None:
    """The same key and lines make no second job; the second answer says that they exist."""
    body = b"".join(LINE % n for n in range(2_500))
    first = (await api.operator.bulk(body, **{"Idempotency-Key": "nightly-7"})).json
    second = (await api.operator.bulk(body, **{"Idempotency-Key": "nightly-7"})).json
    assert (first["created"], first["existing"]) == (2_500, 0)
    assert (second["created"], second["existing"], second["rejected"]) == (0, 2_500, 0)
    assert await count(api) == 2_500


async def test_two_uploads_of_one_file_at_once_make_each_job_once(api: RunningApi) -> None:
    """Concurrent uploads with one key neither deadlock nor make jobs twice."""
    body = b"".join(LINE % n for n in range(3_000))
    answers = await asyncio.gather(*(api.operator.bulk(body, **{"Idempotency-Key": "same"}) for _ in range(3)))
    assert [answer.status for answer in answers] == [200] * 3, [answer.body[:300] for answer in answers]
    assert sum(answer.json["created"] for answer in answers) == 3_000
    assert await count(api) == 3_000


async def test_after_a_cut_connection_the_jobs_match_the_audit_entry(api: RunningApi) -> None:
    """Whole batches stay, the rest and the cut line are dropped; the same upload with the key completes it."""
    sent = 2_700
    _, writer = await asyncio.open_connection("127.0.0.1", api.port)
    head = (
        "POST /v1/jobs:bulk HTTP/1.1\r\nhost: x\r\ncontent-type: application/x-ndjson\r\n"
        f"authorization: Bearer {api.operator.key}\r\nidempotency-key: cut\r\ncontent-length: 99999999\r\n\r\n"
    )
    writer.write(head.encode() + b"".join(LINE % n for n in range(sent)) + b'{"task_type":"noop"')
    await writer.drain()

    async def progress() -> dict[str, int]:
        text = await api.pool.fetchval(
            "SELECT after FROM tickwright.audit WHERE action = 'jobs.import' AND subject = 'import:cut' "
            "ORDER BY id LIMIT 1"
        )
        return json.loads(text) if text else {"committed_lines": 0}

    async def two_batches() -> bool:
        return (await progress())["committed_lines"] == 2_000

    await eventually_async(two_batches)
    writer.transport.abort()
    assert await count(api) == 2_000
    counts = await progress()
    assert (counts["committed_lines"], counts["created"], counts["finished"]) == (2_000, 2_000, False)
    again = (await api.operator.bulk(b"".join(LINE % n for n in range(sent)), **{"Idempotency-Key": "cut"})).json
    assert (again["existing"], again["created"]) == (2_000, 700)
    assert await count(api) == sent


async def test_an_import_writes_one_audit_entry_with_its_counts(api: RunningApi) -> None:
    """Its actor, and the number of jobs."""
    counts = (await api.operator.bulk(LINE % 1 + b"x\n")).json
    line = (await api.viewer.get("/v1/audit?action=jobs.import")).json["items"][0]
    assert (line["id"], line["actor"]) == (counts["import_id"], "operator")
    assert line["after"] == {"committed_lines": 2, "created": 1, "existing": 0, "rejected": 1, "finished": True}
