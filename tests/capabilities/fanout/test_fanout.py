"""Fan-out as a whole, from a row to the call of a handler: with RabbitMQ, with and without Redis."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kit.fanout import MODULE, FanoutWorld, Hub, fanout_world
from kit.servers import RabbitServer, RedisServer
from kit.waiting import eventually_async
from tickwright.capabilities.fanout.handlers import EntityTask
from tickwright.capabilities.fanout.windows import Window
from tickwright.partners.outcomes import Failed, Throttled

HOUR = 3600
CODES = ["NL-TNM", "DE*ABC", "FR.GFX", "BE-BCA"]


@pytest.fixture(params=["rabbitmq and redis", "rabbitmq", "postgres alone"])
async def world(request: pytest.FixtureRequest, database_url: str) -> AsyncIterator[FanoutWorld]:
    """A world with everything, one without Redis, and one with PostgreSQL alone."""
    rabbit: RabbitServer | None = request.getfixturevalue("rabbit_server") if "rabbitmq" in request.param else None
    redis: RedisServer | None = request.getfixturevalue("redis_server") if "redis" in request.param else None
    amqp_url, redis_url = [None if server is None else server.url for server in (rabbit, redis)]
    async with fanout_world(database_url, amqp_url, redis_url) as world:
        await world.put_module()
        yield world


@pytest.mark.matrix
async def test_codes_with_many_dots_are_polled_and_hold_up_no_others(world: FanoutWorld) -> None:
    """A dot takes three of a message id's 255 characters; hundreds of such entities come first here."""
    codes = [*(f"A{n}{'.' * 95}" for n in range(600)), *CODES]
    await world.put_entities(codes)
    hub = Hub()
    window = await world.window()
    async with world.scheduler(), world.consumer({MODULE: hub}, slots=20):
        await eventually_async(lambda: len(hub.ended) >= len(codes), 60, what="all are polled")
    assert Counter(task.entity_code for task in hub.runs) == Counter(codes)
    assert world.ids(CODES, window).keys() <= Counter(hub.ended).keys()


@pytest.mark.matrix
async def test_an_entity_is_polled_in_its_first_window_and_once(world: FanoutWorld) -> None:
    """A row is enough: every module of every entity runs at once, with the whole document, and once."""
    await world.put_module("TARIFFS")
    await world.put_entities(CODES, " tariffs, LOCATIONS,")
    hub = Hub()
    window = await world.window()
    async with world.scheduler(), world.consumer({MODULE: hub, "TARIFFS": hub}, slots=4):
        await eventually_async(lambda: len(hub.ended) == 8, what="all are polled")
    assert Counter(hub.ended) == world.ids(CODES, window) + world.ids(CODES, window, "TARIFFS")
    task = next(task for task in hub.runs if task.entity_code == "DE*ABC")
    assert task.party == {"url": "https://DE*ABC"}
    assert task.last_executed_at is None
    assert task.drop_dead_at == task.window_at + timedelta(hours=1)
    row = await world.cursor("DE*ABC")
    assert row["last_window_at"].timestamp() == window.start_s
    assert row["owner"] is None


@pytest.mark.matrix
async def test_a_restart_repeats_nothing_and_many_schedulers_publish_once(world: FanoutWorld) -> None:
    """Three schedulers at once and a fourth one later: each task is in the queue once."""
    codes = [f"E{number}" for number in range(700)]
    await world.put_entities(codes)
    window = await world.window()
    async with world.scheduler() as one, world.scheduler() as two, world.scheduler() as three:
        schedulers = [one, two, three]
        await eventually_async(lambda: sum(s.counts["published"] for s in schedulers) >= 700, what="all published")
        await world.queues.counted(world.queue, 700)
    async with world.scheduler() as late:
        await eventually_async(lambda: late.settled == 700, what="the late one has checked all")
        assert late.counts["published"] == 0
    assert await world.queued() == world.ids(codes, window)


@pytest.mark.matrix
async def test_every_window_is_published_when_it_begins(world: FanoutWorld) -> None:
    """Windows of a second, one after the other: each once, none before its time."""
    await world.put_module(interval_s=1)
    await world.put_entities(["A"])
    hub = Hub()
    async with world.scheduler(), world.consumer({MODULE: hub}):
        await eventually_async(lambda: len(hub.ended) >= 4, 30, what="four windows")
    assert len(set(hub.ended)) == len(hub.ended)
    starts = [task.window_at.timestamp() for task in hub.runs]
    assert starts == sorted(starts)
    last = [task.last_executed_at for task in hub.runs]
    for task, known in zip(hub.runs[1:], last[1:], strict=True):
        assert known is not None
        assert known < task.window_at + timedelta(seconds=1)


@pytest.mark.matrix
async def test_a_change_of_the_list_is_seen_at_once(world: FanoutWorld) -> None:
    """A new entity is polled in the current window, a disabled one no more."""
    await world.put_entities(["A"])
    hub = Hub()
    async with world.scheduler() as scheduler, world.consumer({MODULE: hub}):
        await eventually_async(lambda: hub.codes == ["A"], what="the first one")
        await world.put_entities(["B"])
        await eventually_async(lambda: hub.codes == ["A", "B"], 5, what="the new one, long before the next refresh")
        await world.pool.execute("UPDATE tickwright.entities SET is_polling_enabled = false WHERE code = 'B'")
        await eventually_async(
            lambda: "B" not in scheduler.lists.modules[MODULE].entities, 5, what="it is off the list"
        )


@pytest.mark.matrix
async def test_a_gated_module_needs_its_flag(world: FanoutWorld) -> None:
    """SESSIONS only with ENABLE_SESSIONS_POLLING=true, any other module unless its flag says false."""
    await world.put_entities(["A"], "SESSIONS,LOCATIONS")
    async with world.scheduler() as closed:
        await eventually_async(lambda: closed.counts["published"] == 1, what="LOCATIONS only")
        assert closed.held_back(closed.lists.modules["SESSIONS"])
    async with world.scheduler(gates={"SESSIONS": True, MODULE: False}) as opened:
        await eventually_async(lambda: opened.counts["published"] == 1, what="SESSIONS")
        assert opened.held_back(opened.lists.modules[MODULE])
    window = await world.window()
    assert set(await world.queued()) >= set(world.ids(["A"], window))


async def test_a_slow_entity_blocks_no_other(world: FanoutWorld) -> None:
    """One slot each: while one consumer waits for the slow entity, the other runs the rest."""
    hub = Hub()
    hub.hold("SLOW")
    async with world.consumer({MODULE: hub}), world.consumer({MODULE: hub}):
        await world.put_task("SLOW")
        await eventually_async(lambda: hub.codes == ["SLOW"], what="the slow one runs")
        for code in CODES:
            await world.put_task(code)
        await eventually_async(lambda: len(hub.ended) == len(CODES), what="the fast ones are done")
        hub.release("SLOW")
        await eventually_async(lambda: len(hub.ended) == len(CODES) + 1, what="the slow one, too")


@pytest.mark.matrix
async def test_one_entity_has_no_more_runs_at_once_than_it_may(world: FanoutWorld) -> None:
    """Two at once over all modules and processes; the others come when there is room."""
    hub = Hub()
    hub.hold("A")
    modules = [f"M{number}" for number in range(5)]
    for module in modules:
        await world.put_module(module)
    handlers = dict.fromkeys(modules, hub)
    async with world.consumer(handlers, slots=5, at_once=2) as one, world.consumer(handlers, slots=5, at_once=2) as two:
        for module in modules:
            await world.put_task("A", module)
        await eventually_async(lambda: one.counts["busy"] + two.counts["busy"] >= 3, what="three wait")
        assert len(hub.runs) == 2
        hub.release("A")
        await eventually_async(lambda: len(hub.ended) == 5, what="all ran")
    assert hub.most == 2


@pytest.mark.matrix
async def test_an_entity_that_wants_everything_leaves_slots_to_others(world: FanoutWorld) -> None:
    """Twelve slow tasks of one entity are first in the queue; with four slots and two at once, others run meanwhile."""
    hub = Hub()
    hub.hold("GREEDY")
    modules = [f"M{number}" for number in range(12)]
    for module in modules:
        await world.put_module(module)
    for module in modules:
        await world.put_task("GREEDY", module)
    for code in CODES:
        await world.put_task(code)
    async with world.consumer({MODULE: hub, **dict.fromkeys(modules, hub)}, slots=4, at_once=2):
        await eventually_async(lambda: {*CODES} <= {*hub.codes}, 20, what="all others ran")
        assert hub.codes.count("GREEDY") == 2
        hub.release("GREEDY")
        await eventually_async(lambda: hub.codes.count("GREEDY") == 12, 30, what="all of its tasks run")
    assert hub.overlaps == []


@pytest.mark.matrix
async def test_a_task_that_was_delivered_three_times_runs_once(world: FanoutWorld) -> None:
    """The ledger refuses the second and the third, whichever consumer has them."""
    hub = Hub()
    hub.hold("A")
    async with world.consumer({MODULE: hub}, slots=3) as one, world.consumer({MODULE: hub}, slots=3) as two:
        known = await world.put_task("A", times=3)
        await eventually_async(lambda: one.counts["busy"] + two.counts["busy"] >= 2, what="two are delayed")
        hub.release("A")
        await eventually_async(lambda: one.counts["superseded"] + two.counts["superseded"] == 2, what="both dropped")
    assert (hub.ended, hub.overlaps) == ([known], [])
    assert await world.pool.fetchval("SELECT superseded FROM tickwright.fanout_windows") == 2


async def test_the_newest_window_supersedes_a_backlog(world: FanoutWorld) -> None:
    """Tasks that are older than the last success, or whose window is over, are dropped and counted."""
    now = await world.window(HOUR)
    older = Window(now.start_s - HOUR, HOUR)
    wide = Window(now.start_s - 2 * HOUR, 4 * HOUR)  # begins before, and is not over
    hub = Hub()
    async with world.consumer({MODULE: hub}) as consumer:
        await world.put_task("A", window=older)
        newest = await world.put_task("A", window=now)
        await world.put_task("A", window=wide)
        await eventually_async(lambda: sum(consumer.counts.values()) == 3, what="three are decided")
    assert hub.ended == [newest]
    assert (consumer.counts["expired"], consumer.counts["superseded"]) == (1, 1)


@pytest.mark.matrix
async def test_a_failed_run_is_tried_again_within_its_window(world: FanoutWorld) -> None:
    """A failure changes only the count of failures; the next success resets it."""
    hub = Hub(fails={"A": ValueError("no")})
    async with world.consumer({MODULE: hub}):
        await world.put_task("A")
        await eventually_async(lambda: len(hub.runs) == 2, what="it is tried again")
        row = await world.cursor("A")
        assert row["failures"] >= 1
        assert "ValueError" in row["last_error"]
        assert row["last_success_at"] is None
        hub.fails = {}
        await eventually_async(lambda: len(hub.ended) == 1, what="the success")

        async def settled() -> bool:
            row = await world.cursor("A")
            return bool(row["failures"] == 0 and row["last_success_at"] is not None and row["owner"] is None)

        await eventually_async(settled, what="the ledger is written")


async def test_a_run_beyond_its_timeout_is_cut_off(world: FanoutWorld) -> None:
    """The message's timeout holds, and the failure says so."""
    hub = Hub()
    hub.hold("A")
    async with world.consumer({MODULE: hub}):
        await world.put_task("A", timeout_ms=100)

        async def failed() -> bool:
            row = await world.cursor("A")
            return row is not None and row["last_error"] == "timeout"

        await eventually_async(failed, what="it was cut off")
        hub.release("A")


async def test_last_executed_at_is_when_the_last_success_began(world: FanoutWorld) -> None:
    """Not when the message was sent, not when it ended, and a failure leaves it as it was."""
    now = await world.window(HOUR)
    windows = [Window(now.start_s - (3 - number) * HOUR, 5 * HOUR) for number in range(3)]
    hub = Hub()
    async with world.consumer({MODULE: hub}) as consumer:
        await world.put_task("A", window=windows[0])
        await eventually_async(lambda: len(hub.ended) == 1, what="the first")
        began = (await cursor_with_success(world))["last_success_at"]
        hub.fails = {"A": Failed("not now")}
        await world.put_task("A", window=windows[1])
        await eventually_async(lambda: consumer.counts["failed"] >= 1, what="a failure")
        hub.fails = {}
        await world.put_task("A", window=windows[2])
        await eventually_async(lambda: hub.runs[-1].window_at == at(windows[2]), what="the third")
    assert began <= datetime.now(UTC)
    assert {task.last_executed_at for task in hub.runs[1:]} == {began}


async def cursor_with_success(world: FanoutWorld) -> Any:
    """Wait for the ledger's row to have a success."""

    async def row() -> Any:
        found = await world.cursor("A")
        return found if found is not None and found["last_success_at"] is not None else None

    return await eventually_async(row, what="the success is written")


def at(window: Window) -> datetime:
    """Return when a window begins."""
    return datetime.fromtimestamp(window.start_s, UTC)


@pytest.mark.matrix
async def test_the_consumer_puts_secrets_in(world: FanoutWorld) -> None:
    """The message names them; the handler asks for them."""
    found: list[Any] = []

    async def locations(task: Any) -> None:
        found.append((task.party, task.resolve(task.party)))

    await world.pool.execute(
        "INSERT INTO tickwright.entities (code, party, polling_enabled_modules) VALUES ('A', $1, $2)",
        json.dumps({"token": "Bearer ${env:OCPI_TOKEN}", "url": "https://hub.example/ocpi"}),
        MODULE,
    )
    async with world.scheduler(), world.consumer({MODULE: locations}):
        await eventually_async(lambda: found, what="it was called")
    [(named, put_in)] = found
    assert (named["token"], put_in["token"]) == ("Bearer ${env:OCPI_TOKEN}", "Bearer secret")


@pytest.mark.parametrize("raises", [True, False], ids=["raised", "returned"])
async def test_the_error_of_a_failed_run_has_no_secret_in_it(
    world: FanoutWorld, capsys: pytest.CaptureFixture[str], raises: bool
) -> None:
    """Errors of HTTP clients show headers and addresses; in the ledger and in the log the secret is ``***``."""
    await world.put_entities(["A"])

    async def hub(task: EntityTask) -> Any:
        token = task.resolve("${env:OCPI_TOKEN}")
        text = f"401 for Token {token}"
        if raises:
            raise ValueError(text)
        return Failed(text)

    await world.put_task("A")
    async with world.consumer({MODULE: hub}) as consumer:
        await eventually_async(lambda: consumer.counts["failed"], what="it failed")
    row = await world.cursor("A")
    assert "401 for Token ***" in row["last_error"]
    said = capsys.readouterr()
    assert "Token secret" not in row["last_error"] + said.out + said.err


@pytest.mark.matrix
async def test_no_entity_of_a_partner_is_called_before_its_retry_after(world: FanoutWorld) -> None:
    """A partner's limits hold for entities as for trackers."""
    await world.pool.execute("INSERT INTO tickwright.partners (name) VALUES ('hub')")
    hub = Hub(fails={"A": Throttled(timedelta(hours=1))})
    async with world.consumer({MODULE: hub}, slots=2) as consumer:
        await world.put_task("A", partner="hub")
        await eventually_async(lambda: hub.codes == ["A"], what="the call that was throttled")

        async def silent() -> Any:
            return await world.pool.fetchval("SELECT blocked_until > now() FROM tickwright.partner_states")

        await eventually_async(silent, what="it is blocked")
        await world.put_task("B", partner="hub")
        await world.put_task("C")
        await eventually_async(lambda: consumer.counts["no_permit"] >= 1, what="B waits")
        await eventually_async(lambda: "C" in hub.codes, what="an entity without a partner runs")
    assert hub.codes == ["A", "C"]
    assert (await world.cursor("A"))["failures"] == 0


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("reason", "body"),
    [
        ("not_json", b"hello"),
        ("missing_id", b'{"Version": 1}'),
        ("unknown_version", b"{}"),
        ("invalid_message", b'{"Version": 1, "MessageId": "m"}'),
    ],
)
async def test_an_unreadable_message_is_dead_lettered(world: FanoutWorld, reason: str, body: bytes) -> None:
    """It is moved once, with its reason, and the tasks behind it run."""
    hub = Hub()
    async with world.consumer({MODULE: hub}):
        await world.queues.put("m1", body=body)
        await world.put_task("A")
        await eventually_async(lambda: hub.codes == ["A"], what="the task behind it")
        await world.queues.counted(world.queues.names.dead, 1)
    [dead] = (await world.queues.dead.peek(10)).messages
    assert (dead.message_id, dead.reason, dead.body) == ("m1", reason, body)


async def test_an_unknown_module_is_dead_lettered_and_one_without_a_handler_waits(world: FanoutWorld) -> None:
    """A deployment loses nothing: a module that another process may handle goes to the delay queue."""
    await world.put_module("CDRS")
    async with world.consumer({MODULE: Hub()}) as consumer:
        await world.put_task("A", "UNKNOWN")
        await world.put_task("A", "CDRS")
        await eventually_async(lambda: consumer.counts["unknown_module"] == 1, what="the dead one")
        await eventually_async(lambda: consumer.counts["no_handler"] == 1, what="the one that waits")
    [dead] = (await world.queues.dead.peek(10)).messages
    assert dead.reason == "unknown_module"
    assert await world.queues.count(world.queues.names.delay(timedelta(seconds=10))) == 1


async def test_a_task_of_a_short_window_without_a_handler_is_retried_soon(world: FanoutWorld) -> None:
    """Ten seconds would be after the window's end, and another process may have the handler."""
    await world.put_module("CDRS")
    async with world.consumer({MODULE: Hub()}) as without:
        now = await world.window(1)
        await world.put_task("A", "CDRS", window=Window(now.start_s - 3600, 3609))  # nine seconds are left
        await eventually_async(lambda: sum(without.counts.values()) == 1, what="it is decided")
    assert without.counts["no_handler"] == 1


@pytest.mark.matrix
async def test_an_unknown_partner_allows_no_call(world: FanoutWorld) -> None:
    """The limits of a partner that was just made are not in the consumer snapshot yet."""
    hub = Hub()
    async with world.consumer({MODULE: hub}) as consumer:
        await world.put_task("A", partner="new")
        await eventually_async(lambda: consumer.counts["no_permit"] >= 1, what="it waits")
        assert hub.codes == []
        await world.pool.execute("INSERT INTO tickwright.partners (name) VALUES ('new')")
        await eventually_async(lambda: hub.codes == ["A"], 20, what="it is run within the partner's limits")


async def test_a_message_of_a_newer_release_waits_for_a_newer_consumer(world: FanoutWorld) -> None:
    """It is delayed and not dead-lettered, as long as a scheduler of ours signed it."""
    body = b'{"Version": 2}'
    async with world.consumer({MODULE: Hub()}) as consumer:
        await world.queues.put("m2", body=body, headers=await world.signed(body))
        await eventually_async(lambda: consumer.counts["future_version"] == 1, what="it waits")
    assert (await world.queues.dead.peek(1)).total == 0


async def test_a_stop_lets_runs_end_and_releases_the_rest(world: FanoutWorld) -> None:
    """Two steps: runs may end; those that are cut off then are free at once, and their messages are queued again."""
    hub = Hub()
    hub.hold("A")
    async with world.consumer({MODULE: hub}) as consumer:
        known = await world.put_task("A")
        await eventually_async(lambda: hub.codes == ["A"], what="it runs")
        quiescing = asyncio.create_task(consumer.quiesce())
        await world.put_task("B")
        await consumer.stop()
        await quiescing
        assert (await world.cursor("A"))["owner"] is None
        assert consumer.running == 0
    assert (await world.queued()).keys() >= {known}
