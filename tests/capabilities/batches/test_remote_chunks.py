"""Chunks of batches by remote workers: claim, members, actions and counts stay with the consumer."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from kit.api import ADMIN, Client
from kit.postgres import as_reader
from kit.remote import POOL, RemoteSite, ended, register, remote_site
from kit.waiting import eventually_async
from tickwright.capabilities.batches.definitions.schema import read_program
from tickwright.capabilities.batches.executions.states import BatchAction
from tickwright.capabilities.batches.service import CampaignsService
from tickwright.domain.errors import Rejected
from tickwright.ports.caller import Role

NAME = "ledger.export"
TARGET = f"remote:{POOL}"


@pytest.fixture
async def site(database_url: str, tmp_path: Path) -> AsyncIterator[RemoteSite]:
    """An api, a scheduler and a consumer of executions, which reads an audience from the same database."""
    config = f'[sources.ledger]\nurl = "{as_reader(database_url)}"\n'
    async with remote_site(database_url, tmp_path, "campaign-consumer", "scheduler", config=config) as site:
        yield site


def service(site: RemoteSite) -> CampaignsService:
    """Return the service of batches."""
    return site.node.installation.context.ports.get(CampaignsService)


async def begin(site: RemoteSite, **fields: Any) -> int:
    """Set up a batch for remote workers, and start it; return the id of the execution."""
    batches = service(site)
    await batches.put_remote(NAME, {"target": TARGET, **fields}, caller=ADMIN)
    return (await batches.programs.act(BatchAction.START, NAME, caller=ADMIN)).executions[-1].id


async def execution(site: RemoteSite, execution_id: int) -> Any:
    """Return the execution's row."""
    return await site.pool.fetchrow("SELECT * FROM tickwright.executions WHERE id = $1", execution_id)


async def finished(site: RemoteSite, execution_id: int) -> Any:
    """Wait until an execution has finished, and return its row."""

    async def is_over() -> bool:
        return (await execution(site, execution_id))["finished_at"] is not None

    await eventually_async(is_over, 30, what="the execution ends")
    return await execution(site, execution_id)


async def test_a_batch_without_an_audience_is_one_chunk(site: RemoteSite) -> None:
    """Its result completes the chunk once."""
    worker = await register(site.client, batches=[NAME])
    execution_id = await begin(site)
    [chunk] = await worker.claim_calls(wait="60s")
    assert (chunk["kind"], chunk["name"], chunk["timeout_ms"]) == ("chunk", NAME, 900_000)
    payload = chunk["payload"]
    assert (payload["batch"], payload["execution_id"], payload["number"]) == (NAME, execution_id, 0)
    assert payload["members"] == []
    assert (await worker.results(ended(chunk)))["done"] == 1
    assert (await finished(site, execution_id))["status"] == "FINISHED"
    assert (await worker.results(ended(chunk)))["stale"] == [chunk["id"]]


async def test_the_members_of_a_chunk_are_handed_over_and_its_actions_are_recorded(site: RemoteSite) -> None:
    """Each chunk has its range of the audience; the counts and the actions are those of the results."""
    await site.pool.execute("CREATE TABLE entries (id bigint PRIMARY KEY, amount bigint NOT NULL)")
    await site.pool.execute("GRANT SELECT ON entries TO PUBLIC")
    await site.pool.execute("INSERT INTO entries SELECT n, n * 10 FROM generate_series(1, 250) AS n")
    worker = await register(site.client, batches=[NAME])
    audience = {"source": "ledger", "table": "entries", "key": "id", "fields": {"amount": "int"}}
    execution_id = await begin(site, audience=audience, chunk_rows=100, action="pg:exported")
    seen = 0
    while seen < 250:
        for chunk in await worker.claim_calls(wait="60s"):
            members = chunk["payload"]["members"]
            seen += len(members)
            first = members[0]
            actions = [{"client_id": one["id"], "payload": one["fields"]} for one in members[1:]]
            skipped = [{"client_id": first["id"], "problem": "closed"}]
            await worker.results(ended(chunk, result={"actions": actions, "skipped": skipped}))
    row = await finished(site, execution_id)
    assert (row["status"], row["seen"], row["selected"], row["skipped"], row["actions"]) == (
        "FINISHED",
        250,
        247,
        3,
        247,
    )
    sql = "SELECT client::text FROM tickwright.execution_actions WHERE execution_id = $1 AND client_id = '7'"
    assert '"amount": 70' in await site.pool.fetchval(sql, execution_id)


async def test_a_failed_chunk_is_tried_again_and_a_final_failure_ends_the_execution(site: RemoteSite) -> None:
    """As for a function: the attempt counts, and the code and text are shown. A snooze does not count."""
    worker = await register(site.client, batches=[NAME])
    execution_id = await begin(site)
    [chunk] = await worker.claim_calls(wait="60s")
    await worker.results(ended(chunk, "snooze", wait="10ms"))
    [again] = await worker.claim_calls(wait="60s")
    tries = "SELECT tries, lost FROM tickwright.execution_chunks WHERE execution_id = $1"
    assert tuple(await site.pool.fetchrow(tries, execution_id)) == (0, 0)
    await worker.results(ended(again, "fail", code="disk_full", message="no space"))
    [third] = await worker.claim_calls(wait="60s")
    assert tuple(await site.pool.fetchrow(tries, execution_id)) == (1, 0)
    await worker.results(ended(third, "fail", code="bad_ledger", message="no such day", final=True))
    row = await finished(site, execution_id)
    assert (row["status"], row["error_code"], row["error_message"]) == (
        "EXCEPTION_OCCURRED",
        "bad_ledger",
        "no such day",
    )


async def test_a_result_that_is_none_of_a_chunk_ends_the_execution(site: RemoteSite) -> None:
    """The error says what is wrong with it."""
    worker = await register(site.client, batches=[NAME])
    execution_id = await begin(site)
    [chunk] = await worker.claim_calls(wait="60s")
    await worker.results(ended(chunk, result={"rows": 3}))
    row = await finished(site, execution_id)
    assert (row["error_code"], "rows" in row["error_message"]) == ("invalid_chunk_result", True)


async def test_a_batch_for_remote_workers_is_put_and_deleted_by_rest(site: RemoteSite) -> None:
    """An admin defines it; one without a target is the program's."""
    key = (await site.keys.create("admin", Role.ADMIN, caller=ADMIN)).key
    async with aiohttp.ClientSession() as http:
        admin = Client(http, site.client.base, key)
        body = {"target": TARGET, "cron": "0 3 * * *", "timeout": "1h"}
        made = await admin.send("PUT", "/v1/batches/nightly", body)
        assert (made.status, made.json["batch"]["definition"]["target"]) == (201, TARGET)
        assert (await admin.send("PUT", "/v1/batches/nightly", body)).json["changed"] is False
        (await admin.send("PUT", "/v1/batches/nightly", {"cron": "0 3 * * *"})).says(422, "target_missing")
        (await admin.send("PUT", "/v1/batches/nightly", {**body, "target": "pg:x"})).says(422, "invalid_batch")
        (await admin.send("PUT", "/v1/batches/nightly", {**body, "version": 7})).says(409, "version_conflict")
        assert (await admin.send("DELETE", "/v1/batches/nightly")).status == 204
    with pytest.raises(Rejected, match="only with a target"):
        read_program({"timeout": "1h"}, lambda _: None)
