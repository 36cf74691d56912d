"""The doctor checks fan-out's queues and Redis, reports what is wrong, and changes nothing."""

from typing import Any
from uuid import uuid4

import asyncpg

from kit.cli import environment, tickwright
from kit.rabbit_queues import raw_channel
from kit.rabbit_tasks import Fanout
from kit.servers import RabbitServer, RedisServer, started


def findings(check: str, **env: str) -> list[tuple[str, str]]:
    """Return the findings of a check."""
    said: Any = tickwright("doctor", "--json", env=environment(**env)).json
    assert all(one["remedy"] for one in said["findings"] if one["verdict"] != "ok")
    return [(one["verdict"], one["says"]) for one in said["findings"] if one["check"] == check]


async def test_queues_are_examined_and_not_declared(database_url: str, rabbit_server: RabbitServer) -> None:
    """Queues that are not there yet are no fault, a missing one is a warning, other arguments are a failure."""
    queues = Fanout(rabbit_server.url)
    env = {"DATABASE_URL": database_url, "AMQP_URL": rabbit_server.url, "AMQP_PREFIX": queues.names.prefix}
    [(verdict, says)] = findings("fanout queues", **env)
    assert (verdict, "not there yet" in says) == ("ok", True)
    [(verdict, says)] = findings("fanout queues", **env)
    assert (verdict, "not there yet" in says) == ("ok", True), "the check has declared nothing"
    await queues.prepare()
    assert findings("fanout queues", **env) == [("ok", "as they should be")]
    await queues.delete(queues.names.dead)
    assert findings("fanout queues", **env) == [("warn", f"missing: {queues.names.dead}")]
    async with raw_channel(queues.url) as channel:
        await channel.queue_declare(queues.names.dead, durable=True)
    [(verdict, says)] = findings("fanout queues", **env)
    assert (verdict, queues.names.dead in says) == ("fail", True)
    await queues.remove()


def test_without_a_rabbitmq_there_is_no_finding_on_queues(database_url: str) -> None:
    """A RabbitMQ that does not answer is one failure, not two; none at all is no finding."""
    assert findings("fanout queues", DATABASE_URL=database_url) == []
    assert findings("redis", DATABASE_URL=database_url) == []
    unreachable = {
        "DATABASE_URL": database_url,
        "AMQP_URL": "amqp://127.0.0.1:1/",
        "AMQP_PREFIX": f"t{uuid4().hex[:8]}",
    }
    assert findings("rabbitmq", **unreachable) == [("fail", "does not answer")]
    assert findings("fanout queues", **unreachable) == []


async def test_a_missing_consumer_is_named_where_entities_are_polled(database_url: str) -> None:
    """Without entities a consumer is not needed."""
    assert findings("fanout-consumer", DATABASE_URL=database_url) == []
    connection = await asyncpg.connect(database_url)
    await connection.execute("INSERT INTO tickwright.entities (code) VALUES ('A')")
    assert findings("fanout-consumer", DATABASE_URL=database_url) == [("warn", "none is alive: no entity is polled")]
    await connection.execute(
        "INSERT INTO tickwright.workers (id, name, roles, version, lease_until) "
        "VALUES (1, 'c', '{fanout-consumer}', '0', now() + interval '1 hour')"
    )
    await connection.close()
    assert findings("fanout-consumer", DATABASE_URL=database_url) == [("ok", "1 alive")]


def test_redis_is_checked_for_its_eviction_policy(database_url: str, redis_server: RedisServer) -> None:
    """One that evicts keys is a failure; an unreachable one is a warning, as PostgreSQL decides meanwhile."""
    env = {"DATABASE_URL": database_url, "REDIS_URL": redis_server.url}
    assert findings("redis", **env) == [("ok", "answers, and evicts nothing")]
    [(verdict, says)] = findings("redis", DATABASE_URL=database_url, REDIS_URL="redis://127.0.0.1:1/0")
    assert (verdict, "PostgreSQL decides alone" in says) == ("warn", True)
    with started(RedisServer({"maxmemory-policy": "allkeys-lru"})) as forgetful:
        [(verdict, says)] = findings("redis", DATABASE_URL=database_url, REDIS_URL=forgetful.url)
    assert (verdict, "noeviction" in says) == ("fail", True)


def test_a_secret_without_hosts_is_named_and_its_value_is_not_shown(database_url: str) -> None:
    """It is handed out to no host; with its hosts there is no finding."""
    env = {"DATABASE_URL": database_url, "SECRET_LOOSE": "canary"}
    [(verdict, says)] = findings("secrets", **env)
    assert verdict == "warn"
    assert "TICKWRIGHT_SECRET_HOSTS_LOOSE" in says
    assert "canary" not in says
    assert findings("secrets", **env, SECRET_HOSTS_LOOSE="cpo.example") == []
