"""Mutants of the leases' SQL: without a guard the check of its invariant has to fail."""

from collections.abc import Awaitable, Callable
from types import MappingProxyType

import asyncpg
import pytest

from kit import leases as checks
from kit.relays import check_late_mark, relay_world
from tickwright.engine import leases

Check = Callable[[asyncpg.Pool], Awaitable[None]]

MUTANTS: list[tuple[str, str, str, str, Check]] = [
    ("no fence in lock", "lock_lease", "AND version = $2", "AND $2::bigint > 0", checks.check_zombie_changes_nothing),
    (
        "no fence in renewal",
        "renew_lease",
        "AND version = $3",
        "AND $3::bigint > 0",
        checks.check_zombie_cannot_disturb,
    ),
    (
        "no fence in release",
        "release_lease",
        "AND version = $3",
        "AND $3::bigint > 0",
        checks.check_zombie_cannot_disturb,
    ),
    (
        "expiry ignored: always free",
        "take_lease",
        "(running = false OR coalesce(lease_until, '-infinity') < clock_timestamp() OR",
        "(true OR",
        checks.check_no_early_takeover,
    ),
    (
        "expiry ignored: never free",
        "take_lease",
        "OR coalesce(lease_until, '-infinity') < clock_timestamp()",
        "",
        checks.check_zombie_changes_nothing,
    ),
    (
        "a lease does not rest",
        "release_lease",
        "coalesce(last_started_at + $4::interval > clock_timestamp(), false)",
        "$4::interval IS NULL",
        checks.check_rests_for_its_least_time,
    ),
    (
        "a lease that rests keeps its fence",
        "release_lease",
        "version + rests::integer",
        "version",
        checks.check_rests_for_its_least_time,
    ),
    (
        "the fence does not rise",
        "take_lease",
        "version = greatest(j.version, (SELECT tickwright.fence_floor())) + 1,",
        "",
        checks.check_zombie_changes_nothing,
    ),
    (
        "a taker passes by a transaction",
        "take_lease",
        " FOR UPDATE",
        "",
        checks.check_a_takeover_waits_for_a_transaction,
    ),
    (
        "an operator passes by a transaction",
        "break_lease",
        " FOR UPDATE",
        "",
        checks.check_a_takeover_waits_for_a_transaction,
    ),
    (
        "renewals wait for transactions",
        "lock_lease",
        " FOR KEY SHARE",
        " FOR SHARE",
        checks.check_transaction_outlives_its_lease,
    ),
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant[0] for mutant in MUTANTS])
async def test_a_missing_guard_is_found(
    pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch, mutant: tuple[str, str, str, str, Check]
) -> None:
    """The check passes on the real statement and fails on the mutant."""
    _, query, old, new, check = mutant
    await check(pool)
    await pool.execute("DELETE FROM tickwright.job_config; DROP TABLE IF EXISTS tickwright.test_effects")
    text = leases.SQL[query]
    assert text.count(old) == 1, "the mutation no longer fits the statement"
    monkeypatch.setattr(leases, "SQL", MappingProxyType({**leases.SQL, query: text.replace(old, new)}))
    with pytest.raises(AssertionError):
        await check(pool)


async def test_the_suite_notices_a_relay_without_the_fence(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same mutant in the relay: its late mark would delete its successor's row."""
    async with relay_world(database_url) as world:
        await check_late_mark(world)
        await world.pool.execute("DELETE FROM tickwright.job_config; DELETE FROM tickwright.outbox")
        text = leases.SQL["lock_lease"].replace("AND version = $2", "AND $2::bigint > 0")
        monkeypatch.setattr(leases, "SQL", MappingProxyType({**leases.SQL, "lock_lease": text}))
        with pytest.raises(AssertionError):
            await check_late_mark(world)
