"""Leases of one process: renewed in one statement, and free ones found by the heartbeat."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from types import MappingProxyType

import asyncpg
import pytest

from kit.engine import SHORT, connect
from kit.waiting import eventually_async
from tickwright.domain.leases import LeaseTerms
from tickwright.engine import leases as leases_module
from tickwright.engine.leases import Lease, LeasedService, Leases
from tickwright.engine.session import WorkerSession
from tickwright.store.pool import open_pool

LONG = LeaseTerms(timedelta(seconds=300), timedelta(seconds=30))
NAMES = ("first", "second", "third")
LOCK_SECOND = "SELECT FROM tickwright.job_config WHERE job_name = 'second' FOR UPDATE"


@asynccontextmanager
async def taken(url: str) -> AsyncIterator[tuple[asyncpg.Pool, Leases, list[Lease]]]:
    """Yield leases of one process; the first one is due for a renewal, the others are half-way."""
    pool = await open_pool(url)
    leases = Leases(pool, owner="one", terms=LONG)
    held = [lease for name in NAMES if (lease := await leases.take(name)) is not None]
    for lease, periods in zip(held, (1.1, 0.7, 0.7), strict=True):
        lease._renewed_s -= LONG.renew_every.total_seconds() * periods
    try:
        yield pool, leases, held
    finally:
        await asyncio.wait_for(pool.close(), 10)


async def test_leases_that_will_be_due_before_long_are_renewed_with_one_that_is(database_url: str) -> None:
    """One statement for all; one that was renewed just now is left alone."""
    async with taken(database_url) as (_, leases, held):
        with leases.renewed(held[0]), leases.renewed(held[1]):
            await leases.renew_due()
            assert [lease.renewal_due_in_s() > LONG.renew_every.total_seconds() / 2 for lease in held] == [
                True,
                True,
                False,  # not kept by this process
            ]
            sent_s = held[0].age_s()
            await leases.renew_due()
            assert held[0].age_s() >= sent_s, "nothing is due"


async def _renewed_beside_a_locked_one(url: str) -> list[bool]:
    async with taken(url) as (_, leases, held):
        beside = await connect(url)
        async with beside.transaction():
            await beside.execute(LOCK_SECOND)
            with leases.renewed(held[0]), leases.renewed(held[1]), leases.renewed(held[2]):
                await leases.renew_due()
        await beside.close()
        return [lease.renewal_due_in_s() > LONG.renew_every.total_seconds() / 2 for lease in held]


async def test_a_lease_whose_row_is_locked_delays_no_renewal_of_another(database_url: str) -> None:
    """It is renewed in a statement of its own, when that is due."""
    assert await _renewed_beside_a_locked_one(database_url) == [True, False, True]


@pytest.mark.mutant
async def test_the_suite_notices_renewals_that_wait_for_each_other(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without SKIP LOCKED all leases of the process would be late."""
    text = leases_module.SQL["renew_leases"].replace(" SKIP LOCKED", "")
    assert text != leases_module.SQL["renew_leases"]
    monkeypatch.setattr(leases_module, "SQL", MappingProxyType({**leases_module.SQL, "renew_leases": text}))
    with pytest.raises(asyncpg.LockNotAvailableError):
        await _renewed_beside_a_locked_one(database_url)


async def _taken_after_a_release(url: str) -> None:
    """Another process releases a lease; the service takes it, long before it would try by itself."""
    pool = await open_pool(url)
    other = await Leases(pool, owner="other", terms=LONG).take("work")
    assert other is not None
    leases = Leases(pool, owner="one", terms=LONG)
    session = WorkerSession(pool, name="one", roles=[], version="0", terms=SHORT)
    session.on_beat(leases.read_free)
    began = asyncio.Event()

    async def body(lease: Lease) -> None:
        began.set()
        await lease.lost.wait()

    service = LeasedService("work", leases, "work", body, terms=LONG)
    tasks = [asyncio.create_task(one.run()) for one in (session, service)]
    try:
        await eventually_async(lambda: leases.wanted == ["work"], what="it waits")
        await other.release()
        await eventually_async(began.is_set, what="it has the lease")
    finally:
        await service.stop()
        await session.stop()
        await asyncio.gather(*tasks)
        await asyncio.wait_for(pool.close(), 10)


async def test_a_heartbeat_finds_a_lease_that_is_free(database_url: str) -> None:
    """So a loop that waits for a lease makes no transactions of its own."""
    await _taken_after_a_release(database_url)


@pytest.mark.mutant
async def test_the_suite_notices_heartbeats_that_do_not_tell(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop would try minutes later."""
    monkeypatch.setattr(Leases, "note_free", lambda *_: None)
    monkeypatch.setattr("kit.waiting.PATIENCE", 0.3)
    with pytest.raises(AssertionError, match="it has the lease"):
        await _taken_after_a_release(database_url)


async def test_a_locked_table_of_leases_costs_no_session(database_url: str) -> None:
    """Heartbeats read it beside the renewal: a process keeps its jobs, whatever happens to the leases."""
    pool = await open_pool(database_url)
    leases = Leases(pool, owner="one", terms=LONG)
    session = WorkerSession(pool, name="one", roles=[], version="0", terms=SHORT)
    session.on_beat(leases.read_free)
    waiting = asyncio.create_task(leases.wait_until_free("work", LONG, asyncio.Event()))
    await session.open()
    token, task, beside = session.token, asyncio.create_task(session.run()), await connect(database_url)
    async with beside.transaction():
        await beside.execute("LOCK TABLE tickwright.job_config IN ACCESS EXCLUSIVE MODE")
        for _ in range(4):  # longer than the lease
            renewed_s = session._renewed_s
            await eventually_async(lambda: session._renewed_s > renewed_s, what="a renewal")  # noqa: B023  awaited here
        assert session.token == token
        assert session.holds()
    waiting.cancel()
    await session.stop()
    await task
    await beside.close()
    await asyncio.wait_for(pool.close(), 10)
