"""Unexpected behaviour of handlers: each costs its own run, never the consumer or another run."""

import asyncio
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from kit.fanout import MODULE, FanoutWorld, fanout_world
from kit.servers import RabbitServer, RedisServer
from kit.strange import STRANGE as MORE
from kit.strange import behave
from kit.waiting import eventually_async
from tickwright.capabilities.fanout.handlers import EntityTask
from tickwright.partners.outcomes import Failed, Throttled


@pytest.fixture
async def world(
    rabbit_server: RabbitServer, redis_server: RedisServer, database_url: str
) -> AsyncIterator[FanoutWorld]:
    """A world with everything."""
    async with fanout_world(database_url, rabbit_server.url, redis_server.url) as world:
        await world.put_module()
        yield world


class _Base(BaseException):
    """Not an ``Exception``, like a panic of native code."""


class _Nameless(Exception):
    """An error without a text."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")


class _Fails:
    """A probe that raises an error of ours after each call."""

    async def reached(self, name: str, /, **_facts: object) -> None:
        """Raise there."""
        if name == "fanout.called":
            raise RuntimeError("ours")


async def _strange(task: EntityTask) -> Any:
    match task.entity_code:
        case "base":
            raise _Base
        case "exit":
            sys.exit(3)
        case "interrupt":
            raise KeyboardInterrupt
        case "cancelled":
            raise asyncio.CancelledError
        case "group":
            raise BaseExceptionGroup("all of it", [_Base()])
        case "nameless":
            raise _Nameless
        case "long":
            raise ValueError("y" * 3_000_000)
        case "unwritable":
            return Failed("a\0b\ud800")
        case "no_text":
            return Failed(12)  # type: ignore[arg-type]
        case "no_time":
            return Throttled("soon")  # type: ignore[arg-type]
        case how if how in MORE:
            await behave(how)
    return object()


STRANGE = ["base", "exit", "interrupt", "cancelled", "group", "nameless", "long", "unwritable", "no_text", "no_time"]
STRANGE += [how for how in MORE if how not in STRANGE]


async def test_whatever_a_handler_does_is_a_failed_run_and_the_next_one_runs(world: FanoutWorld) -> None:
    """After each the only slot is free: the claim is over, the failure counted, and the last task runs."""
    for code in STRANGE:
        await world.put_task(code)
    async with world.consumer({MODULE: _strange}) as consumer:
        for code in STRANGE:

            async def failed(code: str = code) -> bool:
                row = await world.cursor(code)
                return row is not None and bool(row["failures"]) and row["owner"] is None

            await eventually_async(failed, what=f"{code} failed")
        await world.put_task("sound")
        await eventually_async(lambda: consumer.counts["succeeded"] == 1, what="the next one succeeded")
        assert not consumer.counts["given_back"]
        assert not consumer.counts["unexpected"]
    assert (await world.cursor("unwritable"))["last_error"] == "a\ufffdb\ufffd"


async def test_an_error_that_cannot_be_stored_as_it_is_reaches_the_partners_state(world: FanoutWorld) -> None:
    """The contract's exchange carries the reports of all partners: no text may make it fail."""
    await world.pool.execute("INSERT INTO tickwright.partners (name) VALUES ('hub')")
    await world.put_task("unwritable", partner="hub")

    async def is_stored() -> bool:
        said = await world.pool.fetchval("SELECT last_error FROM tickwright.partner_states")
        return bool(said == "a\ufffdb\ufffd")

    async with world.consumer({MODULE: _strange}):
        await eventually_async(is_stored, what="the partner's state has the text")


async def test_a_handler_that_swallows_its_timeout_has_not_succeeded(world: FanoutWorld) -> None:
    """A result after the timeout is no success."""

    async def swallows(_task: EntityTask) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return

    await world.put_task("A", timeout_ms=100)
    async with world.consumer({MODULE: swallows}) as consumer:
        await eventually_async(lambda: consumer.counts["failed"] == 1, what="it failed")
    assert (await world.cursor("A"))["last_error"] == "timeout"


async def test_an_error_of_ours_between_claim_and_end_leaves_no_claim_behind(world: FanoutWorld) -> None:
    """Otherwise the entity's module could not run while the process lives: its session holds the claim."""

    async def sound(_task: EntityTask) -> None:
        return

    await world.put_task("A")
    async with world.consumer({MODULE: sound}, probe=_Fails()) as consumer:
        await eventually_async(lambda: consumer.counts["unexpected"] == 1, what="it went wrong")
        row = await world.cursor("A")
        assert row["owner"] is None
        assert row["failures"] == 1


async def test_a_handler_that_cancels_its_task_and_returns_has_succeeded(world: FanoutWorld) -> None:
    """The cancellation would otherwise arrive where the end is written."""

    async def cancels(_task: EntityTask) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()

    await world.put_task("A")
    async with world.consumer({MODULE: cancels}) as consumer:
        await eventually_async(lambda: consumer.counts["succeeded"] == 1, what="it succeeded")
        assert not consumer.counts["given_back"]
    assert (await world.cursor("A"))["owner"] is None


async def test_a_retry_after_has_its_bounds(world: FanoutWorld) -> None:
    """A day at most, whatever a handler returns: otherwise a partner would be blocked for ever."""

    async def throttled(_task: EntityTask) -> Throttled:
        return Throttled(timedelta.max)

    await world.pool.execute("INSERT INTO tickwright.partners (name) VALUES ('hub')")
    await world.put_task("A", partner="hub")

    async def blocked() -> bool:
        return bool(
            await world.pool.fetchval(
                "SELECT blocked_until BETWEEN now() + interval '23 hours' AND now() + interval '25 hours' "
                "FROM tickwright.partner_states"
            )
        )

    async with world.consumer({MODULE: throttled}):
        await eventually_async(blocked, what="the partner is blocked for a day")
