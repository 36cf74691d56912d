"""Shared by tests of leases: short terms, an effect that stores its fence, and the checkers of L1 to L3."""

import asyncio
import itertools
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import asyncpg

from kit.waiting import eventually_async
from tickwright.domain.leases import LeaseTerms
from tickwright.engine.leases import Lease, Leases

SHORT = LeaseTerms(ttl=timedelta(seconds=0.9), margin=timedelta(seconds=0.2))
LONG = LeaseTerms(ttl=timedelta(seconds=30))
EFFECTS = "CREATE TABLE IF NOT EXISTS tickwright.test_effects (n bigserial PRIMARY KEY, fence bigint NOT NULL)"
EFFECT = "INSERT INTO tickwright.test_effects (fence) VALUES ($1)"


async def effect(lease: Lease) -> bool:
    """Write one row under the lease in a fenced transaction; false when the lease is lost."""
    async with lease.transaction() as connection:
        if connection is None:
            return False
        await connection.execute(EFFECT, lease.fence)
    return True


async def run_out(pool: asyncpg.Pool, name: str) -> None:
    """Let a lease's deadline pass, by the database's clock, without waiting."""
    await pool.execute(
        "UPDATE tickwright.job_config SET lease_until = clock_timestamp() - interval '1 second' WHERE job_name = $1",
        name,
    )


async def fences_of_effects(pool: asyncpg.Pool) -> list[int]:
    """Return the fences of all effects, in the order of their commits."""
    return [row["fence"] for row in await pool.fetch("SELECT fence FROM tickwright.test_effects ORDER BY n")]


def check_fences_rise(fences: Sequence[int]) -> None:
    """L1: each acquired lease has a higher fence than the one before."""
    assert all(before < after for before, after in itertools.pairwise(fences)), f"L1 broken: {fences}"


def check_effect_order(fences: Sequence[int]) -> None:
    """L2: after an effect of a new fence none of an older one follows."""
    assert list(fences) == sorted(fences), f"L2 broken: {fences}"


async def check_no_early_takeover(pool: asyncpg.Pool) -> None:
    """L3: while a lease runs no other owner gets it, however often it tries."""
    first = await Leases(pool, owner="first", terms=LONG).take("early")
    assert first is not None
    takers = [Leases(pool, owner=f"other{number}", terms=LONG) for number in range(4)]
    taken: list[Any] = await asyncio.gather(*(one.take("early") for one in takers))
    assert taken == [None] * 4, "L3 broken: taken before lease_until"


async def check_zombie_changes_nothing(pool: asyncpg.Pool) -> None:
    """L2: an owner that lost its lease writes, renews and releases nothing."""
    await pool.execute(EFFECTS)
    zombie = await Leases(pool, owner="zombie", terms=LONG).take("zombie")
    assert zombie is not None
    assert await effect(zombie)
    await run_out(pool, "zombie")
    heir = await Leases(pool, owner="heir", terms=LONG).take("zombie")
    assert heir is not None
    assert await effect(heir)
    assert not await effect(zombie), "L2 broken: a write under an old fence was committed"
    check_effect_order(await fences_of_effects(pool))


async def check_transaction_outlives_its_lease(pool: asyncpg.Pool, *, renewal_due: bool = False) -> None:
    """A statement of three times the lease's length is committed under its token: renewals do not wait for its lock."""
    await pool.execute(EFFECTS)
    lease = await Leases(pool, owner="slow", terms=SHORT).take("slow")
    assert lease is not None
    soon_s = SHORT.renew_every.total_seconds() / 4
    await eventually_async(lambda: lease.renewal_due_in_s() < soon_s or not renewal_due, what="a renewal is due")
    keeper = asyncio.create_task(lease.renew_until_lost())
    async with lease.transaction() as connection:
        assert connection is not None
        await connection.execute(f"SELECT pg_sleep({3 * SHORT.ttl.total_seconds()})")
        await connection.execute(EFFECT, lease.fence)
    assert lease.holds(), "a long transaction lost its lease: its renewals waited for it"
    await lease.release()
    await keeper
    assert await fences_of_effects(pool) == [lease.fence]


async def check_a_takeover_waits_for_a_transaction(pool: asyncpg.Pool) -> None:
    """L2: while a transaction of the old token can still commit no owner takes the lease, and no operator breaks it."""
    await pool.execute(EFFECTS)
    old = await Leases(pool, owner="old", terms=LONG).take("pass")
    heirs = Leases(pool, owner="heir", terms=LONG)
    assert old is not None
    async with old.transaction() as connection:
        assert connection is not None
        await run_out(pool, "pass")
        assert await heirs.take("pass") is None, "L2 broken: taken over beside a transaction of the old token"
        breaking = asyncio.create_task(heirs.break_lease("pass"))
        await eventually_async(
            lambda: True if breaking.done() else _a_transaction_waits(pool), what="the operator waits"
        )
        assert not breaking.done(), "L2 broken: the fence rose beside a transaction of the old token"
        await connection.execute(EFFECT, old.fence)
    assert await breaking
    heir = await heirs.take("pass")
    assert heir is not None
    assert await effect(heir)
    assert not await effect(old)
    assert await fences_of_effects(pool) == [old.fence, heir.fence]


async def _a_transaction_waits(pool: asyncpg.Pool) -> bool:
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    return bool(await pool.fetchval(waiting))


async def check_zombie_cannot_disturb(pool: asyncpg.Pool) -> None:
    """L2: a zombie of the same owner name neither renews nor releases its successor's lease."""
    leases = Leases(pool, owner="same", terms=LONG)
    zombie = await leases.take("disturb")
    assert zombie is not None
    await run_out(pool, "disturb")
    heir = await leases.take("disturb")
    assert heir is not None
    assert not await zombie.release(), "a zombie released its successor's lease"
    zombie.lost.clear()
    assert not await zombie.renew(), "a zombie renewed its successor's lease"
    assert await heir.renew()


async def check_rests_for_its_least_time(pool: asyncpg.Pool) -> None:
    """A lease that is released early is not taken until its least time is over, and its old fence writes nothing."""
    await pool.execute(EFFECTS)
    terms = LeaseTerms(ttl=timedelta(seconds=30), at_least=timedelta(seconds=20))
    early = await Leases(pool, owner="early", terms=terms).take("least")
    assert early is not None
    assert await early.release()
    heirs = Leases(pool, owner="heir", terms=LONG)
    assert await heirs.take("least") is None, "taken before lock_at_least_for was over"
    early.lost.clear()
    assert not await effect(early), "L2 broken: a released lease still writes"
    await run_out(pool, "least")
    heir = await heirs.take("least")
    assert heir is not None
    assert heir.fence > early.fence
    await pool.execute("UPDATE tickwright.job_config SET last_started_at = last_started_at - interval '1 minute'")
    assert await heir.release()
    assert await heirs.take("least") is not None, "a lease that was held long enough is free at once"
