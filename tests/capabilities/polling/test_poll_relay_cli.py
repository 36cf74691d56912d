"""The commands that resume a blocked relay, against a real Kafka."""

import asyncio

import pytest
from pydantic import SecretStr

from kit.cli import environment, tickwright
from kit.kafka_polls import check_exactly_once, poll_world
from kit.servers import KafkaServer
from tickwright.plugin.settings import Bind, Settings
from tickwright.process.node import open_node


@pytest.mark.storm
async def test_a_blocked_relay_is_listed_and_reconciled(
    database_url: str, kafka_server: KafkaServer, kafka_prefix: str
) -> None:
    """The problem is in the listing; a dry run says what would be done; applied, both sides agree and it is audited."""
    env = environment(
        DATABASE_URL=database_url,
        KAFKA_BOOTSTRAP=kafka_server.url,
        KAFKA_PREFIX=kafka_prefix,
        KAFKA_ALLOW_SINGLE_BROKER="true",
    )
    async with poll_world(database_url, kafka_server.url, kafka_prefix) as world:
        await world.fill(30, 10)
        async with world.running(world.relay()):
            await world.emptied()
        (fine,) = (await asyncio.to_thread(tickwright, "outbox", "polls", "--json", env=env)).json["items"]
        assert (fine["problem"], fine["position"], fine["published_no"], fine["waiting"]) == (None, 3, 3, 0)
        listed = await asyncio.to_thread(tickwright, "outbox", "polls", "--json", env=env)
        seen = await world.seen()
        ends = {n: max(one.offset for one in seen if one.partition == n) + 1 for n in {one.partition for one in seen}}
        partitions = {one["partition"]: one for one in listed.json["partitions"]}
        assert {n: (one["end_offset"], one["lag"]) for n, one in partitions.items()} == {
            n: (end, end) for n, end in ends.items()
        }
        assert {(one["topic"], one["position"], one["reader"]) for one in partitions.values()} == {
            (world.topic, None, None)
        }
        shown = (await asyncio.to_thread(tickwright, "outbox", "polls", env=env)).out
        assert all(word in shown for word in ("end offset", "lag", "reader", world.topic)), shown
        agrees = await asyncio.to_thread(tickwright, "outbox", "reconcile", "--json", env=env)
        assert (agrees.code, agrees.error["code"]) == (1, "nothing_to_reconcile")
        await world.pool.execute("UPDATE tickwright.poll_relays SET batch_no = 1, published_no = 1")
        (blocked,) = (await asyncio.to_thread(tickwright, "outbox", "polls", "--json", env=env)).json["items"]
        assert blocked["problem"] == "relay_position_ahead"
        dry = await asyncio.to_thread(tickwright, "outbox", "reconcile", env=env)
        assert "would agree on batch 3" in dry.out
        assert "--apply does it" in dry.out
        done = await asyncio.to_thread(tickwright, "outbox", "reconcile", "--apply", "--json", env=env)
        assert (done.json["applied"], done.json["adopted"]) == (True, 3)
        (again,) = (await asyncio.to_thread(tickwright, "outbox", "polls", "--json", env=env)).json["items"]
        assert (again["problem"], again["published_no"]) == (None, 3)
        trail = (await asyncio.to_thread(tickwright, "audit", "--json", env=env)).json["items"]
        assert trail[0]["action"] == "outbox.reconcile"


async def test_the_relay_role_publishes_polls_by_the_environment_alone(
    database_url: str, kafka_server: KafkaServer, kafka_prefix: str
) -> None:
    """A process with the role and the settings: two shards, each under its own lease, everything once on the topic."""
    settings = Settings(
        database_url=SecretStr(database_url),
        metrics_bind=Bind("127.0.0.1", 0),
        kafka_bootstrap=kafka_server.url,
        kafka_prefix=kafka_prefix,
        kafka_allow_single_broker=True,
        relay_shards=2,
    )
    async with poll_world(database_url, kafka_server.url, kafka_prefix) as world:
        await world.fill(20, 10)
        await world.pool.execute("UPDATE tickwright.scheduler_outbox SET shard = id % 2")
        async with open_node(settings, ["relay"], any_port=True) as node:
            running = asyncio.create_task(node.run(signals=False))
            await world.emptied()
            node.supervisor.request_stop()
            await running
        seen = await world.seen()
        check_exactly_once(seen, world.expected)
        rows = await world.pool.fetch("SELECT shard, published_no FROM tickwright.poll_relays ORDER BY shard")
        assert [row["shard"] for row in rows] == [0, 1]
        assert all(row["published_no"] > 0 for row in rows)


def test_an_unsafe_kafka_is_refused_before_anything_starts(database_url: str) -> None:
    """Two replicas without the setting that allows a single broker: wrong use, and the error names the setting."""
    env = environment(DATABASE_URL=database_url, KAFKA_BOOTSTRAP="127.0.0.1:1", KAFKA_REPLICATION="2")
    said = tickwright("run", "relay", env=env)
    assert said.code == 2, said
    assert "TICKWRIGHT_KAFKA_ALLOW_SINGLE_BROKER" in said.err
    said = tickwright("run", "relay", env={**env, "TICKWRIGHT_KAFKA_OPTIONS": '{"sasl.password": 5}'})
    assert said.code == 2, said
    assert "KAFKA_OPTIONS: " in said.err
