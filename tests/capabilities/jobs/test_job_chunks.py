"""A handler takes several jobs at once, and each of them has its own outcome."""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any, cast

import pytest

from kit.waiting import eventually_async
from tickwright import ChunkItem, Job, JobCancelled, JobChunk, JobFailed, JobHandle, Rejected, Tickwright


@dataclasses.dataclass(frozen=True)
class Document:
    """What is indexed."""

    number: int


@contextlib.asynccontextmanager
async def working(app: Tickwright) -> AsyncIterator[None]:
    """The app is open, with a worker in it."""
    async with app:
        worker = asyncio.create_task(app.run_worker(roles=["worker"]))
        try:
            yield
        finally:
            worker.cancel()
            await asyncio.wait([worker])


def program(url: str, **settings: Any) -> Tickwright:
    """An app that prints nothing and drains at once."""
    return Tickwright(url, metrics_bind="127.0.0.1:0", drain="10ms", **settings)


async def ends(handles: list[JobHandle[Any]]) -> list[Any]:
    """Wait for jobs; return the result of each, or what it raised."""
    waits = (handle.result(timeout="60s") for handle in handles)
    return await asyncio.gather(*waits, return_exceptions=True)


async def test_a_full_chunk_runs_at_once_and_the_rest_after_its_time(database_url: str) -> None:
    """Seven jobs in chunks of three: two full ones, and one that has waited."""
    app, sizes = program(database_url), list[int]()

    @app.job("index", batch=3, within="300ms")
    async def index(chunk: JobChunk[Document]) -> None:
        sizes.append(len(chunk))
        assert {item.value.number for item in chunk} <= set(range(7))
        for item in chunk:
            item.complete(item.value.number)

    async with app:
        handles = await index.schedule_many([Document(0), index.call(Document(1)), *map(Document, range(2, 7))])
    async with working(app):
        assert await ends(handles) == list(range(7))
    assert sizes == [3, 3, 1]


async def test_each_job_of_a_chunk_ends_as_its_item_says(database_url: str) -> None:
    """Completed by default, with a result, failed, retried, snoozed; a payload that does not fit fails alone."""
    app, seen = program(database_url), list[tuple[int, int]]()

    @app.job("index", batch=10, within="100ms", retry={"base": "1ms", "cap": "1ms"})
    async def index(chunk: JobChunk[Document]) -> None:
        for item in chunk:
            seen.append((item.value.number, item.job.attempt))
            decide(item)

    def decide(item: ChunkItem[Document]) -> None:
        match item.value.number, item.job.attempt:
            case 1, _:
                item.complete({"indexed": 1})
            case 2, _:
                item.fail("no such document")
            case 3, 1:
                item.retry("busy", after=timedelta(milliseconds=1))
            case 4, 1 if seen.count((4, 1)) == 1:
                item.snooze(timedelta(milliseconds=1))

    async with working(app):
        handles = await index.schedule_many(list(map(Document, range(5))))
        handles.append(await app.schedule("index", {"number": "five"}))
        zero, one, two, three, four, five = await ends(handles)
    assert (zero, one, three, four) == (None, {"indexed": 1}, None, None)
    assert isinstance(two, JobFailed)
    assert "no such document" in two.message
    assert isinstance(five, JobFailed)
    assert "payload_invalid" in five.message
    assert seen.count((3, 1)) == seen.count((3, 2)) == 1
    assert seen.count((4, 1)) == 2, "a snooze costs no attempt"


async def test_an_error_of_the_handler_is_that_of_every_job_without_an_outcome(database_url: str) -> None:
    """What was decided before it counts."""
    app = program(database_url)

    @app.job("index", batch=2, within="10s", max_attempts=1)
    async def index(chunk: JobChunk[Document]) -> None:
        chunk[0].complete("first")
        raise ConnectionError("the index is closed")

    async with app:
        handles = await index.schedule_many([Document(1), Document(2)])
    async with working(app):
        first, second = await ends(handles)
    assert first == "first"
    assert isinstance(second, JobFailed)
    assert "the index is closed" in second.message


async def test_a_cancelled_job_leaves_its_chunk_and_the_others_go_on(database_url: str) -> None:
    """While the chunk gathers, and while it runs; a chunk without a job left is cancelled."""
    app, running, go, ended = program(database_url), asyncio.Event(), asyncio.Event(), list[str]()

    @app.job("index", batch=2, within="60s", timeout="60s")
    async def index(chunk: JobChunk[Document]) -> None:
        running.set()
        try:
            await go.wait()
            ended.append("worked")
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    async with working(app):
        lonely = await index.schedule(Document(0))

        async def runs() -> bool:
            return (await lonely.get()).status == "processing"

        await eventually_async(runs, what="it is claimed")
        await lonely.cancel()
        assert isinstance((await ends([lonely]))[0], JobCancelled)
        handles = await index.schedule_many([Document(1), Document(2)])
        await asyncio.wait_for(running.wait(), 60)
        await handles[0].cancel()
        assert isinstance((await ends([handles[0]]))[0], JobCancelled)
        go.set()
        assert await ends([handles[1]]) == [None]
        running.clear()
        go.clear()
        handles = await index.schedule_many([Document(3), Document(4)])
        await asyncio.wait_for(running.wait(), 60)
        for handle in handles:
            await handle.cancel()
        await ends(handles)

        async def is_cancelled() -> bool:
            return ended == ["worked", "cancelled"]

        await eventually_async(is_cancelled, what="the handler is cancelled")


async def test_the_timeout_counts_from_the_start_of_the_chunk(database_url: str) -> None:
    """The wait for other jobs is longer than the timeout; the handler is not."""
    app = program(database_url)

    @app.job("index", batch=100, within="1s", timeout="300ms", max_attempts=1)
    async def index(chunk: JobChunk[Document]) -> None:
        if chunk[0].value.number:
            await asyncio.Event().wait()

    async with working(app):
        assert await (await index.schedule(Document(0))).result(timeout="60s") is None
        with pytest.raises(JobFailed, match="timeout"):
            await (await index.schedule(Document(1))).result(timeout="60s")


async def test_a_chunk_does_not_wait_for_more_jobs_than_the_worker_may_run(database_url: str) -> None:
    """Of a limited type, and of a worker with few slots: neither waits for the time of the chunk."""
    app, sizes = program(database_url, concurrency=4), list[int]()

    @app.job("limited", batch=100, within="60s", concurrency=2)
    async def limited(chunk: JobChunk[Document]) -> None:
        sizes.append(len(chunk))

    async with app:
        handles = await limited.schedule_many(list(map(Document, range(4))))
    async with working(app):
        await ends(handles)
    assert sizes == [2, 2]


def test_what_is_no_handler_of_chunks_is_refused() -> None:
    """Where it is declared, with what to write."""
    app = Tickwright()
    with pytest.raises(Rejected, match="takes a JobChunk"):

        @app.job("a", batch=3)  # type: ignore[arg-type]
        async def a(job: Job, number: int) -> None: ...

    with pytest.raises(Rejected, match="'async def'"):

        @app.job("b", batch=3)  # type: ignore[arg-type]
        def b(chunk: JobChunk[int]) -> None: ...

    with pytest.raises(Rejected, match=r"more: beside the chunk it takes resources"):

        @app.job("f", batch=3)  # type: ignore[arg-type]
        async def f(chunk: JobChunk[int], more: int) -> None: ...

    with pytest.raises(Rejected) as refused:
        app.job("c", batch=0, within="2m")(cast("Any", ends))
    assert refused.value.message.splitlines() == [
        "@app.job('c').batch: a whole number from 1 to 10,000",
        "@app.job('c').within: at most 1m",
    ]
    with pytest.raises(Rejected, match=r"within: only with batch"):
        cast("Any", app).job("d", within="1s")(ends)
    with pytest.raises(Rejected, match="no unit"):
        app.job("e", batch=1, within=cast("str", 5))(cast("Any", ends))


def test_a_chunks_job_is_scheduled_with_its_value() -> None:
    """One value, which the handler can read."""
    app = Tickwright()

    @app.job("index", batch=3)
    async def index(chunk: JobChunk[Document]) -> None: ...

    assert index.call(Document(7)).payload == '{"number":7}'
    with pytest.raises(Rejected, match="Expected `int`"):
        index.call(cast("Document", {"number": "x"}))
    with pytest.raises(Rejected, match="give one value"):
        cast("Any", index).call()
