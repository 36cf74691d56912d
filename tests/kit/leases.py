"""What tests of leases share: short terms, an effect that stores its fence, and the checker of L1 to L3."""

import asyncio
import itertools
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import asyncpg

from tickwright.domain.leases import LeaseTerms
from tickwright.runtime.leases import Lease, Leases

SHORT = LeaseTerms(ttl=timedelta(seconds=0.9), margin=timedelta(seconds=0.2))
LONG = LeaseTerms(ttl=timedelta(seconds=30))
EFFECTS = "CREATE TABLE IF NOT EXISTS tickwright.test_effects (n bigserial PRIMARY KEY, fence bigint NOT NULL)"
EFFECT = "INSERT INTO tickwright.test_effects (fence) VALUES ($1)"


async def effect(lease: Lease) -> bool:
    """Write one row under the lease in a protected transaction; false when the lease is lost."""
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
    """L1: each take has a higher fence than the one before."""
    assert all(before < after for before, after in itertools.pairwise(fences)), f"L1 broken: {fences}"


def check_effect_order(fences: Sequence[int]) -> None:
    """L2: once an effect of a new fence is there, none of an older one follows."""
    assert list(fences) == sorted(fences), f"L2 broken: {fences}"


async def check_no_early_takeover(pool: asyncpg.Pool) -> None:
    """L3: while a lease runs nobody else gets it, however often they ask."""
    first = await Leases(pool, owner="first", terms=LONG).take("early")
    assert first is not None
    takers = [Leases(pool, owner=f"other{number}", terms=LONG) for number in range(4)]
    taken: list[Any] = await asyncio.gather(*(one.take("early") for one in takers))
    assert taken == [None] * 4, "L3 broken: taken before lease_until"


async def check_zombie_changes_nothing(pool: asyncpg.Pool) -> None:
    """L2: whoever was overtaken writes nothing any more, renews nothing and releases nothing."""
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
