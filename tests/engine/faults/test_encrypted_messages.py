"""Encrypted messages of the outbox: stored as envelopes, delivered as declared, kept while a key is missing."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from kit.api import ADMIN
from kit.relays import RelayWorld, relay_world
from kit.waiting import eventually_async
from tickwright import Rejected, Tickwright, Unavailable
from tickwright.capabilities.jobs.admin.payload_keys import PayloadKeyAdmin, ReencryptRequest
from tickwright.domain.envelopes import Purpose
from tickwright.engine.payload_keys import PayloadKeys

MARKER = "4111-marker-1111"
CARD = {"card": MARKER}
OLD, NEW = PayloadKeys([("old", bytes(range(1, 33)))]), PayloadKeys([("new", bytes(range(32)))])
ROWS = "SELECT o::text AS text FROM tickwright.outbox o UNION ALL SELECT o::text FROM tickwright.outbox_dead o"


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[RelayWorld]:
    """A database and a receiver."""
    async with relay_world(database_url) as world:
        yield world


def program(world: RelayWorld, keys: PayloadKeys = NEW) -> Tickwright:
    """Return an app that may publish to the receiver."""
    return Tickwright(world.url, payload_keys=keys, allow_targets="127.0.0.1")


async def stored(world: RelayWorld) -> str:
    """Return every row of the outbox and of its dead letters as text."""
    return " ".join(row["text"] for row in await world.pool.fetch(ROWS))


@pytest.mark.parametrize(("deliver", "is_plain"), [(None, True), ("plain", True), ("cipher", False)])
async def test_a_callback_gets_plain_text_unless_declared(world: RelayWorld, deliver: Any, is_plain: bool) -> None:
    """The row has an envelope that is bound to its destination; the mark of the row is not sent."""
    async with program(world) as app:
        await app.publish(world.receiver.url, CARD, encrypted=True, deliver=deliver)
    assert MARKER not in await stored(world)
    async with world.running(world.relay(keys=NEW)):
        await world.emptied()
    [received] = world.receiver.received
    body = received.body.decode()
    assert json.loads(body if is_plain else NEW.open(body, Purpose.MESSAGE, world.receiver.url)) == CARD
    assert (MARKER in body) == is_plain
    assert not any(name.lower() == "tickwright-deliver" for name in received.headers)


async def test_a_broker_gets_the_envelope(world: RelayWorld) -> None:
    """Without any key in the relay."""
    async with program(world) as app:
        await app.publish("pg:orders", CARD, encrypted=True)
    async with world.running(world.relay()):
        await world.emptied()
    body = await world.pool.fetchval("SELECT convert_from(payload, 'UTF8') FROM tickwright.messages")
    assert json.loads(NEW.open(body, Purpose.MESSAGE, "pg:orders")) == CARD


async def test_a_message_waits_for_its_key_and_dies_of_nothing_else(
    world: RelayWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relay without the key tries again, beyond the bound of attempts; one with the key delivers."""
    from tickwright.engine.outbox import relay_rules

    monkeypatch.setattr(relay_rules, "ATTEMPTS_MAX", 2)
    async with program(world) as app:
        await app.publish(world.receiver.url, CARD, encrypted=True)

    async def tried() -> bool:
        found = await world.pool.fetchrow("SELECT attempts, error_message FROM tickwright.outbox")
        return bool(found["attempts"] > 2 and found["error_message"].startswith("payload_key_missing"))

    async with world.running(world.relay(keys=OLD)):
        await eventually_async(tried, 30, what="several attempts")
    assert not world.receiver.received
    async with world.running(world.relay("heir", keys=NEW)):
        await world.emptied(30)
    assert json.loads(world.receiver.received[0].body) == CARD


async def test_the_text_of_a_receiver_is_not_stored(world: RelayWorld) -> None:
    """It may echo the message: a dead letter has the code only, and is encrypted again by a rotation."""
    world.receiver.status, world.receiver.body = 410, f"echo {MARKER}".encode()
    async with program(world, OLD) as app:
        await app.publish(world.receiver.url, CARD, encrypted=True)
    async with world.running(world.relay(keys=OLD, brokers={"http": Refusing()})):
        await world.emptied()
    [dead] = await world.dead()
    assert dead["error_message"] == "too_large"
    assert MARKER not in await stored(world)
    both = PayloadKeys([("new", bytes(range(32))), ("old", bytes(range(1, 33)))])
    admin = PayloadKeyAdmin(world.pool, both)
    asked: ReencryptRequest | None = ReencryptRequest()
    while asked is not None:
        asked = (await admin.reencrypt(asked, caller=ADMIN)).next
    assert {one.key: one.outbox for one in (await admin.uses()).items} == dict(zip(both.names, (1, 0), strict=True))
    body = await world.pool.fetchval("SELECT payload::text FROM tickwright.outbox_dead")
    assert json.loads(NEW.open(body, Purpose.MESSAGE, world.receiver.url)) == CARD


class Refusing:
    """A broker that refuses every message, and quotes it."""

    async def publish_many(self, messages: Any) -> list[Any]:
        """Refuse."""
        from tickwright.ports.broker import Refused

        return [Refused("too_large", message.body.decode(), final=True) for message in messages]


async def test_wrong_use_is_refused(world: RelayWorld) -> None:
    """``deliver`` needs ``encrypted``, the mark is no header of a user, and without keys nothing is stored."""
    async with program(world) as app:
        for wrong in ({"deliver": "plain"}, {"headers": {"Tickwright-Deliver": "plain"}}):
            with pytest.raises(Rejected, match="only with encrypted=True"):
                await app.publish("pg:orders", CARD, **wrong)
        unknown: Any = "plian"  # a callback would get the envelope instead of plain text
        with pytest.raises(Rejected, match="deliver: plain or cipher") as refused:
            await app.publish("pg:orders", CARD, encrypted=True, deliver=unknown)
        assert refused.value.code == "invalid_message"
    async with program(world, PayloadKeys()) as app:
        with pytest.raises(Unavailable) as caught:
            await app.publish("pg:orders", CARD, encrypted=True)
    assert caught.value.code == "payload_keys_missing"
    assert await world.left() == 0
