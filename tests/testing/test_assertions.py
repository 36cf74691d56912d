"""Assertions about scheduled jobs: what fits, what does not, what a failure says, and on which connection."""

from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import psycopg
import pytest

from tickwright import Job, Rejected, Tickwright, Unique
from tickwright.testing import (
    assert_scheduled,
    assert_scheduled_sync,
    refute_scheduled,
    refute_scheduled_sync,
    scheduled,
    scheduled_sync,
)
from tickwright.testing.databases import ScratchDatabase
from tickwright.testing.opening import OpenApp

own = Tickwright()


@own.job("remind")
async def remind(job: Job, invoice_id: int, to: dict[str, Any] | None = None, urgent: bool = False) -> None:
    """Do nothing."""


@own.job("other")
async def other(job: Job) -> None:
    """Do nothing."""


async def test_a_job_fits_by_the_arguments_and_options_that_are_given(tickwright_app: OpenApp) -> None:
    """What is left out may be anything; an object in the payload may have more fields."""
    async with tickwright_app(own) as app:
        options = remind.options(delay="3d", key="remind-42", priority=7)
        handle = await options.schedule(invoice_id=42, to={"name": "Ada", "city": "London"})
        [job] = await assert_scheduled(app, remind)
        assert (job.id, job.name, job.status, job.key, job.priority) == (handle.id, "remind", "pending", "remind-42", 7)
        await assert_scheduled(app, remind, invoice_id=42, to={"city": "London"})
        await assert_scheduled(app, remind, {"invoice_id": 42})
        await assert_scheduled(app, "remind", {"invoice_id": 42}, count=1)
        await assert_scheduled(app, options, invoice_id=42)
        await assert_scheduled(app, remind.options(at=job.due_at), within="0s")
        await assert_scheduled(app, remind.options(at=job.due_at + timedelta(hours=1)), within="2h")
        await assert_scheduled(app, app.new_job("remind", {"invoice_id": 42}, delay="3d", key="remind-42"))
        await assert_scheduled(app, remind.options(priority=7).call(invoice_id=42))
        for wrong in (
            remind.options(delay="2d"), remind.options(key="x"), remind.options(priority=6),
            remind.options(max_attempts=9), remind.options(at=datetime(2001, 1, 1, tzinfo=UTC)), other, "nothing",
        ):  # fmt: skip
            await refute_scheduled(app, wrong)
            with pytest.raises(AssertionError):
                await assert_scheduled(app, wrong)
        await refute_scheduled(app, remind, invoice_id=43)
        await refute_scheduled(app, remind, urgent=0)  # JSON's false is no number
        assert await scheduled(app, remind, invoice_id=43) == []
        assert [one.id for one in await scheduled(app, remind)] == [handle.id]


async def test_every_option_that_is_given_counts(tickwright_app: OpenApp) -> None:
    """An option that is not compared would let a wrong call pass, and ``refute_scheduled`` fail."""
    expires_at = datetime(2100, 1, 1, tzinfo=UTC)
    rule = Unique(by=("invoice_id",), period="15m")
    options = remind.options(
        timeout="5s",
        expires_at=expires_at,
        tags=["eu", "night"],
        metadata={"tenant": "a", "n": 1},
        group="g",
        unique=rule,
    )
    async with tickwright_app(own) as app:
        await options.schedule(invoice_id=42)
        for right in (
            options, options.call(invoice_id=42), remind.options(tags=["night"]), remind.options(metadata={"n": 1}),
            remind.options(unique=Unique(by=("invoice_id",), period=timedelta(minutes=15))),
        ):  # fmt: skip
            [job] = await assert_scheduled(app, right, count=1)
            assert (job.timeout, job.expires_at, job.tags) == (timedelta(seconds=5), expires_at, ["eu", "night"])
            assert (job.metadata, job.group, job.unique and job.unique.by) == (
                {"tenant": "a", "n": 1}, "g", ("invoice_id",),
            )  # fmt: skip
        for wrong in (
            remind.options(timeout="6s"), remind.options(expires_at=expires_at + timedelta(1)),
            remind.options(tags=["eu", "us"]), remind.options(metadata={"tenant": "b"}), remind.options(group="h"),
            remind.options(unique=Unique(by=())), remind.options(unique=False), options.options(group="h").call(42),
            app.new_job("remind", {"invoice_id": 42}, tags=["us"]),
        ):  # fmt: skip
            await refute_scheduled(app, wrong)
        await other.schedule()
        await assert_scheduled(app, other.options(unique=False))
        with pytest.raises(AssertionError, match=r"tags are \['eu', 'night'\], without 'us'"):
            await assert_scheduled(app, remind.options(tags=["us"]))


async def test_a_failure_shows_the_closest_jobs_and_what_differs(tickwright_app: OpenApp) -> None:
    """The nearest first; without a job of the type, the types that there are."""
    async with tickwright_app(own) as app:
        await remind.options(delay="3d").schedule(invoice_id=42)
        await remind.options(key="k").schedule(invoice_id=7)
        with pytest.raises(AssertionError) as failed:
            await assert_scheduled(app, remind.options(delay="3d"), invoice_id=43)
        lines = str(failed.value).splitlines()
        assert lines[0] == 'a job scheduled: remind {"invoice_id":43} delay=3 days, 0:00:00'
        assert lines[1] == "the closest:"
        assert '{"invoice_id":42}' in lines[2]
        assert lines[3].strip() == "payload.invoice_id is 42, not 43"
        assert any("key=k" in line for line in lines[4:])
        with pytest.raises(AssertionError, match=r"(?s)3 jobs scheduled.*found 2"):
            await assert_scheduled(app, remind, count=3)
        with pytest.raises(AssertionError, match=r"(?s)no job scheduled.*found 1"):
            await refute_scheduled(app, remind, invoice_id=7)
        with pytest.raises(AssertionError, match="there is no live job of this type; of others: remind"):
            await assert_scheduled(app, other)


async def test_an_argument_that_the_handler_does_not_have_is_refused(tickwright_app: OpenApp) -> None:
    """A typing error in a test would let ``refute_scheduled`` pass for ever."""
    async with tickwright_app(own) as app:
        wrong = [
            refute_scheduled(app, remind, invoice=1),
            refute_scheduled(app, remind, {"invoice_id": 1}, invoice_id=1),
            refute_scheduled(app, remind.call(invoice_id=1), invoice_id=1),
        ]
        for call in wrong:
            with pytest.raises(Rejected) as refused:
                await call
            assert refused.value.code == "invalid_arguments"


async def test_a_connection_sees_its_own_transaction_only(
    tickwright_app: OpenApp, tickwright_database: ScratchDatabase
) -> None:
    """Inside an open transaction the job is there, outside it is not; a rolled back one never is."""
    connection = await asyncpg.connect(tickwright_database.url)
    async with tickwright_app(own, isolated=False) as app:
        async with connection.transaction():
            await remind.options(connection=connection).schedule(invoice_id=1)
            await assert_scheduled(connection, remind, invoice_id=1)
            await assert_scheduled(app, remind.options(connection=connection), invoice_id=1)
            await refute_scheduled(app, remind)
        await assert_scheduled(app, remind)
        await assert_scheduled(connection, remind)  # to read needs no transaction
    await connection.close()


def test_a_synchronous_test_asserts_through_its_app_and_its_connection(
    tickwright_app: OpenApp, tickwright_database: ScratchDatabase
) -> None:
    """The same rules and messages."""
    with tickwright_app(own, isolated=False) as app, psycopg.connect(tickwright_database.url) as connection:
        remind.options(connection=connection).schedule_sync(invoice_id=1)
        assert_scheduled_sync(connection, remind, invoice_id=1)
        refute_scheduled_sync(app, remind)
        connection.commit()
        assert [job.payload for job in scheduled_sync(app, remind)] == [{"invoice_id": 1}]
        with pytest.raises(AssertionError, match="the closest"):
            assert_scheduled_sync(app, remind, invoice_id=2)
        refute_scheduled_sync(app, other)


async def test_a_job_that_has_run_is_scheduled_no_longer(tickwright_app: OpenApp) -> None:
    """Live jobs count: those that are pending, or running."""
    async with tickwright_app(own) as app:
        await other.schedule()
        await app.drain()
        await refute_scheduled(app, other)
