"""A job with an external target, through a worker and each broker to a real counterpart."""

import asyncio
import json
from dataclasses import replace

import pytest

from kit.broker_sides import KafkaSide, Side
from kit.engine import policy, running_engine
from kit.kafka_polls import read_raw
from kit.waiting import eventually_async
from tickwright.capabilities.jobs.model import TaskType
from tickwright.ports.broker import Broker

PAYLOAD = {"invoice_id": 42, "text": "\u00e9"}


def _kind(side: Side) -> TaskType:
    return replace(policy("remind", max_attempts=1000), target=side.destination)


def _brokers(side: Side) -> dict[str, Broker]:
    return dict.fromkeys(side.broker.schemes, side.broker)


@pytest.mark.matrix
async def test_a_job_arrives_with_its_id_payload_attempt_and_fence(side: Side, database_url: str) -> None:
    """The counterpart has the job's bytes under ``job_<id>`` before the job is completed."""
    kinds = {"remind": _kind(side)}
    async with running_engine(database_url, kinds=kinds, brokers=_brokers(side)) as engine:
        job_id = await engine.insert("remind", payload=PAYLOAD)
        row = await engine.until(job_id, "completed", within_s=30)
    (taken,) = await side.taken()
    headers = {name.lower(): value for name, value in taken.headers.items()}
    assert (taken.id, json.loads(taken.body)) == (f"job_{job_id}", PAYLOAD)
    assert headers["tickwright-task-type"] == "remind"
    assert (headers["tickwright-attempt"], headers["tickwright-fence"]) == ("1", str(row["fence"]))


@pytest.mark.matrix
async def test_a_job_whose_target_is_killed_arrives_after_its_restart(side: Side, database_url: str) -> None:
    """A refusal is a failed attempt that is tried again under the same id, until the target takes it, once."""
    kinds = {"remind": _kind(side)}
    async with running_engine(database_url, kinds=kinds, brokers=_brokers(side)) as engine:
        await side.refuse()
        job_id = await engine.insert("remind", payload=PAYLOAD)

        async def refused() -> bool:
            return bool((await engine.job(job_id))["error_message"])

        await eventually_async(refused, 30, what="an attempt is refused")
        await side.recover()
        row = await engine.until(job_id, "completed", within_s=60)
    (taken,) = await side.taken()
    assert taken.id == f"job_{job_id}"
    assert row["attempts"] > 1
    if isinstance(side, KafkaSide):
        records = await asyncio.to_thread(read_raw, side.url, side.topic)
        keys = [record.key() for record, _, headers in records if headers["event_id"] == taken.id.encode()]
        assert keys == [taken.id.encode()], "the attempts of a job are in one partition"
