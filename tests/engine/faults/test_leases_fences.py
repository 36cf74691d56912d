"""Leases on job_config: rising fences, no effect of an earlier owner, no early takeover (L1 to L3)."""

import asyncio
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from kit.database_faults import AnswerCuts
from kit.leases import (
    EFFECT,
    EFFECTS,
    LONG,
    SHORT,
    check_a_takeover_waits_for_a_transaction,
    check_effect_order,
    check_fences_rise,
    check_no_early_takeover,
    check_rests_for_its_least_time,
    check_transaction_outlives_its_lease,
    check_zombie_cannot_disturb,
    check_zombie_changes_nothing,
    effect,
    fences_of_effects,
    run_out,
)
from kit.tcp_proxy import TcpProxy
from kit.waiting import eventually_async
from tickwright.domain.leases import LeaseTerms
from tickwright.engine.leases import Lease, LeasedService, Leases
from tickwright.ports.ids import monotonic
from tickwright.store.pool import UNAVAILABLE, open_pool


async def test_each_acquired_lease_has_a_higher_fence_also_under_contention(pool: asyncpg.Pool) -> None:
    """L1: of eight concurrent owners one gets the lease, and each next fence is higher."""
    contenders = [Leases(pool, owner=f"contender{number}", terms=LONG) for number in range(8)]
    fences = []
    for _ in range(10):
        taken = [
            one
            for one in await asyncio.gather(*(contender.take("rise") for contender in contenders))
            if one is not None
        ]
        assert len(taken) == 1
        fences.append(taken[0].fence)
        assert await taken[0].release()
    check_fences_rise(fences)


async def test_a_lease_is_not_taken_over_before_its_deadline(pool: asyncpg.Pool) -> None:
    """L3: a lease is held until its deadline by the database's clock."""
    await check_no_early_takeover(pool)


async def test_an_owner_that_lost_its_lease_changes_nothing(pool: asyncpg.Pool) -> None:
    """L2: the first statement of its transaction finds no row under its fence."""
    await check_zombie_changes_nothing(pool)


async def test_an_owner_that_lost_its_lease_neither_renews_nor_releases(pool: asyncpg.Pool) -> None:
    """Each write of the holder compares the version, also where the owner's name is the same."""
    await check_zombie_cannot_disturb(pool)


async def test_a_released_lease_stays_taken_for_its_least_time(pool: asyncpg.Pool) -> None:
    """``lock_at_least_for``: after an early release the next holder does not begin at once."""
    await check_rests_for_its_least_time(pool)


async def test_the_workers_clock_does_not_matter(pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """L3: with a worker's clock an hour ahead or behind, a held lease stays held and a free one can be taken."""
    held = await Leases(pool, owner="first", terms=LONG).take("clock")
    assert held is not None
    for shift_s in (-3600.0, 3600.0):
        monkeypatch.setattr("tickwright.engine.leases.monotonic", lambda shift_s=shift_s: monotonic() + shift_s)
        assert await Leases(pool, owner="other", terms=LONG).take("clock") is None
    assert not held.holds(), "by the holder's clock it was not renewed for an hour, so the holder stops"


async def test_a_takeover_waits_for_a_fenced_transaction_and_ends_a_stalled_one(
    pool: asyncpg.Pool, database_url: str
) -> None:
    """L2 and liveness: the paused owner's transaction is terminated after three seconds; its write is rolled back."""
    await pool.execute(EFFECTS)
    lease = await Leases(pool, owner="paused", terms=SHORT).take("pause")
    assert lease is not None
    plain = await asyncpg.connect(database_url)  # a connection without Tickwright's session settings
    paused = plain.transaction()
    await paused.start()
    assert await lease.lock(plain)
    await plain.execute(EFFECT, lease.fence)
    await run_out_beside(pool, lease)
    heirs = Leases(pool, owner="heir", terms=LONG)
    taken: list[Lease] = []

    async def takes_over() -> Any:
        taken.extend(filter(None, [await heirs.take("pause")]))
        return bool(taken)

    await eventually_async(takes_over, 10, what="the takeover")
    (heir,) = taken
    assert await effect(heir)
    with pytest.raises(UNAVAILABLE):
        await plain.execute(EFFECT, lease.fence)
    plain.terminate()
    assert await fences_of_effects(pool) == [heir.fence]


@pytest.mark.matrix
@pytest.mark.parametrize("renewal_due", [False, True], ids=["fresh", "renewal due"])
async def test_a_transaction_longer_than_the_lease_commits_under_its_token(
    pool: asyncpg.Pool, *, renewal_due: bool
) -> None:
    """The lease is renewed meanwhile, also when a renewal was due as the transaction began; its writes count."""
    await check_transaction_outlives_its_lease(pool, renewal_due=renewal_due)


async def test_a_takeover_waits_for_an_open_transaction_of_the_earlier_holder(pool: asyncpg.Pool) -> None:
    """L2: past its deadline the lease waits for the transaction, for takers and for an operator who breaks it."""
    await check_a_takeover_waits_for_a_transaction(pool)


async def run_out_beside(pool: asyncpg.Pool, lease: Lease) -> None:
    """Wait until the deadline is over; the row is locked, so no statement can move the deadline."""
    over = "SELECT lease_until < clock_timestamp() FROM tickwright.job_config WHERE job_name = $1"
    await eventually_async(lambda: pool.fetchval(over, lease.name), what="the deadline passes")


async def test_owners_that_pause_at_random_never_interleave(pool: asyncpg.Pool) -> None:
    """L1 and L2: effects of three owners that lose the lease repeatedly are ordered by their fences."""
    await pool.execute(EFFECTS)
    fences: list[int] = []

    async def owner(number: int) -> None:
        leases = Leases(pool, owner=f"owner{number}", terms=LONG)
        for round_number in range(15):
            lease = await leases.take("interleave")
            if lease is None:
                await run_out(pool, "interleave")
                continue
            fences.append(lease.fence)
            for _ in range(1 + (round_number + number) % 3):
                if not await effect(lease):
                    break

    await asyncio.gather(*(owner(number) for number in range(3)))
    effects = await fences_of_effects(pool)
    assert len(set(effects)) > 3
    check_fences_rise(sorted(fences))
    check_effect_order(effects)


async def test_a_renewed_lease_outlives_its_length_and_a_disconnected_holder_stops(
    pool: asyncpg.Pool, database_url: str
) -> None:
    """Renewal repeats at a third of the length; without the database the holder stops before its deadline."""
    port = int(database_url.rsplit(":", 1)[1].split("/", maxsplit=1)[0])
    async with TcpProxy("127.0.0.1", port) as proxy:
        mine = await open_pool(proxy.rewrite(database_url), max_size=2)
        lease = await Leases(mine, owner="cut", terms=SHORT).take("kept")
        assert lease is not None
        keeper = asyncio.create_task(lease.renew_until_lost())
        renewed = (
            "SELECT lease_until > last_started_at + $1::interval * 2 FROM tickwright.job_config WHERE job_name = 'kept'"
        )
        await eventually_async(lambda: pool.fetchval(renewed, SHORT.ttl), 20, what="two renewals beyond the first")
        assert lease.holds()
        proxy.blackhole()
        await asyncio.wait_for(lease.lost.wait(), 30)
        free = "SELECT lease_until < clock_timestamp() FROM tickwright.job_config WHERE job_name = 'kept'"
        assert not await pool.fetchval(free), "the holder stops before its deadline, not after it"
        await asyncio.wait_for(keeper, 20)
        mine.terminate()


async def test_a_renewal_counts_only_after_its_commit(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit that fails leaves the earlier deadline in the database, so the holder keeps to that one."""
    async with AnswerCuts(database_url) as cuts, await open_pool(cuts.url) as pool:
        lease = await Leases(pool, owner="brief", terms=LONG).take("brief")
        assert lease is not None
        late_s = LONG.renew_every.total_seconds()
        monkeypatch.setattr("tickwright.engine.leases.monotonic", lambda: monotonic() + late_s)
        cuts.cut("COMMIT", "unsent")
        with pytest.raises(UNAVAILABLE):
            async with lease.transaction(brief=True) as connection:
                assert connection is not None
        assert (cuts.made, lease.renewal_due_in_s() <= 0) == (1, True), "it holds longer than the database says"
        async with lease.transaction(brief=True) as connection:
            assert connection is not None
        assert lease.renewal_due_in_s() > 0


async def test_breaking_a_lease_raises_its_fence(pool: asyncpg.Pool) -> None:
    """Once an operator breaks a lease, writes of its holder change nothing."""
    leases = Leases(pool, owner="held", terms=LONG)
    lease = await leases.take("break")
    assert lease is not None
    assert await leases.break_lease("break")
    async with lease.transaction() as connection:
        assert connection is None
    again = await leases.take("break")
    assert again is not None
    assert again.fence > lease.fence + 1
    assert await pool.fetchval("SELECT array_agg(job_name) FROM tickwright.job_config") == ["break"]


async def test_of_many_leased_services_one_works_and_another_follows(pool: asyncpg.Pool) -> None:
    """A stopped leader releases the lease; the next one begins within a third of its length."""
    working: list[int] = []
    terms = LeaseTerms(ttl=timedelta(seconds=1.2), margin=timedelta(seconds=0.2))

    def make(number: int) -> LeasedService:
        async def body(lease: Lease) -> None:
            working.append(number)
            await lease.lost.wait()

        return LeasedService(f"s{number}", Leases(pool, owner=f"s{number}"), "one", body, terms=terms)

    services = [make(number) for number in range(3)]
    tasks = [asyncio.create_task(service.run()) for service in services]
    await eventually_async(lambda: len(working) == 1)
    first = working[0]
    assert [service.lease is not None for service in services].count(True) == 1
    await services[first].stop()
    await eventually_async(lambda: len(working) == 2, what="another one leads")
    for service in services:
        await service.stop()
        await service.stop()
    await asyncio.gather(*tasks)
    assert working[1] != first
