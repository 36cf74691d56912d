"""Real processes catch up after six hours of outage, and keep every courier's limits in every window."""

import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import pytest

from kit.cli import environment
from kit.consumers import http_of_url
from kit.partners import CourierLog, check_contract, courier_process, most_in_window, repeated
from kit.processes import kill_group, spawn
from kit.waiting import eventually_async
from kit.wheels import Wheels, open_wheels
from tickwright.partners.contract import put_partner

DOWN_MINUTES = 360
SLOW, FAST = 720, 10  # minutes between two polls of a tracker
LIMITS: Mapping[str, tuple[int, int]] = {"acme": (20, 4), "bolt": (5, 2)}  # calls in a second, calls at once
ROLES = (("scheduler", "relay"), ("poll-consumer",), ("poll-consumer",))

MOVE_BACK = """
WITH partner AS (
  SELECT partner_no FROM tickwright.partners WHERE name = $1
), ledger AS (
  UPDATE tickwright.poll_slices SET due_at = due_at - make_interval(mins => $3)
   WHERE partner_no = (SELECT partner_no FROM partner)
), slots AS (
  UPDATE tickwright.poll_slots SET next_due_at = next_due_at - make_interval(mins => $3),
         prev_due_at = prev_due_at - make_interval(mins => $3) WHERE interval_minutes = $2
)
UPDATE tickwright.scheduler_outbox
   SET due_at = due_at - make_interval(mins => $3), release_at = release_at - make_interval(mins => $3)
 WHERE partner_no = (SELECT partner_no FROM partner)
"""
"""Move what partner $1 has under way, on the wheel of interval $2, back by $3 minutes."""


async def _six_hours_down(wheels: Wheels) -> None:
    """Write the state that an outage leaves.

    acme is polled twice a day: six hours of its polls are selected and not published. bolt is polled every ten
    minutes: its selected polls are superseded, and each of its slots has missed thirty-six minutes.
    """
    await wheels.account("slow", SLOW)
    await wheels.register(1500, "slow", "acme")
    await wheels.select_until(DOWN_MINUTES)
    await wheels.pool.execute(MOVE_BACK, "acme", SLOW, DOWN_MINUTES)
    await wheels.account("fast", FAST)
    await wheels.register(3000, "fast", "bolt", prefix="B")
    await wheels.select_until(FAST + 1)
    await wheels.pool.execute(MOVE_BACK, "bolt", FAST, DOWN_MINUTES)


@contextmanager
def _processes(url: str, folder: Path) -> Iterator[None]:
    """Run the product's own processes; they are killed at the end."""
    env = environment(DATABASE_URL=url, METRICS_BIND="127.0.0.1:0", ALLOW_TARGETS="127.0.0.1", LOG_FORMAT="json")
    children = []
    try:
        for number, roles in enumerate(ROLES):
            command = [sys.executable, "-m", "tickwright", "run", *roles]
            children.append(spawn(command, folder / f"{number}.log", env))
        yield
    finally:
        for child in children:
            kill_group(child)


@pytest.mark.timeout(300)
async def test_every_limit_holds_while_six_hours_of_polls_are_caught_up(database_url: str, tmp_path: Path) -> None:
    """P4: more polls are overdue than the couriers allow; a tracker is polled once for all of its overdue polls."""
    couriers: dict[str, CourierLog] = {}
    async with AsyncExitStack() as stack:
        wheels = await stack.enter_async_context(open_wheels(database_url))
        for name, (per_s, concurrency) in LIMITS.items():
            folder = tmp_path / name
            folder.mkdir()
            courier = couriers[name] = await stack.enter_async_context(courier_process(folder, 0.05))
            settings = {"rate": f"{per_s}/s", "concurrency": concurrency, "http": http_of_url(courier.url)}
            await put_partner(wheels.pool, name, json.dumps(settings))
        await _six_hours_down(wheels)
        waiting = await _waiting(wheels, "acme")
        assert waiting > 500, "more than the courier allows in twenty seconds"
        with _processes(database_url, tmp_path):
            await eventually_async(lambda: len(couriers["bolt"].calls()) > 60, 150, what="bolt is caught up with")
            await eventually_async(lambda: len(couriers["acme"].calls()) >= waiting, 60, what="acme is caught up with")
            dropped = await wheels.pool.fetchval("SELECT sum(superseded) FROM tickwright.poll_slices")
            caught_up = await wheels.pool.fetchval(
                """SELECT count(*) FROM tickwright.poll_slices
                    WHERE due_at < now() - interval '2 minutes' AND polled > 0 AND interval_minutes = $1""",
                FAST,
            )
    assert dropped >= 2900, "polls that were selected before the outage are superseded"
    assert caught_up > 0, "a missed minute was caught up"
    for name, courier in couriers.items():
        calls = courier.calls()
        per_s, concurrency = LIMITS[name]
        check_contract(calls, per_s=per_s, concurrency=concurrency)
        assert repeated(calls) == 0, Counter(call.name for call in calls).most_common(3)
        pace = most_in_window([call.began_s for call in calls], 5.0) / 5
        assert pace > per_s / 2, f"{name}: less than half of the allowed rate is used"


async def _waiting(wheels: Wheels, partner: str) -> int:
    sql = """SELECT sum(cardinality(ids)) FROM tickwright.scheduler_outbox JOIN tickwright.partners USING (partner_no)
              WHERE name = $1 AND release_at < clock_timestamp()"""
    found: int = await wheels.pool.fetchval(sql, partner)
    return found
