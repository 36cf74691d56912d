"""Actions leave once when their execution is finished, also after a crash; those of a stopped one never leave."""

import asyncio
import json
from collections import Counter
from collections.abc import Mapping

import pytest

from kit.batches import TARGET, BatchWorld, Numbers
from kit.probes import Stops
from kit.waiting import eventually_async
from tickwright.capabilities.batches.executions import checker as checker_module
from tickwright.capabilities.batches.executions import checker as ending_module
from tickwright.capabilities.batches.executions.checker import Checker
from tickwright.capabilities.batches.executions.executions import Executions
from tickwright.capabilities.batches.executions.states import ExecutionAction
from tickwright.domain.errors import Rejected
from tickwright.outbound.messages import check_headers
from tickwright.ports.batches import OpenChunk
from tickwright.ports.caller import Caller, Role
from tickwright.store.paging import Cursors


async def finished(batches: BatchWorld, definition: Mapping[str, object] | None = None, members: int = 25) -> int:
    """Return an execution that is finished."""
    await batches.process(Numbers(members=members))
    execution_id = await batches.start(await batches.put(definition=definition))
    assert (await batches.over(execution_id))["status"] == "FINISHED"
    return execution_id


async def test_each_action_leaves_once(batches: BatchWorld) -> None:
    """One message per selected client, however often the checker runs."""
    execution_id = await finished(batches)
    assert await batches.check() > 0
    await batches.check()
    sent = await batches.sent()
    assert sorted(one["key"] for one in sent) == sorted(f"{execution_id}:{number}" for number in range(0, 25, 2))
    assert {one["destination"] for one in sent} == {TARGET}
    first = next(one for one in sent if one["key"] == f"{execution_id}:4")
    assert json.loads(first["payload"])["client"] == {"number": 4}
    assert json.loads(first["headers"]) == {"idempotency-key": f"action_{execution_id}_4"}
    row = await batches.execution(execution_id)
    assert (row["released"], row["chunks_released"]) == (13, 3)


IDS = ["plain", "a b", "x" * 1000, "müller", "日本", "a\nb", "\x7f", " lead", "trail ", "b\n", "utf8-hex-6d", "é" * 500]


async def test_the_header_of_every_id_can_be_sent_and_is_its_own(batches: BatchWorld) -> None:
    """Printable ASCII stays as it is; any other id is the bytes of UTF-8, from which it can be read."""
    execution_id = await finished(batches, members=1)
    await batches.pool.execute(
        "INSERT INTO tickwright.execution_actions (execution_id, client_id, chunk, client)"
        " SELECT $1, unnest($2::text[]), 0, '{}'", execution_id, IDS,
    )  # fmt: skip
    await batches.check()
    keys: dict[str, str] = {}
    for sent in await batches.sent():
        headers = json.loads(sent["headers"])
        check_headers(headers)
        value = headers["idempotency-key"].removeprefix(f"action_{execution_id}_")
        assert value == value.strip()
        keys[json.loads(sent["payload"])["client_id"]] = value
    assert keys.keys() == {"0", *IDS}
    assert len(set(keys.values())) == len(keys)
    assert [keys[one] for one in IDS[:3]] == IDS[:3]
    assert {bytes.fromhex(keys[one].removeprefix("utf8-hex-")).decode() for one in IDS[3:]} == {*IDS[3:]}


async def test_a_crash_before_the_release_neither_loses_nor_doubles_actions(batches: BatchWorld) -> None:
    """A checker that dies inside its transaction has released nothing; the next one releases all."""
    await finished(batches)
    stops = Stops()
    stops.close("batches.releasing")
    dying = asyncio.create_task(batches.check(Checker(probe=stops)))
    await eventually_async(lambda: stops.reached_times["batches.releasing"])
    dying.cancel()
    await asyncio.wait([dying])
    assert await batches.sent() == []
    await batches.check()
    assert len(await batches.sent()) == 13


async def test_no_message_leaves_before_the_last_chunk_is_done(batches: BatchWorld) -> None:
    """With two chunks of three done no message leaves; all of them leave after the last chunk.

    A round of the checker skips an execution that a consumer has locked, so one round alone would prove nothing.
    """
    execution_id, goes_on = await _two_of_three_chunks(batches, {})
    for _ in range(20):
        await batches.check()
        assert await batches.sent() == []
    goes_on.set()
    assert (await batches.over(execution_id))["status"] == "FINISHED"
    await batches.check()
    assert len(await batches.sent()) == 13


async def test_a_chunk_leaves_before_the_end_where_the_definition_says_so(batches: BatchWorld) -> None:
    """With ``release: chunk`` the messages of the two finished chunks leave while the third one is worked on."""
    execution_id, _ = await _two_of_three_chunks(batches, {"action": {"target": TARGET, "release": "chunk"}})

    async def released() -> bool:
        await batches.check()  # skips executions that a consumer has locked
        return bool((await batches.execution(execution_id))["chunks_released"] == 2)

    await eventually_async(released)
    assert len(await batches.sent()) == 10


async def _two_of_three_chunks(batches: BatchWorld, definition: Mapping[str, object]) -> tuple[int, asyncio.Event]:
    """Return an execution whose third chunk waits for the event."""
    goes_on = asyncio.Event()

    async def hold(chunk: OpenChunk) -> None:
        if chunk.number == 2:
            await goes_on.wait()

    await batches.process(Numbers(before=hold))
    execution_id = await batches.start(await batches.put("numbers", definition))
    await eventually_async(lambda: _done(batches, execution_id, 2))
    return execution_id, goes_on


async def _done(batches: BatchWorld, execution_id: int, chunks: int) -> bool:
    return bool((await batches.execution(execution_id))["chunks_done"] == chunks)


@pytest.mark.parametrize("status", ["STOPPED", "DISABLED", "EXCEPTION_OCCURRED", "IN_PROGRESS"])
async def test_an_execution_that_did_not_finish_releases_nothing(batches: BatchWorld, status: str) -> None:
    """Its actions stay records."""
    execution_id = await finished(batches)
    await batches.end(execution_id, status)
    await batches.check()
    assert await batches.sent() == []


async def test_a_full_destination_gets_no_more_actions(batches: BatchWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Actions do not wait twice, here and in the outbox; ``explain`` says why they do not leave."""
    execution_id = await finished(batches)
    monkeypatch.setattr(ending_module, "WAITING_MAX", 9)
    assert checker_module.FULL_S - 1 < await batches.check() <= checker_module.FULL_S
    assert len(await batches.sent()) == 10
    reasons = (await Executions(batches.pool, Cursors(batches.pool)).explain(execution_id)).reasons
    assert "destination_full" in {reason.code for reason in reasons}
    assert not any("its rate" in reason.text for reason in reasons)
    await batches.pool.execute("DELETE FROM tickwright.outbox")
    await batches.pool.execute("UPDATE tickwright.executions SET next_release_at = now()")
    await batches.check()
    assert len(await batches.sent()) == 3


async def test_a_full_destination_keeps_back_no_other_actions(
    batches: BatchWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BCK-4: neither those to another destination nor jobs, however many executions wait for the full one."""
    monkeypatch.setattr(ending_module, "WAITING_MAX", 19)
    monkeypatch.setattr(checker_module, "CHUNKS_PER_ROUND", 9)  # six are needed for the chunks that leave
    await batches.pool.execute(
        "INSERT INTO tickwright.outbox (destination, payload) SELECT 'pg:full', '{}' FROM generate_series(1, 20)"
    )
    targets = {**{f"full{number}": "pg:full" for number in range(9)}, "others": "pg:others", "jobs": "python:act"}
    await batches.process(Numbers(), names=[*targets])
    for name, target in targets.items():
        execution_id = await batches.start(await batches.put(name, {"action": {"target": target}}))
        assert (await batches.over(execution_id))["status"] == "FINISHED"
    await batches.check()
    sent = Counter(one["destination"] for one in await batches.sent())
    assert sent == {"pg:full": 20, "pg:others": 13}
    assert await batches.pool.fetchval("SELECT count(*) FROM tickwright.scheduled_tasks WHERE task_type = 'act'") == 13


async def test_actions_leave_at_their_rate(batches: BatchWorld) -> None:
    """A chunk of five actions at one a second delays the next chunk by five seconds."""
    execution_id = await finished(batches, members=20)
    await batches.pool.execute(
        "UPDATE tickwright.executions SET snapshot = snapshot || '{\"rate_per_s\": 1}' WHERE id = $1", execution_id
    )
    rest_s = await batches.check()
    assert 0 < rest_s <= 5
    assert len(await batches.sent()) == 5


async def test_clients_are_worked_at_their_rate(batches: BatchWorld) -> None:
    """A chunk of ten members at two a second delays the next one by five seconds, over all consumers."""
    work = Numbers(members=20)
    for _ in range(2):
        await batches.process(work)
    execution_id = await batches.start(await batches.put(definition={"rate_per_s": 2.0}))
    await eventually_async(lambda: _done(batches, execution_id, 1))
    left_s = await batches.pool.fetchval(
        "SELECT extract(epoch FROM next_chunk_at - (SELECT began_at FROM tickwright.execution_chunks WHERE number = 0))"
        " FROM tickwright.executions"
    )
    assert 4.9 < float(left_s) < 5.5
    assert len(work.log) == 1


async def test_a_finished_execution_sends_one_message_where_its_batch_asks_for_it(batches: BatchWorld) -> None:
    """With the counts, in the transaction that finishes it."""
    await finished(batches, {"on_finished": "pg:ends", "action": {"target": None}})
    (sent,) = await batches.sent()
    said = json.loads(sent["payload"])
    assert (sent["destination"], said["event"], said["status"]) == ("pg:ends", "execution.finished", "FINISHED")
    assert (said["seen"], said["actions"]) == (25, 13)
    await batches.check()
    assert len(await batches.sent()) == 1
    assert (await batches.execution(said["execution_id"]))["chunks_released"] == 3


async def _fails(chunk: OpenChunk) -> None:
    raise Rejected("broken", "it is broken")


async def test_each_failed_end_sends_a_message(batches: BatchWorld) -> None:
    """With status and code, whether a chunk or the plan failed; a retry that finishes sends another one."""
    work = Numbers(before=_fails)
    await batches.process(work)
    execution_id = await batches.start(await batches.put(definition={"on_finished": "pg:ends"}))
    assert (await batches.over(execution_id))["status"] == "EXCEPTION_OCCURRED"
    work.before = None
    executions = Executions(batches.pool, Cursors(batches.pool))
    await executions.act(ExecutionAction.RETRY, execution_id, caller=Caller("ann", Role.ADMIN))
    assert (await batches.over(execution_id))["status"] == "FINISHED"
    work.chunk_rows = 0  # range() refuses it
    broken = await batches.start(await batches.put("broken", {"on_finished": "pg:ends", "attempts": 1}))
    await batches.process(work, names=["broken"])
    assert (await batches.over(broken))["status"] == "EXCEPTION_OCCURRED"
    said = [json.loads(one["payload"]) for one in await batches.sent()]
    assert [(one["execution_id"], one["event"], one["status"], one["error_code"] is None) for one in said] == [
        (execution_id, "execution.failed", "EXCEPTION_OCCURRED", False),
        (execution_id, "execution.finished", "FINISHED", True),
        (broken, "execution.failed", "EXCEPTION_OCCURRED", False),
    ]


async def test_an_execution_fails_also_where_its_message_cannot_be_sent(batches: BatchWorld) -> None:
    """To a task type that PostgreSQL refuses, in a row that was written by hand."""
    await batches.process(Numbers(before=_fails))
    execution_id = await batches.start(await batches.put(definition={"on_finished": "python:no type"}))
    row = await batches.over(execution_id)
    assert (row["status"], row["error_code"]) == ("EXCEPTION_OCCURRED", "broken")


async def test_a_python_function_is_called_by_a_job_per_client(batches: BatchWorld) -> None:
    """Once each, with the message's content; and one job for the end."""
    await batches.pool.execute(
        "INSERT INTO tickwright.task_types (name, target, max_attempts) VALUES ('loan.apply', 'python:loan.apply', 7)"
    )
    definition_parts = {"on_finished": "python:loan.done", "action": {"target": "python:loan.apply"}}
    execution_id = await finished(batches, definition_parts)
    await batches.check()
    await batches.check()
    jobs = await batches.pool.fetch("SELECT task_type, payload::text, max_attempts FROM tickwright.scheduled_tasks")
    applied = [json.loads(job["payload"]) for job in jobs if job["task_type"] == "loan.apply"]
    assert sorted(one["client_id"] for one in applied) == sorted(str(number) for number in range(0, 25, 2))
    assert {one["execution_id"] for one in applied} == {execution_id}
    assert sorted({(job["task_type"], job["max_attempts"]) for job in jobs}) == [("loan.apply", 7), ("loan.done", 3)]
    assert await batches.sent() == []
