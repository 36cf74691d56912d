"""Each occurrence of a schedule has one job, or a written reason why not, with any number of producers."""

from datetime import timedelta

import asyncpg
import pytest

from kit.schedules import ScheduleWorld, gather_rounds, new_producer, utc

SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)


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
    await schedules.put(cron="0 * * * *", since=HOUR, payload='{"a": 1}', priority=7, max_attempts=2, timeout_ms=5000,
                        expires_after=MINUTE, misfire_grace=2 * HOUR)  # fmt: skip
    await schedules.produce()
    (job,) = await schedules.jobs()
    slot = (await schedules.now()).replace(minute=0, second=0, microsecond=0)
    assert job["execute_at"] == slot
    assert job["idempotency_key"] == f"schedule:nightly:{slot.isoformat()[:19]}Z"
    assert (job["task_type"], job["payload"], job["priority"]) == ("tidy", '{"a": 1}', 7)
    assert (job["max_attempts"], job["timeout_ms"], job["expires_at"]) == (2, 5000, slot + MINUTE)
    row = await schedules.row()
    assert (row["last_slot_at"], row["last_job_id"], row["next_slot_at"]) == (slot, job["id"], slot + HOUR)


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
    assert all(job["execute_at"] <= await schedules.now() for job in await schedules.jobs())


async def test_a_spread_moves_the_job_and_not_its_key(schedules: ScheduleWorld) -> None:
    """The offset is fixed, so another window makes no second job of one slot."""
    await schedules.put(cron="0 * * * *", since=2 * HOUR, spread=10 * MINUTE, misfire_grace=3 * HOUR, misfire="all")
    await schedules.produce()
    before = {job["idempotency_key"]: job["execute_at"] for job in await schedules.jobs()}
    offsets = {at - utc(key[-20:-1]) for key, at in before.items()}
    assert len(offsets) == 1
    assert timedelta() <= offsets.pop() < 10 * MINUTE
    await schedules.pool.execute("UPDATE tickwright.schedules SET spread = '20 minutes'")
    await schedules.pool.execute("UPDATE tickwright.schedules SET counts_from = clock_timestamp() - interval '2 hours'")
    await schedules.produce()
    assert {job["idempotency_key"]: job["execute_at"] for job in await schedules.jobs()} == before


@pytest.mark.parametrize(("misfire", "made"), [("one", [-1]), ("all", [-3, -2, -1]), ("none", [])])
async def test_missed_slots_are_caught_up_by_the_policy(
    schedules: ScheduleWorld, misfire: str, made: list[int]
) -> None:
    """Slots that are not are counted, in one row."""
    await schedules.put(every=HOUR, first_at=utc("2020-01-01 00:30"), since=10 * HOUR, misfire=misfire, misfire_max=3,
                        misfire_grace=timedelta())  # fmt: skip
    await schedules.produce()
    last = (await schedules.row())["next_slot_at"]
    assert [job["execute_at"] for job in await schedules.jobs()] == [last + offset * HOUR for offset in made]
    ((slot_at, until_at, count, reason),) = await schedules.skips()
    assert (reason, count, until_at) == ("misfire", 10 - len(made), last - (1 + len(made)) * HOUR)
    assert slot_at == last - 10 * HOUR


@pytest.mark.parametrize(
    ("overlap", "statuses", "skipped"),
    [("allow", ["pending", "pending"], 0), ("skip", ["pending"], 1), ("replace", ["cancelled", "pending"], 0)],
)
async def test_a_job_that_has_not_ended_is_handled_by_the_policy(
    schedules: ScheduleWorld, overlap: str, statuses: list[str], skipped: int
) -> None:
    """Both run, the slot is skipped and recorded, or the earlier job is cancelled."""
    await schedules.put(cron="0 * * * *", since=HOUR, overlap=overlap, misfire_grace=3 * HOUR)
    await schedules.produce()
    back = "UPDATE tickwright.schedules SET next_slot_at = next_slot_at - interval '2 hours', due_at = now()"
    await schedules.pool.execute("UPDATE tickwright.scheduled_tasks SET execute_at = execute_at - interval '9 hours'")
    await schedules.pool.execute("UPDATE tickwright.scheduled_tasks SET idempotency_key = 'schedule:nightly:x'")
    await schedules.pool.execute(f"{back} + interval '1 hour' - interval '1 hour'")
    await schedules.pool.execute("UPDATE tickwright.schedules SET next_slot_at = date_trunc('hour', now())")
    await schedules.pool.execute("DELETE FROM tickwright.job_keys")
    await schedules.produce()
    assert [job["status"] for job in await schedules.jobs()] == statuses
    assert [reason for *_, reason in await schedules.skips()] == ["overlap"] * skipped


async def test_five_producers_at_once_make_each_job_once(schedules: ScheduleWorld) -> None:
    """Even if all of them believe that they hold the lease."""
    for number in range(60):
        await schedules.put(f"s{number}", every=HOUR, since=20 * HOUR, misfire="all")
    producers = await gather_rounds(schedules, 5, 3, at_once=7)
    while await new_producer().round(await _held(schedules)) == 0:
        pass
    sql = "SELECT count(*) AS n, count(DISTINCT idempotency_key) AS keys FROM tickwright.scheduled_tasks"
    counts = await schedules.pool.fetchrow(sql)
    assert counts["n"] == counts["keys"] == 1200
    assert sum(one.counts["jobs"] for one in producers) <= 1200


async def _held(schedules: ScheduleWorld):  # noqa: ANN202
    from kit.schedules import NoLease

    return NoLease(schedules.pool)


async def test_an_unreadable_calendar_delays_no_other_schedule(schedules: ScheduleWorld) -> None:
    """What SQL may write and no calendar has is a problem of that schedule, which is read again later."""
    await schedules.put("wrong", cron="0 0 31 2 *")
    await schedules.put("right", cron="0 * * * *", since=HOUR, misfire_grace=2 * HOUR)
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
    await schedules.put("strange", cron="0 * * * *", since=HOUR, misfire_grace=2 * HOUR, payload='{"strange": true}')
    await schedules.put("right", cron="0 * * * *", since=HOUR, misfire_grace=2 * HOUR)
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
    await schedules.put("held", cron="0 * * * *", since=HOUR, misfire_grace=2 * HOUR)
    await schedules.put("right", cron="0 * * * *", since=HOUR, misfire_grace=2 * HOUR)
    async with schedules.pool.acquire() as connection, connection.transaction():
        await connection.execute("SELECT FROM tickwright.schedules WHERE name = 'held' FOR UPDATE")
        await schedules.produce()
        assert await schedules.produce() > 0
        assert len(await schedules.jobs("right")) == 1
    await schedules.produce()
    assert len(await schedules.jobs("held")) == 1


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
