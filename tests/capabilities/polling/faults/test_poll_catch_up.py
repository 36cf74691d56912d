"""After six hours down real processes catch up, and no courier is asked for more than it allows, in any window."""

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

AGO = """
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
"""What partner $1 had on its way, on the wheel of interval $2, lies $3 minutes back."""


async def _six_hours_down(wheels: Wheels) -> None:
    """Leave behind what an outage leaves.

    Of acme, which is asked twice a day, six hours of polls wait that were selected and not published. Of bolt, which
    is asked every ten minutes, what was selected is long superseded, and thirty-six turns were missed.
    """
    await wheels.account("slow", SLOW)
    await wheels.register(1500, "slow", "acme")
    await wheels.turn_until(DOWN_MINUTES)
    await wheels.pool.execute(AGO, "acme", SLOW, DOWN_MINUTES)
    await wheels.account("fast", FAST)
    await wheels.register(3000, "fast", "bolt", prefix="B")
    await wheels.turn_until(FAST + 1)
    await wheels.pool.execute(AGO, "bolt", FAST, DOWN_MINUTES)


@contextmanager
def _processes(url: str, folder: Path) -> Iterator[None]:
    """Run the product's own processes; they are killed at the end."""
    env = environment(DATABASE_URL=url, METRICS_BIND="127.0.0.1:0", ALLOW_TARGETS="127.0.0.1", LOG_FORMAT="json")
    children = []
    try:
        for number, roles in enumerate(ROLES):
            words = [sys.executable, "-m", "tickwright", "run", *roles]
            children.append(spawn(words, folder / f"{number}.log", env))
        yield
    finally:
        for child in children:
            kill_group(child)


@pytest.mark.timeout(300)
async def test_after_six_hours_down_no_limit_is_broken_while_everything_catches_up(
    database_url: str, tmp_path: Path
) -> None:
    """P4: far more is overdue than the couriers allow; each tracker is polled once for all of it, at their pace."""
    couriers: dict[str, CourierLog] = {}
    async with AsyncExitStack() as stack:
        wheels = await stack.enter_async_context(open_wheels(database_url))
        for name, (per_s, concurrency) in LIMITS.items():
            folder = tmp_path / name
            folder.mkdir()
            courier = couriers[name] = await stack.enter_async_context(courier_process(folder, 0.05))
            terms = {"rate": f"{per_s}/s", "concurrency": concurrency, "http": http_of_url(courier.url)}
            await put_partner(wheels.pool, name, json.dumps(terms))
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
    assert dropped >= 2900, "what was selected before the outage is over"
    assert caught_up > 0, "a missed turn was made good"
    for name, courier in couriers.items():
        calls = courier.calls()
        per_s, concurrency = LIMITS[name]
        check_contract(calls, per_s=per_s, concurrency=concurrency)
        assert repeated(calls) == 0, Counter(call.name for call in calls).most_common(3)
        pace = most_in_window([call.began_s for call in calls], 5.0) / 5
        assert pace > per_s / 2, f"{name}: most of what is allowed is not used"


async def _waiting(wheels: Wheels, partner: str) -> int:
    sql = """SELECT sum(cardinality(ids)) FROM tickwright.scheduler_outbox JOIN tickwright.partners USING (partner_no)
              WHERE name = $1 AND release_at < clock_timestamp()"""
    found: int = await wheels.pool.fetchval(sql, partner)
    return found
