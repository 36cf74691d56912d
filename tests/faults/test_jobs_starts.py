"""What an attempt starts with: not behind ``expires_at``, and with no context variables of an earlier one."""

from contextvars import ContextVar

from kit.engine import policy, running_engine
from tickwright import Job
from tickwright.capabilities.jobs.worker import WorkerLimits

TENANT: ContextVar[object] = ContextVar("TENANT")


class Incomparable:
    """A value like those of NumPy."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, _other: object) -> bool:
        raise ValueError("ambiguous")


async def test_a_job_that_expires_between_its_claim_and_its_instant_does_not_start(database_url: str) -> None:
    """Also on its last attempt; none is counted."""
    started: list[int] = []

    async def handler(job: Job) -> None:
        started.append(job.id)

    sql = """
    INSERT INTO tickwright.scheduled_tasks (execute_at, expires_at, task_type, max_attempts)
    VALUES (now() + interval '2 s', now() + interval '1.9 s', 't', $1) RETURNING id"""
    async with running_engine(database_url, {"t": handler}) as engine:
        for job_id in [await engine.pool.fetchval(sql, attempts) for attempts in (1, 2)]:
            row = await engine.until(job_id, "completed", "cancelled")
            assert (row["status"], row["attempts"], row["started_at"]) == ("cancelled", 0, None)
            assert row["error_message"].startswith("expired: ")
    assert started == []


async def test_what_a_handler_sets_in_its_context_is_not_the_next_ones(database_url: str) -> None:
    """Whatever its values are; the slots go on."""
    seen: list[object] = []

    async def sets(_job: Job) -> None:
        seen.append(TENANT.get(None))
        TENANT.set(Incomparable())

    async def looks(_job: Job) -> None:
        seen.append(TENANT.get(None))

    kinds = {"sets": policy("sets"), "looks": policy("looks")}
    limits = WorkerLimits(concurrency=2, threads=1)
    async with running_engine(database_url, {"sets": sets, "looks": looks}, kinds=kinds, limits=limits) as engine:
        for name in ("sets", "looks") * 4:
            await engine.until(await engine.insert(name), "completed")
    assert seen == [None] * 8


async def test_a_context_that_the_program_set_is_every_handlers(database_url: str) -> None:
    """What was there when the worker started stays, also where it cannot be compared."""
    seen: list[object] = []

    async def sets(_job: Job) -> None:
        seen.append(TENANT.get(None))
        TENANT.set(Incomparable())

    mine = Incomparable()
    token = TENANT.set(mine)
    try:
        async with running_engine(database_url, {"t": sets}) as engine:
            for _ in range(4):
                await engine.until(await engine.insert("t"), "completed")
    finally:
        TENANT.reset(token)
    assert [one is mine for one in seen] == [True] * 4
