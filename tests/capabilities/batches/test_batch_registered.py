"""A program's batches are registered when it starts: once, whole, and scheduled if they have a time."""

from typing import Any

import pytest

from tickwright import BatchChunk
from tickwright.app.declarations import Declarations
from tickwright.capabilities.batches.definitions.batches import Batches
from tickwright.capabilities.batches.definitions.schema import PROGRAM
from tickwright.capabilities.batches.executions.states import BatchAction
from tickwright.capabilities.batches.plugin import declare_batches
from tickwright.ports.caller import Caller, Role
from tickwright.store.paging import Cursors
from tickwright.store.pool import Pool

ADMIN = Caller("me", Role.ADMIN)
AUDITED = "SELECT action FROM tickwright.audit WHERE subject = 'batch:months.close' ORDER BY id"


def program(**when: Any) -> Declarations:
    """Return a program with one batch."""
    declared = Declarations()

    @declared.batch("months.close", **when)
    async def close(_: BatchChunk) -> None:
        """Do nothing."""

    return declared


@pytest.fixture
def rows(pool: Pool) -> Batches:
    """Return the batches of programs."""
    return Batches(pool, Cursors(pool), PROGRAM)


async def test_a_timed_batch_is_scheduled_when_it_is_first_registered(pool: Pool, rows: Batches) -> None:
    """From its next occurrence on; the next start does not undo a deactivation."""
    batches = program(cron="0 3 1 * *").registrations
    await declare_batches(rows, batches)
    made = await rows.get("months.close")
    assert (made.status, made.set_by) == ("SCHEDULED", "app")
    assert made.next_slot_at == made.next_slots[0]
    assert [row["action"] for row in await pool.fetch(AUDITED)] == ["batches.create", "batches.activate"]
    await rows.act(BatchAction.DEACTIVATE, "months.close", caller=ADMIN)
    await declare_batches(rows, batches)
    assert (await rows.get("months.close")).status == "IDLE"


async def test_a_registration_that_fails_before_scheduling_leaves_nothing(
    pool: Pool, rows: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One transaction creates and schedules: the next start finds no batch that would never be scheduled."""

    async def fail(*_: object) -> None:
        raise ConnectionResetError("gone")

    batches = program(cron="0 3 1 * *").registrations
    with monkeypatch.context() as broken:
        broken.setattr(Batches, "_activate", fail)
        with pytest.raises(ConnectionResetError):
            await declare_batches(rows, batches)
    assert await pool.fetchval("SELECT count(*) FROM tickwright.batches") == 0
    await declare_batches(rows, batches)
    assert (await rows.get("months.close")).status == "SCHEDULED"


@pytest.mark.parametrize("when", [{}, {"date_time_execution": "2026-01-05T09:00"}], ids=["by hand", "gone by"])
async def test_a_batch_without_an_occurrence_left_waits_for_an_operator(rows: Batches, when: dict[str, str]) -> None:
    """Its program starts nevertheless."""
    await declare_batches(rows, program(**when).registrations)
    made = await rows.get("months.close")
    assert (made.status, made.next_slot_at, made.next_slots) == ("IDLE", None, [])
