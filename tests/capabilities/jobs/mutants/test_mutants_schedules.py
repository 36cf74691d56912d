"""Mutants of schedules: with a guard taken out, the check of its promise has to fail."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from types import MappingProxyType

import asyncpg
import pytest

from kit.schedules import NoLease, ScheduleWorld, gather_rounds, new_producer
from tickwright.capabilities.jobs.schedules import producer
from tickwright.ports.caller import Caller, Role
from tickwright.store.pool import Connection

Check = Callable[[ScheduleWorld], Awaitable[None]]
HOUR = timedelta(hours=1)
COUNTS = "SELECT count(*) AS jobs, count(DISTINCT (payload, execute_at)) AS slots FROM tickwright.scheduled_tasks"


async def check_a_slot_that_is_decided_again_makes_no_second_job(world: ScheduleWorld) -> None:
    """SCH-1: an edit, a restore or a second producer decides about a slot that has a job."""
    last = await world.put_due(slots=3, step=HOUR)
    await world.produce()
    await world.pool.execute("UPDATE tickwright.schedules SET next_slot_at = $1, due_at = now()", last - 2 * HOUR)
    await world.produce()
    counts = await world.pool.fetchrow(COUNTS)
    assert (counts["jobs"], counts["slots"]) == (3, 3), "SCH-1 broken: a slot has two jobs"


async def check_slots_move_on(world: ScheduleWorld) -> None:
    """OPR-2: the next slot moves on in the transaction that makes the jobs."""
    last = await world.put_due()
    await world.produce()
    assert (await world.row())["next_slot_at"] == last + timedelta(days=1), "OPR-2 broken: the slot stays"


async def check_nothing_is_half_written(world: ScheduleWorld) -> None:
    """OPR-2: a producer that ends between the jobs and the slots leaves neither."""

    class Ends:
        async def reached(self, name: str, /, **_facts: object) -> None:
            if name == "schedules.written":
                raise RuntimeError("ended here")

    await world.put_due()
    with pytest.raises(RuntimeError, match="ended here"):
        await world.produce(new_producer(probe=Ends()))
    assert await world.jobs() == [], "OPR-2 broken: a job without the slot"
    assert (await world.row())["next_slot_at"] is None, "OPR-2 broken: a slot without the job"


async def check_two_producers_share_no_schedule(world: ScheduleWorld) -> None:
    """SCH-1: what one producer decides about is locked until its end; the other one passes it over at once."""
    for number in range(20):
        await world.put_due(f"s{number}")
    async with world.pool.acquire() as connection, connection.transaction():
        await connection.execute("SET idle_in_transaction_session_timeout = 0")
        found = await connection.fetch(producer.SQL["due_schedules"], 20)
        assert len(found) == 20
        async with asyncio.timeout(5):
            await new_producer().round(NoLease(world.pool))
        assert await world.pool.fetchval("SELECT count(*) FROM tickwright.scheduled_tasks") == 0, "SCH-1 broken"
    await gather_rounds(world, 2, 2)
    assert await world.pool.fetchval("SELECT count(*) FROM tickwright.scheduled_tasks") == 20


async def check_a_locked_job_delays_no_other_schedule(world: ScheduleWorld) -> None:
    """SCH-3: a program's transaction holds an open job that is to be replaced, for longer than a round may take."""
    for name in ("held", "free"):
        await world.put_due(name, overlap="replace")
        await world.schedules.run_now(name, caller=Caller("mutant", Role.ADMIN))
    await world.put_due("right")
    async with world.pool.acquire() as connection, connection.transaction():
        await connection.execute("SET idle_in_transaction_session_timeout = 0")
        await connection.execute(
            "SELECT FROM tickwright.scheduled_tasks WHERE idempotency_key ^@ 'schedule:held:' FOR UPDATE"
        )
        async with asyncio.timeout(5):
            await new_producer().round(NoLease(world.pool))
        assert len(await world.jobs("right")) == 1, "SCH-3 broken: a locked job delays a schedule without one"
        assert len(await world.jobs("free")) == 2, "SCH-3 broken: a locked job delays one whose job can be replaced"
        assert len(await world.jobs("held")) == 1, "SCH-3 broken: a second job beside one that is not cancelled"
    assert (await world.row("held"))["next_slot_at"] is None, "SCH-3 broken: the slot is passed over"


MUTANTS: list[tuple[str, str, str, str, Check]] = [
    ("a key for each producer instead of the slot's", "put_jobs", "u.execute_at + s.expires_after, u.key",
     "u.execute_at + s.expires_after, u.key || gen_random_uuid()",
     check_a_slot_that_is_decided_again_makes_no_second_job),
    ("slots stay", "move_schedules", "SET next_slot_at = u.next_slot_at", "SET next_slot_at = s.next_slot_at",
     check_slots_move_on),
    ("rows are not locked", "due_schedules", "FOR NO KEY UPDATE OF s SKIP LOCKED", "",
     check_two_producers_share_no_schedule),
    ("locked rows are waited for", "due_schedules", "SKIP LOCKED", "", check_two_producers_share_no_schedule),
    ("locked jobs are waited for", "bound_waits", "set_config('lock_timeout', $1, true)", "$1::text",
     check_a_locked_job_delays_no_other_schedule),
    ("locked jobs are passed over", "lock_open_jobs", "FOR UPDATE", "FOR UPDATE SKIP LOCKED",
     check_a_locked_job_delays_no_other_schedule),
]  # fmt: skip


@pytest.mark.parametrize(
    "check", sorted({check_nothing_is_half_written, *(mutant[-1] for mutant in MUTANTS)}, key=repr)
)
async def test_the_promise_holds(schedules: ScheduleWorld, check: Check) -> None:
    """With every guard in its place."""
    await check(schedules)


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant[0] for mutant in MUTANTS])
async def test_a_mutant_is_caught(
    schedules: ScheduleWorld, monkeypatch: pytest.MonkeyPatch, mutant: tuple[str, str, str, str, Check]
) -> None:
    """A check that passes with its guard taken out checks nothing."""
    _, name, guard, instead, check = mutant
    text = producer.SQL[name]
    assert text.count(guard) == 1, "the guard is elsewhere by now"
    monkeypatch.setattr(producer, "SQL", MappingProxyType({**producer.SQL, name: text.replace(guard, instead)}))
    with pytest.raises((AssertionError, TimeoutError, asyncpg.PostgresError)):
        await check(schedules)


async def test_jobs_that_are_committed_before_their_slots_are_caught(
    schedules: ScheduleWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mutant whose jobs have a transaction of their own breaks OPR-2."""
    insert = producer._insert

    async def apart(_connection: object, new: object) -> dict[str, int]:
        async with schedules.pool.acquire() as other:
            await other.execute("SET lock_timeout = '1s'")
            return await insert(other, new)  # type: ignore[arg-type]

    monkeypatch.setattr(producer, "_insert", apart)
    with pytest.raises(AssertionError):
        await check_nothing_is_half_written(schedules)


async def test_schedules_that_wait_for_a_locked_job_of_another_one_are_caught(
    schedules: ScheduleWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mutant that cancels the jobs of all schedules in one statement, or none, breaks SCH-3."""
    cancel_open = producer._cancel_open

    async def together(connection: Connection, names: list[str]) -> dict[str, str]:
        return dict.fromkeys(names, "locked") if await cancel_open(connection, names) else {}

    monkeypatch.setattr(producer, "_cancel_open", together)
    with pytest.raises(AssertionError, match="whose job can be replaced"):
        await check_a_locked_job_delays_no_other_schedule(schedules)
