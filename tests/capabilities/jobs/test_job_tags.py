"""Tags and metadata of jobs: the ways in, their bounds, what handlers see, and searches by them."""

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import asyncpg
import psycopg
import pytest

from kit.api import ADMIN, RunningApi, running_api
from kit.engine import insert, job_row, running_engine
from tickwright import Contended, Job, Rejected, Tickwright
from tickwright.capabilities.jobs import enqueue
from tickwright.capabilities.jobs.admin import search as looking
from tickwright.capabilities.jobs.admin.search import JobFilter, ListQuery, metadata_path
from tickwright.capabilities.jobs.requests import NewJob, with_digest
from tickwright.domain.signatures import digest_of
from tickwright.ports.caller import Role

DUE = datetime(2031, 5, 1, 9, tzinfo=UTC)
LATER = "now() + interval '1 hour'"
TAGS, METADATA = ["nightly", "eu"], {"tenant": "a", "n": 5, "deep": {"x": [1]}}
BOTH: dict[str, Any] = {"tags": TAGS, "metadata": METADATA}
TAGS_AND_METADATA = "SELECT tags, metadata FROM tickwright.scheduled_tasks WHERE id = $1"


def program(url: str) -> Tickwright:
    """Return an app with one handler."""
    app = Tickwright(url)

    @app.job("mail")
    async def mail(job: Job, to: str = "") -> None: ...

    return app


@pytest.fixture
async def app(database_url: str) -> AsyncIterator[Tickwright]:
    """An open app on a fresh database."""
    async with program(database_url) as app:
        yield app


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[RunningApi]:
    """A running API."""
    async with running_api(database_url) as running:
        yield running


async def stored(connection: Any, job_id: int) -> dict[str, Any]:
    """Return the tags and the metadata in a job's row."""
    row = await connection.fetchrow(TAGS_AND_METADATA, job_id)
    return {"tags": row["tags"], "metadata": row["metadata"] and json.loads(row["metadata"])}


async def found(app: Tickwright, **which: Any) -> list[int]:
    """Return the ids on the first page."""
    return [job.id for job in (await app.service.list(ListQuery(**which))).items]


@pytest.mark.parametrize("given", [BOTH, {"tags": TAGS}, {"metadata": METADATA}, {"metadata": {}}, {}])
@pytest.mark.parametrize("key", [None, "k"])
async def test_a_call_stores_what_it_says(app: Tickwright, given: dict[str, Any], key: str | None) -> None:
    """Tags in their order, metadata as JSON; what is not given is NULL, so that the row does not grow."""
    made = await app.schedule("mail", at=DUE, key=key, **given)
    async with app.pool.acquire() as connection:
        assert await stored(connection, made.id) == {"tags": None, "metadata": None} | given
    job = await app.get(made.id)
    assert (job.tags, job.metadata, job.version) == (given.get("tags", []), given.get("metadata"), 1)


async def test_every_way_in_of_a_program_stores_them(app: Tickwright, database_url: str) -> None:
    """Typed calls, in bulk, by COPY, and on the connection of a synchronous program."""
    many = [
        app.new_job("mail", at=DUE, tags=["one"]),
        app.new_job("mail", at=DUE),
        app.new_job("mail", key="k", **BOTH),
    ]
    ids = [made.id for made in await app.schedule_many(many)]
    async with app.pool.acquire() as connection:
        rows = [await stored(connection, job_id) for job_id in ids]
        assert rows == [{"tags": ["one"], "metadata": None}, {"tags": None, "metadata": None}, BOTH]
    with psycopg.connect(database_url) as sync:
        job_id = app.schedule_sync("mail", connection=sync, at=DUE, **BOTH).id
    async with app.pool.acquire() as connection:
        assert await stored(connection, job_id) == BOTH


async def test_typed_calls_have_the_options(database_url: str) -> None:
    """The options of a typed call, which another call of ``options`` keeps."""
    app = Tickwright(database_url)

    @app.job("mail")
    async def mail(_job: Job, to: str) -> None: ...

    async with app:
        tagged = mail.options(at=DUE, tags=TAGS).options(metadata=METADATA)
        made = [await tagged.schedule(to="ann"), *await tagged.schedule_many([{"to": "bob"}])]
        async with app.pool.acquire() as connection:
            assert [await stored(connection, one.id) for one in made] == [BOTH, BOTH]


async def test_a_copy_goes_on_with_more_columns_from_the_first_job_that_needs_them(
    app: Tickwright, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs that alternate do not end a COPY each: two, of which the first has the columns of plain jobs."""
    columns = []
    some = enqueue._CopyRows.some

    def counted(rows: Any, rows_max: int) -> Any:
        columns.append(rows.columns)
        return some(rows, rows_max)

    monkeypatch.setattr(enqueue._CopyRows, "some", counted)
    jobs = [app.new_job("mail", n, at=DUE, **(BOTH if n % 2 else {})) for n in range(40)]
    assert await app.schedule_bulk(jobs) == 40
    assert columns == [enqueue.COPY_COLUMNS, (*enqueue.COPY_COLUMNS, *enqueue.DETAIL_COLUMNS)]
    async with app.pool.acquire() as connection:
        rows = await connection.fetch("SELECT payload::text::int AS n, tags, metadata FROM tickwright.scheduled_tasks")
    assert [row["tags"] for row in sorted(rows, key=lambda row: row["n"])] == [None, TAGS] * 20


async def test_batches_without_them_use_the_statements_of_plain_jobs(
    app: Tickwright, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job without tags and metadata costs nothing for them."""
    used = []
    variant = enqueue._variant

    def counted(name: str, pairs: Any) -> Any:
        used.append(variant(name, pairs)[0])
        return variant(name, pairs)

    monkeypatch.setattr(enqueue, "_variant", counted)
    await app.schedule_many([app.new_job("mail", at=DUE), app.new_job("mail", at=DUE, key="k")])
    await app.schedule_many([app.new_job("mail", at=DUE), app.new_job("mail", at=DUE, tags=["a"])])
    assert used == ["insert_plain", "insert_keyed", "insert_plain_detailed"]


async def test_a_refused_neighbour_leaves_the_tags_of_the_others(app: Tickwright) -> None:
    """Where one job stops the statement, the others are inserted one by one, with theirs."""
    enqueuer = enqueue.Enqueuer(app.pool)
    for key in ("k", None):
        good = NewJob("mail", "{}", DUE, key, b"1" if key else None, tags=("eu",), metadata='{"a": 1}')
        bad = NewJob("mail", '"\\u0000"', DUE, key and "other")
        lock_timeout = "1s" if key else None
        made, refused = await enqueuer._write(
            await app.pool.acquire(), [(good, 3), (bad, 3)], lock_timeout=lock_timeout
        )
        assert isinstance(refused, asyncpg.DataError)
        async with app.pool.acquire() as connection:
            assert await stored(connection, made.id) == {"tags": ["eu"], "metadata": {"a": 1}}


def test_the_digest_of_a_job_without_them_is_that_of_earlier_releases() -> None:
    """A key that an earlier release stored stays the key of the same request."""
    job = NewJob("mail", '{"b": 1, "a": 2}', DUE, "k")
    assert with_digest(job).digest == digest_of("mail", b'{"a":2,"b":1}', DUE, None, 0, None, None, None)


async def test_a_key_belongs_to_a_request_with_its_tags_and_metadata(app: Tickwright) -> None:
    """Their order does not matter; other ones are another request."""
    first = await app.schedule("mail", at=DUE, key="k", tags=["a", "b"], metadata={"x": 1, "y": 2})
    same = await app.schedule("mail", at=DUE, key="k", tags=["b", "a"], metadata={"y": 2, "x": 1})
    assert (same.id, same.created) == (first.id, False)
    others: tuple[dict[str, Any], ...] = ({}, {"tags": ["a", "b"]}, {"tags": ["a"], "metadata": {"x": 1, "y": 2}})
    for other in others:
        with pytest.raises(Contended, match="asked for differently"):
            await app.schedule("mail", at=DUE, key="k", **other)


BAD = [
    ({"tags": ["a", "a"]}, "invalid_tags"),
    ({"tags": [""]}, "invalid_tags"),
    ({"tags": ["x" * 101]}, "invalid_tags"),
    ({"tags": [str(n) for n in range(21)]}, "invalid_tags"),
    ({"tags": ["a\0b"]}, "invalid_tags"),
    ({"metadata": {"a": "x" * 16_384}}, "metadata_too_large"),
    ({"metadata": {str(n): 1e300 for n in range(120)}}, "metadata_too_large"),
]
BAD_IDS = ["twice", "empty", "long", "many", "NUL", "large", "exponents"]


@pytest.mark.parametrize(("given", "code"), BAD, ids=BAD_IDS)
async def test_what_is_out_of_bounds_is_refused_with_a_code(app: Tickwright, given: dict[str, Any], code: str) -> None:
    """In each call of Python, before a statement."""
    for call in (app.schedule("mail", at=DUE, **given), app.schedule("mail", at=DUE, key="k", **given)):
        with pytest.raises(Rejected) as refused:
            await call
        assert refused.value.code == code


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"tags": "nightly"}, "invalid_tags"), ({"tags": [1]}, "invalid_tags"),
        ({"metadata": ["a"]}, "invalid_metadata"),
        ({"metadata": {"a": {1, 2}}}, "invalid_metadata"), ({"metadata": {"a": float("nan")}}, "non_finite_number"),
    ],
)  # fmt: skip
async def test_values_of_the_wrong_type_are_refused(app: Tickwright, given: dict[str, Any], code: str) -> None:
    """A text is no list of tags; metadata has the JSON of payloads."""
    with pytest.raises(Rejected) as refused:
        await app.schedule("mail", at=DUE, **given)
    assert (refused.value.code, refused.value.details["field"]) == (code, next(iter(given)))


@pytest.mark.parametrize(("given", "code"), BAD, ids=BAD_IDS)
async def test_the_api_refuses_the_same(api: RunningApi, given: dict[str, Any], code: str) -> None:
    """For a job, for a line of an import, and for an edit; of NUL, which no body may have, where the body is read."""
    status = 413 if code == "metadata_too_large" else 422
    if "\0" in str(given.get("tags", [""])[0]):
        status, code = 400, "unsupported_character"
    body = {"task_type": "noop", "execute_at": "2030-01-31T09:00:00Z", **given}
    (await api.operator.post("/v1/jobs", body)).says(status, code)
    lines = json.dumps(body).encode() + b"\n" + json.dumps({"task_type": "noop", "delay": "1h", "tags": ["a"]}).encode()
    done = (await api.operator.post("/v1/jobs:bulk", lines, headers={"content-type": "application/x-ndjson"})).json
    assert (done["created"], [reject["code"] for reject in done["rejects"]]) == (1, [code])
    job = await insert(api.pool, "noop", at=LATER)
    edited = await api.operator.send("PATCH", f"/v1/jobs/{job}", given)
    edited.says(status, code)


@pytest.mark.parametrize(
    ("given", "status", "code"),
    [
        ({"tags": "a"}, 422, "invalid_value"), ({"tags": [None]}, 422, "invalid_value"),
        ({"metadata": [1]}, 422, "invalid_metadata"), ({"metadata": "a"}, 422, "invalid_metadata"),
        ({"edits": 3}, 400, "unknown_field"),
    ],
)  # fmt: skip
async def test_the_api_refuses_other_types(api: RunningApi, given: dict[str, Any], status: int, code: str) -> None:
    """With a problem that names the field."""
    (await api.operator.post("/v1/jobs", {"task_type": "noop", **given})).says(status, code)


@pytest.mark.parametrize("null", [False, True])
async def test_the_api_stores_and_shows_them(api: RunningApi, *, null: bool) -> None:
    """A list shows tags and the version; one job also shows its metadata. ``null`` is no metadata."""
    body = {"task_type": "noop", "execute_at": "2030-01-31T09:00:00Z", "tags": TAGS}
    made = (await api.operator.post("/v1/jobs", {**body, "metadata": None if null else METADATA})).json["id"]
    job = (await api.operator.get(f"/v1/jobs/{made}")).json
    assert (job["tags"], job["metadata"], job["version"]) == (TAGS, None if null else METADATA, 1)
    (listed,) = (await api.operator.get("/v1/jobs?tag=eu&tag=nightly")).json["items"]
    assert (listed["tags"], listed["version"], "metadata" in listed) == (TAGS, 1, False)


COLUMNS = [
    ("tags", "'{a,a}'"), ("tags", "'{}'"), ("tags", "ARRAY[NULL]::text[]"), ("tags", "ARRAY['']"),
    ("tags", "ARRAY[repeat('x', 101)]"), ("tags", "'{{a,b},{c,d}}'"),
    ("tags", "(SELECT array_agg(n::text) FROM generate_series(1, 21) AS n)"),
    ("metadata", "'[]'"), ("metadata", "'null'"), ("metadata", "jsonb_build_object('a', repeat('x', 40000))"),
    ("metadata", """'{"a": 1e131071}'"""), ("new", "3"),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "value"), COLUMNS)
async def test_plain_sql_is_refused_by_a_named_rule(app: Tickwright, rule: str, value: str) -> None:
    """At the insert and at the update, with a hint; only Tickwright counts edits."""
    column = "edits" if rule == "new" else rule
    async with app.pool.acquire() as connection:
        job = await insert(connection, "mail", at=LATER)
        statements = [
            f"INSERT INTO tickwright.scheduled_tasks (execute_at, task_type, {column}) VALUES (now(), 'mail', {value})"
        ]
        if rule != "new":
            statements.append(f"UPDATE tickwright.scheduled_tasks SET {column} = {value} WHERE id = {job}")
        for statement in statements:
            with pytest.raises(asyncpg.CheckViolationError) as refused:
                await connection.execute(statement)
            assert refused.value.constraint_name == f"scheduled_tasks_{rule}"
            assert refused.value.hint


async def test_a_program_edits_a_job(app: Tickwright) -> None:
    """By its id or its handle, with values of Python; ``None`` and an empty list remove tags and metadata."""
    made = await app.schedule("mail", at=DUE, **BOTH)
    done = await app.edit(made.id, version=1, payload={"to": "bob"}, metadata={"at": DUE})
    assert (done.outcome, done.version) == ("edited", 2)
    job = await made.get()
    assert (job.payload, job.metadata, job.tags) == ({"to": "bob"}, {"at": "2031-05-01T09:00:00Z"}, TAGS)
    assert (await made.edit(tags=None, metadata=None)).version == 3
    job = await made.get()
    assert (job.payload, job.metadata, job.tags) == ({"to": "bob"}, None, [])
    bad: list[tuple[dict[str, Any], str]] = [
        ({"tags": "a"}, "invalid_tags"), ({"metadata": [1]}, "invalid_metadata"),
        ({"payload": {1, 2}}, "invalid_payload"), ({}, "empty_edit"),
        ({"version": 1, "priority": 1}, "version_conflict"),
    ]  # fmt: skip
    for given, code in bad:
        with pytest.raises(Rejected) as refused:
            await made.edit(**given)
        assert refused.value.code == code


async def test_a_handler_sees_its_tags_and_metadata(database_url: str) -> None:
    """Those of its own job; other jobs have none. A finished job keeps them."""

    async def mail(job: Job) -> Any:
        return [job.tags, job.metadata]

    async with running_engine(database_url, {"mail": mail}) as engine:
        columns = {"tags": TAGS, "metadata": json.dumps(METADATA)}
        made = [await engine.insert("mail", **given) for given in (columns, {}, {"tags": ["x"]})]
        rows = [await engine.until(job_id, "completed") for job_id in made]
        assert [json.loads(row["result"]) for row in rows] == [[TAGS, METADATA], [[], {}], [["x"], {}]]
        assert await stored(engine.pool, made[0]) == BOTH


ENDS = {
    "cancelled": "UPDATE tickwright.scheduled_tasks SET status = 'cancelled' WHERE id = $1",
    "completed": "UPDATE tickwright.scheduled_tasks SET status = 'completed' WHERE id = $1",
    "failed": "UPDATE tickwright.scheduled_tasks SET status = 'failed' WHERE id = $1",
}


async def test_finished_jobs_are_found_by_them_too(app: Tickwright) -> None:
    """In the history and among dead letters, beside live ones; counts are exact where the index has few."""
    made = {status: (await app.schedule("mail", at=DUE, **BOTH)).id for status in ("pending", *ENDS)}
    await app.schedule("mail", at=DUE, tags=["eu"])
    for status, sql in ENDS.items():
        async with app.pool.acquire() as connection:
            await connection.execute(sql, made[status])
    newest = sorted(made.values(), reverse=True)
    for which in ({"tags": ("nightly",)}, {"tags": ("nightly", "eu")}, {"metadata": ("tenant=a", "n=5")}):
        assert await found(app, **which) == newest, which
        counted = await app.service.count(JobFilter(**which))
        assert counted.counts == {"processing": 0, **dict.fromkeys(made, 1)}
        assert counted.at_least == []
    assert await found(app, tags=("nightly", "us")) == []
    for status, job_id in made.items():
        assert await found(app, tags=("nightly",), statuses=(status,)) == [job_id]
    revived = await app.service.dead_letters.requeue("job", caller=ADMIN, ids=[made["failed"]])
    assert revived.ids == [made["failed"]]
    job = await app.get(made["failed"])
    assert (job.tags, job.metadata, job.status) == (TAGS, METADATA, "pending")


@pytest.mark.parametrize(
    ("value", "text", "matches"),
    [
        ("a", "k=a", True), ("a", "k=b", False), (5, "k=5", True), ("5", "k=5", True), (5.5, "k=5.5", True),
        (True, "k=true", True), ("true", "k=true", True), (None, "k=null", True), (["a"], "k=a", False),
        ({"a": 1}, "k=a", False), ("x=y", "k=x=y", True), ('"; -- \\', 'k="; -- \\', True), ("é😀", "k=é😀", True),
        (1, "k=1e0", False), ("", "k=", True),
    ],
)  # fmt: skip
async def test_a_value_of_the_metadata_is_compared_as_a_text_or_the_scalar_that_it_spells(
    app: Tickwright, value: Any, text: str, *, matches: bool
) -> None:
    """Whole values of the first level; nothing in the filter is read as a path."""
    made = await app.schedule("mail", at=DUE, metadata={"k": value})
    await app.schedule("mail", at=DUE, metadata={"other": value})
    assert await found(app, metadata=(text,)) == ([made.id] if matches else [])


@pytest.mark.parametrize("text", ["", "k", "=v", "k=" + "x" * 400, "k=\0"])
def test_a_filter_without_key_and_value_is_refused(text: str) -> None:
    """With the form that it needs."""
    with pytest.raises(Rejected) as refused:
        metadata_path([text])
    assert refused.value.code == "invalid_metadata"


async def test_a_tag_of_very_many_jobs_is_searched_by_the_walk(
    app: Tickwright, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the index takes too long: pages, counts and bulk actions find the same jobs."""
    async with app.pool.acquire() as connection:
        await connection.execute(
            "INSERT INTO tickwright.scheduled_tasks (execute_at, task_type, tags) "
            f"SELECT {LATER}, 'mail', '{{all}}' FROM generate_series(1, 30)"
        )
    expected = await found(app, tags=("all",))
    assert len(expected) == 30
    monkeypatch.setattr(looking, "FEW_MAX", 10)
    assert await found(app, tags=("all",)) == expected
    assert (await app.service.count(JobFilter(tags=("all",)))).counts["pending"] == 30
    assert await app.service._search._detailed(JobFilter(tags=("all",)), [looking._LIVE]) is None
    monkeypatch.setattr(looking, "FEW_MAX", 1000)
    slow = "SELECT set_config('enable_seqscan', 'off', true), set_config('statement_timeout', '1ms', true), $1::text"
    monkeypatch.setitem(looking.SEARCHES, "bound_detailed", slow)
    monkeypatch.setitem(
        looking.SEARCHES,
        "detailed",
        "(SELECT 1 FROM pg_sleep(60), {source} t WHERE {has_tags} OR {has_metadata} OR $3 > 0)",
    )
    assert await found(app, tags=("all",)) == expected


async def test_a_day_without_the_index_is_searched_by_the_walk(app: Tickwright) -> None:
    """A table from before revision 0037: jobs in it are found, and counts say that there may be more."""
    made = [await app.schedule("mail", at=DUE, tags=["eu"]) for _ in range(2)]
    async with app.pool.acquire() as connection:
        await connection.execute(ENDS["completed"], made[0].id)
        day = await connection.fetchval(
            "SELECT tableoid::regclass::text FROM tickwright.scheduled_tasks WHERE id = $1", made[0].id
        )
        await connection.execute(f"DROP INDEX {day}_details")
    assert await found(app, tags=("eu",)) == [made[1].id, made[0].id]
    assert await found(app, tags=("us",)) == []
    assert (await app.service.count(JobFilter(tags=("eu",)))).at_least == ["cancelled", "completed"]


async def test_bulk_actions_take_tags_and_metadata(api: RunningApi) -> None:
    """A filter of them alone is no empty filter, and leaves others as they are."""
    kept = await insert(api.pool, "noop", at=LATER, tags=["eu"])
    gone = await insert(api.pool, "noop", at=LATER, tags=["eu", "old"], metadata='{"tenant": "a"}')
    body = {"tag": ["old"], "metadata": ["tenant=a"]}
    assert (await api.operator.post("/v1/jobs:cancel", {**body, "dry_run": True})).json["changed"] == 1
    assert (await api.operator.post("/v1/jobs:cancel", body)).json["ids"] == [gone]
    assert (await job_row(api.pool, kept))["status"] == "pending"
    failed = await insert(api.pool, "noop", at=LATER, tags=["bad"])
    await api.pool.execute(ENDS["failed"], failed)
    assert (await api.operator.post("/v1/jobs:retry", {"tag": ["bad"]})).json["ids"] == [failed]
    assert (await api.operator.get("/v1/jobs:counts?tag=bad")).json["counts"]["pending"] == 1
    (await api.operator.post("/v1/jobs:cancel", {"tag": [], "metadata": []})).says(422, "empty_filter")


async def test_a_viewer_sees_tags_and_no_metadata(database_url: str) -> None:
    """Metadata is data of users, as payloads are: a filter by it would let a viewer guess it."""
    async with running_api(database_url, payloads_from=Role.OPERATOR) as api:
        made = await insert(api.pool, "noop", at=LATER, tags=["eu"], metadata='{"tenant": "secret"}')
        job = (await api.viewer.get(f"/v1/jobs/{made}")).json
        assert (job["tags"], job["metadata"], job["payload_hidden"]) == (["eu"], None, True)
        assert [one["id"] for one in (await api.viewer.get("/v1/jobs?tag=eu")).json["items"]] == [made]
        for path in ("/v1/jobs", "/v1/jobs:counts"):
            (await api.viewer.get(f"{path}?metadata=tenant%3Dsecret")).says(403, "payload_hidden")
        assert len((await api.operator.get("/v1/jobs?metadata=tenant%3Dsecret")).json["items"]) == 1
