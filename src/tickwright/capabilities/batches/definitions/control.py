"""What operators do with a batch that is set up: activate, deactivate, start, stop.

What each of them does to whom is the table in :mod:`.states`. The batch's row is locked first and its open executions
behind it, so that neither another operator nor the producer slips in between. What has been decided and not released
by an execution that ends here stays unreleased.
"""

from collections.abc import Sequence
from typing import Any

from tickwright.capabilities.batches.definitions import store
from tickwright.capabilities.batches.definitions.batches import Batches
from tickwright.capabilities.batches.executions import store as executions
from tickwright.capabilities.batches.executions.states import (
    BatchAction,
    BatchEffect,
    BatchFacts,
    BatchStatus,
    BatchType,
    Overlap,
    Refused,
    batch_effect,
)
from tickwright.capabilities.batches.views import BatchChange, TouchedExecution
from tickwright.ports.caller import Caller
from tickwright.store.audit import write_audit
from tickwright.store.pool import Connection, Pool

_WHY = {"deactivate": "deactivated", "start": "replaced by a start", "stop": "stopped"}


class Running:
    """Actions on the batches of one kind."""

    def __init__(self, pool: Pool, batches: Batches) -> None:
        self._pool, self._batches, self.kind = pool, batches, batches.kind

    async def activate(self, name: str, *, caller: Caller) -> BatchChange:
        """Let a batch run by itself, from the next occurrence on. Twice is harmless.

        Raises:
            Rejected: ``<noun>_not_found`` (404); ``<noun>_is_manual``, ``no_occurrence`` (409): nothing is
                left to come. Permanent until it is edited.
        """
        return await self._alone(BatchAction.ACTIVATE, name, caller)

    async def deactivate(self, name: str, *, caller: Caller) -> BatchChange:
        """Let a batch run no more: what is open becomes ``DISABLED``. Twice is harmless.

        Raises:
            Rejected: ``<noun>_not_found`` (404). Permanent.
        """
        return await self._alone(BatchAction.DEACTIVATE, name, caller)

    async def start(self, name: str, *, caller: Caller) -> BatchChange:
        """Execute a batch now, whatever its type and status; its overlap policy decides where an execution is open.

        Raises:
            Rejected: ``<noun>_not_found`` (404); ``execution_open`` (409). Permanent until that has ended.
        """
        return await self._alone(BatchAction.START, name, caller)

    async def stop(self, name: str, *, caller: Caller) -> BatchChange:
        """End what is open, or still releases: ``STOPPED``. Whether the batch runs by itself stays as it is.

        Raises:
            Rejected: ``<noun>_not_found`` (404); ``nothing_to_stop`` (409). Permanent.
        """
        return await self._alone(BatchAction.STOP, name, caller)

    async def _alone(self, action: BatchAction, name: str, caller: Caller) -> BatchChange:
        async with self._pool.acquire() as connection, connection.transaction():
            return await self._act(connection, action, name, caller)

    async def _act(self, connection: Connection, action: BatchAction, name: str, caller: Caller) -> BatchChange:
        await store.lock(connection, self.kind, name)
        row = await self._batches.row(connection, name)
        found = await executions.open_of(connection, row["id"])
        releasing = await executions.releasing_of(connection, row["id"])
        effect = batch_effect(action, _facts(row, is_open=bool(found), is_releasing=bool(releasing)))
        if isinstance(effect, Refused):
            which = f"execution {found[0]['id']} of {name} is {found[0]['status']}" if found else name
            raise effect.error(which, noun=self.kind.noun)
        next_slot_at = await store.set_status(connection, row, effect)
        ended = [*found, *releasing] if effect.ends_releasing else found
        touched = await self._touch(connection, action, row, effect, ended, caller)
        status = row["status"] if effect.status is None else effect.status
        change = BatchChange(
            name=name,
            outcome=effect.outcome,
            status=str(status),
            next_slot_at=next_slot_at,
            executions=touched,
        )
        if effect.outcome != "unchanged":
            before = {"status": row["status"], "next_slot_at": row["next_slot_at"]}
            audited = f"{self.kind.plural}.{action}", self.kind.subject(name)
            await write_audit(connection, caller, *audited, before=before, after=change)
        return change

    async def _touch(  # noqa: PLR0917  what the rule says, to whom, by whom
        self,
        connection: Connection,
        action: BatchAction,
        row: Any,
        effect: BatchEffect,
        found: Sequence[Any],
        caller: Caller,
    ) -> list[TouchedExecution]:
        """End and make executions as the rule says."""
        touched: list[TouchedExecution] = []
        if effect.ends_open is not None and found:
            ids, status = [one["id"] for one in found], str(effect.ends_open)
            await executions.end(connection, ids, status, f"{_WHY[action]} by {caller.name}")
            touched += [TouchedExecution(id=one, status=status) for one in ids]
        if effect.is_starting:
            made = await executions.start(connection, row["id"], caller.name)
            touched.append(TouchedExecution(id=made["id"], status=made["status"]))
        return touched


def _facts(row: Any, *, is_open: bool, is_releasing: bool) -> BatchFacts:
    return BatchFacts(
        BatchType(row["type"]),
        BatchStatus(row["status"]),
        Overlap(row["overlap"]),
        is_open=is_open,
        is_releasing=is_releasing,
        has_next=store.next_of(row) is not None,
    )
