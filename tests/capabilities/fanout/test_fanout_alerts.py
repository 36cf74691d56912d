"""The alerts of fan-out fire in their faults and clear after them: queues, consumers and schedulers are real."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from pydantic import SecretStr

from kit.alerts import RULES
from kit.fanout import MODULE, FanoutWorld, Hub, fanout_world, registry_of
from kit.leases import LONG
from kit.rabbit_tasks import Fanout as RabbitFanout
from kit.servers import RabbitServer
from kit.waiting import eventually_async
from tickwright.capabilities.fanout.overview import line_of, read_fanout
from tickwright.capabilities.operations.alerts.alerting import Alerting, RuleSchedule
from tickwright.domain.leases import LeaseTerms
from tickwright.engine.leases import Lease, Leases
from tickwright.engine.session import WorkerSession
from tickwright.observe.alerts import AlertFinding, AlertRule
from tickwright.partners.outcomes import Failed
from tickwright.plugin import Registrations
from tickwright.plugin.settings import Bind, Settings
from tickwright.process.node import open_node
from tickwright.transports.postgres import broker as postgres_tasks
from tickwright.transports.rabbitmq import tasks as rabbit_tasks

RULES_OF_FANOUT = [rule for rule in RULES if rule.name.startswith("fanout_")]
TERMS = LeaseTerms(timedelta(seconds=30), timedelta(seconds=3))
AGED_ENTITIES = """
INSERT INTO tickwright.entities (code, polling_enabled_modules, partner, created_at, updated_at)
SELECT code, $2, $3, now() - interval '1 day', now() - interval '1 day' FROM unnest($1::text[]) AS code
"""
AGED_MODULES = "UPDATE tickwright.modules SET updated_at = now() - interval '1 day'"


def quick(rule: AlertRule) -> AlertRule:
    """Return a rule without its waiting times; how many failures it wants stays."""
    bounds = tuple(timedelta() if isinstance(bound, timedelta) else bound for bound in rule.bounds)
    return replace(rule, bounds=bounds, hold=timedelta(), every=timedelta())


class Watch:
    """Alerts of one world, evaluated when a test wants it."""

    def __init__(self, world: FanoutWorld, lease: Lease) -> None:
        self.world, self._lease = world, lease
        rules = [quick(rule) for rule in RULES_OF_FANOUT]
        self._loop = Alerting(Leases(world.pool, owner="test"), rules=rules)

    async def firing(self, rule: str) -> dict[str, str]:
        """Return the subjects for which a rule fires now, with their summaries."""
        await self._loop.round(self._lease)
        asked = "SELECT subject, summary FROM tickwright.alerts WHERE rule = $1 AND state = 'firing'"
        found = {row["subject"]: row["summary"] for row in await self.world.pool.fetch(asked, rule)}
        assert not any("?" in summary for summary in found.values()), found
        return found

    async def until(self, rule: str, *subjects: str) -> None:
        """Wait until the rule fires for exactly these."""

        async def they_fire() -> bool:
            return set(await self.firing(rule)) == set(subjects)

        await eventually_async(they_fire, what=f"{rule} of {subjects}")


@pytest.fixture
async def world(database_url: str, rabbit_server: RabbitServer) -> AsyncIterator[FanoutWorld]:
    """A world where PostgreSQL decides."""
    async with fanout_world(database_url, rabbit_server.url, None) as world:
        await world.put_module()
        yield world


@pytest.fixture
async def watch(world: FanoutWorld) -> Watch:
    """The alerts of the world."""
    lease = await Leases(world.pool, owner="test", terms=LONG).take("alerting")
    assert lease is not None
    return Watch(world, lease)


@asynccontextmanager
async def session(world: FanoutWorld, role: str, facts: Mapping[str, Any]) -> AsyncIterator[WorkerSession]:
    """A process of a role with these facts."""
    one = WorkerSession(world.pool, name=role, roles=[role], version="0", terms=TERMS)
    one.facts.update(facts)
    await one.open()
    try:
        yield one
    finally:
        await one.stop()


async def put_aged(world: FanoutWorld, codes: list[str], modules: str = MODULE, *, partner: str | None = None) -> None:
    """Add entities, and make them and all modules a day old."""
    await world.pool.execute(AGED_ENTITIES, codes, modules, partner)
    await world.pool.execute(AGED_MODULES)


async def test_a_missing_consumer_is_an_alert_only_once_something_has_run(world: FanoutWorld, watch: Watch) -> None:
    """Entities without a consumer are no fault at first; once something ran, the alert fires until a consumer lives."""
    await world.put_entities(["A", "B"])
    assert await watch.firing("fanout_no_consumer") == {}
    hub = Hub()
    async with world.scheduler(), world.consumer({MODULE: hub}):
        await eventually_async(lambda: len(hub.ended) == 2, what="both ran")
        assert await watch.firing("fanout_no_consumer") == {}
    said = await watch.firing("fanout_no_consumer")
    assert said == {"consumers": f"2 entities are not polled for {MODULE}: no fanout-consumer is alive (dead-man)."}
    async with world.consumer({MODULE: hub}):
        assert await watch.firing("fanout_no_consumer") == {}
    assert set(await watch.firing("fanout_no_consumer")) == {"consumers"}
    await world.pool.execute("UPDATE tickwright.modules SET paused_at = now()")
    assert await watch.firing("fanout_no_consumer") == {}


async def test_a_module_without_a_handler_is_named_while_it_is_published(world: FanoutWorld, watch: Watch) -> None:
    """Only if entities name it, consumers live, none has its handler, and it is neither paused nor closed."""
    await world.put_entities(["A"], "locations, TARIFFS,SESSIONS")
    assert await watch.firing("fanout_no_handler") == {}
    async with session(world, "fanout-consumer", {"modules": [MODULE]}):
        assert set(await watch.firing("fanout_no_handler")) == {"TARIFFS"}
        async with session(world, "scheduler", {"gates": {"SESSIONS": True}}):
            assert set(await watch.firing("fanout_no_handler")) == {"TARIFFS", "SESSIONS"}
        async with session(world, "scheduler", {"gates": {"TARIFFS": False}}):
            assert await watch.firing("fanout_no_handler") == {}
            async with session(world, "scheduler", {"gates": {}}):
                assert set(await watch.firing("fanout_no_handler")) == {"TARIFFS"}
        async with session(world, "fanout-consumer", {"modules": ["TARIFFS"]}):
            assert await watch.firing("fanout_no_handler") == {}
        await world.pool.execute("UPDATE tickwright.modules SET paused_at = now() WHERE name = 'TARIFFS'")
        assert await watch.firing("fanout_no_handler") == {}


async def test_an_unknown_module_is_named_until_it_is_set_up(world: FanoutWorld, watch: Watch) -> None:
    """However the list is written and however long the name is; entities that are not polled do not count."""
    await world.put_entities(["A", "B"], " token ,LOCATIONS")
    await world.put_entities(["C"], "TOKEN,," + "X" * 300)
    await world.put_entities(["D"], "NOBODYS")
    await world.pool.execute("UPDATE tickwright.entities SET is_polling_enabled = false WHERE code = 'D'")
    said = await watch.firing("fanout_unknown_module")
    assert set(said) == {"TOKEN", "X" * 60}
    assert said["TOKEN"].startswith("3 entities name the module TOKEN")
    await world.put_module("TOKEN")
    assert set(await watch.firing("fanout_unknown_module")) == {"X" * 60}


async def test_thousands_of_lists_hide_no_module(world: FanoutWorld, watch: Watch) -> None:
    """Lists that sort before it and after it are read in part, and an alert says so."""
    await world.put_entities(["A"], "LOCATIONS,TOKEN")
    await world.put_entities(["B"], "tariffs")
    await world.pool.execute(
        "INSERT INTO tickwright.entities (code, polling_enabled_modules) "
        "SELECT 'M' || n, CASE n % 2 WHEN 0 THEN '!' ELSE 'Z' END || n FROM generate_series(1, 4000) AS n"
    )
    async with session(world, "fanout-consumer", {"modules": []}):
        assert set(await watch.firing("fanout_no_handler")) == {MODULE, "TARIFFS"}
    await world.pool.execute("INSERT INTO tickwright.fanout_cursors (entity_code, task_type) VALUES ('A', $1)", MODULE)
    assert set(await watch.firing("fanout_no_consumer")) == {"consumers"}
    await world.put_entities(["C", "D"], "LOCATIONS,TOKEN")
    unknown = await watch.firing("fanout_unknown_module")
    assert unknown["TOKEN"].startswith("3 entities name the module TOKEN")
    assert len(unknown) == 101, "an answer that is cut resolves nothing"
    assert await watch.firing("fanout_many_lists") == {
        "lists": "Entities have more than 1000 different lists of modules; alerts on what they name read 1000 of them."
    }
    await world.pool.execute("DELETE FROM tickwright.entities WHERE code LIKE 'M%'")
    assert set(await watch.firing("fanout_unknown_module")) == {"TOKEN"}
    assert await watch.firing("fanout_many_lists") == {}


async def test_entities_that_fail_repeatedly_are_reported_with_the_error(world: FanoutWorld, watch: Watch) -> None:
    """Three failures in a row, not two; a success ends the alert, and so does an operator who disables the entity."""
    await world.put_module(interval_s=86_400)
    await world.put_entities(["A", "B", "C", "TWICE"])
    await world.pool.execute(
        "INSERT INTO tickwright.fanout_cursors (entity_code, task_type, failures) VALUES ('TWICE', $1, 2)", MODULE
    )
    assert await watch.firing("fanout_failing") == {}
    hub = Hub(fails={"A": Failed("HTTP 500"), "B": Failed("HTTP 503")})
    async with world.consumer({MODULE: hub}, slots=3) as consumer:
        window = await world.window(86_400)
        for code in "ABC":
            await world.put_task(code, window=window)
        await eventually_async(lambda: consumer.counts["failed"] >= 6, what="both failed three times")
        assert (await watch.firing("fanout_failing"))[MODULE].startswith(f"2 entities fail repeatedly for {MODULE}")
        await world.pool.execute("UPDATE tickwright.entities SET is_polling_enabled = false WHERE code = 'B'")
        said = await watch.firing("fanout_failing")
        assert said[MODULE].endswith("the last one A: HTTP 500")
        hub.fails = {}
        await watch.until("fanout_failing")


async def test_entities_without_a_success_are_reported_until_they_run(world: FanoutWorld, watch: Watch) -> None:
    """After three windows and a timeout without a consumer; not for new entities and paused modules."""
    await world.put_module(timeout_ms=1000)
    await put_aged(world, ["A", "B"])
    await world.put_entities(["YOUNG"])
    said = await watch.firing("fanout_stale")
    assert said[MODULE].startswith(f"2 entities had no success for {MODULE} within three intervals, A since ")
    await world.pool.execute("UPDATE tickwright.modules SET paused_at = now()")
    assert await watch.firing("fanout_stale") == {}
    await world.pool.execute("UPDATE tickwright.modules SET paused_at = NULL")
    assert set(await watch.firing("fanout_stale")) == {MODULE}
    hub = Hub()
    async with world.scheduler(), world.consumer({MODULE: hub}, slots=3):
        await watch.until("fanout_stale")
    assert len(hub.ended) >= 2
    back = "UPDATE tickwright.fanout_cursors SET last_success_at = last_success_at - $1::interval"
    await world.pool.execute(back, timedelta(hours=2, minutes=59))
    assert await watch.firing("fanout_stale") == {}
    await world.pool.execute(back, timedelta(minutes=2))
    assert set(await watch.firing("fanout_stale")) == {MODULE}


async def test_a_gated_module_is_stale_only_where_its_gate_is_open_or_it_ran_once(
    world: FanoutWorld, watch: Watch
) -> None:
    """Entities may name SESSIONS for years before its gate is opened; a closed gate is a decision."""
    await put_aged(world, ["A"], "SESSIONS")
    assert await watch.firing("fanout_stale") == {}
    async with session(world, "scheduler", {"gates": {}}):
        assert await watch.firing("fanout_stale") == {}
    async with session(world, "scheduler", {"gates": {"SESSIONS": True}}):
        assert set(await watch.firing("fanout_stale")) == {"SESSIONS"}
    assert await watch.firing("fanout_stale") == {}
    await world.pool.execute(
        "INSERT INTO tickwright.fanout_cursors (entity_code, task_type, last_success_at) "
        "VALUES ('A', 'SESSIONS', now() - interval '1 day')"
    )
    assert set(await watch.firing("fanout_stale")) == {"SESSIONS"}
    async with session(world, "scheduler", {"gates": {"SESSIONS": False}}):
        assert await watch.firing("fanout_stale") == {}


@pytest.mark.parametrize(
    "excuse",
    ["paused_at = now()", """settings = '{"quiet": ["00:00-24:00 UTC"]}'""", "promised_since = now()"],
    ids=["paused", "quiet", "changed a moment ago"],
)
async def test_entities_whose_partner_is_not_called_are_not_stale(
    world: FanoutWorld, watch: Watch, excuse: str
) -> None:
    """A partner that is not called by its settings makes no alert; without them the same entity makes one."""
    await world.pool.execute("INSERT INTO tickwright.partners (name) VALUES ('hub')")
    await put_aged(world, ["A"], partner="hub")
    await world.pool.execute(f"UPDATE tickwright.partners SET {excuse}")
    long_ago = "UPDATE tickwright.partners SET promised_since = now() - interval '1 day'"
    if "promised" not in excuse:
        await world.pool.execute(long_ago)
    assert await watch.firing("fanout_stale") == {}
    await world.pool.execute("UPDATE tickwright.partners SET paused_at = NULL, settings = '{}'")
    await world.pool.execute(long_ago)
    assert set(await watch.firing("fanout_stale")) == {MODULE}


def test_a_rule_with_a_hold_fires_only_after_it_and_starts_over() -> None:
    """A minute of a deploy is no alert; an alert that fires already goes on under another holder."""
    schedule, rule = RuleSchedule(), AlertRule("r", "info", "", hold=timedelta(minutes=1))
    found = [AlertFinding("a", {}), AlertFinding("b", {})]
    assert schedule.lasting(rule, found, {"b"}, 0.0) == found[1:]
    assert schedule.lasting(rule, found[:1], set(), 59.0) == []
    assert schedule.lasting(rule, found, set(), 60.0) == found[:1]
    assert schedule.lasting(rule, [], set(), 61.0) == []
    assert schedule.lasting(rule, found, set(), 130.0) == []


def test_an_expensive_rule_is_evaluated_less_often() -> None:
    """In between it is not evaluated, and its alerts do not end."""
    schedule = RuleSchedule()
    rule, other = AlertRule("r", "info", "", every=timedelta(minutes=1)), AlertRule("s", "info", "")
    assert schedule.is_due(rule, 5.0)
    assert not schedule.is_due(rule, 64.0)
    assert schedule.is_due(rule, 65.0)
    assert all(schedule.is_due(other, 65.0) for _ in range(2))


async def test_a_hold_is_kept_in_the_loop(world: FanoutWorld, watch: Watch) -> None:
    """The loop lets nothing fire before its time; an alert that fires already goes on under another holder."""
    await world.put_entities(["A"])
    await world.pool.execute("INSERT INTO tickwright.fanout_cursors (entity_code, task_type) VALUES ('A', 'x')")
    patient = Alerting(Leases(world.pool, owner="test"), rules=RULES)
    asked = "SELECT state FROM tickwright.alerts WHERE rule = 'fanout_no_consumer'"
    await patient.round(watch._lease)
    assert await world.pool.fetchval(asked) is None
    assert set(await watch.firing("fanout_no_consumer")) == {"consumers"}
    await patient.round(watch._lease)
    assert await world.pool.fetchval(asked) == "firing"


@pytest.mark.matrix
@pytest.mark.parametrize("queue", ["rabbitmq", "postgres"])
async def test_dead_letters_are_an_alert_until_they_are_gone_and_the_counts_are_shown(
    world: FanoutWorld, watch: Watch, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process with both roles: a poison message makes the alert, an empty queue of dead letters ends it."""
    for module in (rabbit_tasks, postgres_tasks):
        monkeypatch.setattr(module, "COUNT_EVERY_S", 0.2)
    rabbit = queue == "rabbitmq"
    settings = Settings(
        database_url=SecretStr(world.url),
        metrics_bind=Bind("127.0.0.1", 0),
        amqp_url=SecretStr(world.queues.url) if rabbit else None,
        amqp_prefix=world.prefix,
        lease=timedelta(seconds=2),
    )
    hub = Hub()
    await world.put_entities(["A", "B"])
    opened = open_node(
        settings,
        ["scheduler", "fanout-consumer"],
        registrations=Registrations(registry_of({MODULE: hub})),
        any_port=True,
    )
    async with opened as node:
        running = asyncio.create_task(node.run(signals=False))
        await eventually_async(lambda: len(hub.ended) == 2, what="both ran")
        assert await watch.firing("fanout_dead_letters") == {}
        if rabbit:
            await world.queues.put("poison", body=b"no json")
        else:
            poison = "INSERT INTO tickwright.messages (topic, message_id, payload) VALUES ($1, 'poison', 'no json')"
            await world.pool.execute(poison, f"{world.prefix}.fanout")
        await watch.until("fanout_dead_letters", "fanout")
        said = await watch.firing("fanout_dead_letters")
        assert said["fanout"] == "1 dead letters of fan-out; see dead-letters list --kind fanout."
        async with world.pool.acquire() as connection:
            seen = await read_fanout(connection)
        assert line_of(seen) == (
            "entities 2 in 1 modules · consumers 1 · queued 0 · dead letters 1 · "
            "last minute: succeeded 2, failed 0, superseded 0, expired 0"
        )
        if rabbit:
            assert isinstance(world.queues, RabbitFanout)
            await world.queues.all_in(world.queues.names.dead)
        else:
            await world.pool.execute("DELETE FROM tickwright.messages")
        await watch.until("fanout_dead_letters")
        node.supervisor.request_stop()
        await running
