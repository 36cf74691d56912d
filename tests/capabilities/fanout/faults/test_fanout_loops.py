"""Fan-out's loops while a server they need is unavailable, silent or broken: they stop when asked, and query little."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from itertools import pairwise
from urllib.parse import urlsplit

import pytest
from structlog.testing import capture_logs

from kit.fanout import MODULE, FanoutWorld, Hub, fanout_world, running
from kit.ports import free_port
from kit.probes import Stops
from kit.rabbit_tasks import Fanout
from kit.redis_fanout import fresh_prefix, redis_link
from kit.servers import RabbitServer, RedisServer
from kit.tcp_proxy import TcpProxy
from kit.waiting import eventually_async
from tickwright.capabilities.fanout.consumer import run_claims
from tickwright.capabilities.fanout.consumer.consumer import DELAYS_MAX
from tickwright.capabilities.fanout.consumer.run_claims import ConsumerRunClaims, LedgerRunClaims, TwoStoreRunClaims
from tickwright.capabilities.fanout.scheduler.publisher import CHUNKS_AT_ONCE, Publisher
from tickwright.capabilities.fanout.scheduler.scheduler import (
    AGAIN_S,
    CHANNEL,
    CHUNK,
    REFRESH_WITHOUT_WAKEUPS_S,
    FanoutScheduler,
)
from tickwright.domain.errors import Unavailable
from tickwright.domain.leases import LeaseTerms
from tickwright.engine.session import WorkerSession
from tickwright.engine.wakeup.connection import DirectConnection
from tickwright.engine.wakeup.listener import WakeupListener
from tickwright.ports.fanout import EntityWindow, HeldRun, MarkClaim, Run, RunStart
from tickwright.ports.ids import monotonic
from tickwright.store.pool import open_pool
from tickwright.transports.redis.stores import RUN_LEASE, RedisRunClaims

CODES = [f"E{number}" for number in range(3 * CHUNKS_AT_ONCE * CHUNK)]


@pytest.fixture
async def world(database_url: str, rabbit_server: RabbitServer) -> AsyncIterator[FanoutWorld]:
    """Fan-out without Redis."""
    async with fanout_world(database_url, rabbit_server.url, None) as world:
        await world.put_module()
        yield world


class NoMarks:
    """No store of marks answers."""

    async def claim(self, windows: Sequence[EntityWindow], token: str, lease: timedelta) -> list[MarkClaim]:
        """Fail."""
        raise Unavailable("redis_unavailable", "no store answers")


def scheduler_of(world: FanoutWorld, wakeups: WakeupListener, marks: object = None) -> FanoutScheduler:
    """Return a scheduler that publishes nothing and is not started."""
    broker = declare = parties = object()
    publisher = Publisher(marks, broker, "", declare=declare, parties=parties, token="t")  # type: ignore[arg-type]  # never called
    return FanoutScheduler(world.pool, publisher, gates=lambda _: None, wakeups=wakeups)


async def test_a_stop_during_the_first_reading_ends_at_once(world: FanoutWorld) -> None:
    """A stop arrives while the lists are read: no task begins that would not be stopped."""
    scheduler = scheduler_of(world, WakeupListener(DirectConnection(None), CHANNEL))
    async with world.pool.acquire() as gate, gate.transaction():
        await gate.execute("LOCK TABLE tickwright.modules IN ACCESS EXCLUSIVE MODE")
        running = asyncio.create_task(scheduler.run())
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'tickwright.modules'::regclass"
        await eventually_async(lambda: gate.fetchval(waiting), what="the lists are being read")
        quiet = asyncio.create_task(scheduler.quiesce())
    async with asyncio.timeout(30):
        await quiet
        await running


async def test_missed_entities_stay_counted_when_their_module_is_deleted(world: FanoutWorld) -> None:
    """A counter of Prometheus never falls; a module's loop ends with its module."""
    await world.put_module("TARIFFS", interval_s=1)
    await world.put_entities(["A"], "TARIFFS")
    direct = DirectConnection(world.url)
    scheduler = scheduler_of(world, WakeupListener(direct, CHANNEL), NoMarks())
    async with running([direct, scheduler]):
        await eventually_async(lambda: scheduler.counts["missed"] > 0, what="a window is missed")
        await world.pool.execute("DELETE FROM tickwright.modules WHERE name = 'TARIFFS'")
        missed = scheduler.counts["missed"]
        await eventually_async(lambda: "TARIFFS" not in scheduler._loops, what="the module's loop has ended")
        assert scheduler.counts["missed"] >= missed


@pytest.mark.storm
async def test_without_notifications_the_lists_are_read_only_every_ten_seconds(world: FanoutWorld) -> None:
    """LISTEN fails and is retried every second; the lists are read every ten seconds."""
    url = f"postgresql://nobody@127.0.0.1:{free_port()}/nothing"
    direct = DirectConnection(url)
    scheduler = scheduler_of(world, WakeupListener(direct, CHANNEL))
    with capture_logs() as logs:
        async with running([direct, scheduler]):
            await eventually_async(lambda: scheduler.lists.modules, what="the first reading")
            first, read_s = scheduler.lists, monotonic()
            await eventually_async(
                lambda: sum(log["event"] == "wakeup.listen_failed" for log in logs) >= 4, what="three more tries"
            )
            assert scheduler.lists is first or monotonic() - read_s > REFRESH_WITHOUT_WAKEUPS_S


async def test_while_the_broker_is_unavailable_a_round_ends_with_the_first_refusals(world: FanoutWorld) -> None:
    """The other entities and modules are not claimed every second without being published."""
    await world.put_entities(CODES)
    probe = Stops()
    begun_s = monotonic()
    async with world.scheduler(amqp_url=f"amqp://guest:guest@127.0.0.1:{free_port()}/", probe=probe) as scheduler:
        await eventually_async(lambda: probe.reached_times["fanout.claimed"] > 2 * CHUNKS_AT_ONCE, what="three rounds")
        assert monotonic() - begun_s >= 2 * AGAIN_S
        assert scheduler.counts["published"] == 0


async def test_a_last_success_in_the_future_is_in_no_message(world: FanoutWorld) -> None:
    """A clock that had jumped, or a person, wrote it: a handler that used it would fetch nothing."""
    await world.put_entities(["A", "B"])
    await world.pool.execute(
        "INSERT INTO tickwright.fanout_cursors (entity_code, task_type, last_success_at) "
        "VALUES ('A', $1, 'infinity'), ('B', $1, clock_timestamp() + interval '1 hour')",
        MODULE,
    )
    queues = world.queues
    assert isinstance(queues, Fanout)
    async with world.scheduler():
        await queues.counted(world.queue, 2)
    bodies = [json.loads(one.body) for one in await queues.all_in(world.queue)]
    assert [body["LastExecutedAt"] for body in bodies] == [None, None]


async def test_a_message_that_fails_unexpectedly_ends_as_a_dead_letter(world: FanoutWorld) -> None:
    """Each delay makes a new copy, whose deliveries count from one: so delays are counted, too."""

    class Broken:
        async def reached(self, name: str, /, **_facts: object) -> None:
            if name == "fanout.begun":
                raise RuntimeError("not foreseen")

    window = await world.window()
    await world.put_task("A", window=window)
    queues = world.queues
    assert isinstance(queues, Fanout)
    [one] = await queues.all_in(world.queue)
    for delays in (DELAYS_MAX - 1, DELAYS_MAX):
        known = one.header.properties.message_id
        headers = {**await world.signed(one.body), "tickwright-delays": delays}
        await queues.put(f"{known}-{delays}", body=one.body, headers=headers)
    async with world.consumer({MODULE: Hub()}, probe=Broken()) as consumer:
        await eventually_async(lambda: consumer.counts["unexpected"] == 2, what="both are decided")
        assert consumer.last_tick_age_s() is not None, "it is not ready although it works"
    [dead] = (await queues.dead.peek(10)).messages
    assert (dead.message_id, dead.reason) == (f"{known}-{DELAYS_MAX}", "unexpected")
    assert "RuntimeError" in dead.text


async def test_a_silent_database_does_not_cost_the_claims_in_redis(
    database_url: str, redis_server: RedisServer
) -> None:
    """Carry-overs and counts of drops wait for it; renewals come well within a claim's ten seconds."""
    parts = urlsplit(database_url)
    terms = LeaseTerms(timedelta(seconds=60), timedelta(seconds=1))
    run, other = Run("E1", "LOCATIONS", 1_700_000_000, 1), Run("E2", "LOCATIONS", 1_700_000_000, 1)
    async with (
        TcpProxy(parts.hostname or "", parts.port or 0) as proxy,
        redis_link(redis_server.url) as link,
        await open_pool(proxy.rewrite(database_url), max_size=3) as pool,
    ):
        session = WorkerSession(pool, name="test", roles=[], version="0", terms=terms)
        await session.open()
        renewals: list[float] = []

        class Noting(RedisRunClaims):
            async def renew(self, held: Sequence[HeldRun], owner: int) -> list[bool]:
                ours = await super().renew(held, owner)
                renewals.append(monotonic())
                return ours

        book = ConsumerRunClaims(TwoStoreRunClaims(Noting(link, prefix=fresh_prefix()), LedgerRunClaims(pool)), session)
        begun, also = await book.begin(run), await book.begin(other)
        assert begun.start is also.start is RunStart.BEGUN
        proxy.blackhole()
        async with asyncio.TaskGroup() as group, book.held(HeldRun(run, begun)):
            keeping = group.create_task(book.run())
            ending = group.create_task(book.end(HeldRun(other, also)))
            for _ in range(3):
                before = len(renewals)
                book.count_dropped("LOCATIONS", 1_700_000_000, "superseded")
                await eventually_async(lambda: len(renewals) > before, 30, what="a renewal")  # noqa: B023
            assert await ending
            keeping.cancel()
        assert max(later - earlier for earlier, later in pairwise(renewals)) < RUN_LEASE.total_seconds()
        pool.terminate()


async def test_a_renewal_during_an_end_does_not_count_the_run_as_lost(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stores no longer have the claim because it has ended: the call is not cancelled, its message not released."""
    monkeypatch.setattr(run_claims, "RENEW_S", 0.05)
    written, renewals = asyncio.Event(), Counter[bool]()
    answer = asyncio.Event()

    class SlowToAnswer(LedgerRunClaims):
        async def end(self, ended: Sequence[HeldRun], owner: int) -> list[bool]:
            ours = await super().end(ended, owner)
            written.set()
            await answer.wait()
            return ours

        async def renew(self, held: Sequence[HeldRun], owner: int) -> list[bool]:
            ours = await super().renew(held, owner)
            renewals.update(ours)
            return ours

    async with await open_pool(database_url, max_size=3) as pool:
        session = WorkerSession(pool, name="test", roles=[], version="0")
        await session.open()
        book = ConsumerRunClaims(TwoStoreRunClaims(None, SlowToAnswer(pool)), session)
        run = Run("E1", "LOCATIONS", 1_700_000_000, 1)
        ended = HeldRun(run, await book.begin(run))

        async def work() -> bool:
            async with book.held(ended):
                return await book.end(ended._replace(error="BadGateway"))

        async with asyncio.TaskGroup() as group:
            keeping, working = group.create_task(book.run()), group.create_task(work())
            await written.wait()
            await eventually_async(lambda: renewals[False] >= 2, what="a renewal finds no claim")
            answer.set()
            assert await working
            keeping.cancel()
