"""Encrypted task types: the ways in, what is stored, who reads it, and what a process without the key does."""

import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest
from standardwebhooks import Webhook

from kit.api import ADMIN
from kit.engine import insert, job_row, policy, running_engine
from kit.mutants import mutate
from kit.receivers import TARGETS, HttpReceiver
from kit.remote import ended, register, remote_site
from kit.waiting import eventually_async
from tickwright import Contended, Job, JobChunk, JobFailed, Rejected, Tickwright, Unavailable
from tickwright.capabilities.jobs.admin.search import EXPLAIN
from tickwright.capabilities.jobs.admin.views import explain
from tickwright.capabilities.jobs.model import TaskType
from tickwright.capabilities.jobs.requests import SEALED_BYTES_MAX, TaskTypeRequest
from tickwright.capabilities.jobs.worker.encryption import WorkerEncryption
from tickwright.capabilities.jobs.worker.result_writer import OutcomeRecorder
from tickwright.domain.envelopes import Purpose, read_envelope
from tickwright.engine.payload_keys import NO_KEYS, PayloadKeys
from tickwright.transports.http.broker import HttpBroker

SECRET = "4111-marker-1111"
CARD = {"card": SECRET}
OLD, NEW = ("2026-05", bytes(range(1, 33))), ("2026-11", bytes(range(32)))
KEYS = PayloadKeys([NEW])
DUE = datetime(2031, 5, 1, 9, tzinfo=UTC)
SIGNING = "whsec_" + "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
ADD_SECRET = "INSERT INTO tickwright.task_type_secrets (task_type, secret) VALUES ('call', $1)"
ROW = "SELECT payload::text AS payload, t::text AS whole FROM tickwright.scheduled_tasks t WHERE id = $1"


def program(url: str, keys: PayloadKeys = KEYS) -> Tickwright:
    """Return an app with an encrypted type, and one with chunks."""
    app = Tickwright(url, payload_keys=keys)

    @app.job("charge", encrypted=True)
    async def charge(job: Job, card: str, fails: bool = False) -> dict[str, Any]:
        await job.progress({"seen": card})
        if fails:
            raise ValueError(f"the card {card} is refused")
        return {"charged": card}

    @app.job("charge.many", encrypted=True, batch=10)
    async def charge_many(chunk: JobChunk[dict[str, str]]) -> None:
        for item in chunk:
            item.complete(item.value["card"])

    return app


@pytest.fixture
async def app(database_url: str) -> AsyncIterator[Tickwright]:
    """An open app with a key."""
    async with program(database_url) as app:
        yield app


async def plain_of(app: Tickwright, job_id: int, name: str = "charge") -> Any:
    """Return a job's payload in plain, after a check that its row has no plain part of it."""
    row = await app.pool.fetchrow(ROW, job_id)
    assert SECRET not in row["whole"]
    assert read_envelope(row["payload"]) is not None, row["payload"]
    return json.loads(KEYS.open(row["payload"], Purpose.PAYLOAD, name))


# ---------------------------------------------------------------------- in and out


async def test_a_handler_and_a_waiting_program_see_plain_text(app: Tickwright) -> None:
    """Payload, result and progress are stored as envelopes under the first key."""
    made = await app.schedule("charge", CARD)
    assert await plain_of(app, made.id) == CARD
    assert [job.outcome for job in (await app.drain()).jobs] == ["completed"]
    assert await made.result() == {"charged": SECRET}
    assert [value async for value in made.progress()] == [{"seen": SECRET}]
    await plain_of(app, made.id)
    seen = await app.get(made.id)
    assert all(set(value) == {"$encrypted"} for value in (seen.payload, seen.result, seen.progress))


async def test_every_way_in_of_a_program_encrypts(app: Tickwright, database_url: str) -> None:
    """In bulk, by COPY, keyed, in a transaction of asyncpg, and on the connection of a synchronous program."""
    new = app.new_job("charge", CARD, at=DUE)
    ids = [one.id for one in await app.schedule_many([new, app.new_job("charge", CARD, at=DUE, key="k", tags=["a"])])]
    assert await app.schedule_bulk([new, new]) == 2
    async with app.pool.acquire() as connection, connection.transaction():
        ids.append((await app.schedule("charge", CARD, at=DUE, connection=connection)).id)
    with psycopg.connect(database_url) as own:
        ids.append(program(database_url).schedule_sync("charge", CARD, at=DUE, connection=own).id)
        own.commit()
    ids += [row["id"] for row in await app.pool.fetch("SELECT id FROM tickwright.scheduled_tasks")]
    assert len(set(ids)) == 6
    assert [await plain_of(app, one) for one in ids] == [CARD] * len(ids)


async def test_chunks_get_plain_values(app: Tickwright) -> None:
    """Each job of a chunk is opened, and each result is sealed."""
    made = [await app.schedule("charge.many", CARD) for _ in range(3)]
    await app.drain()
    assert [await one.result() for one in made] == [SECRET] * 3
    assert await plain_of(app, made[0].id, "charge.many") == CARD


async def test_an_edit_encrypts_and_keeps_to_its_version(app: Tickwright) -> None:
    """An edited payload is sealed as a new one is; the audit trail has no text of it."""
    made = await app.schedule("charge", CARD, at=DUE)
    version = (await app.get(made.id)).version
    await made.edit(version=version, payload={"card": SECRET, "fails": True})
    assert await plain_of(app, made.id) == {"card": SECRET, "fails": True}
    with pytest.raises(Rejected, match="was changed since version"):
        await made.edit(version=version, payload=CARD)
    assert SECRET not in str(await app.pool.fetch("SELECT a::text FROM tickwright.audit a"))


async def test_a_key_finds_the_same_request_also_after_a_rotation(app: Tickwright, database_url: str) -> None:
    """Envelopes differ each time, so the digest is of the plain request, under a key that a rotation keeps."""
    made = await app.schedule("charge", CARD, key="once", at=DUE)
    assert await app.schedule("charge", CARD, key="once", at=DUE) == replace_created(made)
    with pytest.raises(Contended, match="asked for differently"):
        await app.schedule("charge", {"card": "other"}, key="once", at=DUE)
    async with program(database_url, PayloadKeys([("newer", OLD[1]), NEW])) as rotated:
        assert await rotated.schedule("charge", CARD, key="once", at=DUE) == replace_created(made)
        with pytest.raises(Contended, match="asked for differently"):
            await rotated.schedule("charge", {"card": "other"}, key="once", at=DUE)
    async with program(database_url, PayloadKeys([("newer", OLD[1])])) as dropped:
        assert (await dropped.schedule("charge", CARD, key="once", at=DUE)).id == made.id
    digest = await app.pool.fetchval("SELECT request_digest FROM tickwright.scheduled_tasks WHERE id = $1", made.id)
    job = app.new_job("charge", CARD, key="once", at=DUE)
    assert job.digest not in digest


def replace_created(made: Any) -> Any:
    """Return a handle as a repeated call has it."""
    return type(made)(made.id, False, app=made.app)


async def test_the_text_of_an_error_is_withheld(app: Tickwright) -> None:
    """It may quote the payload: code and class stay, in the row, in its attempts and for the waiting program."""
    made = await app.schedule("charge", {"card": SECRET, "fails": True}, max_attempts=1)
    await app.drain(raises=False)
    await plain_of(app, made.id)
    with pytest.raises(JobFailed, match=r"handler_error: ValueError \(the text is not stored") as caught:
        await made.result()
    assert SECRET not in str(caught.value)
    wrong = await app.schedule("charge", {"card": [SECRET]})
    await app.drain(raises=False)
    row = await job_row(app.pool, wrong.id)
    assert row["error_message"] == "payload_invalid (the text is not stored: the task type is encrypted)"


async def test_a_payload_is_bounded_so_that_its_envelope_fits(app: Tickwright) -> None:
    """48,000 bytes of JSON; more is refused with the bound."""
    fits = "x" * (SEALED_BYTES_MAX - 2)
    await app.schedule("charge.many", fits, at=DUE)
    with pytest.raises(Rejected, match="48000 bytes") as caught:
        await app.schedule("charge.many", fits + "x", at=DUE)
    assert caught.value.code == "payload_too_large"


# ---------------------------------------------------------------------- plain text and plain SQL


@pytest.mark.parametrize(
    "payload", [{}, CARD, {"$encrypted": SECRET}, {"$encrypted": {"v": 1, "key": "a", "data": "a b"}}]
)
async def test_plain_sql_cannot_store_plain_text(app: Tickwright, payload: Any) -> None:
    """The database refuses it, with what to do; an envelope is accepted."""
    with pytest.raises(asyncpg.CheckViolationError, match="no envelope"):
        await insert(app.pool, "charge", payload=payload)
    sealed = json.loads(KEYS.seal(json.dumps(CARD), Purpose.PAYLOAD, "charge"))
    job_id = await insert(app.pool, "charge", at="'2031-05-01Z'", payload=sealed)
    with pytest.raises(asyncpg.CheckViolationError, match="no envelope"):
        await app.pool.execute("UPDATE tickwright.scheduled_tasks SET payload = $2 WHERE id = $1", job_id, '{"a": 1}')
    assert await plain_of(app, job_id) == CARD


async def test_a_role_of_plain_sql_is_refused_in_the_same_way(app: Tickwright, app_role: Any) -> None:
    """The check reads the types although the role may not read them all."""
    with pytest.raises(psycopg.errors.CheckViolation, match="no envelope"), psycopg.connect(app_role.url) as own:
        own.execute(
            "INSERT INTO tickwright.scheduled_tasks (execute_at, task_type, payload) VALUES (now(), 'charge', '{}')"
        )


async def test_an_encrypted_type_stays_encrypted(app: Tickwright) -> None:
    """A replacement without the field keeps it; to switch it off is refused everywhere."""
    types = app.service.types
    stored = await types.put("charge", TaskTypeRequest(target="python:charge"), caller=ADMIN)
    assert stored.task_type.encrypted
    with pytest.raises(Rejected, match="stays encrypted") as caught:
        await types.put("charge", TaskTypeRequest(target="python:charge", encrypted=False), caller=ADMIN)
    assert (caught.value.code, caught.value.http_status) == ("encryption_stays", 409)
    with pytest.raises(asyncpg.CheckViolationError, match="stays encrypted"):
        await app.pool.execute("UPDATE tickwright.task_types SET encrypted = false")
    with pytest.raises(Rejected, match="only of a type that is encrypted"):
        await types.put("plain", TaskTypeRequest(target="python:plain", deliver="plain"), caller=ADMIN)


async def test_a_program_that_declares_a_known_type_as_encrypted_makes_it_so(database_url: str) -> None:
    """Whatever an operator has set up: waiting plain jobs run, its schedules are sealed, and new jobs are envelopes."""
    plain = Tickwright(database_url)

    @plain.job("charge")
    async def charge(job: Job, card: str) -> None: ...

    plain.periodic("nightly", charge, payload=CARD, cron="0 3 * * *")
    async with plain:
        waiting = await plain.schedule("charge", CARD)
        async with program(database_url) as app:
            text = await app.pool.fetchval("SELECT payload::text FROM tickwright.schedules")
            assert json.loads(KEYS.open(text, Purpose.PAYLOAD, "charge")) == CARD
            assert SECRET not in text
            async with plain.pool.acquire() as own, own.transaction():
                with pytest.raises(Unavailable, match="payload keys"):  # it reads the type again, and has no key
                    await plain.schedule("charge", CARD, connection=None)
            await app.drain()
            assert await app.result(waiting.id) == {"charged": SECRET}


async def test_a_process_that_knows_the_type_as_plain_encrypts_the_next_job(app: Tickwright) -> None:
    """Its view of the types is old; the database refuses the plain row, and the call succeeds nevertheless."""
    await app.service.types.put("late", TaskTypeRequest(target="python:charge"), caller=ADMIN)
    await app.schedule("late", {}, at=DUE)
    await app.pool.execute("UPDATE tickwright.task_types SET encrypted = true WHERE name = 'late'")
    made = await app.schedule("late", CARD, at=DUE)
    many = await app.schedule_many([app.new_job("late", CARD, at=DUE)])
    assert [await plain_of(app, one.id, "late") for one in (made, *many)] == [CARD, CARD]


async def test_schedules_of_an_encrypted_type_keep_envelopes(app: Tickwright) -> None:
    """Their jobs get the same envelope; the same definition again changes nothing; a new type needs a new payload."""
    from tickwright.capabilities.jobs.schedules.definition import ScheduleChange, ScheduleRequest

    wanted = ScheduleRequest(task_type="charge", payload=CARD, every="1h")
    first = await app.schedules.put("hourly", wanted, caller=ADMIN)
    assert (await app.schedules.put("hourly", wanted, caller=ADMIN)).schedule.version == first.schedule.version
    started = await app.schedules.run_now("hourly", caller=ADMIN)
    assert await plain_of(app, started.id) == CARD
    await app.drain()
    assert await app.result(started.id) == {"charged": SECRET}
    await app.service.types.put("plain", TaskTypeRequest(target="python:charge"), caller=ADMIN)
    with pytest.raises(Rejected, match="give a payload for the new type"):
        await app.schedules.change("hourly", ScheduleChange(task_type="plain"), caller=ADMIN)
    with pytest.raises(asyncpg.CheckViolationError, match="no envelope"):
        await app.pool.execute("UPDATE tickwright.schedules SET payload = '{}'")


# ---------------------------------------------------------------------- without the key


async def test_a_worker_without_keys_claims_nothing_of_an_encrypted_type(database_url: str) -> None:
    """The job waits without an attempt, explain says why, an alert has its type; a worker with the key runs it."""
    from tickwright.capabilities.jobs.alerts import RULES

    seen: list[Any] = []

    async def charge(job: Job, card: str) -> None:
        seen.append(card)

    kinds = {"charge": policy("charge", encrypted=True)}
    sealed = json.loads(KEYS.seal(json.dumps(CARD), Purpose.PAYLOAD, "charge"))
    async with running_engine(database_url, {"charge": charge, "tick": _nothing}, kinds=kinds) as engine:
        job_id = await engine.insert("charge", payload=sealed)
        await engine.until(await engine.insert("tick"), "completed")
        row = await engine.job(job_id)
        assert (row["status"], row["attempts"], row["fence"]) == ("pending", 0, 0)
        reasons = explain(await engine.pool.fetchrow(EXPLAIN, job_id)).reasons
        assert any(reason.code == "payload_key_missing" and KEYS.names[0] in reason.text for reason in reasons)
        rule = next(rule for rule in RULES if rule.name == "payload_key_missing")

        async def alerted() -> bool:
            rows = await engine.pool.fetch(rule.sql, *rule.bounds)
            return [row["subject"] for row in rows] == ["charge"]

        await eventually_async(alerted, 30, what="the alert")
        async with running_engine(database_url, {"charge": charge}, kinds=kinds, keys=KEYS):
            await engine.until(job_id, "completed")
    assert seen == [SECRET]


async def _nothing(job: Job) -> None: ...


async def test_a_job_of_a_missing_key_is_not_lost_nor_is_its_attempt_counted(database_url: str) -> None:
    """A worker with another key defers it, with a stable code; it stays pending also on its last attempt."""
    kinds = {"charge": policy("charge", encrypted=True, max_attempts=1)}
    sealed = json.loads(PayloadKeys([OLD]).seal(json.dumps(CARD), Purpose.PAYLOAD, "charge"))
    async with running_engine(database_url, {"charge": _nothing}, kinds=kinds, keys=KEYS) as engine:
        job_id = await engine.insert("charge", payload=sealed, max_attempts=1)

        async def deferred() -> Any:
            row = await engine.job(job_id)
            return row if row["retry_at"] is not None else None

        row = await eventually_async(deferred)
        assert (row["status"], row["attempts"], row["owner"]) == ("pending", 0, None)
        assert row["error_message"].startswith(
            f"payload_key_missing: this process has no key {PayloadKeys([OLD]).names[0]}"
        )
        await engine.pool.execute("UPDATE tickwright.scheduled_tasks SET retry_at = now() WHERE id = $1", job_id)
        both = PayloadKeys([NEW, OLD])
        async with running_engine(database_url, {"charge": _nothing}, kinds=kinds, keys=both):

            async def done() -> bool:
                sql = "UPDATE tickwright.scheduled_tasks SET retry_at = now() WHERE id = $1 AND status = 'pending'"
                await engine.pool.execute(sql, job_id)  # either worker may claim it
                return bool((await engine.job(job_id))["status"] == "completed")

            await eventually_async(done, 30, what="the worker with the key runs it")


async def test_a_changed_payload_fails_its_job_with_a_code(database_url: str) -> None:
    """It would not open at the next attempt either; the job becomes a dead letter and can be retried."""
    kinds = {"charge": policy("charge", encrypted=True)}
    sealed = json.loads(KEYS.seal(json.dumps(CARD), Purpose.PAYLOAD, "another"))
    async with running_engine(database_url, {"charge": _nothing}, kinds=kinds, keys=KEYS) as engine:
        row = await engine.until(await engine.insert("charge", payload=sealed), "failed")
        assert row["error_message"].startswith("payload_unreadable: ")


async def test_a_program_without_keys_gets_a_clear_error(app: Tickwright, database_url: str) -> None:
    """It can neither schedule nor read a result; nothing is stored."""
    made = await app.schedule("charge", CARD)
    await app.drain()
    async with Tickwright(database_url) as keyless:
        with pytest.raises(Unavailable) as caught:
            await keyless.schedule("charge", CARD)
        assert caught.value.code == "payload_keys_missing"
        with pytest.raises(Unavailable) as caught:
            await keyless.result(made.id)
        assert caught.value.code == "payload_key_missing"
    assert await app.pool.fetchval("SELECT count(*) FROM tickwright.scheduled_tasks") == 1


# ---------------------------------------------------------------------- REST, remote workers, callbacks


async def test_rest_encrypts_and_never_answers_plain_text(database_url: str, tmp_path: Path) -> None:
    """One by one, in bulk and edited; every answer about the job has the envelope only."""
    async with remote_site(database_url, tmp_path, payload_keys=KEYS) as site:
        await site.type("charge", encrypted=True)
        made = await site.client.post("/v1/jobs", {"task_type": "charge", "payload": CARD, "delay": "1h"})
        job_id = made.json["id"]
        line = json.dumps({"task_type": "charge", "payload": CARD, "idempotency_key": "b", "delay": "1h"}).encode()
        assert (await site.client.bulk(line + b"\n" + line)).json["created"] == 1
        edited = await site.client.send("PATCH", f"/v1/jobs/{job_id}", {"payload": CARD})
        assert edited.status == 200, edited.body
        paths = (f"/v1/jobs/{job_id}", "/v1/jobs", f"/v1/jobs/{job_id}/explain", "/v1/jobs?text=4111", "/v1/audit")
        answers = [await site.client.get(path) for path in paths]
        assert all(SECRET.encode() not in answer.body for answer in answers)
        assert answers[0].json["payload"]["$encrypted"]["key"] == KEYS.names[0]
        foreign = json.loads(KEYS.seal("{}", Purpose.PAYLOAD, "another"))
        (await site.client.post("/v1/jobs", {"task_type": "charge", "payload": foreign})).says(
            422, "payload_unreadable"
        )


async def test_an_api_without_keys_accepts_envelopes_only(database_url: str, tmp_path: Path) -> None:
    """Plain text gets a stable code; a client that has the key may seal by itself."""
    async with remote_site(database_url, tmp_path) as site:
        await site.type("charge", encrypted=True)
        body = {"task_type": "charge", "payload": CARD}
        (await site.client.post("/v1/jobs", body)).says(503, "payload_keys_missing")
        body["payload"] = json.loads(KEYS.seal(json.dumps(CARD), Purpose.PAYLOAD, "charge"))
        assert (await site.client.post("/v1/jobs", {**body, "idempotency_key": "a"})).status == 201
        assert (await site.client.post("/v1/jobs", {**body, "idempotency_key": "a"})).status == 200
        worker = await register(site.client, "charge")
        assert await worker.claim() == []  # it could neither open the payload nor seal a result


@pytest.mark.parametrize(("deliver", "seen"), [(None, CARD), ("cipher", None)])
async def test_remote_workers_get_plain_text_unless_declared(
    database_url: str, tmp_path: Path, deliver: Any, seen: Any
) -> None:
    """The api process opens payloads and seals results and progress; texts of errors are withheld."""
    async with remote_site(database_url, tmp_path, payload_keys=KEYS) as site:
        await site.type("charge", encrypted=True, deliver=deliver, max_attempts=5)
        await site.client.post("/v1/jobs", {"task_type": "charge", "payload": CARD})
        worker = await register(site.client, "charge")
        [job] = await worker.claim()
        assert job["payload"] == seen or set(job["payload"]) == {"$encrypted"}
        assert (seen is None) == ("$encrypted" in job["payload"])
        await worker.said("progress", {"jobs": [{"id": job["id"], "fence": job["fence"], "progress": CARD}]})
        failed = ended(job, "fail", message=f"refused {SECRET}", code="handler_error", retry_after="0s")
        assert (await worker.results(failed))["done"] == 1
        [job] = await worker.claim(wait="30s")
        assert (await worker.results(ended(job, result=CARD)))["done"] == 1
        pool = site.workers.claims._pool
        whole = await pool.fetchval("SELECT t::text FROM tickwright.scheduled_tasks t WHERE id = $1", job["id"])
        assert SECRET not in whole
        row = await job_row(pool, job["id"])
        assert json.loads(KEYS.open(row["result"], Purpose.RESULT, str(job["id"]))) == CARD
        assert json.loads(KEYS.open(row["progress"], Purpose.PROGRESS, str(job["id"]))) == CARD


@pytest.mark.parametrize(("deliver", "is_plain"), [(None, True), ("plain", True), ("cipher", False)])
async def test_a_callback_gets_plain_text_unless_declared_and_is_signed_as_sent(
    database_url: str, deliver: Any, is_plain: bool
) -> None:
    """The signature is over the bytes of the body; the receiver's text is not stored."""
    async with HttpReceiver() as receiver, aclosing(HttpBroker(allow=TARGETS)) as broker:
        receiver.status, receiver.body = 500, f"echo {SECRET}".encode()
        kind = TaskType("call", receiver.url, encrypted=True, deliver=deliver, max_attempts=1)
        sealed = json.loads(KEYS.seal(json.dumps(CARD), Purpose.PAYLOAD, "call"))
        keys = KEYS if is_plain else NO_KEYS  # what is delivered as it is needs no key
        brokers = {"http": broker}
        async with running_engine(database_url, {}, kinds={"call": kind}, brokers=brokers, keys=keys) as engine:
            await engine.pool.execute(ADD_SECRET, SIGNING)
            await eventually_async(lambda: engine.worker.types()["call"].task_type.secrets, what="the secret is known")
            row = await engine.until(await engine.insert("call", payload=sealed, max_attempts=1), "failed")
            assert SECRET not in str(dict(row))
            assert row["error_message"].startswith("http_500")
    [received] = receiver.received
    assert (json.loads(received.body) == CARD) == is_plain
    assert (SECRET.encode() in received.body) == is_plain
    Webhook(SIGNING).verify(received.body, dict(received.headers))


# ---------------------------------------------------------------------- mutants


@pytest.mark.mutant
async def test_the_suite_notices_errors_that_are_stored(app: Tickwright, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts of exceptions quote payloads."""
    mutate(monkeypatch, OutcomeRecorder._errored, "error = withheld(error)", "pass")
    with pytest.raises(AssertionError):
        await test_the_text_of_an_error_is_withheld(app)


@pytest.mark.mutant
async def test_the_suite_notices_plain_jobs_that_are_accepted(app: Tickwright) -> None:
    """Without the trigger the database takes whatever is inserted."""
    await app.pool.execute("DROP TRIGGER scheduled_tasks_sealed ON tickwright.scheduled_tasks")
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        await test_plain_sql_cannot_store_plain_text(app, CARD)


@pytest.mark.mutant
async def test_the_suite_notices_a_missing_key_that_fails_the_job(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an error of the attempt it would end a job that another worker can run."""
    deferred = "Deferred(error.code, error.message, MISSING_WAIT)"
    mutate(monkeypatch, WorkerEncryption.open, deferred, "Errored(error.code, error.message)")
    with pytest.raises((AssertionError, TimeoutError)):
        await test_a_job_of_a_missing_key_is_not_lost_nor_is_its_attempt_counted(database_url)
