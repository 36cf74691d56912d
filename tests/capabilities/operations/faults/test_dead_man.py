"""A2: a scheduler that is killed raises an alert, although it was itself the process that evaluates all alerts."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from kit.cli import environment
from kit.forks import Child
from kit.ports import free_port
from kit.processes import kill_group, spawn
from kit.waiting import eventually_async
from tickwright.store.pool import Pool

_ALERTING = "SELECT owner FROM tickwright.job_config WHERE job_name = 'alerting' AND running"
_STATE = (
    "SELECT state FROM tickwright.alerts WHERE rule = 'scheduler_stopped' AND subject = 'selector' ORDER BY id DESC"
)


@contextmanager
def _process(url: str, folder: Path, role: str) -> Iterator[Child]:
    env = environment(DATABASE_URL=url, METRICS_BIND=f"127.0.0.1:{free_port()}")
    child = spawn([sys.executable, "-m", "tickwright", "run", role], folder / f"{role}.log", env)
    try:
        yield child
    finally:
        kill_group(child)


@pytest.mark.storm
async def test_a_killed_scheduler_that_evaluated_alerts_raises_one_until_it_is_replaced(
    database_url: str, pool: Pool, tmp_path: Path
) -> None:
    """Every role evaluates the alert rules under a lease, so another process detects the dead one."""
    await pool.execute(
        "INSERT INTO tickwright.shipment_polling_tracker (account_id, partner, external_id) VALUES ('a', 'dhl', '1')"
    )
    with ExitStack() as processes:
        scheduler = processes.enter_context(_process(database_url, tmp_path, "scheduler"))
        await eventually_async(lambda: pool.fetchval("SELECT count(*) FROM tickwright.poll_slots"), 60)
        evaluator = await eventually_async(lambda: pool.fetchval(_ALERTING), 60, what="the scheduler evaluates alerts")
        processes.enter_context(_process(database_url, tmp_path, "relay"))
        kill_group(scheduler)

        async def fires() -> bool:
            return bool(await pool.fetchval(_STATE) == "firing")

        await eventually_async(fires, 200, what="the alert of the dead scheduler")
        assert await pool.fetchval(_ALERTING) != evaluator
        processes.enter_context(_process(database_url, tmp_path, "scheduler"))

        async def is_over() -> bool:
            return bool(await pool.fetchval(_STATE) == "resolved")

        await eventually_async(is_over, 200, what="the end of the alert")
