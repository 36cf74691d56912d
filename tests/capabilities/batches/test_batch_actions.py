"""A batch's actions reach every kind of destination: from the checker to the outbox, and by the relay."""

import asyncio
import json

import pytest

from kit.batches import BatchWorld, Numbers
from kit.broker_sides import Side
from kit.leases import SHORT
from kit.receivers import Received
from kit.waiting import eventually_async
from tickwright.engine.leases import Leases
from tickwright.engine.outbox.relay import OutboxRelay
from tickwright.engine.wakeup.connection import DirectConnection

SELECTED = {str(number) for number in range(0, 25, 2)}


@pytest.mark.matrix
async def test_each_action_arrives_under_its_own_id(side: Side, batches: BatchWorld) -> None:
    """One message per selected client, also after two rounds of the checker and a relay."""
    await batches.process(Numbers())
    target = {"action": {"target": side.destination, "release": "finished"}}
    execution_id = await batches.start(await batches.put(definition=target))
    assert (await batches.over(execution_id))["status"] == "FINISHED"
    for _ in range(2):
        await batches.check()
    brokers = dict.fromkeys(side.broker.schemes, side.broker)
    relay = OutboxRelay(Leases(batches.pool, owner="relay"), brokers, direct=DirectConnection(None), terms=SHORT)
    relaying = asyncio.create_task(relay.run())
    taken: list[Received] = []

    async def all_taken() -> bool:
        taken.extend(await side.taken())
        return len({one.id for one in taken}) >= len(SELECTED)

    try:
        await eventually_async(all_taken, 20, what="every action has arrived")
        await eventually_async(lambda: _nothing_waits(batches), what="the relay has marked them")
    finally:
        await relay.quiesce()
        await relaying
    said = {one.id: json.loads(one.body) for one in taken}
    assert sorted(body["client_id"] for body in said.values()) == sorted(SELECTED)
    assert {body["execution_id"] for body in said.values()} == {execution_id}


async def _nothing_waits(batches: BatchWorld) -> bool:
    return await batches.sent() == []
