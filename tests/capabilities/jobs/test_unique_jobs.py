"""Unique jobs: for how long they hold their arguments, what an equal request does, and every way in."""

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import psycopg
import pytest

from kit.api import RunningApi, running_api
from kit.engine import policy, running_engine
from kit.waiting import eventually_async
from tickwright import Fail, Job, Rejected, Tickwright, Unique
from tickwright.capabilities.jobs import retention
from tickwright.capabilities.jobs.admin.search import JobFilter

LIVE = "SELECT count(*) FROM ONLY tickwright.scheduled_tasks"
PLAIN = "SELECT * FROM tickwright.schedule_unique($1, $2, $3)"
PAST = """
WITH passed AS (UPDATE tickwright.job_uniques SET held_from = held_from - $1::interval, until = until - $1::interval)
UPDATE tickwright.job_unique_ends SET until = until - $1::interval
"""
DUE = datetime(2031, 5, 1, 9, tzinfo=UTC)
BY = Unique(by=("customer",))
ONE = {"customer": 1}
HELD = "UPDATE tickwright.scheduled_tasks SET status = 'processing', owner = 1, fence = 1, attempts = 1 WHERE id = $1"


def program(url: str, **options: Any) -> Tickwright:
    """Return an app with one handler."""
    app = Tickwright(url)

    async def sync(job: Job, customer: int = 0, n: Any = None) -> None: ...

    app.job("sync", **options)(sync)
    return app


@pytest.fixture
async def app(database_url: str) -> AsyncIterator[Tickwright]:
    """An open app on a fresh database."""
    async with program(database_url) as app:
        yield app


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[RunningApi]:
    """A running API with the task type."""
    async with program(database_url), running_api(database_url) as running:
        yield running


async def outcome(app: Tickwright, unique: Unique, payload: Any = ONE, **options: Any) -> str:
    """Schedule a unique job; return what happened."""
    return (await app.schedule("sync", payload, unique=unique, **options)).outcome


async def test_an_equal_job_is_kept_and_another_one_inserted(app: Tickwright) -> None:
    """The answer says what happened, and to which job."""
    first = await app.schedule("sync", ONE, unique=BY)
    second = await app.schedule("sync", {"customer": 1, "n": 2}, unique=BY)
    other = await app.schedule("sync", {"customer": 2}, unique=BY)
    assert (first.outcome, second.outcome, other.outcome) == ("inserted", "existing", "inserted")
    assert (second.id, second.created, second.status, second.replaced) == (first.id, False, "pending", ())
    assert await app.pool.fetchval(LIVE) == 2
    assert (await app.get(first.id)).payload == ONE


async def test_a_job_without_a_rule_meets_no_unique_one(app: Tickwright) -> None:
    """A plain job is inserted by the statement of before, and holds nothing."""
    await app.schedule("sync", ONE)
    assert await outcome(app, BY) == "inserted"
    assert (await app.schedule("sync", ONE)).created
    assert await app.pool.fetchval("SELECT count(*) FROM tickwright.job_uniques") == 1


async def test_an_equal_job_replaces_what_the_rule_says(app: Tickwright) -> None:
    """Payload, time (with the expiry, without a back-off) and priority, each alone; the version rises."""
    first = await app.schedule("sync", ONE, unique=BY, at=DUE, priority=1)
    await app.pool.execute("UPDATE tickwright.scheduled_tasks SET retry_at = now() + interval '1 day'")
    later, end = DUE + timedelta(hours=1), DUE + timedelta(hours=2)
    for parts in (["payload"], ["time"], ["priority"]):
        rule = Unique(by=("customer",), on_conflict=parts)
        again = await app.schedule("sync", {"customer": 1, "n": 1}, unique=rule, at=later, expires_at=end, priority=9)
        assert (again.id, again.outcome, again.replaced) == (first.id, "replaced", tuple(parts))
        job = await app.get(first.id)
        assert (job.payload == {"customer": 1, "n": 1}) is True
        assert (job.execute_at == later, job.expires_at == end, job.retry_at is None) == (("time" in parts),) * 3 or (
            "priority" in parts
        )
        assert job.priority == (9 if "priority" in parts else 1)
    assert (job.version, job.unique and job.unique.replaced) == (3, 3)
    explained = [reason.text for reason in (await app.explain(first.id)).reasons]
    assert "3 times an equal request replaced its payload, time, priority" not in explained  # its own rule keeps


async def test_a_running_job_is_never_changed(app: Tickwright) -> None:
    """Over processing the answer is that job; without it, an equal job is inserted beside it: debounce."""
    parts = ("payload", "time")
    first = await app.schedule("sync", ONE, unique=BY)
    await app.pool.execute(HELD, first.id)
    again = await app.schedule("sync", {"customer": 1, "n": 1}, unique=Unique(by=("customer",), on_conflict=parts))
    assert (again.id, again.outcome, again.status) == (first.id, "existing", "processing")
    assert (await app.get(first.id)).payload == ONE

    rule = Unique(by=("customer",), over=("pending",), on_conflict=parts)
    running = await app.schedule("sync", {"customer": 2}, unique=rule)
    await app.pool.execute(HELD, running.id)
    following = await app.schedule("sync", {"customer": 2}, unique=rule)
    assert following.created
    assert (await app.schedule("sync", {"customer": 2}, unique=rule)).id == following.id


async def test_a_job_that_is_pending_again_keeps_its_place_behind_a_new_one(app: Tickwright) -> None:
    """A retry, a release and a reclaim are no requests: the job stays, also where another one has its arguments now."""
    rule = Unique(by=("customer",), over=("pending",))
    first = await app.schedule("sync", ONE, unique=rule)
    await app.pool.execute(HELD, first.id)
    second = await app.schedule("sync", ONE, unique=rule)
    await app.pool.execute("UPDATE tickwright.scheduled_tasks SET status = 'pending' WHERE id = $1", first.id)
    assert await app.pool.fetchval(LIVE) == 2
    assert (await app.schedule("sync", ONE, unique=rule)).id == second.id
    reasons = {reason.code: reason.text for reason in (await app.explain(first.id)).reasons}
    assert reasons["unique_passed_on"].endswith(f"job {second.id} has its arguments by now")


async def test_a_period_counts_from_the_insertion(app: Tickwright) -> None:
    """A sliding window: up to its end the job is kept, afterwards a new one is inserted, whose window begins then."""
    rule = Unique(by=("customer",), period="15m")
    first = await app.schedule("sync", ONE, unique=rule)
    await app.pool.execute(PAST, timedelta(minutes=14, seconds=30))
    assert await outcome(app, rule) == "existing"
    await app.pool.execute(PAST, timedelta(seconds=30))
    second = await app.schedule("sync", ONE, unique=rule)
    assert second.created
    await app.pool.execute(PAST, timedelta(minutes=14))
    assert (await app.schedule("sync", ONE, unique=rule)).id == second.id
    assert (await app.get(first.id)).status == "pending"


@pytest.mark.parametrize("keep_history", [True, False])
@pytest.mark.parametrize("ends", ["completed", "failed", "cancelled"])
@pytest.mark.parametrize("holds", [True, False])
async def test_an_ended_job_holds_its_arguments_over_the_states_of_its_rule(
    database_url: str, ends: str, holds: bool, keep_history: bool
) -> None:
    """Throttle: by whatever the job ends, and whether or not its type keeps a history, up to the end of the period."""

    async def handler(job: Job) -> None:
        if ends == "failed":
            raise Fail("no")

    over = ("pending", "processing", *({"completed", "failed", "cancelled"} - {ends}), *([ends] if holds else []))
    rule = Unique(by=("customer",), period="1h", over=over)
    async with program(database_url, keep_history=keep_history) as app:
        first = await app.schedule("sync", ONE, unique=rule, delay="1h" if ends == "cancelled" else None)
        if ends == "cancelled":
            await app.cancel(first.id)
        else:
            kinds = {"sync": policy("sync", keep_history=keep_history)}
            async with running_engine(database_url, {"sync": handler}, kinds=kinds) as engine:
                await eventually_async(lambda: _is_gone(engine.pool, first.id), what="its end")
        again = await app.schedule("sync", ONE, unique=rule)
        assert (again.outcome, again.status) == (("existing", ends) if holds else ("inserted", None))
        await app.pool.execute(PAST, timedelta(hours=1))
        assert await outcome(app, rule) == "inserted"


async def _is_gone(pool: Any, job_id: int) -> bool:
    return not await pool.fetchval(f"{LIVE} WHERE id = $1", job_id)


async def test_without_a_period_an_ended_job_holds_for_seven_days(app: Tickwright) -> None:
    """As long as an idempotency key; retention then deletes what is left of it."""
    rule = Unique(by=("customer",), over=("pending", "cancelled"))
    first = await app.schedule("sync", ONE, unique=rule)
    await app.cancel(first.id)
    await app.pool.execute(PAST, timedelta(days=6, hours=23))
    assert await outcome(app, rule) == "existing"
    await _forget(app, ends=0, uniques=0)
    await app.pool.execute(PAST, timedelta(hours=2))
    await _forget(app, ends=1, uniques=1)
    assert await outcome(app, rule) == "inserted"
    await app.pool.execute(PAST, timedelta(days=30))
    await _forget(app, ends=0, uniques=0)


async def _forget(app: Tickwright, **deleted: int) -> None:
    assert await app.pool.execute(retention.SQL["delete_unique_ends"], timedelta(), 100) == f"DELETE {deleted['ends']}"
    kept = retention.UNIQUES_KEPT
    assert await app.pool.execute(retention.SQL["delete_uniques"], kept, 100) == f"DELETE {deleted['uniques']}"


async def test_a_job_that_its_user_deletes_holds_nothing(app: Tickwright) -> None:
    """By plain SQL, while it waits: whatever its rule is."""
    rule = Unique(by=("customer",), over=("pending", "completed", "cancelled"))
    await app.schedule("sync", ONE, unique=rule)
    await app.pool.execute("DELETE FROM tickwright.scheduled_tasks")
    assert await outcome(app, rule) == "inserted"


async def test_a_dead_letter_is_retried_unless_another_job_holds_its_arguments(app: Tickwright) -> None:
    """A single retry is 409 unique_held; a bulk one lists it and retries the others; of two equal ones, one."""
    dead = [await _dead(app) for _ in range(2)]
    alone = await _dead(app, {"customer": 2})
    holder = await app.schedule("sync", ONE, unique=BY)
    with pytest.raises(Rejected) as refused:
        await app.retry(dead[0])
    assert (refused.value.code, refused.value.http_status) == ("unique_held", 409)
    await app.pool.execute("DELETE FROM ONLY tickwright.scheduled_tasks WHERE id = $1", holder.id)
    many = await app.service.dead_letters.requeue("job", caller=_caller(), subject="sync")
    assert (many.ids, many.unique_held) == ([dead[0], alone], [dead[1]])
    assert (await app.schedule("sync", ONE, unique=BY)).id == dead[0]
    many = await app.service.dead_letters.requeue("job", caller=_caller(), ids=[dead[1]])
    assert (many.ids, many.unique_held) == ([], [dead[1]])


async def test_a_retried_job_holds_by_the_state_that_it_ends_in_then(app: Tickwright) -> None:
    """A dead letter that held its arguments as failed is pending again; after a cancel it holds none."""
    rule = Unique(by=("customer",), over=("pending", "failed"))
    dead = await _dead(app, rule=rule)
    assert (await app.schedule("sync", ONE, unique=rule)).status == "failed"
    await app.retry(dead)
    assert (await app.schedule("sync", ONE, unique=rule)).status == "pending"
    await app.cancel(dead)
    assert await outcome(app, rule) == "inserted"


def _caller() -> Any:
    from tickwright.app.scheduling import CALLER

    return CALLER


async def _dead(app: Tickwright, payload: Any = ONE, rule: Unique = BY) -> int:
    made = await app.schedule("sync", payload, unique=rule)
    assert made.created
    await app.pool.execute("UPDATE tickwright.scheduled_tasks SET status = 'failed' WHERE id = $1", made.id)
    return made.id


async def test_one_call_with_equal_jobs_inserts_one(app: Tickwright) -> None:
    """In bulk there is an answer for each, in order; the last one of equal ones is what is left."""
    rule = Unique(by=("customer",), on_conflict=("payload",))
    jobs = [app.new_job("sync", {"customer": n % 3, "n": n}, unique=rule) for n in range(7)]
    made = await app.schedule_many([*jobs, app.new_job("sync"), app.new_job("sync", key="k")])
    assert [one.outcome for one in made] == ["inserted"] * 3 + ["replaced"] * 4 + ["inserted"] * 2
    assert made[6].id == made[0].id
    assert (await app.get(made[0].id)).payload == {"customer": 0, "n": 6}


async def test_a_caller_s_transaction_decides(app: Tickwright, database_url: str) -> None:
    """What is inserted or replaced in it is rolled back with it; another caller then inserts."""
    async with app.pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        assert (await app.schedule("sync", ONE, unique=BY, connection=connection)).created
        assert not (await app.schedule("sync", ONE, unique=BY, connection=connection)).created
        await transaction.rollback()
    assert await outcome(app, BY) == "inserted"
    with psycopg.connect(database_url) as connection:
        assert app.schedule_sync("sync", ONE, unique=BY, connection=connection).outcome == "existing"


async def test_an_idempotency_key_comes_first(app: Tickwright) -> None:
    """Its job is the answer, whatever is unique; a request that another job answered leaves its key free."""
    first = await app.schedule("sync", ONE, key="k", unique=BY)
    assert (await app.schedule("sync", ONE, key="k", unique=BY)).id == first.id
    assert (await app.schedule("sync", ONE, key="other", unique=BY)).status == "pending"
    await app.cancel(first.id)
    again = await app.schedule("sync", ONE, key="k", unique=BY)
    assert (again.id, again.created, again.status) == (first.id, False, None)
    assert (await app.schedule("sync", ONE, key="other", unique=BY)).created


async def test_a_declared_rule_holds_for_every_way_in(database_url: str) -> None:
    """Typed calls, calls by name, in bulk, REST; one call can have another rule, or none. COPY refuses."""
    async with (
        program(database_url, unique=Unique(by=("customer",), period="1h")) as app,
        running_api(database_url) as api,
    ):
        first = await app.schedule("sync", ONE)
        assert first.created
        assert (await app.schedule("sync", ONE)).outcome == "existing"
        sent = await api.admin.send("POST", "/v1/jobs", {"task_type": "sync", "payload": ONE})
        assert (sent.status, sent.json["id"], sent.json["outcome"]) == (200, first.id, "existing")
        assert (await app.schedule("sync", ONE, unique=False)).created
        assert (await app.schedule("sync", ONE, unique=Unique(by=("customer", "n")))).created
        with pytest.raises(Rejected) as refused:
            await app.schedule_bulk([app.new_job("sync", ONE)])
        assert refused.value.code == "unique_in_bulk"
        plain = await app.pool.fetchrow("SELECT * FROM tickwright.schedule_unique('sync', '{\"customer\": 1.0}')")
        assert (plain["job_id"], plain["outcome"]) == (first.id, "existing")
        shown = (await app.service.types.get("sync")).unique
        assert shown is not None
        assert (shown.by, shown.period, shown.on_conflict) == (["customer"], "1h", "keep")


def test_a_typed_call_has_the_rule_of_its_handler(database_url: str) -> None:
    """A name that is no parameter is refused where it is declared, and where it is chosen for a call."""
    app = Tickwright(database_url)

    async def sync(job: Job, customer: int, n: int = 0) -> None: ...

    with pytest.raises(Rejected, match="no argument 'custmer'") as refused:
        app.job("other", unique=Unique(by=("custmer",)))(sync)
    assert refused.value.code == "invalid_unique"
    typed = app.job("sync", unique={"by": ["customer"], "period": "15m"})(sync)
    assert typed.handler.defaults.unique == Unique(by=("customer",), period="15m")
    with pytest.raises(Rejected, match=r"no argument 'm\.x'"):
        typed.options(unique=Unique(by=("m.x",)))
    assert typed.options(unique=False).call(1).unique is False


async def test_rest_schedules_unique_jobs_one_by_one_and_in_bulk(api: RunningApi) -> None:
    """The answer has the outcome; a bulk import counts kept and replaced ones as existing."""
    body = {"task_type": "sync", "payload": ONE, "unique": {"by": ["customer"], "on_conflict": ["payload"]}}
    first = await api.admin.send("POST", "/v1/jobs", body)
    assert (first.status, first.json["outcome"]) == (201, "inserted")
    again = await api.admin.send("POST", "/v1/jobs", {**body, "payload": {"customer": 1, "n": 2}})
    assert again.status == 200
    assert again.json == {
        "id": first.json["id"], "created": False, "outcome": "replaced", "replaced": ["payload"], "status": "pending",
    }  # fmt: skip
    lines = [{**body, "payload": {"customer": n % 5}} for n in range(20)] + [{"task_type": "sync"}] * 3
    sent = await api.admin.bulk("\n".join(map(json.dumps, lines)).encode())
    assert (sent.json["created"], sent.json["existing"], sent.json["rejected"]) == (4 + 3, 16, 0)
    shown = await api.admin.send("GET", f"/v1/jobs/{first.json['id']}")
    assert (shown.json["unique"]["by"], shown.json["unique"]["replaced"]) == (["customer"], 5)
    explained = await api.admin.send("GET", f"/v1/jobs/{first.json['id']}/explain")
    assert "5 times an equal request replaced its payload" in [one["text"] for one in explained.json["reasons"]]


BAD: list[tuple[Any, str]] = [
    ({"by": ["a"] * 2}, "different names"),
    ({"by": "a" * 201}, "at most 20"),
    ({"by": [""]}, "at most 20"),
    ({"by": ["a..b"]}, "at most 20"),
    ({"by": [f"a{n}" for n in range(21)]}, "at most 20"),
    ({"by": 5}, "list"),
    ({"period": "0s"}, "1s to 366 days"),
    ({"period": "367d"}, "1s to 366 days"),
    ({"period": 5}, "unit"),
    ({"period": "soon"}, "period"),
    ({"over": []}, "at least one"),
    ({"over": ["done"]}, "'done' is unknown"),
    ({"on_conflict": "replace"}, "'replace' is unknown"),
    ({"on_conflict": ["tags"]}, "'tags' is unknown"),
    ({"for": "1h"}, "unknown part 'for'"),
    ([], "unique: write"),
    (True, "unique: write"),
]


@pytest.mark.parametrize(("rule", "text"), BAD)
async def test_a_wrong_rule_is_refused_with_a_stable_code(api: RunningApi, rule: Any, text: str) -> None:
    """By REST 422 invalid_unique, in each line of a bulk import too; in Python the same error."""
    body = {"task_type": "sync", "unique": rule}
    sent = await api.admin.send("POST", "/v1/jobs", body)
    assert (sent.status, sent.json["code"]) == (422, "invalid_unique")
    assert text in sent.json["detail"]
    if isinstance(rule, dict) and "for" not in rule:
        with pytest.raises(Rejected) as refused:
            Unique(**rule)
        assert refused.value.code == "invalid_unique"
    lines = await api.admin.bulk(json.dumps(body).encode())
    assert lines.json["rejects"][0]["code"] == "invalid_unique"


@pytest.mark.parametrize(("rule", "text"), [one for one in BAD if one[0] is not True])
async def test_plain_sql_refuses_a_wrong_rule(app: Tickwright, rule: Any, text: str) -> None:
    """As any job that breaks a rule: check_violation with the name scheduled_tasks_unique."""
    assert text
    with pytest.raises(asyncpg.CheckViolationError, match="job refused: unique") as refused:
        await app.pool.fetchrow(PLAIN, "sync", "{}", json.dumps(rule))
    assert refused.value.constraint_name == "scheduled_tasks_unique"


async def test_plain_sql_schedules_unique_jobs(app: Tickwright) -> None:
    """A function, by its own rule; it meets those of programs, and a caller's transaction decides."""
    rule = json.dumps({"by": ["customer"], "period": "15 minutes", "on_conflict": ["payload"]})
    first = await app.pool.fetchrow(PLAIN, "sync", '{"customer": 1}', rule)
    again = await app.pool.fetchrow(PLAIN, "sync", '{"customer": 1.0, "n": 2}', rule)
    assert (first["outcome"], again["outcome"], again["replaced"]) == ("inserted", "replaced", ["payload"])
    assert again["job_id"] == first["job_id"] == (await app.schedule("sync", ONE, unique=BY)).id
    with pytest.raises(asyncpg.CheckViolationError, match="has no rule"):
        await app.pool.fetchrow(PLAIN, "sync", "{}", None)


async def test_kept_jobs_say_how_often_and_are_counted(app: Tickwright) -> None:
    """In the job, in its explanation, and in the metric."""
    from tickwright.capabilities.jobs.enqueue import Enqueuer
    from tickwright.capabilities.jobs.metrics import enqueue_source

    first = await app.schedule("sync", ONE, unique=BY)
    for _ in range(3):
        await app.schedule("sync", ONE, unique=BY)
    job = await app.get(first.id)
    assert job.unique is not None
    assert (job.unique.kept, job.unique.holder_id) == (3, first.id)
    texts = [reason.text for reason in (await app.explain(first.id)).reasons]
    assert "3 times it was kept instead of inserting an equal one" in texts
    [sample] = enqueue_source([app._open.of(Enqueuer)])()
    assert (sample.labels, sample.value) == (("sync", "existing"), 3)


async def test_a_retried_job_keeps_its_rule(app: Tickwright) -> None:
    """Also in the history and among dead letters, where the drawer shows it."""
    dead = await _dead(app)
    shown = (await app.get(dead)).unique
    assert shown is not None
    assert (shown.by, shown.over, shown.holder_id) == (["customer"], ["pending", "processing"], dead)
    done = await app.service.many.retry(_retry())
    assert done.ids == [dead]


def _retry() -> Any:
    from tickwright.capabilities.jobs.admin.bulk_actions import BulkCall

    return BulkCall(JobFilter(task_type="sync"), _caller())


@pytest.mark.parametrize("rule", [True, "customer", 5, {"by": ["customer"], "for": "1h"}])
async def test_what_is_no_rule_is_refused_in_every_form_of_python(database_url: str, rule: Any) -> None:
    """A mapping of its fields is one, as where a type is declared."""
    app = Tickwright(database_url)

    @app.job("sync")
    async def sync(job: Job, customer: int) -> None: ...

    async with app:
        await check_forms(app, sync, rule)


async def check_forms(app: Tickwright, sync: Any, rule: Any) -> None:
    """Schedule by name and by the handler."""
    for schedule in (lambda: app.schedule("sync", ONE, unique=rule), lambda: sync.options(unique=rule).schedule(1)):
        with pytest.raises(Rejected) as refused:
            await schedule()
        assert refused.value.code == "invalid_unique"
    mapping: Any = {"by": ["customer"]}
    first = await app.schedule("sync", ONE, unique=mapping)
    again = await sync.options(unique=mapping).schedule(1)
    assert (first.outcome, again.outcome, again.id) == ("inserted", "existing", first.id)
    assert (await sync.options(unique=False).schedule(1)).outcome == "inserted"
