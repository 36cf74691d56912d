"""A task without a scheduler's signature is not run, and a party gets no foreign secret."""

import json
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from kit.fanout import MODULE, FanoutWorld, Hub, fanout_world, running
from kit.leases import LONG
from kit.pg_tasks import PgFanout
from kit.servers import RabbitServer
from kit.waiting import eventually_async
from tickwright.capabilities.fanout import messages as message_keys
from tickwright.capabilities.fanout.consumer.consumer import DELAYS_MAX
from tickwright.capabilities.fanout.handlers import EntityTask
from tickwright.capabilities.fanout.messages import SIGNATURE, read_keys, write_task
from tickwright.capabilities.fanout.windows import Window
from tickwright.engine.leases import Leases
from tickwright.engine.outbox.relay import OutboxRelay
from tickwright.engine.wakeup.connection import DirectConnection
from tickwright.transports.postgres.broker import PostgresBroker
from tickwright.transports.rabbitmq.broker import RabbitBroker

EVIL = b'{"url": "https://evil.example", "token": "${env:OCPI_TOKEN}", "aws": "${env:AWS_SECRET_ACCESS_KEY}"}'


@pytest.fixture(params=["rabbitmq", "postgres"])
async def world(request: pytest.FixtureRequest, database_url: str) -> AsyncIterator[FanoutWorld]:
    """A world with each of the two queues."""
    rabbit: RabbitServer | None = request.getfixturevalue("rabbit_server") if request.param == "rabbitmq" else None
    async with fanout_world(database_url, None if rabbit is None else rabbit.url, None) as world:
        await world.put_module()
        yield world


async def forged(world: FanoutWorld, code: str = "A") -> tuple[str, bytes]:
    """Return a task that no scheduler of ours wrote."""
    return write_task(code, MODULE, EVIL, await world.window(), None, 60_000, None, 1)


async def reasons_of_forged(world: FanoutWorld, **headers: Any) -> list[str]:
    """Publish a forged task with these headers beside one of ours; return the reasons of dead letters."""
    hub = Hub()
    known, body = await forged(world)
    await world.queues.put(known, body=body, headers=headers)
    async with world.consumer({MODULE: hub}) as consumer:
        await world.put_task("B")
        await eventually_async(lambda: hub.codes, what="ours is run")
        await eventually_async(
            lambda: consumer.counts["unsigned"] + consumer.counts["signature_wrong"], what="dead-lettered"
        )
    assert hub.codes == ["B"]
    return [dead.reason for dead in (await world.queues.dead.peek(10)).messages]


async def test_a_task_without_a_signature_is_dead_lettered(world: FanoutWorld) -> None:
    """The right to publish to the exchange, or to insert into the topic, runs nothing."""
    assert await reasons_of_forged(world) == ["unsigned"]


async def test_a_signature_is_valid_for_one_body_and_our_key(world: FanoutWorld) -> None:
    """Not one of another task, one by a foreign key, or a malformed one."""
    ours = await world.signed(b"another body")
    for wrong in (ours[SIGNATURE], "v1,AAAA", "", "\N{SNOWMAN}"):
        assert set(await reasons_of_forged(world, **{SIGNATURE: wrong})) == {"signature_wrong"}
        await world.pool.execute("DELETE FROM tickwright.fanout_cursors")


async def test_a_task_that_was_forged_into_the_outbox_is_not_run(world: FanoutWorld) -> None:
    """The relay publishes what is in the outbox; the consumer checks the signature."""
    known, body = await forged(world)
    destination = world._destination
    await world.pool.execute(
        "INSERT INTO tickwright.outbox (destination, payload) VALUES ($1, $2)", destination, body.decode()
    )
    hub = Hub()
    broker = PostgresBroker(world.pool) if destination.startswith("pg:") else RabbitBroker(world.queues.url)
    leases = Leases(world.pool, owner="relay", terms=LONG)
    relay = OutboxRelay(leases, {destination.partition(":")[0]: broker}, direct=DirectConnection(world.url))
    async with running([relay]), world.consumer({MODULE: hub}) as consumer:
        await eventually_async(lambda: consumer.counts["unsigned"], what="dead-lettered")
    assert not hub.runs, known
    await broker.aclose()


@pytest.mark.parametrize("headers", [{}, {SIGNATURE: "v1,AAAA"}])
async def test_a_forged_task_of_a_later_version_is_not_delayed(world: FanoutWorld, headers: dict[str, str]) -> None:
    """Its signature is checked before its version; a signed one waits for a consumer that can read it."""
    body = b'{"Version":99,"MessageId":"m"}'
    async with world.consumer({}) as consumer:
        await eventually_async(lambda: consumer.snapshot.keys.fresh, what="the keys are known")
        await world.queues.put("forged", body=body, headers=headers)
        await eventually_async(consumer.counts.total, what="the forged one is decided")
        assert set(consumer.counts) <= {"unsigned", "signature_wrong"}
        await world.queues.put("ours", body=body, headers=await world.signed(body))
        await eventually_async(lambda: consumer.counts["future_version"], what="ours is delayed")
    assert [dead.message_id for dead in (await world.queues.dead.peek(10)).messages] == ["forged"]


async def test_a_replayed_signed_task_runs_nothing(world: FanoutWorld) -> None:
    """The window of an old valid message is done or over."""
    now, hub = await world.window(), Hub()
    async with world.consumer({MODULE: hub}) as consumer:
        task = await world.put_task("A")
        await eventually_async(lambda: hub.ended == [task], what="it ran")
        await world.put_task("A")
        await eventually_async(lambda: consumer.counts["superseded"], what="the same window is refused")
        await world.put_task("A", window=Window(now.start_s - 2 * now.length_s, now.length_s))
        await eventually_async(lambda: consumer.counts["expired"], what="a window that is over is dropped")
    assert hub.ended == [task]


async def test_while_schedulers_do_not_sign_unsigned_tasks_can_be_run(world: FanoutWorld) -> None:
    """TICKWRIGHT_FANOUT_UNSIGNED=run, during an upgrade; a wrong signature is refused nevertheless."""
    hub = Hub()
    known, body = await forged(world)
    await world.queues.put(known, body=body)
    async with world.consumer({MODULE: hub}, runs_unsigned=True) as consumer:
        await eventually_async(lambda: hub.ended == [known], what="the old scheduler's task ran")
        other, body = await forged(world, "C")
        await world.queues.put(other, body=body, headers={SIGNATURE: "v1,AAAA"})
        await eventually_async(lambda: consumer.counts["signature_wrong"], what="dead-lettered")
    assert hub.ended == [known]


async def test_a_rotated_key_loses_no_task(world: FanoutWorld) -> None:
    """The old key signs until every consumer has read the new one, and stays valid for two days more."""
    await world.put_entities(["A"])
    before = await world.signed(b"x")
    await world.pool.execute("SELECT tickwright.rotate_message_key()")
    assert await world.signed(b"x") == before, "the new key does not sign yet"
    await world.pool.execute("UPDATE tickwright.message_keys SET signs_from = clock_timestamp() WHERE ends_at IS NULL")
    keys = await read_keys(world.pool)
    assert len(keys.keys) == 2
    assert keys.sign(b"x") != before[SIGNATURE]
    hub = Hub()
    known, body = await forged(world, "OLD")
    await world.queues.put(known, body=body, headers={SIGNATURE: keys._replace(keys=keys.keys[1:]).sign(body)})
    async with world.scheduler(), world.consumer({MODULE: hub}):
        await eventually_async(lambda: set(hub.codes) == {"A", "OLD"}, what="tasks of both keys are run")
    await world.pool.execute(
        "UPDATE tickwright.message_keys SET ends_at = now() - interval '1 s' WHERE ends_at > now()"
    )
    assert len((await read_keys(world.pool)).keys) == 1


async def test_a_signature_by_a_key_not_read_yet_is_delayed(
    world: FanoutWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer that has not read the keys lately delays what it cannot verify, up to a number of delays."""
    known, body = await forged(world)
    async with world.consumer({}) as consumer:
        await eventually_async(lambda: consumer.snapshot.keys.fresh, what="the keys are known")
        monkeypatch.setattr(message_keys, "FRESH_S", 0.0)  # as if the database had not answered lately
        await world.queues.put(known, body=body, headers={SIGNATURE: "v1,AAAA"})
        await eventually_async(lambda: consumer.counts["keys_not_read"], what="it is delayed")
        assert "signature_wrong" not in consumer.counts
        delays = str(DELAYS_MAX) if isinstance(world.queues, PgFanout) else DELAYS_MAX
        await world.queues.put("m2", body=body, headers={SIGNATURE: "v1,AAAA", "tickwright-delays": delays})
        await eventually_async(lambda: consumer.counts["signature_wrong"] == 1, what="it was delayed often enough")


async def test_the_key_is_for_the_owner_only(world: FanoutWorld, database_url: str) -> None:
    """A role with every documented default privilege cannot read, add or change it."""
    name = "keyless_" + database_url.rpartition("/")[2].replace("-", "_")[-30:]
    await world.pool.execute(f"CREATE ROLE {name}")
    try:
        await world.pool.execute(f"GRANT USAGE ON SCHEMA tickwright TO {name}")
        async with world.pool.acquire() as connection, connection.transaction():
            await connection.execute(f"SET LOCAL ROLE {name}")
            for query in (
                "SELECT key FROM tickwright.message_keys",
                "INSERT INTO tickwright.message_keys DEFAULT VALUES",
                "SELECT tickwright.rotate_message_key()",
            ):
                with pytest.raises(asyncpg.InsufficientPrivilegeError):
                    async with connection.transaction():
                        await connection.execute(query)
    finally:
        await world.pool.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


# ---------------------------------------------------------------------------------------------- secrets of a party


async def refused_for(world: FanoutWorld, party: dict[str, Any], **more: Any) -> str:
    """Let a handler resolve the secret of a party; return the error in the ledger."""

    async def locations(task: EntityTask) -> None:
        task.resolve(task.party["token"], **more)

    await world.pool.execute(
        "INSERT INTO tickwright.entities (code, party, polling_enabled_modules) VALUES ('A', $1, $2)",
        json.dumps(party),
        MODULE,
    )
    async with world.scheduler(), world.consumer({MODULE: locations}) as consumer:
        await eventually_async(lambda: consumer.counts["failed"] + consumer.counts["succeeded"], what="it was called")
    return str((await world.cursor("A"))["last_error"])


@pytest.mark.parametrize("name", ["AWS_SECRET_ACCESS_KEY", "TICKWRIGHT_DATABASE_URL"])
async def test_a_party_reads_no_other_variable(world: FanoutWorld, name: str) -> None:
    """A role that may write parties reads neither another program's secrets nor the URL of our database."""
    said = await refused_for(world, {"url": "https://hub.example", "token": f"${{env:{name}}}"})
    assert "secret_not_declared" in said
    assert "canary" not in said


async def test_a_party_sends_no_secret_to_a_foreign_host(world: FanoutWorld) -> None:
    """Every address in the party has to be one of the secret's."""
    party = {"url": "https://hub.example", "push": "https://evil.example", "token": "${env:OCPI_TOKEN}"}
    assert "secret_host_not_allowed" in await refused_for(world, party)


async def test_a_party_without_an_address_gets_no_secret(world: FanoutWorld) -> None:
    """Unless the handler names the address."""
    assert "secret_host_unknown" in await refused_for(world, {"token": "${env:OCPI_TOKEN}"})


async def test_a_handler_may_name_the_address_of_a_secret(world: FanoutWorld) -> None:
    """The secret is then bound to that address, whatever others the party has."""
    party = {"docs": "https://elsewhere.example", "token": "${env:OCPI_TOKEN}"}
    assert await refused_for(world, party, to="https://hub.example/ocpi") == "None"
