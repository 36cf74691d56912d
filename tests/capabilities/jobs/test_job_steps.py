"""Steps of a handler: called once for all attempts, decoded as the function says, bounded, and shown."""

import asyncio
import json
import math
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from kit.api import running_api
from kit.engine import Engine, connect, insert, policy, running_engine
from tickwright.capabilities.jobs.model import Job, Snooze
from tickwright.capabilities.jobs.worker import steps as steps_module
from tickwright.domain.errors import Contended, Rejected
from tickwright.ports.caller import Role

KEPT = '{"first": {"result": "kept", "at": "2026-01-01T00:00:00+00:00", "attempt": 1}}'
KEEP = "UPDATE tickwright.scheduled_tasks SET steps = $2 WHERE id = $1"
LATER = "now() + interval '1 hour'"


@dataclass
class Receipt:
    """A result with a type."""

    number: int
    amount: Decimal


async def run_once(url: str, handler: Callable[..., Any], steps: str | None = None, **changes: Any) -> Any:
    """Run a job of ``handler`` to its end, and return its row."""
    async with running_engine(url, {"h": handler}, kinds={"h": policy("h", **changes)}) as engine:
        job_id = await engine.insert("h", at=LATER)
        await engine.pool.execute(KEEP, job_id, steps)
        await engine.pool.execute("UPDATE tickwright.scheduled_tasks SET execute_at = now() WHERE id = $1", job_id)
        return await engine.until(job_id, "completed", "failed", "cancelled")


async def test_a_result_is_decoded_to_the_return_type_on_every_attempt(database_url: str) -> None:
    """The first attempt gets what the later ones get, also from a synchronous function."""
    seen: list[Any] = []

    async def charge(amount: Decimal) -> Receipt:
        return Receipt(len(seen) + 1, amount)

    def pair(a: int, *, b: int) -> tuple[int, int]:
        return a, b

    def untyped() -> Any:
        return {1: (2, 3)}

    async def handler(job: Job) -> None:
        done = [await job.step("charge", charge, Decimal("1.50")), await job.step("pair", pair, 1, b=2)]
        seen.append([*done, await job.step("untyped", untyped), threading.current_thread() is threading.main_thread()])
        if job.attempt == 1:
            raise ValueError("again")

    row = await run_once(database_url, handler)
    assert row["status"] == "completed"
    assert seen == [[Receipt(1, Decimal("1.50")), (1, 2), {"1": [2, 3]}, True]] * 2
    kept = json.loads(row["steps"])
    assert {name: (step["result"], step["attempt"]) for name, step in kept.items()} == {
        "charge": ({"number": 1, "amount": "1.50"}, 1), "pair": ([1, 2], 1), "untyped": ({"1": [2, 3]}, 1),
    }  # fmt: skip


async def test_steps_of_one_attempt_may_run_beside_each_other(database_url: str) -> None:
    """Their results are kept by one statement, and none overwrites another."""
    calls = 0

    async def number(value: int) -> int:
        nonlocal calls
        calls += 1
        await asyncio.sleep(0)
        return value

    async def handler(job: Job) -> int:
        found = await asyncio.gather(*(job.step(f"n:{value}", number, value) for value in range(60)))
        if job.attempt == 1:
            raise ValueError("again")
        return sum(found)

    row = await run_once(database_url, handler)
    assert (row["status"], row["result"], calls, len(json.loads(row["steps"]))) == ("completed", "1770", 60, 60)


async def test_a_function_that_raises_is_called_again(database_url: str) -> None:
    """Nothing is kept of it, in the same attempt and in the next one."""
    calls = 0

    async def fragile() -> int:
        nonlocal calls
        calls += 1
        if calls < 4:
            raise OSError("away")
        return calls

    async def handler(job: Job) -> int:
        try:
            return await job.step("fragile", fragile)
        except OSError:
            return await job.step("fragile", fragile)

    row = await run_once(database_url, handler)
    assert (row["status"], row["result"], row["attempts"]) == ("completed", "4", 2)


async def test_a_snoozed_job_keeps_its_steps(database_url: str) -> None:
    """A snooze, a release and a retry leave the row and its steps."""
    calls: list[int] = []

    async def noted(job: Job) -> None:
        calls.append(job.fence)

    async def handler(job: Job) -> Any:
        await job.step("noted", noted, job)
        if len(calls) == job.fence:
            raise Snooze(timedelta())

    assert (await run_once(database_url, handler))["status"] == "completed"
    assert calls == [1]


async def test_synchronous_handlers_report_progress(database_url: str) -> None:
    """``progress_sync`` waits in the handler's thread until the value is written; it takes what ``progress`` takes."""

    def handler(job: Job) -> bool:
        with pytest.raises(ValueError, match="NaN"):
            job.progress_sync(math.nan)
        return job.progress_sync({"done": 1})

    row = await run_once(database_url, handler)
    assert (row["status"], row["result"], row["progress"]) == ("completed", "true", '{"done": 1}')


async def test_an_asynchronous_handler_that_does_not_await_stops_no_worker(database_url: str) -> None:
    """In the event loop, the forms for threads would wait for themselves, and every job of the worker with them."""

    async def handler(job: Job) -> None:
        with pytest.raises(Rejected, match="awaits") as refused:
            job.progress_sync(1)
        assert refused.value.code == "sync_in_async"
        job.step_sync("first", ok)

    row = await run_once(database_url, handler)
    assert (row["status"], row["attempts"], row["progress"]) == ("failed", 1, None)
    assert "sync_in_async" in row["error_message"]


async def test_synchronous_handlers_have_steps(database_url: str) -> None:
    """``step_sync`` calls the function in the handler's thread and waits for the commit."""
    calls: list[str] = []

    def first() -> str:
        calls.append(threading.current_thread().name)
        return "done"

    def handler(job: Job) -> str:
        found = job.step_sync("first", first)
        if job.attempt == 1:
            raise ValueError("again")
        return found

    row = await run_once(database_url, handler)
    assert (row["status"], row["result"]) == ("completed", '"done"')
    assert len(calls) == 1
    assert calls[0].startswith("tickwright-job")


def ok() -> Any:
    """A step."""
    return 1


def number() -> int:
    """A step with a type."""
    return 1


def thing() -> Any:
    """A step whose result has no JSON form."""
    return object()


async def twice(job: Job) -> None:
    """Use a name twice."""
    await job.step("first", ok)
    await job.step("first", number)


async def refuse(job: Job, name: str = "x", function: Callable[..., Any] = ok, count: int = 1) -> None:
    """Run steps, one of which is refused."""
    for index in range(count):
        await job.step(f"{name}{index or ''}", function)


REFUSED: dict[str, Callable[[Job], Any]] = {
    "step_repeated": twice,
    "invalid_step_name": lambda job: refuse(job, ""),
    "invalid_step_name ": lambda job: refuse(job, "x" * 101),
    "invalid_step_name  ": lambda job: refuse(job, "a\0"),
    "step_result_invalid": lambda job: refuse(job, function=thing),
    "step_result_invalid ": lambda job: refuse(job, function=lambda: "a\0"),
    "step_result_too_large": lambda job: refuse(job, function=lambda: "x" * 65_535),
    "too_many_steps": lambda job: refuse(job, count=101),
    "steps_too_large": lambda job: refuse(job, function=lambda: "x" * 65_000, count=17),
    "step_type_differs": lambda job: refuse(job, "first", number),
}


@pytest.mark.parametrize("case", [*REFUSED])
async def test_bad_steps_fail_the_job_at_once_with_a_stable_code(database_url: str, case: str) -> None:
    """Another attempt would fail in the same way; what was kept stays for an operator's retry."""
    run = REFUSED[case]

    async def handler(job: Job) -> None:
        await run(job)

    row = await run_once(database_url, handler, KEPT if case == "step_type_differs" else None)
    assert (row["status"], row["attempts"]) == ("failed", 1)
    assert row["error_message"].startswith(f"{case.strip()}: ")
    if case in {"step_repeated", "step_type_differs"}:
        assert list(json.loads(row["steps"])) == ["first"]


async def test_a_refused_result_fails_no_step_that_is_kept_with_it(database_url: str) -> None:
    """The statement is repeated for each result."""

    async def handler(job: Job) -> Any:
        async def one(value: str) -> str:
            return value

        texts = ["a", "b\0", "c"]
        found = await asyncio.gather(*(job.step(text[0], one, text) for text in texts), return_exceptions=True)
        return [getattr(each, "code", each) for each in found]

    row = await run_once(database_url, handler)
    assert json.loads(row["result"]) == ["a", "step_result_invalid", "c"]


async def test_a_stopped_attempt_begins_no_step(database_url: str) -> None:
    """A thread that goes on after its timeout runs no further step; that of the next attempt runs."""
    codes: list[str] = []
    calls: list[int] = []
    may_go_on = threading.Event()

    def handler(job: Job) -> None:
        if job.attempt == 1:
            job.wait_cancelled(30)
            try:
                job.step_sync("first", calls.append, 1)
            except Contended as error:
                codes.append(error.code)
            may_go_on.set()
        else:
            may_go_on.wait(30)
            job.step_sync("first", calls.append, job.attempt)

    row = await run_once(database_url, handler, timeout=timedelta(milliseconds=200))
    assert (row["status"], codes, calls) == ("completed", ["attempt_ended"], [2])


async def test_a_locked_row_delays_its_own_steps_only(database_url: str) -> None:
    """A program that holds the row's lock holds up no step of another job."""
    entered, may_step = asyncio.Event(), asyncio.Event()

    async def handler(job: Job) -> str:
        entered.set()
        await may_step.wait()
        return await job.step("first", ok)

    async with running_engine(database_url, {"h": handler}) as engine:
        locked, free = await engine.insert("h"), await engine.insert("h")
        await entered.wait()
        other = await connect(database_url)
        async with other.transaction():
            await other.execute("SELECT FROM tickwright.scheduled_tasks WHERE id = $1 FOR UPDATE", locked)
            may_step.set()
            await engine.until(free, "completed")
            assert (await engine.job(locked))["status"] == "processing"
        await engine.until(locked, "completed")
        await other.close()


async def failed_job(engine: Engine) -> int:
    """Return a dead letter with a kept step."""
    job_id = await engine.insert("h", at=LATER)
    await engine.pool.execute(KEEP, job_id, KEPT)
    await engine.pool.execute("UPDATE tickwright.scheduled_tasks SET status = 'failed' WHERE id = $1", job_id)
    return job_id


RETRIES: dict[str, tuple[str, Any, str, Any]] = {
    "one": ("/v1/jobs/{}/retry", None, "/v1/jobs/{}/retry?from_start=true", None),
    "many": ("/v1/jobs:retry", {"ids": []}, "/v1/jobs:retry", {"ids": [], "from_start": True}),
    "dead letters": (
        "/v1/dead-letters/requeue", {"ids": []}, "/v1/dead-letters/requeue", {"ids": [], "from_start": True},
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", [*RETRIES])
async def test_a_retry_keeps_the_steps_unless_it_is_from_the_start(database_url: str, way: str) -> None:
    """The audit trail says which."""
    keep, keep_body, again, again_body = RETRIES[way]

    async def handler(job: Job) -> str:
        return await job.step("first", lambda: "new")

    async with running_api(database_url) as api, running_engine(database_url, {"h": handler}) as engine:
        for path, body, expected in ((keep, keep_body, '"kept"'), (again, again_body, '"new"')):
            job_id = await failed_job(engine)
            answer = await api.operator.post(path.format(job_id), body if body is None else {**body, "ids": [job_id]})
            assert answer.status == 200, answer.body
            assert (await engine.until(job_id, "completed"))["result"] == expected
        lines = (await api.admin.get("/v1/audit?limit=2")).json["items"]
    assert [line["after"].get("from_start", False) for line in lines] == [True, False]


async def test_messages_have_no_steps(database_url: str) -> None:
    """A requeue of outbox messages from the start is refused."""
    async with running_api(database_url) as api:
        body = {"kind": "outbox", "ids": [1], "from_start": True}
        (await api.operator.post("/v1/dead-letters/requeue", body)).says(422, "no_steps")


async def test_an_edit_keeps_the_steps_unless_it_is_from_the_start(database_url: str) -> None:
    """Both are new versions; to remove steps that are not there is none."""
    async with running_api(database_url) as api:
        job_id = await insert(api.pool, "h", at=LATER)
        path = f"/v1/jobs/{job_id}"
        await api.pool.execute(KEEP, job_id, KEPT)
        assert (await api.operator.send("PATCH", path, {"payload": [1]})).json["version"] == 2
        assert [step["name"] for step in (await api.operator.get(path)).json["steps"]] == ["first"]
        assert (await api.operator.send("PATCH", path, {"from_start": True, "version": 2})).json["version"] == 3
        assert (await api.operator.get(path)).json["steps"] == []
        assert (await api.operator.send("PATCH", path, {"from_start": True})).json["version"] == 3
        [_, first, *_] = (await api.admin.get("/v1/audit?action=jobs.edit")).json["items"]
        assert first["after"] == {"version": 3, "edited": [], "from_start": True}


async def test_steps_are_shown_and_their_results_are_user_data(database_url: str) -> None:
    """In the job and in its explanation; a viewer sees the names."""
    async with running_api(database_url, payloads_from=Role.OPERATOR) as api:
        job_id = await insert(api.pool, "h", at=LATER)
        second = KEPT.replace("first", "a later one").replace("2026", "2027").replace('"kept"', '{"n": 1}')
        await api.pool.execute(KEEP, job_id, KEPT[:-1] + "," + second[1:])
        shown = (await api.operator.get(f"/v1/jobs/{job_id}")).json
        assert shown["steps"] == [
            {"name": "first", "at": "2026-01-01T00:00:00Z", "attempt": 1},
            {"name": "a later one", "at": "2027-01-01T00:00:00Z", "attempt": 1},
        ]
        assert shown["step_results"] == {"first": "kept", "a later one": {"n": 1}}
        hidden = (await api.viewer.get(f"/v1/jobs/{job_id}")).json
        assert (hidden["step_results"], hidden["steps"]) == (None, shown["steps"])
        reasons = (await api.viewer.get(f"/v1/jobs/{job_id}/explain")).json["reasons"]
        [said] = [reason["text"] for reason in reasons if reason["code"] == "steps_done"]
        assert "first (at 2026-01-01T00:00:00Z), a later one (at 2027-01-01T00:00:00Z)" in said


async def test_a_read_of_a_lost_job_refuses_the_step(database_url: str) -> None:
    """The function is not called where the job is lost already."""
    calls: list[int] = []

    async def handler(job: Job) -> Any:
        await engine.pool.execute("UPDATE tickwright.scheduled_tasks SET fence = fence + 1 WHERE id = $1", job.id)
        try:
            await job.step("first", calls.append, 1)
        except Contended as error:
            codes.append(error.code)

    codes: list[str] = []
    async with running_engine(database_url, {"h": handler}) as engine:
        await engine.until(await engine.insert("h"), "completed")
    assert (codes, calls) == (["attempt_ended"], [])


MYPY_PROGRAM = """
from tickwright import Job

async def charge(amount: int) -> str:
    return ""

def add(a: int, *, b: int) -> int:
    return a + b

async def handler(job: Job, connection: object) -> None:
    reveal_type(await job.step("charge", charge, 1))
    reveal_type(await job.step("add", add, 1, b=2))
    reveal_type(await job.step_in(connection, "charge", charge, 1))
    reveal_type(job.step_sync("add", add, 1, b=2))
    reveal_type(job.step_in_sync(connection, "add", add, 1, b=2))
    await job.step("charge", charge, "x")
    await job.step_in(connection, "charge", charge)
    job.step_sync("add", add, 1)
"""


def test_a_type_checker_knows_arguments_and_result_of_a_step(tmp_path: Path) -> None:
    """A wrong call is an error of mypy, and the result has the function's type."""
    program = tmp_path / "calls.py"
    program.write_text(MYPY_PROGRAM)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), str(program)]
    said = subprocess.run(command, check=False, capture_output=True, text=True).stdout
    lines = [line.partition("calls.py:")[2] for line in said.splitlines() if "calls.py:" in line]
    kinds = [line.partition('is "')[2].strip('"') for line in lines if "Revealed" in line]
    assert kinds == ["str", "int", "str", "int", "int"]
    errors = {int(line.partition(":")[0]) for line in lines if ": error:" in line}
    assert errors == {16, 17, 18}


def test_a_refusal_is_permanent() -> None:
    """It is one of the four families of errors."""
    refused = steps_module.StepRefused("step_repeated", "…")
    assert isinstance(refused, Rejected)
    assert not refused.retriable
