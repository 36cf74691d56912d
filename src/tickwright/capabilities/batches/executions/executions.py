"""Executions for operators: their progress, their actions, and control (pause, resume, stop, retry).

Every change locks the row of the batch first and the execution second, as the producer does.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from tickwright.capabilities.batches.executions.explain import SQL as EXPLAIN
from tickwright.capabilities.batches.executions.explain import execution_evidence, explain_execution
from tickwright.capabilities.batches.executions.states import (
    ExecutionAction,
    ExecutionEffect,
    ExecutionFacts,
    ExecutionStatus,
    Refused,
    execution_effect,
)
from tickwright.capabilities.batches.views import (
    ActionView,
    ChunkWorker,
    ExecutionChange,
    ExecutionDetail,
    ExecutionView,
    SkippedClient,
)
from tickwright.domain.errors import Rejected
from tickwright.ports.caller import Caller
from tickwright.ports.views import Explanation, Page, view
from tickwright.store.audit import write_audit
from tickwright.store.paging import LIMIT_DEFAULT, NEWEST, Cursors, bounded, fetch_page
from tickwright.store.pool import Connection, Pool
from tickwright.store.queries import filled, load

SQL = filled(filled(load("tickwright.capabilities.batches.sql", "executions.sql"), "shown"), "has_left")
SQL = filled(SQL, "action", of=load("tickwright.capabilities.batches.sql", "release.sql"))
_BATCHES = load("tickwright.capabilities.batches.sql", "batches.sql")


async def lock_execution(connection: Connection, execution_id: int) -> Any:
    """Lock an execution behind its batch until the end of the transaction; ``None`` where there is none.

    Returns:
        ``id status paused_at chunks chunks_released``.
    """
    if await connection.fetchrow(_BATCHES["lock_batch_of"], execution_id) is None:
        return None
    return await connection.fetchrow(SQL["lock_execution"], execution_id)


async def lock_open(connection: Connection, batch_id: int) -> Sequence[Any]:
    """Lock the open executions of a locked batch and return ``id status`` of each, the oldest slot first."""
    rows: Sequence[Any] = await connection.fetch(SQL["lock_open"], batch_id)
    return rows


async def lock_releasing(connection: Connection, batch_id: int) -> Sequence[Any]:
    """Do the same for those that are finished and still release."""
    rows: Sequence[Any] = await connection.fetch(SQL["lock_releasing"], batch_id)
    return rows


async def end_executions(connection: Connection, ids: Sequence[int], status: str, why: str) -> None:
    """End locked executions; claims on them are lost, and nothing more of them is released."""
    await connection.execute(SQL["end_executions"], list(ids), status, why)


async def start_execution(connection: Connection, batch_id: int, started_by: str) -> Any:
    """Write an execution of a locked batch for this moment and return ``id slot_at status``."""
    return await connection.fetchrow(SQL["start"], batch_id, started_by)


SCANNED_MAX = 5_000
"""Executions that a page reads when it filters."""
PROBLEMS_SHOWN = 10
SNAPSHOT = "repeatable_read"
ETA_MAX_S = 10 * 365 * 86_400


class ExecutionQuery(msgspec.Struct, frozen=True):
    """The filters of a listing of executions.

    Attributes:
        kind: ``campaign`` or ``program``; all without one.
        name: Of one batch of that kind.
        statuses: Empty is all.
        limit: 1 to 200.
    """

    kind: str | None = None
    name: str | None = None
    statuses: tuple[str, ...] = ()
    cursor: str | None = None
    limit: int = LIMIT_DEFAULT


class Executions:
    """The executions of every kind of batch."""

    def __init__(self, pool: Pool, cursors: Cursors) -> None:
        self._pool, self._cursors = pool, cursors

    # ------------------------------------------------------------------ queries

    async def list(self, query: ExecutionQuery) -> Page[ExecutionView]:
        """Return one page of executions, newest first; of one batch: by their slots.

        A page that filters by anything but the batch reads 5,000, so it may hold fewer than ``limit``.

        Raises:
            Rejected: ``invalid_limit``, ``invalid_cursor``. Permanent.
        """
        limit = bounded(query.limit)
        listing = ("executions", query.kind, query.name, *query.statuses)
        is_of_batch = query.name is not None
        kind: Any = datetime if is_of_batch else int
        newest: Any = None if is_of_batch else NEWEST
        before = newest if query.cursor is None else await self._cursors.read(query.cursor, kind, *listing)
        given = [before, query.kind, [*query.statuses] or None, limit + 1, SCANNED_MAX]
        if is_of_batch:
            rows = await fetch_page(self._pool, SQL["list_executions_of"], *given, query.name)
        else:
            rows = await fetch_page(self._pool, SQL["list_executions"], *given)
        items = [view(ExecutionView, row) for row in rows[:limit] if row["id"] is not None]
        position = _position(rows, items, limit, is_of_batch=is_of_batch)
        return Page(items, None if position is None else await self._cursors.make(position, *listing))

    async def get(self, execution_id: int) -> ExecutionDetail:
        """Return one execution: its progress and pace, its error, and members that it could not judge.

        Raises:
            Rejected: ``execution_not_found`` (404). Permanent.
        """
        async with self._pool.acquire() as connection, connection.transaction(readonly=True, isolation=SNAPSHOT):
            row = await _row(connection, execution_id)
            pace = await connection.fetchval(SQL["pace"], execution_id, row["chunks_done"]) if _at_work(row) else None
            problems = await connection.fetch(SQL["problems"], execution_id)
            working = await connection.fetch(EXPLAIN["explain_working"], execution_id)
        return view(
            ExecutionDetail,
            row,
            progress=_progress(row),
            working=[view(ChunkWorker, one) for one in working],
            seen_per_s=None if pace is None else round(pace, 1),
            eta_at=_eta(row, pace),
            problems=_examples(problems),
            definition=row["snapshot"],
        )

    async def actions(
        self, execution_id: int, *, client_id: str | None = None, cursor: str | None = None, limit: int = LIMIT_DEFAULT
    ) -> Page[ActionView]:
        """Return one page of the actions of an execution, by clients; with ``client_id`` that one alone, if it exists.

        Raises:
            Rejected: ``execution_not_found`` (404), ``invalid_limit``, ``invalid_cursor``. Permanent.
        """
        limit = bounded(limit)
        listing = ("execution_actions", execution_id)
        async with self._pool.acquire() as connection:
            await _row(connection, execution_id)
        if client_id is not None:
            rows = await fetch_page(self._pool, SQL["get_action"], execution_id, client_id)
        else:
            after = "" if cursor is None else await self._cursors.read(cursor, str, *listing)
            rows = await fetch_page(self._pool, SQL["list_actions"], execution_id, after, limit + 1)
        items = [view(ActionView, row) for row in rows[:limit]]
        return Page(items, await self._cursors.make(items[-1].client_id, *listing) if len(rows) > limit else None)

    async def explain(self, execution_id: int) -> Explanation:
        """Return why an execution has its status, and what happens next.

        Raises:
            Rejected: ``execution_not_found`` (404). Permanent.
        """
        async with self._pool.acquire() as connection, connection.transaction(readonly=True, isolation=SNAPSHOT):
            facts = await execution_evidence(connection, await _row(connection, execution_id))
        return explain_execution(facts)

    # ------------------------------------------------------------------ control

    async def pause(self, execution_id: int, *, caller: Caller) -> ExecutionChange:
        """Begin no more chunks of an execution and release none; running chunks end. Twice is harmless.

        Raises:
            Rejected: ``execution_not_found`` (404); ``execution_ended`` (409). Permanent.
        """
        return await self._act(execution_id, ExecutionAction.PAUSE, caller)

    async def resume(self, execution_id: int, *, caller: Caller) -> ExecutionChange:
        """Resume a paused execution.

        Raises:
            Rejected: ``execution_not_found`` (404); ``not_paused``, ``execution_ended`` (409). Permanent.
        """
        return await self._act(execution_id, ExecutionAction.RESUME, caller)

    async def stop(self, execution_id: int, *, caller: Caller) -> ExecutionChange:
        """End an execution: ``STOPPED``; actions that it has not released stay unreleased.

        Raises:
            Rejected: ``execution_not_found`` (404); ``execution_ended`` (409). Permanent.
        """
        return await self._act(execution_id, ExecutionAction.STOP, caller)

    async def retry(self, execution_id: int, *, caller: Caller) -> ExecutionChange:
        """Retry a failed execution at the chunks that are not done, with all their attempts.

        Raises:
            Rejected: ``execution_not_found`` (404); ``not_failed`` (409). Permanent.
        """
        return await self._act(execution_id, ExecutionAction.RETRY, caller)

    async def _act(self, execution_id: int, action: ExecutionAction, caller: Caller) -> ExecutionChange:
        async with self._pool.acquire() as connection, connection.transaction():
            before = await lock_execution(connection, execution_id)
            if before is None:
                raise _not_found(execution_id)
            effect = execution_effect(action, _facts(before))
            if isinstance(effect, Refused):
                status = before["status"]
                raise effect.error(f"execution {execution_id} is {status}", state=status)
            await _write(connection, execution_id, effect, caller)
            after = await _row(connection, execution_id)
            if effect.outcome != "unchanged":
                subject, new = f"execution:{execution_id}", {**_state(after), "name": after["name"]}
                await write_audit(connection, caller, f"executions.{action}", subject, before=_state(before), after=new)
        return ExecutionChange(id=after["id"], name=after["name"], outcome=effect.outcome, **_state(after))


async def _write(connection: Connection, execution_id: int, effect: ExecutionEffect, caller: Caller) -> None:
    if effect.status is ExecutionStatus.NEW:
        await connection.execute(SQL["retry"], execution_id)
        await connection.execute(SQL["retry_chunks"], execution_id)
    elif effect.status is not None:
        await end_executions(connection, [execution_id], str(effect.status), f"{effect.outcome} by {caller.name}")
    elif effect.is_paused is not None:
        await connection.execute(SQL["pause" if effect.is_paused else "resume"], execution_id)


def _facts(row: Any) -> ExecutionFacts:
    is_releasing = row["chunks_released"] < row["chunks"]
    return ExecutionFacts(ExecutionStatus(row["status"]), row["paused_at"] is not None, is_releasing=is_releasing)


def _state(row: Any) -> dict[str, Any]:
    return {"status": row["status"], "paused": row["paused_at"] is not None}


async def _row(connection: Connection, execution_id: int) -> Any:
    row = await connection.fetchrow(SQL["get_execution"], execution_id)
    if row is None:
        raise _not_found(execution_id)
    return row


def _not_found(execution_id: int) -> Rejected:
    return Rejected("execution_not_found", f"there is no execution {execution_id}", status=404)


def _at_work(row: Any) -> bool:
    return row["status"] == "IN_PROGRESS" and row["paused_at"] is None and row["chunks_done"] > 0


def _eta(row: Any, pace: float | None) -> datetime | None:
    """Return when the last member is read at this pace; none where that is more than ten years ahead."""
    if not pace:
        return None
    left_s = max(0, row["members"] - row["seen"]) / pace
    return None if left_s > ETA_MAX_S else row["now"] + timedelta(seconds=left_s)


def _progress(row: Any) -> float | None:
    """Return the share that is done, 0 to 1."""
    if row["planned_at"] is None:
        return None
    done, whole = (row["seen"], row["members"]) if row["members"] else (row["chunks_done"], row["chunks"])
    return min(1.0, done / whole) if whole else 1.0


def _examples(rows: Sequence[Any]) -> list[SkippedClient]:
    found = [
        SkippedClient(chunk=row["chunk"], problem=str(one.get("problem", "")), client_id=one.get("client_id"))
        for row in rows
        for one in msgspec.json.decode(row["problems"])
    ]
    return found[:PROBLEMS_SHOWN]


def _position(rows: Sequence[Any], items: Sequence[ExecutionView], limit: int, *, is_of_batch: bool) -> Any:
    """Return the position of the next page; ``None`` at the end."""
    if len(rows) > limit:
        return items[-1].slot_at if is_of_batch else items[-1].id
    if not rows:
        return None
    return rows[0]["last_slot_at" if is_of_batch else "last_id"]
