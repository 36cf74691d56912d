"""Bad requests: each has one answer with a stable code."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from kit.api import RunningApi, running_api
from tickwright.api.context import ApiLimits
from tickwright.rest.admission import ListenerLimits
from tickwright.rest.listener import Listener, bind

JOB = b'{"task_type":"noop","execute_at":"2030-01-31T09:00:00Z"%s}'


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[RunningApi]:
    """A running API."""
    async with running_api(database_url) as running:
        yield running


BODIES: list[tuple[str, bytes, int, str]] = [
    ("nothing", b"", 400, "invalid_json"),
    ("no json", b"{", 400, "invalid_json"),
    ("trailing text", b"{} x", 400, "invalid_json"),
    ("byte order mark", b"\xef\xbb\xbf{}", 400, "invalid_json"),
    ("utf-16", '{"task_type":"noop"}'.encode("utf-16"), 400, "invalid_json"),
    ("latin-1", JOB % ',"payload":"é"'.encode("latin-1"), 400, "invalid_json"),
    ("control character", JOB % b',"payload":"\x01"', 400, "invalid_json"),
    ("NaN", JOB % b',"payload":NaN', 400, "non_finite_number"),
    ("Infinity", JOB % b',"payload":[-Infinity]', 400, "non_finite_number"),
    ("1e400", JOB % b',"payload":1e400', 400, "non_finite_number"),
    ("1e-20000", JOB % b',"payload":1e-20000', 400, "number_out_of_range"),
    ("a zero of 16000 places", JOB % b',"payload":[0e-16000]', 400, "number_out_of_range"),
    ("20000 fraction digits", JOB % (b',"payload":1.' + b"1" * 20000), 400, "number_out_of_range"),
    ("5000 digits", JOB % (b',"payload":' + b"9" * 5000), 400, "number_out_of_range"),
    ("2**63", JOB % b',"payload":9223372036854775808', 400, "number_out_of_range"),
    ("duplicate key", b'{"task_type":"a","task_type":"noop"}', 400, "duplicate_key"),
    ("duplicate key inside", JOB % b',"payload":[{"a":1,"\\u0061":2}]', 400, "duplicate_key"),
    ("33 levels", JOB % (b',"payload":' + b"[" * 32 + b"]" * 32), 400, "too_deep"),
    ("100000 levels", JOB % (b',"payload":' + b"[" * 100_000), 400, "too_deep"),
    ("NUL", JOB % b',"payload":{"a":["\\u0000"]}', 400, "unsupported_character"),
    ("NUL in a name", JOB % b',"payload":{"\\u0000":1}', 400, "unsupported_character"),
    ("lone surrogate", JOB % b',"payload":"\\udc00"', 400, "unsupported_character"),
    ("mass assignment", JOB % b',"status":"completed"', 400, "unknown_field"),
    ("attempts", JOB % b',"attempts":0', 400, "unknown_field"),
    ("fence", JOB % b',"fence":9', 400, "unknown_field"),
    ("array", b"[]", 422, "invalid_value"),
    ("no type", b"{}", 422, "invalid_value"),
    ("wrong type", b'{"task_type":7}', 422, "invalid_value"),
    ("unknown type", b'{"task_type":"nobody.knows"}', 422, "unknown_task_type"),
    ("type of 51", b'{"task_type":"%s"}' % (b"x" * 51), 422, "invalid_task_type"),
    ("type with a blank", b'{"task_type":"a b"}', 422, "invalid_task_type"),
    ("no offset", b'{"task_type":"noop","execute_at":"2030-01-31T09:00:00"}', 422, "naive_datetime"),
    ("year 10000", b'{"task_type":"noop","execute_at":"10000-01-31T09:00:00Z"}', 422, "time_out_of_range"),
    ("year 9999", b'{"task_type":"noop","execute_at":"9999-01-31T09:00:00Z"}', 422, "time_out_of_range"),
    ("leap second", b'{"task_type":"noop","execute_at":"2016-12-31T23:59:60Z"}', 422, "leap_second"),
    ("30 February", b'{"task_type":"noop","execute_at":"2030-02-30T09:00:00Z"}', 422, "invalid_datetime"),
    ("tomorrow", b'{"task_type":"noop","execute_at":"tomorrow"}', 422, "invalid_datetime"),
    ("epoch number", b'{"task_type":"noop","execute_at":1900000000}', 422, "invalid_value"),
    ("beyond the horizon", b'{"task_type":"noop","execute_at":"2990-01-31T09:00:00Z"}', 422, "beyond_horizon"),
    ("delay beyond it", b'{"task_type":"noop","delay":"9999d"}', 422, "beyond_horizon"),
    ("long past", b'{"task_type":"noop","execute_at":"2001-01-31T09:00:00Z"}', 422, "time_in_past"),
    ("both times", JOB % b',"delay":"1s"', 422, "execute_at_and_delay"),
    ("delay without unit", b'{"task_type":"noop","delay":"5"}', 422, "invalid_duration"),
    ("negative delay", b'{"task_type":"noop","delay":"-5s"}', 422, "invalid_duration"),
    ("expired before due", JOB % b',"expires_at":"2029-01-01T00:00:00Z"', 422, "expires_before_due"),
    ("no attempts", JOB % b',"max_attempts":0', 422, "invalid_max_attempts"),
    ("negative attempts", JOB % b',"max_attempts":-1', 422, "invalid_max_attempts"),
    ("a million attempts", JOB % b',"max_attempts":1000000', 422, "invalid_max_attempts"),
    ("priority 101", JOB % b',"priority":101', 422, "invalid_priority"),
    ("timeout of two days", JOB % b',"timeout":"2d"', 422, "invalid_timeout"),
    ("no timeout", JOB % b',"timeout":"0s"', 422, "invalid_timeout"),
    ("key of 256", JOB % (b',"idempotency_key":"' + b"k" * 256 + b'"'), 409, "invalid_key"),
    ("empty key", JOB % b',"idempotency_key":""', 409, "invalid_key"),
    ("payload of 65 KiB", JOB % (b',"payload":"' + b"x" * 66_000 + b'"'), 413, "payload_too_large"),
    ("payload of 65 KiB in UTF-8", JOB % (b',"payload":"' + "é".encode() * 33_000 + b'"'), 413, "payload_too_large"),
    ("body of 300 KiB", JOB % (b',"payload":"' + b"x" * 300_000 + b'"'), 413, "body_too_large"),
]


async def test_each_bad_body_has_its_own_answer(api: RunningApi) -> None:
    """RELIABILITY §5 for POST /v1/jobs; no bad body creates a job."""
    for name, body, status, code in BODIES:
        answer = await api.operator.post("/v1/jobs", body)
        assert (answer.status, answer.json["code"]) == (status, code), (name, answer.body[:300])
        answer.says(status, code)
    assert await api.pool.fetchval("SELECT count(*) FROM tickwright.scheduled_tasks") == 0


@pytest.mark.parametrize("key", ["", "two words", "caf\u00e9", "k" * 256])
async def test_a_key_outside_its_pattern_is_refused(api: RunningApi, key: str) -> None:
    """The schema of the header is enforced, with and without a stream."""
    headers = {"Idempotency-Key": key}
    (await api.operator.post("/v1/jobs", JOB % b"", headers=headers)).says(409, "invalid_key")
    (await api.operator.bulk(JOB % b"", **headers)).says(409, "invalid_key")
    assert await api.pool.fetchval("SELECT count(*) FROM tickwright.scheduled_tasks") == 0


async def test_two_different_keys_are_refused(api: RunningApi) -> None:
    """If one of them counted, the request could make a second job; one key that is sent twice is one key."""
    for path, kind in (("/v1/jobs", "application/json"), ("/v1/jobs:bulk", "application/x-ndjson")):
        headers = [("Content-Type", kind), ("Idempotency-Key", "a"), ("Idempotency-Key", "b")]
        (await api.operator.post(path, JOB % b"", headers=headers)).says(422, "key_conflict")
    assert await api.pool.fetchval("SELECT count(*) FROM tickwright.scheduled_tasks") == 0
    twice = await api.operator.post("/v1/jobs", JOB % b"", headers=[("Idempotency-Key", "a")] * 2)
    assert twice.status == 201


async def test_errors_have_their_position(api: RunningApi) -> None:
    """Line and column, pointer, field."""
    problem = (await api.operator.post("/v1/jobs", b'{"task_type":\n  nope}')).json
    assert (problem["line"], problem["column"]) == (2, 3)
    problem = (await api.operator.post("/v1/jobs", JOB % b',"payload":{"a":["x","\\u0000"]}')).json
    assert problem["pointer"] == "/payload/a/1"
    problem = (await api.operator.post("/v1/jobs", JOB % b',"fence":1')).json
    assert problem["field"] == "fence"
    problem = (await api.operator.post("/v1/jobs", b'{"task_type":"nobody"}')).json
    assert "noop" in problem["detail"]


async def test_valid_json_is_stored_unchanged(api: RunningApi) -> None:
    """Accepted values are returned as they were: the strict reader refuses no valid document."""
    payload = (
        '{"int":9223372036854775807,"low":-9223372036854775808,"fraction":0.1234567890123456789012,"tiny":1e-300,'
        '"text":"\\u00e9\\ud83d\\ude00\\\\u0000","deep":' + "[" * 29 + "]" * 29 + ',"":null}'
    )
    made = await api.operator.post("/v1/jobs", JOB % (b',"payload":' + payload.encode()))
    assert made.status == 201, made.body
    kept = await api.pool.fetchval(
        "SELECT payload = $2::jsonb FROM tickwright.scheduled_tasks WHERE id = $1", made.json["id"], payload
    )
    assert kept


@pytest.mark.parametrize("kind", [None, "text/plain", "application/json; charset=latin-1", "multipart/form-data"])
async def test_a_body_of_another_type_is_refused(api: RunningApi, kind: str | None) -> None:
    """415 before the body is read."""
    headers = {"Content-Type": kind or ""}
    (await api.operator.post("/v1/jobs", JOB % b"", headers=headers)).says(415, "unsupported_media_type")
    (await api.operator.post("/v1/jobs:cancel", b"{}", headers=headers)).says(415, "unsupported_media_type")
    (await api.operator.post("/v1/jobs:bulk", b"{}", headers=headers)).says(415, "unsupported_media_type")


async def test_a_compressed_body_is_refused_unread(api: RunningApi) -> None:
    """No decompression, so no decompression bomb."""
    headers = {"Content-Encoding": "gzip"}
    for path in ("/v1/jobs", "/v1/jobs:cancel"):
        (await api.operator.post(path, b"\x1f\x8b", headers=headers)).says(415, "unsupported_encoding")
    bulk = await api.operator.bulk(b"\x1f\x8b", **{"Content-Encoding": "gzip"})
    assert bulk.says(415, "unsupported_encoding").headers["accept-encoding"] == "identity"


async def test_a_body_in_chunks_has_the_same_limit(api: RunningApi) -> None:
    """Without Content-Length the bytes are counted as they arrive."""

    async def endless() -> AsyncIterator[bytes]:
        yield b'{"task_type":"noop","payload":"'
        for _ in range(64):
            yield b"x" * 8192

    for path in ("/v1/jobs", "/v1/jobs:cancel"):
        (await api.operator.post(path, endless())).says(413, "body_too_large")


async def test_a_body_that_does_not_arrive_is_timed_out(database_url: str) -> None:
    """408 after the body's deadline, on the fast path and on routes."""
    limits = ApiLimits(body_timeout=timedelta(milliseconds=100))
    async with running_api(database_url, limits=limits) as api:
        for path in ("/v1/jobs", "/v1/jobs:cancel"):
            reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
            head = f"POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {api.operator.key}\r\n"
            writer.write(head.encode() + b"content-type: application/json\r\ncontent-length: 50\r\n\r\n{")
            assert (await reader.readline()).split()[1] == b"408"
            writer.close()


async def test_an_endless_head_is_cut_off(api: RunningApi) -> None:
    """431 and the connection is closed after 32 KiB of head."""
    reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
    writer.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\n" + b"x-filler: yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy\r\n" * 1000)
    assert b" 431 " in await reader.readline()
    assert b"head_too_large" in await reader.read()
    writer.close()


async def test_an_answer_may_take_longer_than_a_head() -> None:
    """The deadline applies to the head alone: neither a slow answer, such as a file, nor an idle connection is cut."""
    later = asyncio.Event()

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await later.wait()
        later.clear()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"o", "more_body": True})
        await later.wait()
        later.clear()
        await send({"type": "http.response.body", "body": b"k"})

    server, listening = Listener(slow, limits=ListenerLimits(head_s=0.05)), bind("127.0.0.1", 0)
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    reader, writer = await asyncio.open_connection("127.0.0.1", listening.getsockname()[1])
    for next_head in (b"", b"GET /"):
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n" + next_head)
        for delay_s in (0.3, 0.6):
            asyncio.get_running_loop().call_later(delay_s, later.set)
        assert (await reader.readuntil(b"\r\n\r\nok")).startswith(b"HTTP/1.1 200")
        if not next_head:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(reader.read(1), 0.3)
    assert await reader.read() == b""  # the head that arrives byte by byte
    writer.close()
    server.should_exit = True
    await serving


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/nothing", 404, "not_found"),
        ("GET", "/v1/jobs/999999", 404, "job_not_found"),
        ("GET", "/v1/jobs/abc", 422, "invalid_parameter"),
        ("GET", "/v1/jobs/99999999999999999999", 422, "invalid_parameter"),
        ("PATCH", "/v1/jobs", 405, "method_not_allowed"),
        ("DELETE", "/v1/jobs/1", 405, "method_not_allowed"),
        ("GET", "/v1/jobs?limit=0", 422, "invalid_parameter"),
        ("GET", "/v1/jobs?limit=100000", 422, "invalid_parameter"),
        ("GET", "/v1/jobs?sort=id", 400, "unknown_parameter"),
        ("GET", "/v1/jobs?status=gone", 422, "invalid_parameter"),
        ("GET", "/v1/jobs?execute_from=2030-01-01", 422, "invalid_datetime"),
        ("GET", "/v1/jobs?cursor=%fe%ff", 400, "invalid_cursor"),
        ("POST", "/v1/jobs?dry=1", 400, "unknown_parameter"),
        ("POST", "/v1/workers/5/drain", 404, "worker_not_found"),
        ("POST", "/v1/task-types/none/pause", 404, "task_type_not_found"),
        ("POST", "/v1/keys/77/revoke", 404, "key_not_found"),
        ("GET", "/v1/task-types/%00", 404, "not_found"),
        ("GET", "/v1/jobs?task_type=%00", 400, "unsupported_character"),
    ],
)
async def test_each_bad_address_has_its_own_answer(
    api: RunningApi, method: str, path: str, status: int, code: str
) -> None:
    """Paths, methods and parameters are refused with problem details, too."""
    answer = (await api.admin.send(method, path)).says(status, code)
    if status == 405:
        assert answer.headers["allow"]


async def test_a_wrong_method_is_answered_with_the_allowed_ones(api: RunningApi) -> None:
    """Also where several routes share a path."""
    paths = (("/v1/jobs", "GET, POST"), ("/v1/task-types/noop", "DELETE, GET, PATCH, PUT"), ("/healthz", "GET"))
    for path, allow in paths:
        assert (await api.admin.send("OPTIONS", path)).says(405, "method_not_allowed").headers["allow"] == allow


async def test_a_bad_value_of_a_list_names_the_parameter(api: RunningApi) -> None:
    """Not its index in the list."""
    answer = (await api.admin.get("/v1/jobs?status=pending&status=odd")).says(422, "invalid_parameter")
    assert answer.json["field"] == "status"


async def test_a_type_whose_endpoint_is_gone_waits_until_its_target_changes(api: RunningApi) -> None:
    """A PUT of the same target keeps it suspended; another target, or ``enable``, resumes it."""
    one, two = {"target": "https://example.org/1"}, {"target": "https://example.org/2"}
    path = "/v1/task-types/hook"
    await api.admin.send("PUT", path, one)
    await api.pool.execute("UPDATE tickwright.task_types SET gone_at = now() WHERE name = 'hook'")
    await api.admin.send("PUT", path, {**one, "timeout": "9s"})
    assert (await api.admin.get(path)).json["gone_at"] is not None
    await api.admin.send("PUT", path, two)
    assert (await api.admin.get(path)).json["gone_at"] is None


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"target": "https://user:pw@example.org/"}, 422, "invalid_target"),
        ({"target": "python:ok", "timeout": "2d"}, 422, "invalid_timeout"),
        ({"target": "python:ok", "retry_cap": "8d"}, 422, "invalid_retry"),
        ({"target": "python:ok", "retry_base": "2m", "retry_cap": "1m"}, 422, "invalid_retry"),
        ({"target": "python:ok", "retry_base": "5"}, 422, "invalid_duration"),
        ({"target": "python:ok", "max_attempts": 0}, 422, "invalid_value"),
        ({"target": "python:ok", "rate_per_s": 0}, 422, "invalid_value"),
        ({"target": "python:ok", "final_statuses": [200]}, 422, "invalid_value"),
        ({"target": "python:ok", "gone_at": None}, 400, "unknown_field"),
        ({}, 422, "invalid_value"),
    ],
)
async def test_each_bad_task_type_has_its_own_answer(
    api: RunningApi, body: dict[str, object], status: int, code: str
) -> None:
    """A task type is checked before it is stored."""
    (await api.admin.send("PUT", "/v1/task-types/bad", body)).says(status, code)
    (await api.admin.send("PUT", "/v1/task-types/a%20b", {"target": "python:x"})).says(422, "invalid_task_type")
    assert [kind["name"] for kind in (await api.admin.get("/v1/task-types")).json["items"]] == ["noop"]
