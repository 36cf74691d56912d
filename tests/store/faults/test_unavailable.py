"""An unavailable database is retried; a wrong statement is a bug and is raised as one."""

import asyncio

import asyncpg
import pytest

from kit.leases import LONG
from kit.waiting import eventually_async
from tickwright.engine.leases import LeasedRounds, Leases
from tickwright.ports.session import HeldLease
from tickwright.rest.problems import translate
from tickwright.store.pool import REFUSED, UNAVAILABLE, NotificationQueueFullError, Pool

RETRIED = ["08000", "08006", "0A000c", "25006", "25P03", "28000", "28P01", "40001", "40P01", "53100", "53300", "55P03"]
RETRIED += ["55006", "57014", "57P01", "57P02", "57P03", "58030"]
BUGS = ["42601", "42P01", "42703", "42883", "42501", "25P02", "26000", "XX000", "0A000", "3D000"]
_RAISE = "DO $$ BEGIN RAISE EXCEPTION 'test' USING ERRCODE = '{}'; END $$"


def _raised(state: str) -> BaseException:
    error: BaseException
    if state == "0A000c":
        error = asyncpg.InvalidCachedStatementError("cached plan must not change result type")
    else:
        error = asyncpg.PostgresError.new({"C": state, "M": "test"})
    return error


@pytest.mark.parametrize("state", RETRIED)
def test_every_class_of_an_unavailable_database_is_retried(state: str) -> None:
    """A caller of the API gets an answer that may be retried, and loops retry."""
    error = _raised(state)
    assert isinstance(error, UNAVAILABLE)
    assert not isinstance(error, REFUSED)
    answer = translate(error, of_a_change=False)
    assert answer is not None
    assert answer.retriable


@pytest.mark.parametrize("state", BUGS)
def test_a_wrong_statement_is_a_bug(state: str) -> None:
    """It is neither an unavailable database nor the fault of a value."""
    error = _raised(state)
    assert not isinstance(error, (*UNAVAILABLE, *REFUSED))
    assert translate(error, of_a_change=False) is None


async def _run_rounds(pool: Pool, statement: str) -> tuple[int, asyncio.Task[None]]:
    """Let the first round of a leased loop run ``statement``; return how many rounds there were when it has ended."""
    rounds = 0

    async def round_(_lease: HeldLease) -> float:
        nonlocal rounds
        rounds += 1
        if rounds == 1:
            await pool.execute(statement)
        loop.stopping.set()
        return 0.0

    loop = LeasedRounds("rounds", Leases(pool, owner="test", terms=LONG), round_, terms=LONG)
    task = asyncio.create_task(loop.run())
    await asyncio.wait([task])
    return rounds, task


async def test_a_leased_loop_retries_while_the_database_is_unavailable(pool: Pool) -> None:
    """The round is run again under the same lease."""
    rounds, task = await _run_rounds(pool, _RAISE.format("53300"))
    assert rounds == 2
    assert task.exception() is None


async def test_a_leased_loop_raises_a_wrong_statement_and_releases_its_lease(pool: Pool) -> None:
    """The supervisor restarts it, and another process may take the lease meanwhile."""
    rounds, task = await _run_rounds(pool, "SELECT nothing FROM nowhere")
    assert rounds == 1
    assert isinstance(task.exception(), asyncpg.UndefinedTableError)
    assert await Leases(pool, owner="other", terms=LONG).take("rounds") is not None


async def test_a_wrong_renewal_ends_the_loop(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A renewal that can never succeed is no reason to wait until the lease runs out."""
    monkeypatch.setattr("tickwright.engine.leases.Lease.renewal_due_in_s", lambda _: 0.0)

    async def wrong(*_: object) -> bool:
        return bool(await pool.fetchval("SELECT nothing FROM nowhere"))

    monkeypatch.setattr("tickwright.engine.leases.Lease.renew", wrong)

    async def round_(_lease: HeldLease) -> float:
        return 5.0

    loop = LeasedRounds("rounds", Leases(pool, owner="test", terms=LONG), round_, terms=LONG)
    with pytest.raises(asyncpg.UndefinedTableError):
        await loop.run()


@pytest.mark.parametrize("arguments", [("no number",), (1, 2), (2**70,)])
async def test_an_argument_that_the_driver_cannot_send_is_no_lost_connection(
    pool: Pool, arguments: tuple[object, ...]
) -> None:
    """The driver raises the class of its closed connections; a retry would never end."""
    with pytest.raises(asyncpg.DataError):
        await pool.fetchval("SELECT $1::bigint", *arguments)
    assert await pool.fetchval("SELECT 1") == 1


def test_a_full_queue_of_notifications_is_unavailable() -> None:
    """It has the SQLSTATE of a value that is too large, which no retry makes smaller."""
    error = NotificationQueueFullError("too many notifications in the NOTIFY queue")
    assert isinstance(error, UNAVAILABLE)
    assert not isinstance(error, REFUSED)


async def test_a_closed_pool_is_unavailable(pool: Pool) -> None:
    """What still runs while a process ends is no bug."""
    await pool.close()
    with pytest.raises(UNAVAILABLE):
        await pool.fetchval("SELECT 1")


async def test_a_cut_connection_is_unavailable(pool: Pool, other: asyncpg.Connection) -> None:
    """Its next statement raises one of the retried errors, and the one after that succeeds."""
    pid = await pool.fetchval("SELECT pg_backend_pid()")
    await other.execute("SELECT pg_terminate_backend($1)", pid)

    async def answers() -> bool:
        try:
            return bool(await pool.fetchval("SELECT true"))
        except UNAVAILABLE:
            return False

    await eventually_async(answers, 10)
