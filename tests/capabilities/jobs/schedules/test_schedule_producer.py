"""Each occurrence of a schedule has one job, or a written reason why not, with any number of producers."""

import asyncio
from datetime import timedelta
from operator import itemgetter

import asyncpg
import pytest

from kit.probes import Stops
from kit.schedules import ScheduleWorld, gather_rounds, new_producer, utc
from kit.waiting import eventually_async
from tickwright.domain.calendars.occurrences import spread_offset
from tickwright.ports.caller import Caller, Role

SECOND, MINUTE, HOUR, DAY = (timedelta(**{unit: 1}) for unit in ("seconds", "minutes", "hours", "days"))
CALLER = Caller("test", Role.OPERATOR)


async def test_a_new_schedule_gets_its_next_slot_and_no_job(schedules: ScheduleWorld) -> None:
    """Nothing is due before the first slot."""
    await schedules.put(cron="0 3 * * *")
    rest_s = await schedules.produce()
    row = await schedules.row()
    assert (row["next_slot_at"].hour, row["next_slot_at"].minute) == (3, 0)
    assert row["next_slot_at"] > await schedules.now()
    assert await schedules.jobs() == []
    assert 0 < rest_s <= 60 * 60 * 24


async def test_a_due_slot_becomes_one_job_and_the_next_is_set(schedules: ScheduleWorld) -> None:
    """The job has its slot as due instant and in its key, and what the schedule says of it."""
    slot = await schedules.put_due(
        payload='{"a": 1}', priority=7, max_attempts=2, timeout_ms=5000, expires_after=DAY, step=DAY
    )
    await schedules.produce()
    (job,) = await schedules.jobs()
    assert job["execute_at"] == slot
    assert job["idempotency_key"] == f"schedule:nightly:{slot.isoformat()[:19]}Z"
    assert (job["task_type"], job["payload"], job["priority"]) == ("tidy", '{"a": 1}', 7)
    assert (job["max_attempts"], job["timeout_ms"], job["expires_at"]) == (2, 5000, slot + DAY)
    row = await schedules.row()
    assert (row["last_slot_at"], row["last_job_id"], row["next_slot_at"]) == (slot, job["id"], slot + DAY)


async def test_a_job_has_the_attempts_of_its_type_where_its_schedule_has_none(schedules: ScheduleWorld) -> None:
    """As a job that is scheduled by a program."""
    await schedules.pool.execute("UPDATE tickwright.task_types SET max_attempts = 9")
    await schedules.put_due()
    await schedules.produce()
    assert [job["max_attempts"] for job in await schedules.jobs()] == [9]


async def test_a_due_slot_of_an_unknown_type_becomes_a_job_that_waits(schedules: ScheduleWorld) -> None:
    """As every job of a type that no program has registered yet."""
    await schedules.put_due(task_type="not.yet")
    await schedules.produce()
    assert [job["status"] for job in await schedules.jobs()] == ["pending"]


async def test_a_job_is_written_up_to_two_seconds_ahead_and_never_due_earlier(schedules: ScheduleWorld) -> None:
    """So a worker starts it at its slot; the row is read again two seconds before the next slot."""
    await schedules.put(every=SECOND)
    await schedules.produce()
    jobs, now, row = await schedules.jobs(), await schedules.now(), await schedules.row()
    assert jobs
    assert all(job["execute_at"] >= row["counts_from"] for job in jobs)
    assert max(job["execute_at"] for job in jobs) <= now + 2 * SECOND
    assert row["read_at"] == row["next_slot_at"] - 2 * SECOND


@pytest.mark.parametrize("overlap", ["skip", "replace"])
async def test_a_job_is_not_written_ahead_where_it_depends_on_the_one_before(
    schedules: ScheduleWorld, overlap: str
) -> None:
    """Only at the slot it is known whether that has ended."""
    await schedules.put(every=SECOND, overlap=overlap)
    await schedules.produce()
    row = await schedules.row()
    assert row["read_at"] == row["next_slot_at"]
    assert [job for job in await schedules.jobs() if job["execute_at"] > row["decided_at"]] == []


async def test_a_spread_moves_the_job_and_not_its_key(schedules: ScheduleWorld) -> None:
    """The offset is fixed, so another window makes no second job of one slot."""
    await schedules.put_due(slots=3, step=HOUR, ago=30 * MINUTE, spread=10 * MINUTE)
    await schedules.produce()
    before = {job["idempotency_key"]: job["execute_at"] for job in await schedules.jobs()}
    (offset,) = {at - utc(key[-20:-1]) for key, at in before.items()}
    assert (len(before), offset) == (3, spread_offset("nightly", 10 * MINUTE))
    first = min(before.values()) - offset
    await schedules.pool.execute("UPDATE tickwright.schedules SET spread = '20 minutes'")
    await schedules.pool.execute("UPDATE tickwright.schedules SET counts_from = $1", first)
    await schedules.produce()
    assert {job["idempotency_key"]: job["execute_at"] for job in await schedules.jobs()} == before


@pytest.mark.parametrize(("misfire", "made"), [("one", [0]), ("all", [-2, -1, 0]), ("none", [])])
async def test_slots_that_were_missed_are_caught_up_by_the_policy(
    schedules: ScheduleWorld, misfire: str, made: list[int]
) -> None:
    """After an outage. Slots that are not are counted, in one row."""
    last = await schedules.put_due(slots=10, step=HOUR, misfire=misfire, misfire_max=3, misfire_grace=timedelta())
    await schedules.produce()
    assert [job["execute_at"] for job in await schedules.jobs()] == [last + number * HOUR for number in made]
    skipped = 10 - len(made)
    first = last - 9 * HOUR
    assert await schedules.skips() == [(first, first + (skipped - 1) * HOUR, skipped, "misfire")]
    assert (await schedules.row())["next_slot_at"] == last + HOUR


@pytest.mark.parametrize(
    ("overlap", "statuses", "skipped"),
    [("allow", ["pending", "pending"], 0), ("skip", ["pending"], 1), ("replace", ["cancelled", "pending"], 0)],
)
async def test_a_job_that_has_not_ended_is_handled_by_the_policy(
    schedules: ScheduleWorld, overlap: str, statuses: list[str], skipped: int
) -> None:
    """Both run, the slot is skipped and recorded, or the earlier job is cancelled."""
    await schedules.put_due(overlap=overlap)
    started = await schedules.schedules.run_now("nightly", caller=CALLER)
    await schedules.produce()
    jobs = await schedules.jobs()
    assert [job["status"] for job in sorted(jobs, key=itemgetter("id"))] == statuses
    assert min(job["id"] for job in jobs) == started.id
    assert [reason for *_, reason in await schedules.skips()] == ["overlap"] * skipped


async def test_a_run_now_and_the_producer_do_not_miss_each_other(schedules: ScheduleWorld) -> None:
    """The holder of the row reads jobs that have not ended after the lock, and so sees every earlier one."""
    await schedules.put_due(overlap="skip")
    stops = Stops()
    stops.close("schedules.producing")
    producing = asyncio.create_task(schedules.produce(new_producer(probe=stops)))
    await eventually_async(lambda: stops.reached_times["schedules.producing"])
    await schedules.pool.execute(
        "INSERT INTO tickwright.scheduled_tasks (execute_at, task_type, payload, idempotency_key) "
        "VALUES (now(), 'tidy', '{}', 'schedule:nightly:run:by-sql')"
    )
    stops.open("schedules.producing")
    await producing
    assert len(await schedules.jobs()) == 1
    assert [reason for *_, reason in await schedules.skips()] == ["overlap"]


async def test_a_slot_is_not_skipped_for_a_job_that_has_ended(schedules: ScheduleWorld) -> None:
    """Nor for a job of a schedule whose name begins with its own."""
    await schedules.put_due("nightly-2", overlap="skip")
    await schedules.put_due("nightly", overlap="skip")
    ended = await schedules.schedules.run_now("nightly", caller=CALLER)
    await schedules.pool.execute("UPDATE tickwright.scheduled_tasks SET status = 'cancelled' WHERE id = $1", ended.id)
    await schedules.schedules.run_now("nightly-2", caller=CALLER)
    await schedules.produce()
    assert [job["status"] for job in await schedules.jobs("nightly")] == ["pending", "cancelled"]
    assert await schedules.skips("nightly") == []
    assert [slots for _, _, slots, _ in await schedules.skips("nightly-2")] == [1]


async def test_skips_are_kept_up_to_a_hundred(schedules: ScheduleWorld) -> None:
    """Of each schedule, the newest."""
    await schedules.put_due("other", misfire="none", misfire_grace=timedelta())
    last = await schedules.put_due(overlap="skip")
    await schedules.schedules.run_now("nightly", caller=CALLER)
    await schedules.pool.execute(
        """
        INSERT INTO tickwright.schedule_skips (schedule, slot_at, until_at, slots, reason)
        SELECT 'nightly', $1::timestamptz - n * interval '1 day', $1::timestamptz - n * interval '1 day', 1, 'overlap'
          FROM generate_series(1, 150) AS n
        """,
        last,
    )
    await schedules.produce()
    skips = await schedules.skips()
    assert (len(skips), skips[-1][0], skips[0][0]) == (100, last, last - 99 * DAY)
    assert len(await schedules.skips("other")) == 1


async def test_five_producers_at_once_make_each_job_once(schedules: ScheduleWorld) -> None:
    """Even if all of them believe that they hold the lease."""
    for number in range(60):
        await schedules.put_due(f"s{number}", slots=20, step=HOUR)
    producers = await gather_rounds(schedules, 5, 12, at_once=7)
    counts = await schedules.pool.fetchrow(
        "SELECT count(*) AS jobs, count(DISTINCT (idempotency_key)) AS keys FROM tickwright.scheduled_tasks"
    )
    assert counts["jobs"] == counts["keys"] == 1200
    assert sum(one.counts["jobs"] for one in producers) == 1200


async def test_an_unreadable_calendar_delays_no_other_schedule(schedules: ScheduleWorld) -> None:
    """What SQL may write and no calendar has is a problem of that schedule, which is read again later."""
    await schedules.put("wrong", cron="0 0 31 2 *")
    await schedules.put_due("right")
    await schedules.produce()
    assert len(await schedules.jobs("right")) == 1
    wrong = await schedules.row("wrong")
    assert "never fires" in wrong["problem"]
    assert wrong["read_at"] > await schedules.now()


async def test_a_job_that_postgresql_refuses_delays_no_other_schedule(schedules: ScheduleWorld) -> None:
    """Its slot stays undecided, and is caught up when the cause is gone."""
    await schedules.pool.execute(
        "ALTER TABLE tickwright.scheduled_tasks ADD CONSTRAINT strange CHECK (payload::text <> '{\"strange\": true}')"
    )
    await schedules.put_due("strange", payload='{"strange": true}')
    await schedules.put_due("right")
    await schedules.produce()
    assert len(await schedules.jobs("right")) == 1
    assert "strange" in (await schedules.row("strange"))["problem"]
    await schedules.pool.execute("ALTER TABLE tickwright.scheduled_tasks DROP CONSTRAINT strange")
    await schedules.pool.execute("UPDATE tickwright.schedules SET priority = 1 WHERE name = 'strange'")
    await schedules.produce()
    assert len(await schedules.jobs("strange")) == 1
    assert (await schedules.row("strange"))["problem"] is None


async def test_a_locked_schedule_delays_no_other_one_and_no_loop(schedules: ScheduleWorld) -> None:
    """An operator's open transaction holds one row; the loop rests, instead of asking again at once."""
    await schedules.put_due("held")
    await schedules.put_due("right")
    async with schedules.pool.acquire() as connection, connection.transaction():
        await connection.execute("SELECT FROM tickwright.schedules WHERE name = 'held' FOR UPDATE")
        await schedules.produce()
        assert await schedules.produce() > 0
        assert len(await schedules.jobs("right")) == 1
    await schedules.produce()
    assert len(await schedules.jobs("held")) == 1


async def test_a_locked_job_that_is_to_be_replaced_delays_no_other_schedule(schedules: ScheduleWorld) -> None:
    """A program's transaction holds the row of the open job; its schedule says so, and is decided about soon after."""
    for name in ("held", "free"):
        await schedules.put_due(name, overlap="replace")
        await schedules.schedules.run_now(name, caller=CALLER)
    await schedules.put_due("right")
    (open_job,) = await schedules.jobs("held")
    async with schedules.pool.acquire() as connection, connection.transaction():
        await connection.execute("SELECT FROM tickwright.scheduled_tasks WHERE id = $1 FOR UPDATE", open_job["id"])
        await schedules.produce()
        assert len(await schedules.jobs("right")) == 1
        assert sorted(job["status"] for job in await schedules.jobs("free")) == ["cancelled", "pending"]
        assert [job["status"] for job in await schedules.jobs("held")] == ["pending"]
    held = await schedules.row("held")
    assert "locked" in held["problem"]
    assert held["read_at"] < await schedules.now() + MINUTE
    await schedules.pool.execute("UPDATE tickwright.schedules SET due_at = clock_timestamp() WHERE name = 'held'")
    await schedules.produce()
    assert sorted(job["status"] for job in await schedules.jobs("held")) == ["cancelled", "pending"]
    assert (await schedules.row("held"))["problem"] is None


@pytest.mark.parametrize(
    "columns",
    [
        {"cron": "* * * * *", "every": MINUTE},
        {},
        {"every": timedelta(milliseconds=500)},
        {"every": timedelta(seconds=1.5)},
        {"every": timedelta(days=367)},
        {"cron": "* * * * *", "time_zone": "Mars/Olympus"},
        {"cron": "* * * * *", "overlap": "queue"},
        {"cron": "* * * * *", "priority": 101},
        {"cron": "* * * * *", "name": "a b"},
        {"cron": "* * * * *", "name": "n" * 101},
        {"cron": "* * * * *", "payload": '{"a": 1e9999}'},
    ],
)
async def test_plain_sql_refuses_nonsense(schedules: ScheduleWorld, columns: dict[str, object]) -> None:
    """The table's checks hold for every writer."""
    with pytest.raises((asyncpg.IntegrityConstraintViolationError, asyncpg.DataError)):
        await schedules.put(**{"name": "nightly", **columns})  # type: ignore[arg-type]
