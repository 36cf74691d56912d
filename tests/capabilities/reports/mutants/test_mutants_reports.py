"""Mutants of reports: without a guard, the check of its promise must fail."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from kit.probes import Stops
from kit.report_faults import ask, functions, is_made
from kit.reports import ReportWorld, report_world
from kit.waiting import eventually_async
from tickwright.capabilities.reports.parts import store as part_places
from tickwright.capabilities.reports.parts import store as parts_store
from tickwright.capabilities.reports.parts.store import Claim, PartRows, StoredPart
from tickwright.capabilities.reports.requests import store as records_store
from tickwright.capabilities.reports.requests.store import FinishedFile
from tickwright.ports.reports import PartFacts, PartKey, Put, PutAnswer
from tickwright.store.pool import Connection
from tickwright.transports.redis.stores import RedisParts

Check = Callable[[ReportWorld], Awaitable[None]]
Mutate = Callable[[pytest.MonkeyPatch], None]
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
SLOTS = {"function:lefts": 4, "function:rights": 4}
FACTS = PartFacts((), 1, 9, "0" * 64)
KEPT = StoredPart(FACTS, "postgres", data=b'{"id":1}\n')
FILE = FinishedFile("file:///x", "reports/x", FACTS, {})


@pytest.fixture
async def world(database_url: str, redis_server: Any, tmp_path: Path) -> AsyncIterator[ReportWorld]:
    """A world with Redis."""
    name = database_url.rpartition("/")[2]
    async with report_world(database_url, tmp_path, redis_server.url, redis_prefix=name) as world:
        yield world


async def claimed(world: ReportWorld, owner: int = 1) -> dict[str, Claim]:
    """Claim the due parts."""
    return {claim.key.listener: claim for claim in await world.parts.claim(owner, SLOTS)}


# ---------------------------------------------------------------------------------------------- the checks


async def check_a_late_step_finishes_nothing(world: ReportWorld) -> None:
    """G2: a step whose claim was lost writes no end."""
    report = await ask(world)
    await world.pool.execute("UPDATE tickwright.reports SET step_at = now()")
    [old] = await world.records.claim(1, 1)
    assert await world.records.begin_merge(old, 1)
    await world.pool.execute("UPDATE tickwright.reports SET owner = NULL, step_at = now() WHERE id = $1", report)
    [new] = await world.records.claim(1, 1)  # the same process, which claimed it again
    assert await world.records.begin_merge(new, 1)
    assert not await world.records.finish(old, 1, FILE), "G2 broken: an old fence finished it"
    assert await world.records.finish(new, 1, FILE)


async def check_a_part_of_an_older_epoch_is_not_done(world: ReportWorld) -> None:
    """G1: parts of two epochs never mix, although the old claim looks like the new one."""
    report = await ask(world)
    old = (await claimed(world))["lefts"]
    await world.pool.execute("UPDATE tickwright.reports SET epoch = 2 WHERE id = $1", report)
    await world.pool.execute("UPDATE tickwright.report_parts SET epoch = 2 WHERE report_id = $1", report)
    assert not await world.parts.finish(old, 1, KEPT), "G1 broken: a part of epoch 1 counts in epoch 2"


async def check_each_part_is_claimed_by_one_process(world: ReportWorld) -> None:
    """Two processes that claim at once, or one after the other, never hold the same part, and none waits."""
    for _ in range(20):
        await ask(world)
    async with world.pool.acquire() as connection, connection.transaction():
        rows = await connection.fetch(parts_store.SQL["claim_parts"], 1, [*SLOTS], [5, 5], None, None, 0, [])
        try:
            async with asyncio.timeout(1):
                others = await world.parts.claim(2, SLOTS)
        except TimeoutError:
            raise AssertionError("claims broken: one waits for the other") from None
    third = await world.parts.claim(3, SLOTS)
    held = [(row["report_id"], row["listener"]) for row in rows]
    held += [(one.key.report_id, one.key.listener) for one in [*others, *third]]
    assert len(others) > 0, "claims broken: nothing was left"
    assert len(held) == len(set(held)), "claims broken: one part is two processes'"


async def check_a_lost_claim_finishes_nothing(world: ReportWorld) -> None:
    """A part that another process claimed meanwhile is finished by that one only."""
    await ask(world)
    old = (await claimed(world, 1))["lefts"]
    await world.pool.execute("UPDATE tickwright.report_parts SET state = 'due', owner = NULL, due_at = now()")
    new = (await claimed(world, 2))["lefts"]
    assert not await world.parts.finish(old, 1, KEPT), "L1 broken: a claim that was lost ended a part"
    assert await world.parts.finish(new, 2, KEPT)


async def check_a_redelivered_part_counts_once(world: ReportWorld) -> None:
    """A listener that is killed after its mark and runs again counts once."""
    assert world.shared is not None
    for _ in range(3):
        await world.shared.put(PartKey(99, 1, "lefts", "5f"), b"[]", "note", ttl=part_places.HASH_TTL)
    assert (await world.hash(99))["queryDoneCount"] == "1", "count broken"


async def check_the_last_of_two_parts_notifies(world: ReportWorld) -> None:
    """Two parts that end at the same moment: one of them sees that it is the last."""
    report = await ask(world)
    claims = await claimed(world)
    holder = await asyncpg.connect(world.url)  # both wait for the record before either has been written

    async def both_wait() -> bool:
        return bool(await world.pool.fetchval(WAITING) == len(claims))

    try:
        async with holder.transaction():
            await holder.execute("SELECT FROM tickwright.reports WHERE id = $1 FOR UPDATE", report)
            ending = [asyncio.ensure_future(world.parts.finish(claim, 1, KEPT)) for claim in claims.values()]
            await eventually_async(both_wait, what="both wait for the record")
        done = await asyncio.gather(*ending)
    finally:
        await holder.close()
    assert done == [True, True]
    due = await world.pool.fetchval("SELECT step_at <= clock_timestamp() FROM tickwright.reports WHERE id = $1", report)
    assert due, "notification broken: both are done, and neither made the next step due"


async def check_damaged_rows_are_not_merged(world: ReportWorld) -> None:
    """G1: rows with another checksum than the ledger's cost an epoch; they never reach the file."""
    stops = Stops()
    stops.close("reports.merging")
    async with world.process(functions(), probe=stops):
        report = await ask(world)
        await eventually_async(lambda: stops.reached_times["reports.merging"] == 1)
        assert isinstance(world.shared, RedisParts)
        rows = '[{"id":0,"epoch":1,"value":666}]'
        await world.shared._redis._client.hset(world.shared.key(report), "rights", rows)
        stops.open("reports.merging")
        row = await is_made(world, report)
    assert row["restarts"] == 1


async def check_the_last_slot_is_for_other_types(world: ReportWorld) -> None:
    """RSV-3: a type that has a slot leaves the last one."""
    await ask(world)
    await world.pool.execute("UPDATE tickwright.reports SET step_at = 'epoch'")
    assert not await world.records.claim(1, 1, merging=["test"], slots=1), "RSV-3 broken: it took the last slot"


async def check_a_type_with_parts_leaves_the_last_slot_of_a_function(world: ReportWorld) -> None:
    """RPL-3: parts of a type that is passed over are not claimed."""
    await ask(world)
    taken = await world.parts.claim(1, SLOTS, excluding=[(name, "test") for name in SLOTS])
    assert not taken, "RPL-3 broken: it took the last slot"


CHECKS: list[Check] = [
    check_a_late_step_finishes_nothing,
    check_a_part_of_an_older_epoch_is_not_done,
    check_each_part_is_claimed_by_one_process,
    check_a_lost_claim_finishes_nothing,
    check_a_redelivered_part_counts_once,
    check_the_last_of_two_parts_notifies,
    check_damaged_rows_are_not_merged,
    check_the_last_slot_is_for_other_types,
    check_a_type_with_parts_leaves_the_last_slot_of_a_function,
]


# ---------------------------------------------------------------------------------------------- without a guard


def without(monkeypatch: pytest.MonkeyPatch, module: Any, query: str, guard: str, instead: str = "") -> None:
    """Remove a guard from a statement."""
    queries = dict(module.SQL)
    assert guard in queries[query], guard
    queries[query] = queries[query].replace(guard, instead)
    monkeypatch.setattr(module, "SQL", queries)


def finishes_without_a_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every claim of the owner counts."""
    without(monkeypatch, records_store, "finish_report", "fence = $2", "$2::bigint IS NOT NULL")


def a_type_takes_every_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slot is claimed whatever the type."""
    without(monkeypatch, records_store, "claim_steps", "(c.type = ANY ($4::text[]))::integer", "0")


def a_type_takes_every_slot_of_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slot is claimed whatever the type."""
    without(monkeypatch, parts_store, "claim_parts", "<> ALL ($7::text[])", "<> array_to_string($7::text[], '')")


def parts_without_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part counts whatever its epoch."""
    without(monkeypatch, parts_store, "finish_part", "epoch = $3", "$3::integer IS NOT NULL")

    async def lock(_self: PartRows, _connection: Connection, _key: PartKey) -> bool:
        return True

    monkeypatch.setattr(PartRows, "_lock", lock)


def claims_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """FOR UPDATE without SKIP LOCKED."""
    without(monkeypatch, parts_store, "claim_parts", "FOR UPDATE SKIP LOCKED", "FOR UPDATE")


def claims_without_an_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any claim counts."""
    without(monkeypatch, parts_store, "finish_part", "fence = $4 AND owner = $5", "$4::bigint + $5::bigint > 0")


def every_put_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """HINCRBY, as in the source document."""
    real = RedisParts.put

    async def put(self: RedisParts, key: PartKey, data: bytes, note: str, *, ttl: Any) -> PutAnswer:
        answer = await real(self, key, data, note, ttl=ttl)
        if answer.put is Put.ALREADY:
            await self._redis._client.hincrby(self.key(key.report_id), "queryDoneCount", 1)
        return answer

    monkeypatch.setattr(RedisParts, "put", put)


def no_lock_before_the_notification(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each transaction counts the parts that it sees without waiting for the other."""

    async def lock(_self: PartRows, _connection: Connection, _key: PartKey) -> bool:
        return True

    monkeypatch.setattr(PartRows, "_lock", lock)


class EqualChecksum:
    """A checksum that equals every other one."""

    def __ne__(self, _: object) -> bool:
        return False


def rows_are_merged_unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """No checksum is compared."""
    monkeypatch.setattr(part_places, "_checksum", lambda _: EqualChecksum())


MUTANTS: dict[str, tuple[Mutate, Check, str]] = {
    "no fence": (finishes_without_a_fence, check_a_late_step_finishes_nothing, "G2 broken"),
    "no epoch": (parts_without_an_epoch, check_a_part_of_an_older_epoch_is_not_done, "G1 broken"),
    "claims wait": (claims_that_wait, check_each_part_is_claimed_by_one_process, "claims broken"),
    "no owner": (claims_without_an_owner, check_a_lost_claim_finishes_nothing, "L1 broken"),
    "every put counts": (every_put_counts, check_a_redelivered_part_counts_once, "count broken"),
    "no lock": (no_lock_before_the_notification, check_the_last_of_two_parts_notifies, "notification broken"),
    "a type takes every place": (a_type_takes_every_slot, check_the_last_slot_is_for_other_types, "RSV-3 broken"),
    "a type takes every place of a function": (
        a_type_takes_every_slot_of_a_function,
        check_a_type_with_parts_leaves_the_last_slot_of_a_function,
        "RPL-3 broken",
    ),
    "no checksum": (rows_are_merged_unchecked, check_damaged_rows_are_not_merged, "G1 broken"),
}


@pytest.mark.parametrize("check", CHECKS, ids=[check.__name__ for check in CHECKS])
async def test_the_promise_holds(world: ReportWorld, check: Check) -> None:
    """Each check passes on the product."""
    await check(world)


@pytest.mark.parametrize("mutant", MUTANTS)
async def test_a_missing_guard_is_found(world: ReportWorld, monkeypatch: pytest.MonkeyPatch, mutant: str) -> None:
    """The same check fails without its guard."""
    mutate, check, complaint = MUTANTS[mutant]
    mutate(monkeypatch)
    with pytest.raises(AssertionError, match=complaint):
        await check(world)
