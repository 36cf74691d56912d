"""A worker inside the user's own program."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kit.waiting import eventually_async
from tickwright import Fail, Job, Rejected, Retry, Tickwright
from tickwright.capabilities.jobs.admin.views import JobDetail
from tickwright.process.loading import load_app


@asynccontextmanager
async def working(app: Tickwright) -> AsyncIterator[Tickwright]:
    """An open app with a running worker; the worker ends before the app."""
    async with app:
        worker = asyncio.create_task(app.run_worker())
        try:
            yield app
        finally:
            worker.cancel()
            await asyncio.wait([worker])
            assert worker.cancelled()


async def ended(app: Tickwright, job_id: int) -> JobDetail:
    """Wait until a job has a final status."""

    async def over() -> bool:
        return (await app.get(job_id)).status in {"completed", "failed", "cancelled"}

    await eventually_async(over, what=f"job {job_id} ends")
    return await app.get(job_id)


def program(url: str) -> Tickwright:
    """An app with handlers of every kind."""
    app = Tickwright(url, metrics_bind="127.0.0.1:0")

    @app.job("add")
    async def add(_job: Job, a: int, b: int = 1) -> int:
        return a + b

    @app.job("shout")
    def shout(job: Job, word: str) -> str:
        return f"{word.upper()} {job.attempt}"

    @app.job("flaky", retry={"base": "100ms", "cap": "100ms"})
    async def flaky(job: Job) -> None:
        if job.attempt < 3:
            raise Retry("not yet")

    @app.job("hopeless")
    async def hopeless(_job: Job) -> None:
        raise Fail("never")

    return app


async def test_handlers_of_every_kind_run_with_typed_arguments(database_url: str) -> None:
    """Async and sync; defaults count; results are kept; a retry costs an attempt, a final failure one."""
    async with working(program(database_url)) as app:
        ids = [
            (await app.schedule(name, payload)).id
            for name, payload in (("add", {"a": 2}), ("shout", {"word": "hi"}), ("flaky", {}), ("hopeless", {}))
        ]
        jobs = [await ended(app, job_id) for job_id in ids]
        mistyped = await ended(app, (await app.schedule("add", {"a": "two"})).id)
    assert [job.status for job in jobs] == ["completed", "completed", "completed", "failed"]
    assert [job.result for job in jobs[:2]] == [3, "HI 1"]
    assert [job.attempts for job in jobs] == [1, 1, 3, 1]
    assert (mistyped.status, mistyped.attempts) == ("failed", 1)
    assert "payload_invalid" in (mistyped.error_message or "")


async def test_a_message_published_in_a_transaction_arrives_after_the_commit(database_url: str) -> None:
    """The relay of the same process carries it to the topic."""
    async with working(program(database_url)) as app:
        async with app.pool.acquire() as connection, connection.transaction():
            await app.publish("pg:events", {"n": 1}, connection=connection)

        async def arrived() -> Any:
            return await app.pool.fetchval("SELECT count(*) FROM tickwright.messages WHERE topic = 'events'")

        assert await eventually_async(arrived, what="the message is in its topic") == 1


async def test_an_app_is_found_by_its_name(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current folder counts; what is missing is named."""
    (tmp_path / "shop_jobs.py").write_text("from tickwright import Tickwright\napp = Tickwright()\nother = 1\n")
    monkeypatch.chdir(tmp_path)
    assert isinstance(load_app("shop_jobs:app"), Tickwright)
    for name, code in (
        ("shop_jobs:nope", "app_not_found"),
        ("no_such:app", "app_not_found"),
        ("shop_jobs:other", "not_an_app"),
    ):
        with pytest.raises(Rejected) as refused:
            load_app(name)
        assert refused.value.code == code
