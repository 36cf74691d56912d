"""Workflows: what runs when, with which results, and what becomes of jobs whose predecessors do not complete."""

from datetime import timedelta
from typing import Any, cast

import psycopg
import pytest

from kit.workflows import STATE, WAITING, FlowShop, check_no_leftovers, states
from tickwright import Contended, JobCancelled, JobFailed, Rejected, Unavailable
from tickwright.app.scheduling import CALLER
from tickwright.capabilities.jobs.workflows.service import RESULTS_AT_ONCE
from tickwright.testing.opening import OpenApp

BOTH = pytest.mark.parametrize("isolated", [True, False], ids=["isolated", "committed"])
SWEEP = "SELECT tickwright.sweep_workflows(100)"


@pytest.fixture
def shop() -> FlowShop:
    """A program of the test."""
    return FlowShop()


@BOTH
async def test_jobs_run_after_their_predecessors_with_their_results(
    shop: FlowShop, tickwright_app: OpenApp, isolated: bool
) -> None:
    """A result is an argument, alone or in a list; a job starts when all that it waits for has completed."""
    async with tickwright_app(shop.app, isolated=isolated) as app:
        async with app.workflow("flow") as flow:
            one = flow.add(shop.step, name="a")
            two = flow.add(shop.step, name="b")
            both = flow.add(shop.join, one=one.value, more=[one.value, two.value])
            flow.add(shop.step, after=[both], name="last", on_failed="run")
        await app.drain()
        assert sorted(shop.calls[:2]) == ["a", "b"]
        assert shop.calls[2:] == [("A", ["A", "B"]), "last"]
        assert await both.handle.result("10s") == "A+A+B"
        await flow.result("10s")
        view = await app.workflows.get(flow.id)
        assert (view.state, view.nodes, view.open) == ("completed", 4, 0)
        await check_no_leftovers(app.pool)


async def test_a_waiting_job_is_in_no_index_of_due_jobs(shop: FlowShop, tickwright_app: OpenApp) -> None:
    """It is not in the live table, and readers see that it waits."""
    async with tickwright_app(shop.app) as app:
        async with app.workflow("flow") as flow:
            first = flow.add(shop.step, name="a")
            second = flow.add(shop.step, after=[first], name="b")
        live = await app.pool.fetch("SELECT id FROM ONLY tickwright.scheduled_tasks")
        assert [row["id"] for row in live] == [first.id]
        assert (await app.get(second.id)).status == "waiting"
        with pytest.raises(Rejected, match="waits for other jobs") as raised:
            await app.reschedule(second.id, delay="1h")
        assert raised.value.code == "job_waits"


CASES = [
    ("cancel", False, "completed"), ("wait", False, "completed"), ("run", False, "completed"),
    ("only", False, "skipped"),
    ("cancel", True, "cancelled"), ("wait", True, "open"), ("run", True, "completed"), ("only", True, "completed"),
]  # fmt: skip


@pytest.mark.parametrize(("how", "fails", "becomes"), CASES)
async def test_each_policy_for_a_failed_predecessor(
    shop: FlowShop, tickwright_app: OpenApp, how: Any, fails: bool, becomes: str
) -> None:
    """``cancel``, ``wait``, ``run`` and ``only``, where the predecessor completes and where it fails."""
    if fails:
        shop.fails.add("a")
    async with tickwright_app(shop.app) as app:
        async with app.workflow("flow") as flow:
            first = flow.add(shop.step, name="a")
            flow.add(shop.step, name="b", after=[first], on_failed=how, node="b")
        await app.drain(raises=False)
        assert (await states(app.pool, flow.id))["b"] == becomes
        assert ("b" in shop.calls) == (becomes == "completed")
        state = await app.pool.fetchval(STATE, flow.id)
        assert state == ("running" if becomes == "open" else "failed" if fails else "completed")
        await check_no_leftovers(app.pool)


async def test_a_cancel_reaches_all_that_comes_after(shop: FlowShop, tickwright_app: OpenApp) -> None:
    """Through chains and inner workflows; each job says which predecessor ended so."""
    shop.fails.add("a")
    async with tickwright_app(shop.app) as app:
        async with app.workflow("flow") as flow:
            first = flow.add(shop.step, name="a")
            chain = flow.chain(*[shop.step.call(name=str(n)) for n in range(50)], after=[first])
            with flow.workflow("inner", after=[chain[-1]]) as inner:
                inner.add(shop.step, name="i")
            end = flow.add(shop.step, after=[inner], name="end")
        await app.drain(raises=False)
        found = await states(app.pool, flow.id)
        assert set(found.values()) == {"failed", "cancelled"}
        assert found["inner"] == "cancelled"
        assert shop.calls == ["a"]
        assert "its predecessor" in str((await app.get(end.id)).error_message)
        with pytest.raises(JobFailed, match="a job of it failed"):
            await flow.result("10s")
        with pytest.raises(JobCancelled):
            await end.handle.result("10s")
        await check_no_leftovers(app.pool)


@pytest.mark.parametrize("fails", [False, True])
async def test_a_group_has_jobs_for_success_failure_and_the_end(
    shop: FlowShop, tickwright_app: OpenApp, fails: bool
) -> None:
    """On success after all completed; on failure as soon as one failed, once; exhausted when all have ended."""
    if fails:
        shop.fails.add("1")
    async with tickwright_app(shop.app) as app:
        async with app.workflow("flow") as flow:
            flow.group(
                [shop.step.call(name=str(n)) for n in range(3)],
                on_success=shop.step.call(name="success"),
                on_failure=shop.step.call(name="failure"),
                on_exhausted=shop.step.call(name="exhausted"),
            )
        await app.drain(raises=False)
        assert sorted(shop.calls[:3]) == ["0", "1", "2"] or "failure" in shop.calls
        assert sorted(set(shop.calls) - {"0", "1", "2"}) == (
            ["exhausted", "failure"] if fails else ["exhausted", "success"]
        )
        await check_no_leftovers(app.pool)


async def test_the_end_of_an_inner_workflow_is_a_node(shop: FlowShop, tickwright_app: OpenApp) -> None:
    """What waits for it starts after its last job, whatever the nesting; its first jobs wait for what it waits for."""
    async with tickwright_app(shop.app) as app:
        async with app.workflow("flow") as flow:
            first = flow.add(shop.step, name="first")
            async with flow.workflow("outer", after=[first]) as outer:
                outer.add(shop.step, name="o")
                with outer.workflow("inner") as inner:
                    inner.chain(shop.step.call(name="i1"), shop.step.call(name="i2"))
            flow.add(shop.step, after=[outer], name="end")
            with pytest.raises(Rejected, match="closed") as raised:
                outer.add(shop.step, name="late")
            assert raised.value.code == "workflow_closed"
        await app.drain()
        assert shop.calls[0] == "first"
        assert shop.calls[-1] == "end"
        assert set(shop.calls) == {"first", "o", "i1", "i2", "end"}
        assert (await app.workflows.get(inner.id)).state == "completed"
        await check_no_leftovers(app.pool)


@pytest.mark.parametrize("page", [3, RESULTS_AT_ONCE])
async def test_results_of_many_predecessors_are_read_in_pages(
    shop: FlowShop, tickwright_app: OpenApp, monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    """In the order of the definition, however many; a job in the list that returned none has no result."""
    monkeypatch.setattr("tickwright.capabilities.jobs.workflows.service.RESULTS_AT_ONCE", page)
    async with tickwright_app(shop.app) as app:
        async with app.workflow("flow") as flow:
            parts = flow.group([shop.step.call(name=str(n)) for n in range(10)])
            flow.add(shop.total, after=[parts])
        await app.drain()
        assert [result for _, result in shop.calls[-1]] == [str(n) for n in range(10)]


async def test_a_delay_counts_from_the_release(shop: FlowShop, tickwright_app: OpenApp) -> None:
    """A job three days after its predecessor, whenever that ended."""
    async with tickwright_app(shop.app) as app:
        async with app.workflow("flow") as flow:
            first = flow.add(shop.step.options(delay="1d"), name="a")
            flow.add(shop.step.options(delay="3d"), after=[first], name="b")
        before = await app.pool.fetchval("SELECT now()")
        await app.drain(until="2d")
        assert shop.calls == ["a"]
        due = await app.pool.fetchval("SELECT execute_at FROM ONLY tickwright.scheduled_tasks")
        assert timedelta(days=3, hours=23) < due - before < timedelta(days=4, minutes=5)
        await app.drain(until="3d")
        assert shop.calls == ["a", "b"]


async def test_a_workflow_is_part_of_the_callers_transaction(shop: FlowShop, tickwright_app: OpenApp) -> None:
    """All of it is committed or nothing; an error in the block adds nothing."""
    async with tickwright_app(shop.app, isolated=False) as app:
        async with app.pool.acquire() as connection:
            transaction = connection.transaction()
            await transaction.start()
            async with app.workflow("flow", connection=connection) as flow:
                flow.chain(shop.step.call(name="a"), shop.step.call(name="b"))
            assert flow.id
            await transaction.rollback()

        async def fails() -> None:
            async with flow:
                flow.add(shop.step, name="a")
                raise ZeroDivisionError

        flow = app.workflow("flow")
        with pytest.raises(ZeroDivisionError):
            await fails()
        with pytest.raises(Unavailable, match="at the end of its block"):
            _ = flow.id
        assert await app.pool.fetchval("SELECT count(*) FROM tickwright.workflows") == 0
        assert await app.pool.fetchval(WAITING) == 0


async def test_a_synchronous_program_adds_a_workflow_in_its_transaction(database_url: str) -> None:
    """With its own connection, without an event loop; the ids are there after the block."""
    shop = FlowShop(database_url)
    async with shop.app as app:
        with psycopg.connect(database_url) as connection, app.workflow("flow", connection=connection) as flow:
            first = flow.add(shop.step, name="a")
            flow.add(shop.step, after=[first], name="b")
        assert first.id > flow.id
        await app.drain()
        assert shop.calls == ["a", "b"]


async def test_the_same_key_adds_nothing_twice(shop: FlowShop, tickwright_app: OpenApp) -> None:
    """The second call gets the first workflow; another definition under the key is refused."""
    async with tickwright_app(shop.app) as app:

        async def add(name: str) -> int:
            async with app.workflow("flow", key="k") as flow:
                flow.add(shop.step, name=name)
            return flow.id

        assert await add("a") == await add("a")
        with pytest.raises(Contended) as raised:
            await add("b")
        assert raised.value.code == "key_reused"
        assert len((await app.drain()).jobs) == 1


async def test_a_part_or_the_whole_is_cancelled(shop: FlowShop, tickwright_app: OpenApp) -> None:
    """A job and all after it, whatever their policy; then the rest. What has ended stays."""
    async with tickwright_app(shop.app) as app:
        async with app.workflow("flow") as flow:
            first = flow.add(shop.step, name="a")
            second = flow.add(shop.step, after=[first], name="b", on_failed="run")
            flow.add(shop.step, after=[second], name="c", on_failed="run")
            flow.add(shop.step.options(delay="1d"), name="d")
        action = await app.workflows.cancel(flow.id, caller=CALLER, from_job=second.id)
        assert (action.jobs, action.state) == (2, "running")
        await app.drain()
        assert shop.calls == ["a"]
        assert (await app.workflows.cancel(flow.id, caller=CALLER)).jobs == 1
        if (await app.workflows.get(flow.id)).state != "cancelled":
            raise AssertionError(await states(app.pool, flow.id))
        assert list((await states(app.pool, flow.id)).values()) == ["completed", "cancelled", "cancelled", "cancelled"]
        with pytest.raises(Rejected) as raised:
            await app.workflows.cancel(flow.id, caller=CALLER)
        assert raised.value.code == "workflow_ended"
        await check_no_leftovers(app.pool)


async def test_a_retry_runs_what_did_not_complete(shop: FlowShop, tickwright_app: OpenApp) -> None:
    """Failed, cancelled and skipped jobs run again under their ids, with rising fences; completed ones stay."""
    shop.fails.add("b")
    async with tickwright_app(shop.app) as app:
        async with app.workflow("flow") as flow:
            first = flow.add(shop.step, name="a")
            second = flow.add(shop.step, after=[first], name="b")
            third = flow.add(shop.join, after=[second], one=first.value)
            with flow.workflow("inner", after=[second]) as inner:
                inner.add(shop.step, name="i")
            flow.add(shop.step, after=[inner, third], name="end")
        await app.drain(raises=False)
        assert await app.pool.fetchval(STATE, flow.id) == "failed"
        fence = (await app.get(second.id)).fence
        shop.fails.clear()
        assert (await app.workflows.retry(flow.id, caller=CALLER)).jobs == 4
        await check_no_leftovers(app.pool)
        await app.drain()
        assert shop.calls[0] == "a"
        assert shop.calls.count("a") == 1
        assert shop.calls[-1] == "end"
        assert (await app.get(second.id)).fence > fence
        assert await app.pool.fetchval(STATE, flow.id) == "completed"
        await check_no_leftovers(app.pool)
        with pytest.raises(Rejected) as raised:
            await app.workflows.retry(flow.id, caller=CALLER)
        assert raised.value.code == "workflow_nothing_to_retry"


async def test_a_retried_job_releases_what_waited_for_it(shop: FlowShop, tickwright_app: OpenApp) -> None:
    """With ``on_failed="wait"``: the ordinary retry of a dead letter, and its workflow runs on."""
    shop.fails.add("a")
    async with tickwright_app(shop.app) as app:
        async with app.workflow("flow") as flow:
            first = flow.add(shop.step, name="a")
            flow.add(shop.step, after=[first], name="b", on_failed="wait")
        await app.drain(raises=False)
        shop.fails.clear()
        await app.retry(first.id)
        assert (await app.workflows.get(flow.id)).failed == 0
        await app.drain()
        assert shop.calls == ["a", "a", "b"]
        assert await app.pool.fetchval(STATE, flow.id) == "completed"
        await check_no_leftovers(app.pool)


async def test_a_deadline_ends_what_has_not_ended(shop: FlowShop, tickwright_app: OpenApp) -> None:
    """It is cancelled, and the workflow has failed."""
    async with tickwright_app(shop.app) as app:
        async with app.workflow("flow", deadline="2h") as flow:
            first = flow.add(shop.step.options(delay="3h"), name="a")
            flow.add(shop.step, after=[first], name="b", on_failed="run")
        assert await app.pool.fetchval(SWEEP) == 0
        await app.drain(until="2h")
        assert await app.pool.fetchval(SWEEP) == 1
        assert await app.pool.fetchval(STATE, flow.id) == "failed"
        with pytest.raises(JobFailed, match="deadline is over"):
            await flow.result("10s")
        assert (await app.drain(until="5h")).jobs == []
        await check_no_leftovers(app.pool)


async def test_nodes_of_another_workflow_are_refused(shop: FlowShop, tickwright_app: OpenApp) -> None:
    """As predecessors and as arguments."""
    async with tickwright_app(shop.app) as app:
        async with app.workflow("other") as other:
            foreign = other.add(shop.step, name="a")
        async with app.workflow("flow") as flow:
            for arguments in ({"after": [foreign], "one": "x"}, {"one": foreign}, {"after": [7], "one": "x"}):
                with pytest.raises(Rejected) as raised:
                    flow.add(shop.join, **arguments)
                assert raised.value.code == "workflow_foreign_node"
            flow.add(shop.step, name="b")


async def test_jobs_of_other_programs_are_added_by_their_type(shop: FlowShop, tickwright_app: OpenApp) -> None:
    """Such as those of workers in other languages: with a payload, and results as members of it."""
    async with tickwright_app(shop.app) as app:
        async with app.workflow("flow") as flow:
            one = flow.add(shop.step, name="a")
            given = app.new_job("join", {"one": "x"}, priority=5)
            both = flow.add(given, more=[one.value, one.value], node="both")
            last, _ = flow.chain(app.new_job("step", {"name": "b"}), shop.total, after=[both])
            with pytest.raises(Rejected, match="results of nodes by name") as raised:
                flow.add(given, one="y")
            assert raised.value.code == "invalid_arguments"
        await app.drain()
        assert shop.calls[:3] == ["a", ("x", ["A", "A"]), "b"]
        assert (await both.handle.result("10s"), await last.handle.result("10s")) == ("x+A+A", "B")


async def test_what_is_no_node_and_no_place_for_one_is_refused(shop: FlowShop, tickwright_app: OpenApp) -> None:
    """With a code and what to write instead, where it is added; nothing of the workflow is there afterwards."""
    async with tickwright_app(shop.app) as app:
        flow = app.workflow("flow")
        one = flow.add(shop.step, name="a")
        for code, text, given in [
            ("workflow_foreign_node", "give a list of nodes", {"one": "x", "after": one}),
            ("workflow_name", "node: a name, not int", {"one": "x", "node": 7}),
            ("invalid_arguments", "more: the result of a node is a whole argument", {"one": "x", "more": ["x", one]}),
            ("invalid_arguments", "more: the result of a node is a whole argument", {"one": "x", "more": {"x": one}}),
        ]:
            with pytest.raises(Rejected, match=text) as raised:
                flow.add(shop.join, **cast("dict[str, Any]", given))
            assert raised.value.code == code
        async with flow:
            flow.add(shop.join, one="x", more=cast("list[str]", (one.value, one.value)))
        with pytest.raises(Rejected) as closed:
            await flow.__aenter__()
        assert closed.value.code == "workflow_closed"
        await app.drain()
        assert shop.calls == ["a", ("x", ["A", "A"])]


async def test_results_that_are_too_large_fail_the_job(shop: FlowShop, tickwright_app: OpenApp) -> None:
    """Together they exceed a payload's size: the job fails with a reason, and its predecessors stay completed."""
    async with tickwright_app(shop.app) as app:
        async with app.workflow("flow") as flow:
            parts = [flow.add(shop.step, name="x" * 60_000) for _ in range(20)]
            whole = flow.add(shop.join, one="", more=[part.value for part in parts])
        await app.drain()
        detail = await app.get(whole.id)
        assert (detail.status, str(detail.error_message).split(":")[0]) == ("failed", "job_unfit")
        assert (await app.workflows.get(flow.id)).failed == 1
        await check_no_leftovers(app.pool)
