"""Mutants of fan-out: with a guard taken out, the check of its promise has to fail."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from kit.fanout import MODULE, FanoutWorld, Hub, fanout_world
from kit.fanout_worlds import DAY_S
from kit.probes import Stops
from kit.rabbit_tasks import Fanout
from kit.redis_fanout import LOSE, begin_one, end_one, open_session
from kit.servers import RabbitServer, RedisServer
from kit.waiting import eventually_async
from tickwright.capabilities.fanout.consumer import run_claims
from tickwright.capabilities.fanout.consumer.consumer import FanoutConsumer
from tickwright.capabilities.fanout.consumer.run_claims import LedgerRunClaims, TwoStoreRunClaims
from tickwright.capabilities.fanout.consumer.task_run import SlotUse
from tickwright.capabilities.fanout.handlers import EntityTask
from tickwright.capabilities.fanout.messages import MessageKeys, write_task
from tickwright.capabilities.fanout.scheduler import publisher as publishing
from tickwright.capabilities.fanout.scheduler.lists import read_lists, read_parties
from tickwright.capabilities.fanout.scheduler.marks import FallbackMarks, LedgerMarks
from tickwright.capabilities.fanout.scheduler.publisher import EntityOutcome, Publisher
from tickwright.plugin.secrets import DeclaredSecrets
from tickwright.ports.broker import Accepted
from tickwright.ports.fanout import EntityWindow, Mark, MarkClaim, Run, RunClaim, RunStart
from tickwright.ports.ids import random_token
from tickwright.ports.service import NO_PROBE, Probe
from tickwright.ports.task_queue import Delivery
from tickwright.transports.rabbitmq.broker import RabbitBroker
from tickwright.transports.rabbitmq.topology import TASK_KEY
from tickwright.transports.redis.stores import RedisMarks

CODES = [f"E{number}" for number in range(5)]
LEASE = timedelta(seconds=1)
TIMED_OUT = """
INSERT INTO tickwright.fanout_cursors (entity_code, task_type, failures, last_error)
SELECT code, $2, 1, 'timeout' FROM unnest($1::text[]) AS u (code)
"""
Check = Callable[[FanoutWorld], Awaitable[None]]
Mutate = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture(params=["redis", "postgres"])
async def world(
    request: pytest.FixtureRequest, database_url: str, rabbit_server: RabbitServer, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[FanoutWorld]:
    """A world with windows of a day, and publishers' claims that last a second."""
    monkeypatch.setattr(publishing, "LEASE", LEASE)
    redis: RedisServer | None = request.getfixturevalue("redis_server") if request.param == "redis" else None
    async with fanout_world(database_url, rabbit_server.url, None if redis is None else redis.url) as world:
        await world.put_module(interval_s=DAY_S)
        yield world


class CrashError(Exception):
    """A process ends here, as far as its claims are concerned."""


class CrashAt:
    """A probe that crashes the process that reaches ``name``."""

    def __init__(self, name: str) -> None:
        self._name = name

    async def reached(self, name: str, /, **_facts: object) -> None:
        """Crash there."""
        if name == self._name:
            raise CrashError


class OnePublisher:
    """A scheduler's publisher, driven by a test."""

    def __init__(self, world: FanoutWorld, publisher: Publisher) -> None:
        self._world, self._publisher = world, publisher

    async def send(self) -> Counter[EntityOutcome]:
        """Publish the window once, as one round does; return the outcomes."""
        lists = await read_lists(self._world.pool)
        module, self._publisher.keys = lists.modules[MODULE], lists.keys
        results = await self._publisher.send(module, await self._world.window(DAY_S), CODES)
        return Counter(results.values())


@asynccontextmanager
async def one_publisher(world: FanoutWorld, probe: Probe = NO_PROBE) -> AsyncIterator[OnePublisher]:
    """Make a publisher as a process does."""
    async with AsyncExitStack() as stack:
        link = await stack.enter_async_context(world.redis())
        broker = RabbitBroker(world.queues.url)
        stack.push_async_callback(broker.aclose)
        marks = None if link is None else RedisMarks(link, prefix=world.prefix)
        destination = f"amqp:{world.queues.names.exchange}/{TASK_KEY}"
        both, token = FallbackMarks(marks, LedgerMarks(world.pool)), publishing_token()
        parties = partial(read_parties, world.pool)
        publisher = Publisher(
            both, broker, destination, declare=world.queues.prepare, parties=parties, token=token, probe=probe
        )
        yield OnePublisher(world, publisher)


def publishing_token() -> str:
    """Return the token of one process."""
    return random_token(8)


# ---------------------------------------------------------------------------------------------- what has to hold


async def check_published_after_a_crash(world: FanoutWorld) -> None:
    """F2: claimed and unpublished tasks are published by another scheduler in the same window."""
    await world.put_entities(CODES)
    async with one_publisher(world, CrashAt("fanout.claimed")) as one, one_publisher(world) as two:
        with suppress(CrashError):
            await one.send()

        async def all_settled() -> bool:
            found = await two.send()
            return found[EntityOutcome.PUBLISHED] + found[EntityOutcome.SEALED] == len(CODES)

        with suppress(AssertionError):
            await eventually_async(all_settled, 4)
    assert await world.queued() == world.ids(CODES, await world.window(DAY_S)), "F2 broken"


async def check_published_once(world: FanoutWorld) -> None:
    """One scheduler publishes while another is between claim and publish: each task is in the queue once."""
    await world.put_entities(CODES)
    stops = Stops()
    stops.close("fanout.claimed")
    async with one_publisher(world, stops) as one, one_publisher(world) as two:
        sending = asyncio.create_task(one.send())
        await eventually_async(lambda: stops.reached_times["fanout.claimed"] == 1)
        found = await two.send()
        stops.open("fanout.claimed")
        await sending
    assert await world.queued() == world.ids(CODES, await world.window(DAY_S)), f"once broken: {found}"


async def check_sealed_behind_the_confirm(world: FanoutWorld) -> None:
    """FAN-1: messages that the broker returned are published by the next round, once there is a queue."""
    await world.put_entities(CODES)
    assert isinstance(world.queues, Fanout)
    await world.queues.delete(world.queue)
    async with one_publisher(world) as one:
        await one.send()
        await world.queues.prepare()
        await one.send()
    assert await world.queued() == world.ids(CODES, await world.window(DAY_S)), "F2 broken"


async def check_zombies_end_nothing(world: FanoutWorld) -> None:
    """F1: a consumer that lost its session ends nothing, neither while another one runs the task nor afterwards."""
    ledger, window = LedgerRunClaims(world.pool), await world.window(DAY_S)
    run = Run("A", MODULE, window.start_s, 4)
    zombie, other = await open_session(world.pool), await open_session(world.pool)
    first = await begin_one(ledger, run, zombie)
    await world.pool.execute(LOSE, zombie)
    async with world.pool.acquire() as connection, connection.transaction():
        await ledger.reclaim(connection, [zombie])
    second = await begin_one(ledger, run, other)
    assert second.start is RunStart.BEGUN
    assert not await end_one(ledger, run, first, zombie), "F1 broken: a zombie's end was taken"
    assert (await world.cursor("A"))["owner"] == other, "F1 broken: a zombie took a run away"
    assert await end_one(ledger, run, second, other)


async def check_duplicates_run_once(world: FanoutWorld) -> None:
    """F1: a task that is delivered three times runs once."""
    hub = Hub()
    async with world.consumer({MODULE: hub}, slots=3) as consumer:
        task = await world.put_task("A", times=3)
        await eventually_async(lambda: len(hub.ended) + consumer.counts["superseded"] == 3, what="three are decided")
    assert hub.ended == [task], "F1 broken"


async def check_cut_runs_come_again(world: FanoutWorld) -> None:
    """FAN-6: a run that is cut off midway is run by another consumer."""
    hub = Hub()
    hub.hold("A")
    async with world.consumer({MODULE: hub}) as consumer:
        task = await world.put_task("A")
        await eventually_async(lambda: hub.codes == ["A"], what="it runs")
        await consumer.stop()
    hub.release("A")
    async with world.consumer({MODULE: hub}):
        await world.put_task("LAST")
        await eventually_async(lambda: "LAST" in hub.codes, what="the rest of the queue is taken")
        with suppress(AssertionError):
            await eventually_async(lambda: task in hub.ended, 3)
    assert task in hub.ended, "F2 broken"


async def check_only_signed_tasks_run(world: FanoutWorld) -> None:
    """FAN-9: a task that no scheduler of ours has signed is not run."""
    hub = Hub()
    known, body = write_task("A", MODULE, b"{}", await world.window(DAY_S), None, 60_000, None, 1)
    await world.queues.put(known, body=body)
    async with world.consumer({MODULE: hub}) as consumer:
        await eventually_async(lambda: consumer.counts["unsigned"] + len(hub.ended), what="it is decided")
    assert not hub.runs, "FAN-9 broken"


async def check_secrets_stay_with_their_hosts(world: FanoutWorld) -> None:
    """SEC-1: a party that names a foreign host gets no secret."""
    resolved: list[str] = []

    async def locations(task: EntityTask) -> None:
        resolved.append(task.resolve(task.party["token"]))

    party = b'{"url": "https://evil.example", "token": "${env:OCPI_TOKEN}"}'
    known, body = write_task("A", MODULE, party, await world.window(DAY_S), None, 60_000, None, 1)
    await world.queues.put(known, body=body, headers=await world.signed(body))
    async with world.consumer({MODULE: locations}) as consumer:
        await eventually_async(lambda: consumer.counts["failed"] + len(resolved), what="it is decided")
    assert not resolved, "SEC-1 broken"


async def check_slow_ones_leave_slots(world: FanoutWorld) -> None:
    """FAN-10: entities that timed out hold a quarter of the slots, the others run."""
    hub = Hub()
    slow = [f"SLOW{number}" for number in range(8)]
    await world.pool.execute(TIMED_OUT, slow, MODULE)
    for code in slow:
        hub.hold(code)
    for code in [*slow, *CODES]:
        await world.put_task(code)
    async with world.consumer({MODULE: hub}, slots=4) as consumer:
        with suppress(AssertionError):
            await eventually_async(lambda: len(hub.ended) == len(CODES), 8)
        done, held = len(hub.ended), consumer.running
        for code in slow:
            hub.release(code)
    assert done == len(CODES), f"FAN-10 broken: {held} slots are held"


CHECKS: list[Check] = [
    check_slow_ones_leave_slots,
    check_only_signed_tasks_run,
    check_secrets_stay_with_their_hosts,
    check_published_after_a_crash,
    check_published_once,
    check_sealed_behind_the_confirm,
    check_zombies_end_nothing,
    check_duplicates_run_once,
    check_cut_runs_come_again,
]


# ---------------------------------------------------------------------------------------------- without a guard


def sealed_before_it_is_published(monkeypatch: pytest.MonkeyPatch) -> None:
    """The seal is the claim, as in the document."""
    real = FallbackMarks.claim

    async def claim(self: FallbackMarks, places: list[EntityWindow], token: str, lease: timedelta) -> list[MarkClaim]:
        found = await real(self, places, token, lease)
        mine = [place for place, claimed in zip(places, found, strict=True) if claimed.mark is Mark.MINE]
        if mine:
            await self.seal(mine, token, keep=timedelta(days=1))
        return found

    monkeypatch.setattr(FallbackMarks, "claim", claim)


def claimed_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """SET NX without an expiry."""
    monkeypatch.setattr(publishing, "LEASE", timedelta(days=1))


def all_schedulers_have_one_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim says that it was made, not by which process."""
    monkeypatch.setitem(globals(), "publishing_token", lambda: "same")


def sent_counts_as_published(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a confirm nor the mandatory flag."""
    real = Publisher._settle

    async def settle(self: Publisher, places: Any, outcomes: Any, results: Any, *, keep: timedelta) -> None:
        await real(self, places, [Accepted()] * len(outcomes), results, keep=keep)

    monkeypatch.setattr(Publisher, "_settle", settle)


def ends_without_a_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any process may end a run."""
    queries = dict(run_claims._SQL)
    for guard in (
        "c.fence = e.fence AND (c.owner = $1 OR c.owner IS NULL)",
        " AND c.fence = e.fence AND c.owner = $1",
    ):
        assert guard in queries["end"], guard
        instead = "$1::bigint IS NOT NULL" if guard[0] == "c" else ""
        queries["end"] = queries["end"].replace(guard, instead)
    monkeypatch.setattr(run_claims, "_SQL", queries)


def no_claims_of_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Consumers trust their queue: every delivered task runs."""

    async def begin(_self: TwoStoreRunClaims, runs: list[Run], _owner: int) -> list[RunClaim]:
        return [RunClaim(RunStart.BEGUN, 1, 0.0, None)] * len(runs)

    async def end(_self: TwoStoreRunClaims, ended: list[Any], _owner: int) -> list[bool]:
        return [True] * len(ended)

    monkeypatch.setattr(TwoStoreRunClaims, "begin", begin)
    monkeypatch.setattr(TwoStoreRunClaims, "end", end)


def acknowledged_before_it_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with an automatic acknowledgement."""
    real = FanoutConsumer._handle

    async def handle(self: FanoutConsumer, delivery: Delivery) -> None:
        await self._queue.ack(delivery)
        await real(self, delivery)

    monkeypatch.setattr(FanoutConsumer, "_handle", handle)


def every_signature_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every message in the queue is trusted."""
    monkeypatch.setattr(MessageKeys, "refusal", lambda _self, _delivery: None)


def secrets_go_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """A declared secret is handed out to any host that the party names."""
    monkeypatch.setattr(DeclaredSecrets, "_check", lambda *_: None)


def slow_ones_may_have_every_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slow entities may hold every slot."""
    monkeypatch.setattr(SlotUse, "try_take", lambda _self, **_: True)


MUTANTS: dict[str, tuple[Mutate, Check, str]] = {
    "no signature check": (every_signature_is_right, check_only_signed_tasks_run, "FAN-9 broken"),
    "no share for slow entities": (slow_ones_may_have_every_slot, check_slow_ones_leave_slots, "FAN-10 broken"),
    "no host binding": (secrets_go_anywhere, check_secrets_stay_with_their_hosts, "SEC-1 broken"),
    "sealed before it is published": (sealed_before_it_is_published, check_published_after_a_crash, "F2 broken"),
    "claimed for ever": (claimed_for_ever, check_published_after_a_crash, "F2 broken"),
    "one token for all schedulers": (all_schedulers_have_one_token, check_published_once, "once broken"),
    "sealed without a confirm": (sent_counts_as_published, check_sealed_behind_the_confirm, "F2 broken"),
    "ends without a fence": (ends_without_a_fence, check_zombies_end_nothing, "F1 broken"),
    "no claims of runs": (no_claims_of_runs, check_duplicates_run_once, "F1 broken"),
    "acknowledged before the end": (acknowledged_before_it_has_ended, check_cut_runs_come_again, "F2 broken"),
}


@pytest.mark.parametrize("check", CHECKS, ids=[check.__name__ for check in CHECKS])
async def test_the_promise_holds(world: FanoutWorld, check: Check) -> None:
    """Each check passes on the shipped code."""
    await check(world)


@pytest.mark.parametrize("mutant", MUTANTS)
async def test_a_missing_guard_is_found(world: FanoutWorld, monkeypatch: pytest.MonkeyPatch, mutant: str) -> None:
    """The same check fails without its guard."""
    mutate, check, complaint = MUTANTS[mutant]
    mutate(monkeypatch)
    with pytest.raises(AssertionError, match=complaint):
        await check(world)
