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
from tickwright.store.paging import LIMIT_DEFAULT, NEWEST, Cursors, checked_limit, fetch_page
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


SCANNED_MAX = 5_000
"""Executions that a page reads when it filters."""
PROBLEMS_SHOWN = 10
SNAPSHOT = "repeatable_read"
ETA_MAX_S = 10 * 365 * 86_400


class Executions:
    """The executions of every kind of batch."""

    def __init__(self, pool: Pool, cursors: Cursors) -> None:
        self._pool, self._cursors = pool, cursors

    async def list(
        self,
        *,
        kind: str | None = None,
        name: str | None = None,
        statuses: Sequence[str] = (),
        cursor: str | None = None,
        limit: int = LIMIT_DEFAULT,
    ) -> Page[ExecutionView]:
        """Return one page of executions, newest first; of one batch: by their slots.

        A page that filters by anything but the batch reads 5,000, so it may hold fewer than ``limit``.

        Raises:
            Rejected: ``invalid_limit``, ``invalid_cursor``. Permanent.
        """
        limit = checked_limit(limit)
        listing = ("executions", kind, name, *statuses)
        is_of_batch = name is not None
        before: Any = None if is_of_batch else NEWEST
        if cursor is not None:
            before = await self._cursors.read(cursor, datetime if is_of_batch else int, *listing)
        given = [before, kind, [*statuses] or None, limit + 1, SCANNED_MAX]
        query, more = ("list_executions_of", (name,)) if is_of_batch else ("list_executions", ())
        rows = await fetch_page(self._pool, SQL[query], *given, *more)
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
            is_at_work = row["status"] == "IN_PROGRESS" and row["paused_at"] is None and row["chunks_done"] > 0
            pace = await connection.fetchval(SQL["pace"], execution_id, row["chunks_done"]) if is_at_work else None
            problems = await connection.fetch(SQL["problems"], execution_id)
            working = await connection.fetch(EXPLAIN["explain_working"], execution_id)
        return view(
            ExecutionDetail,
            row,
            progress=_progress(row),
            working=[view(ChunkWorker, worker) for worker in working],
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
        limit = checked_limit(limit)
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

    async def act(self, action: ExecutionAction, execution_id: int, *, caller: Caller) -> ExecutionChange:
        """Pause, resume, stop or retry an execution.

        Raises:
            Rejected: ``execution_not_found`` (404), and the refusals (409) of the table in :mod:`.states`. Permanent.
        """
        async with self._pool.acquire() as connection, connection.transaction():
            before = await lock_execution(connection, execution_id)
            if before is None:
                raise _not_found(execution_id)
            is_releasing = before["chunks_released"] < before["chunks"]
            facts = ExecutionFacts(ExecutionStatus(before["status"]), before["paused_at"] is not None, is_releasing)
            effect = execution_effect(action, facts)
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
        why = f"{effect.outcome} by {caller.name}"
        await connection.execute(SQL["end_executions"], [execution_id], str(effect.status), why)
    elif effect.is_paused is not None:
        await connection.execute(SQL["pause" if effect.is_paused else "resume"], execution_id)


def _state(row: Any) -> dict[str, Any]:
    return {"status": row["status"], "paused": row["paused_at"] is not None}


async def _row(connection: Connection, execution_id: int) -> Any:
    row = await connection.fetchrow(SQL["get_execution"], execution_id)
    if row is None:
        raise _not_found(execution_id)
    return row


def _not_found(execution_id: int) -> Rejected:
    return Rejected("execution_not_found", f"there is no execution {execution_id}", status=404)


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
        SkippedClient(chunk=row["chunk"], problem=str(problem.get("problem", "")), client_id=problem.get("client_id"))
        for row in rows
        for problem in msgspec.json.decode(row["problems"])
    ]
    return found[:PROBLEMS_SHOWN]


def _position(rows: Sequence[Any], items: Sequence[ExecutionView], limit: int, *, is_of_batch: bool) -> Any:
    """Return the position of the next page; ``None`` at the end."""
    if len(rows) > limit:
        return items[-1].slot_at if is_of_batch else items[-1].id
    if not rows:
        return None
    return rows[0]["last_slot_at" if is_of_batch else "last_id"]
