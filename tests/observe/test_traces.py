"""Traces: a job, its callback and what it publishes belong to the trace of the caller that scheduled the job."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kit.api import RunningApi, running_api
from kit.consumers import all_done, running_consumer, seed
from kit.engine import Engine, job_row, policy, running_engine
from kit.receivers import TARGETS, HttpReceiver
from kit.relays import relay_world
from kit.reports import plan_of, report_world
from kit.traces import CALLER, TRACE_ID, Memory, recorded
from kit.waiting import eventually_async
from tickwright import Answer, Fail, Job, Poll, Tickwright
from tickwright.capabilities.jobs.enqueue import Enqueuer
from tickwright.capabilities.jobs.model import TaskType
from tickwright.capabilities.jobs.requests import NewJob
from tickwright.observe import traces
from tickwright.transports.http.broker import HttpBroker

BAD = "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01"
FORBIDDEN = "c4n4ry"


@pytest.fixture
def memory() -> Iterator[Memory]:
    """Spans are recorded."""
    with recorded() as memory:
        yield memory


@asynccontextmanager
async def callbacks(url: str, **changes: Any) -> AsyncIterator[tuple[Engine, HttpReceiver]]:
    """A worker whose type ``call`` goes to a receiver."""
    async with HttpReceiver() as receiver:
        broker = HttpBroker(allow=TARGETS)
        kind = TaskType("call", receiver.url, **changes)
        async with running_engine(url, kinds={"call": kind}, brokers={"http": broker}) as engine:
            yield engine, receiver
        await broker.aclose()


async def trace_of(pool: Any, job_id: int) -> str | None:
    """Return what the job's row says."""
    row = await job_row(pool, job_id)
    said: str | None = row["traceparent"]
    return said


# ------------------------------------------------------------------ passing on, without recording


async def test_a_callback_carries_the_trace_of_the_jobs_caller(database_url: str) -> None:
    """Without a span of ours the receiver gets the caller's."""
    async with callbacks(database_url) as (engine, receiver):
        job_id = await engine.insert("call", traceparent=CALLER)
        await engine.until(job_id, "completed")
        assert receiver.received[0].headers["traceparent"] == CALLER


@pytest.mark.parametrize("text", [None, BAD, "x" * 500])
async def test_a_trace_that_is_none_costs_a_job_nothing(database_url: str, text: str | None) -> None:
    """Any client may write the column; a job with a malformed one runs, and its callback has none."""
    async with callbacks(database_url) as (engine, receiver):
        job_id = await engine.insert("call", traceparent=text)
        await engine.until(job_id, "completed")
        assert "traceparent" not in receiver.received[0].headers


async def test_what_a_handler_schedules_joins_the_trace_of_its_job(database_url: str) -> None:
    """Jobs and messages, from async handlers and from threads; the next job on the same slot has none of it."""
    app = Tickwright(database_url)
    seen: dict[int, str | None] = {}

    async def follow(job: Job) -> None:
        seen[job.id] = traces.current()
        await app.schedule("leaf", delay="1h", key=f"leaf-{job.id}")
        await app.publish("pg:events", {}, key=str(job.id))
        await app.publish("pg:events", {}, headers={"Traceparent": "mine"}, key=f"own-{job.id}")

    def thread(job: Job) -> None:
        seen[job.id] = traces.current()

    async with app:
        async with running_engine(database_url, {"follow": follow, "thread": thread, "leaf": thread}) as engine:
            with_trace = [await engine.insert(name, traceparent=CALLER) for name in ("follow", "thread")]
            for job_id in with_trace:
                await engine.until(job_id, "completed")
            without = [await engine.insert(name) for name in ("follow", "thread")]
            for job_id in without:
                await engine.until(job_id, "completed")
        assert [seen[job_id] for job_id in (*with_trace, *without)] == [CALLER, CALLER, None, None]
        rows = await app.pool.fetch("SELECT idempotency_key AS key, traceparent FROM tickwright.scheduled_tasks "
                                    "WHERE task_type = 'leaf'")  # fmt: skip
        assert {row["key"]: row["traceparent"] for row in rows} == {
            f"leaf-{with_trace[0]}": CALLER,
            f"leaf-{without[0]}": None,
        }
        sent = await app.pool.fetch("SELECT key, headers ->> 'traceparent' AS said, headers FROM tickwright.outbox")
        assert {row["key"]: row["said"] for row in sent} == {
            str(with_trace[0]): CALLER,
            str(without[0]): None,
            f"own-{with_trace[0]}": None,
            f"own-{without[0]}": None,
        }


async def test_a_slot_does_not_join_the_trace_in_which_its_worker_was_started(database_url: str) -> None:
    """A program that runs its worker inside a span of its own does not make all jobs parts of it."""
    seen = []

    async def look(_job: Job) -> None:
        seen.append(traces.current())

    with traces.continued(CALLER):
        async with running_engine(database_url, {"look": look}) as engine:
            job_id = await engine.insert("look")
            await engine.until(job_id, "completed")
    assert seen == [None]


async def test_every_way_in_takes_the_trace_of_its_caller(database_url: str) -> None:
    """One, several, with a key, by COPY, inside a transaction; outside of a trace none of them has one."""
    app = Tickwright(database_url)
    app.job("mail")(lambda _job: None)
    async with app:

        async def all_ways(mark: str) -> None:
            await app.schedule("mail", {"n": mark})
            await app.schedule("mail", {"n": mark}, key=f"k{mark}")
            await app.schedule_many(
                [app.new_job("mail", {"n": mark}), app.new_job("mail", {"n": mark}, key=f"l{mark}")]
            )
            await app.schedule_bulk([app.new_job("mail", {"n": mark})])
            await app.service.enqueuer.copy([NewJob("mail", f'{{"n": "{mark}"}}')])
            async with app.pool.acquire() as connection, connection.transaction():
                await app.schedule("mail", {"n": mark}, connection=connection)

        with traces.continued(CALLER):
            await all_ways("in")
        await all_ways("out")
        rows = await app.pool.fetch("SELECT payload ->> 'n' AS n, traceparent FROM tickwright.scheduled_tasks")
        assert sorted((row["n"], row["traceparent"]) for row in rows if row["n"] == "in") == [("in", CALLER)] * 7
        assert [row["traceparent"] for row in rows if row["n"] == "out"] == [None] * 7


def _lane(api: RunningApi, headers: Any) -> Any:
    return api.operator.post("/v1/jobs", {"task_type": "noop", "delay": "1h"}, headers=headers)


def _route(api: RunningApi, headers: Any) -> Any:
    return api.operator.post("/v1/jobs", {"task_type": "noop", "delay": "1h"}, headers=headers)


def _bulk(api: RunningApi, headers: Any) -> Any:
    lines = b'{"task_type": "noop", "delay": "1h"}\n{"task_type": "noop", "delay": "1h", "idempotency_key": "b"}\n'
    return api.operator.bulk(lines, **headers)


@pytest.mark.matrix
@pytest.mark.parametrize("send", [_lane, _route, _bulk])
@pytest.mark.parametrize("said", [CALLER, BAD, None])
async def test_a_request_has_its_trace_in_a_header(
    database_url: str, monkeypatch: pytest.MonkeyPatch, send: Callable[..., Any], said: str | None
) -> None:
    """The fast lane, the route behind it, and the upload; a malformed one is ignored."""
    if send is _route:
        monkeypatch.setattr("tickwright.capabilities.jobs.rest.POST_JOB_PATH", "/nowhere")
    async with running_api(database_url) as api:
        answer = await send(api, {} if said is None else {"traceparent": said})
        assert answer.status in {200, 201}, answer.body
        rows = await api.pool.fetch("SELECT traceparent FROM tickwright.scheduled_tasks")
        assert {row["traceparent"] for row in rows} == {CALLER if said == CALLER else None}


async def test_a_message_of_the_most_headers_gets_none_more(database_url: str) -> None:
    """The relay would refuse it for good."""
    app = Tickwright(database_url)
    async with app:
        with traces.continued(CALLER):
            await app.publish("pg:events", {}, headers={f"x-{n}": "1" for n in range(64)})
        said = await app.pool.fetchval("SELECT headers ->> 'traceparent' FROM tickwright.outbox")
    assert said is None


# ------------------------------------------------------------------ recording


async def test_an_attempt_is_a_consumers_span_in_its_callers_trace(database_url: str, memory: Memory) -> None:
    """The receiver gets the span of the attempt, not the caller's; names and attributes are those of messaging."""
    async with callbacks(database_url) as (engine, receiver):
        job_id = await engine.insert("call", traceparent=CALLER)
        await engine.until(job_id, "completed")
        span = await eventually_async(lambda: memory.named("process call"), what="it ended")
        [attempt] = span
        assert (attempt.kind, attempt.trace, attempt.parent) == ("CONSUMER", TRACE_ID, CALLER[36:52])
        assert receiver.received[0].headers["traceparent"] == attempt.traceparent
        assert attempt.facts == {
            "messaging.system": "tickwright",
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.destination.name": "call",
            "messaging.message.id": f"job_{job_id}",
            "tickwright.attempt": 1,
            "tickwright.fence": 1,
            "tickwright.outcome": "completed",
        }


async def test_every_attempt_has_a_span_and_a_failed_one_says_how(database_url: str, memory: Memory) -> None:
    """A stable code, and not the error's text, which may contain anything."""

    async def fails(job: Job) -> None:
        if job.attempt == 1:
            raise ValueError(FORBIDDEN)
        raise Fail(FORBIDDEN)

    async with running_engine(database_url, {"fails": fails}, kinds={"fails": policy("fails")}) as engine:
        job_id = await engine.insert("fails", payload={"secret": FORBIDDEN}, traceparent=CALLER)
        await engine.until(job_id, "failed")
        await eventually_async(lambda: len(memory.spans) == 2, what="both ended")
    first, second = memory.spans
    assert (first.failed, first.facts["tickwright.outcome"], first.facts["error.type"]) == (
        True, "retried", "handler_error",
    )  # fmt: skip
    assert (second.facts["tickwright.outcome"], second.facts["error.type"]) == ("failed", "handler_failed")
    assert second.facts["tickwright.attempt"] == 2
    assert {first.trace, second.trace} == {TRACE_ID}
    assert FORBIDDEN not in repr(memory.spans)


async def test_a_job_without_a_trace_begins_one(database_url: str, memory: Memory) -> None:
    """Each its own, and the thread of a synchronous handler is in it."""
    seen = []

    def look(_job: Job) -> None:
        seen.append(traces.current())

    async with running_engine(database_url, {"look": look}) as engine:
        for job_id in [await engine.insert("look"), await engine.insert("look")]:
            await engine.until(job_id, "completed")
        await eventually_async(lambda: len(memory.spans) == 2, what="both ended")
    assert {span.parent for span in memory.spans} == {""}
    assert len({span.trace for span in memory.spans}) == 2
    assert sorted(str(one) for one in seen) == sorted(span.traceparent for span in memory.spans)


async def test_scheduling_is_a_producers_span_and_the_job_points_to_it(database_url: str, memory: Memory) -> None:
    """Attempt, enqueue, program: each the child of the one before."""
    app = Tickwright(database_url)
    app.job("mail")(lambda _job: None)
    async with app:
        with memory.tracer.start_as_current_span("checkout"):
            made = await app.schedule("mail", delay="1h")
            await app.publish("https://shop.example/hooks/c4n4ry?token=c4n4ry", {})
        span, program, message = (
            memory.one("send mail"),
            memory.one("checkout"),
            memory.one("create https://shop.example"),
        )
        assert (span.kind, span.parent, span.trace) == ("PRODUCER", program.id, program.trace)
        assert span.facts["messaging.message.id"] == f"job_{made.id}"
        assert await trace_of(app.pool, made.id) == span.traceparent
        assert (message.kind, message.parent) == ("PRODUCER", program.id)
        said = await app.pool.fetchval("SELECT headers ->> 'traceparent' FROM tickwright.outbox")
        assert said == message.traceparent
    assert FORBIDDEN not in repr(memory.spans)


async def test_an_upload_is_one_span(database_url: str, memory: Memory) -> None:
    """A million lines are no million spans; each of its jobs points to it."""
    async with running_api(database_url) as api:
        await _bulk(api, {"traceparent": CALLER})
        rows = await api.pool.fetch("SELECT traceparent FROM tickwright.scheduled_tasks")
    span = memory.one("send jobs")
    assert (span.parent, span.facts["messaging.batch.message_count"]) == (CALLER[36:52], 2)
    assert [row["traceparent"] for row in rows] == [span.traceparent] * 2


async def test_jobs_that_are_scheduled_together_each_belong_to_their_own_caller(database_url: str) -> None:
    """Callers whose rows leave in one statement do not share a trace."""
    app = Tickwright(database_url)
    app.job("mail")(lambda _job: None)
    parents = [f"00-{n:032x}-{n:016x}-01" for n in range(1, 41)]
    async with app:
        enqueuer: Enqueuer = app.service.enqueuer

        async def one(parent: str) -> int:
            with traces.continued(parent):
                return (await enqueuer.schedule(NewJob("mail", delay=None))).id

        ids = await asyncio.gather(*map(one, parents))
        assert [await trace_of(app.pool, job_id) for job_id in ids] == parents


async def test_a_message_of_a_trace_is_sent_in_a_span_of_its_own(database_url: str, memory: Memory) -> None:
    """The receiver gets the span of the sending; a message without a trace has no span, and a refusal is recorded."""
    async with relay_world(database_url) as world:
        put = "INSERT INTO tickwright.outbox (destination, payload, headers) VALUES ($1, $2, $3) RETURNING id"
        traced = await world.pool.fetchval(put, world.receiver.url, "{}", f'{{"Traceparent": "{CALLER}"}}')
        await world.pool.fetchval(put, world.receiver.url, "{}", "{}")
        odd = await world.pool.fetchval(put, world.receiver.url, "{}", f'{{"traceparent": "{BAD}"}}')
        async with world.running(world.relay()):
            await world.emptied()
            [span] = await eventually_async(lambda: memory.spans, what="the span ended")
            heard = {one.id: one.headers.get("traceparent") for one in world.receiver.received}
            assert heard.pop(f"out_{traced}") == span.traceparent
            assert heard.pop(f"out_{odd}") == BAD, "what is no trace is a header like any other"
            assert list(heard.values()) == [None]
            assert (span.kind, span.trace, span.parent) == ("PRODUCER", TRACE_ID, CALLER[36:52])
            assert span.facts["messaging.message.id"] == f"out_{traced}"
            world.receiver.status = 400
            await world.pool.fetchval(put, world.receiver.url, "{}", f'{{"traceparent": "{CALLER}"}}')
            refused = await eventually_async(lambda: memory.spans[1:], what="the refused one ended")
            assert (refused[0].failed, refused[0].facts["error.type"]) == (True, "http_400")


async def test_a_poll_is_a_trace_of_its_own(database_url: str, memory: Memory) -> None:
    """One call, one span."""

    async def ask(_poll: Poll) -> Answer:
        return Answer("moving")

    async with running_consumer(database_url, functions={"acme": ask}) as side:
        trackers = await seed(side.pool, 2)
        await eventually_async(lambda: all_done(side.pool, trackers))
    found = memory.named("process polls")
    assert sorted(span.facts["tickwright.tracker_id"] for span in found) == sorted(trackers.ids)
    assert {span.parent for span in found} == {""}
    assert {span.facts["tickwright.partner"] for span in found} == {"acme"}


async def test_a_part_of_a_report_has_a_span(database_url: str, tmp_path: Any, memory: Memory) -> None:
    """It names the listener, and how the attempt ended."""

    async def good(_request: Any) -> AsyncIterator[dict[str, int]]:
        yield {"id": 1}

    async with report_world(database_url, tmp_path) as world, world.process({"good": good}):
        await world.finished(await world.request(plan_of("good")))
    span = memory.one("process report-parts")
    assert (span.facts["tickwright.listener"], span.facts["tickwright.attempt"], span.failed) == ("good", 1, False)


@pytest.mark.parametrize(
    ("destination", "name"),
    [
        ("https://u:c4n4ry@shop.example:8443/c4n4ry?c4n4ry", "https://shop.example:8443"),
        ("https://shop.example?c4n4ry", "https://shop.example"),
        ("wss://gate.example/c4n4ry", "wss://gate.example"),
        ("amqp:orders/placed.eu", "amqp:orders/placed.eu"),
        ("kafka:orders", "kafka:orders"),
        ("pg:" + "x" * 500, "pg:" + "x" * 197),
    ],
)
def test_a_destination_is_shown_without_its_secrets(destination: str, name: str) -> None:
    """Of a URL no path and no query: both may be a key, and each would be a name of its own."""
    assert traces.span_destination(destination) == name
