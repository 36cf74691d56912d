"""A claim or a settling that takes longer than its session's lease: the session is renewed beside it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType

import pytest
from asyncpg.exceptions import LockNotAvailableError

from engine.faults.test_lost_answers import KINDS
from kit.batches import BatchWorld
from kit.consumers import LONG
from kit.mutants import mutate
from kit.waiting import eventually_async
from tickwright.capabilities.jobs.worker import claims as claims_store
from tickwright.engine import session as session_module
from tickwright.engine.claim_gate import ClaimGate, Ticket
from tickwright.engine.session import WorkerSession
from tickwright.store.pool import Connection, open_pool

_GATE = """
CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN PERFORM pg_advisory_xact_lock_shared(4711); RETURN new; END $$;
CREATE TRIGGER a_slow BEFORE INSERT OR UPDATE ON tickwright.{table} FOR EACH ROW EXECUTE FUNCTION slow();
"""
_WAITS = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711 AND NOT granted"


@asynccontextmanager
async def _claim_under_way(world: BatchWorld, folder: Path, kind: str) -> AsyncIterator[tuple[Connection, int]]:
    """Yield a connection beside a claim that has locked its session's row and waits."""
    ready, _, table = KINDS[kind]
    claim = await ready(world, folder)
    await world.pool.execute(_GATE.format(table=table))
    session = WorkerSession(world.pool, name="test", roles=["worker"], version="0")
    await session.open()
    async with await open_pool(world.url) as pool, pool.acquire() as gate, pool.acquire() as beside:
        await gate.execute("SELECT pg_advisory_lock(4711)")
        task = asyncio.ensure_future(claim(world.pool, Ticket(session.token, 0)))
        try:
            await eventually_async(lambda: beside.fetchval(_WAITS), 60, what="a claim under way")
            await beside.execute("SET lock_timeout = '1s'")
            yield beside, session.token
        finally:
            await gate.execute("SELECT pg_advisory_unlock(4711)")
            await task
    owned = f"SELECT count(*) FROM tickwright.{table} WHERE owner = $1"
    assert await world.pool.fetchval(owned, session.token) >= 1, f"nothing was claimed: {kind}"


async def check_a_slow_claim_costs_no_lease(world: BatchWorld, folder: Path, kind: str) -> None:
    """The renewal passes the claim's lock; settling the claim and declaring the session lost do not."""
    statements = session_module._SQL
    async with _claim_under_way(world, folder, kind) as (beside, token):
        try:
            assert await beside.fetchrow(statements["renew_session"], token, LONG.ttl, "{}", "test", [], 4.0)
        except LockNotAvailableError:
            raise AssertionError(f"a claim delays the renewal of its own session: {kind}") from None
        try:
            await beside.fetchval(statements["refuse_claims"], token, 1)
        except LockNotAvailableError:
            pass
        else:
            raise AssertionError(f"CLG-1 broken: a claim is under way: {kind}")
        await beside.execute("UPDATE tickwright.workers SET lease_until = 'epoch' WHERE id = $1", token)
        assert await beside.fetch(statements["declare_lost"]) == [], f"lost in the middle of a claim: {kind}"


@pytest.mark.matrix
@pytest.mark.parametrize("kind", KINDS)
async def test_a_claim_that_takes_long_costs_no_lease(batches: BatchWorld, tmp_path: Path, kind: str) -> None:
    """CLG-1, for each kind of claim."""
    await check_a_slow_claim_costs_no_lease(batches, tmp_path, kind)


async def test_the_suite_notices_a_claim_that_delays_the_renewal_of_its_session(
    batches: BatchWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mutant of the claim: a renewal waits for its lock."""
    mutated = claims_store._CLAIMS["claim"].replace("FOR KEY SHARE", "FOR SHARE")
    monkeypatch.setattr(claims_store, "_CLAIMS", MappingProxyType({**claims_store._CLAIMS, "claim": mutated}))
    with pytest.raises(AssertionError, match="a claim delays the renewal"):
        await check_a_slow_claim_costs_no_lease(batches, tmp_path, "jobs")


async def test_the_suite_notices_a_settling_that_waits_for_no_claim(
    batches: BatchWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mutant of settling: the session's row is not locked first."""
    mutated = session_module._SQL["refuse_claims"].replace("FOR UPDATE", "FOR KEY SHARE")
    monkeypatch.setattr(session_module, "_SQL", MappingProxyType({**session_module._SQL, "refuse_claims": mutated}))
    with pytest.raises(AssertionError, match="CLG-1 broken"):
        await check_a_slow_claim_costs_no_lease(batches, tmp_path, "jobs")


async def check_a_slow_settling_costs_no_lease(database_url: str) -> None:
    """The renewal passes the release; declaring the session lost does not."""
    statements = session_module._SQL
    async with await open_pool(database_url) as pool, pool.acquire() as beside:
        session = WorkerSession(pool, name="test", roles=["worker"], version="0")
        await session.open()
        await beside.execute("SET lock_timeout = '1s'")

        async def release(_connection: Connection, owner: int) -> int:
            try:
                assert await beside.fetchrow(statements["renew_session"], owner, LONG.ttl, "{}", "test", [], 4.0)
            except LockNotAvailableError:
                raise AssertionError("a settling delays the renewal of its own session") from None
            await beside.execute("UPDATE tickwright.workers SET lease_until = 'epoch' WHERE id = $1", owner)
            assert await beside.fetch(statements["declare_lost"]) == [], "lost in the middle of a settling"
            return 1

        gate = ClaimGate(pool.acquire, session, "test", release)
        gate.unsure = True
        await gate.settle()
        assert not gate.unsure


async def test_a_settling_that_takes_long_costs_no_lease(database_url: str) -> None:
    """As with a database at a great distance."""
    await check_a_slow_settling_costs_no_lease(database_url)


async def test_the_suite_notices_a_settling_that_delays_the_renewal_of_its_session(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mutant of settling: the release holds the lock that waits for claims."""
    mutate(monkeypatch, ClaimGate._settle, '_SQL["hold_session"], token', '_SQL["refuse_claims"], token, number')
    with pytest.raises(AssertionError, match="delays the renewal"):
        await check_a_slow_settling_costs_no_lease(database_url)
