"""Batches of one kind, for operators: queries, definitions with versions, and control (activate, start, stop).

Every edit writes a version, and every version stays readable. An execution keeps the version with which it began. A
definition that an operator or a file has set counts: what a program registers replaces only what a program registered.

Every change locks the row of the batch first and its executions second, as the producer does, so that no other change
comes between reading and writing. What an action does is the table in :mod:`..executions.states`. Actions that an
execution has decided and not released when control ends it stay unreleased.
"""

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

import msgspec
import structlog

from tickwright.capabilities.batches.definitions.schema import (
    NAME,
    Draft,
    Kind,
    document_of,
    first_from,
    next_of,
    next_slots,
    schedule_of,
)
from tickwright.capabilities.batches.executions.executions import SNAPSHOT
from tickwright.capabilities.batches.executions.executions import SQL as EXECUTIONS
from tickwright.capabilities.batches.executions.explain import batch_evidence, explain_batch
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
from tickwright.capabilities.batches.views import (
    BatchChange,
    BatchDetail,
    BatchExplanation,
    BatchView,
    StoredBatch,
    TouchedExecution,
    VersionDetail,
    VersionView,
)
from tickwright.domain.errors import Contended, Rejected
from tickwright.domain.strict_json import quoted
from tickwright.domain.time_texts import parse_instant
from tickwright.ports.caller import Caller
from tickwright.ports.views import Page, view
from tickwright.store.audit import write_audit
from tickwright.store.paging import LIMIT_DEFAULT, Cursors, checked_limit, fetch_page
from tickwright.store.pool import Connection, Pool
from tickwright.store.queries import filled, load

SQL = filled(load("tickwright.capabilities.batches.sql", "batches.sql"), "shown")
NAME_AFTER_ALL = "~"
"""Sorts behind every valid name."""
SCANNED_MAX = 5_000
"""Batches that a page reads."""
ACTIONS_DELETED_MAX = 200_000
NEWEST_VERSION = 2**31 - 1
_WHY = {"deactivate": "deactivated", "start": "replaced by a start", "stop": "stopped"}

_log = structlog.get_logger("tickwright.batches")


class Batches:
    """The batches of one kind."""

    def __init__(self, pool: Pool, cursors: Cursors, kind: Kind) -> None:
        self._pool, self._cursors, self.kind = pool, cursors, kind

    async def list(
        self,
        *,
        type: str | None = None,  # noqa: A002  the parameter's name
        status: str | None = None,
        begins: str = "",
        cursor: str | None = None,
        limit: int = LIMIT_DEFAULT,
    ) -> Page[BatchView]:
        """Return one page of batches, by their names. A page reads 5,000, so it may hold fewer than ``limit``.

        Raises:
            Rejected: ``invalid_limit``, ``invalid_cursor``. Permanent.
        """
        limit = checked_limit(limit)
        listing = (self.kind.name, type, status, begins)
        after = "" if cursor is None else await self._cursors.read(cursor, str, *listing)
        rows = await fetch_page(
            self._pool, SQL["list_batches"], self.kind.name, after, begins, begins + NAME_AFTER_ALL, type, status,
            limit + 1, SCANNED_MAX,
        )  # fmt: skip
        items = [view(BatchView, row) for row in rows[:limit] if row["name"] is not None]
        position = items[-1].name if len(rows) > limit else rows[0]["last_name"]
        return Page(items, None if position is None else await self._cursors.make(position, *listing))

    async def get(self, name: str) -> BatchDetail:
        """Return one batch, its definition, and its next occurrences.

        Raises:
            Rejected: ``<noun>_not_found`` (404). Permanent.
        """
        async with self._pool.acquire() as connection:
            return _detail(await self._row(connection, name))

    async def versions(self, name: str, cursor: str | None = None, limit: int = LIMIT_DEFAULT) -> Page[VersionView]:
        """Return one page of versions, newest first; errors as :meth:`get`."""
        limit = checked_limit(limit)
        listing = ("batch_versions", self.kind.name, name)
        before = NEWEST_VERSION if cursor is None else await self._cursors.read(cursor, int, *listing)
        async with self._pool.acquire() as connection:
            row = await self._row(connection, name)
            rows = await connection.fetch(SQL["list_versions"], row["id"], before, limit + 1)
        items = [view(VersionView, found) for found in rows[:limit]]
        more = await self._cursors.make(items[-1].version, *listing) if len(rows) > limit else None
        return Page(items, more)

    async def version(self, name: str, number: int) -> VersionDetail:
        """Return one version as it was written.

        Raises:
            Rejected: ``<noun>_not_found``, ``version_not_found`` (404). Permanent.
        """
        async with self._pool.acquire() as connection:
            await self._row(connection, name)
            row = await connection.fetchrow(SQL["get_version"], self.kind.name, name, number)
        if row is None:
            raise Rejected("version_not_found", f"{name} has no version {number}", status=404)
        return view(VersionDetail, row, definition=document_of(row))

    async def explain(self, name: str, slot: str | None = None) -> BatchExplanation:
        """Return why a batch runs or does not; with ``slot`` also what became of that occurrence.

        Raises:
            Rejected: ``<noun>_not_found`` (404); what :func:`parse_instant` says of ``slot``. Permanent.
        """
        slot_at = None if slot is None else parse_instant(slot, field="slot")
        async with (
            self._pool.acquire() as connection,
            connection.transaction(readonly=True, isolation=SNAPSHOT),
        ):
            evidence = await batch_evidence(connection, await self._row(connection, name), slot_at)
        return explain_batch(evidence)

    async def create(self, name: str, draft: Draft, *, caller: Caller) -> BatchDetail:
        """Create a batch; it is ``IDLE`` and its version is 1.

        Raises:
            Rejected: ``invalid_name``; ``<noun>_exists``, ``name_taken`` (409). Permanent.
        """
        check_name(name)
        async with self._pool.acquire() as connection, connection.transaction():
            if await self._create(connection, name, draft, "operator", caller):
                return _detail(await self._row(connection, name))
            if await self._lock(connection, name) is None:
                raise _name_taken(name)
        noun = self.kind.noun
        raise Rejected(f"{noun}_exists", f"there is a {noun} {name} already; a put edits it", status=409)

    async def put(self, name: str, draft: Draft, *, caller: Caller, expected: int | None = None) -> StoredBatch:
        """Create a batch or replace its definition: a new version. The same definition again changes nothing.

        ``expected`` is the version that is edited; a batch with another one is refused.

        Raises:
            Rejected: ``invalid_name``; ``<noun>_not_found`` (404) where a version is expected; ``name_taken`` (409).
                Permanent.
            Contended: ``version_conflict``. Retry after reading it again.
        """
        return await self._put(name, draft, "operator", caller, expected)

    async def register(self, name: str, draft: Draft, *, caller: Caller, activate: bool = False) -> StoredBatch:
        """Set up a batch for a program, unless an operator or a file has set it; errors as :meth:`put`.

        With ``activate`` a new one that is ``AUTOMATIC`` becomes ``SCHEDULED``, where an occurrence is left.
        """
        return await self._put(name, draft, "app", caller, None, activate=activate)

    async def delete(self, name: str, *, caller: Caller) -> None:
        """Delete a batch with its versions, executions and actions.

        Raises:
            Rejected: ``<noun>_not_found`` (404); ``execution_open``, ``too_much_history`` (409). Permanent until it has
                ended, or its history has been removed.
        """
        async with self._pool.acquire() as connection, connection.transaction():
            batch_id = await self._lock(connection, name)
            row = await self._row(connection, name)
            _check_deletable(name, await connection.fetchrow(SQL["history"], batch_id))
            await connection.execute(SQL["delete_actions"], batch_id)
            await connection.execute(SQL["delete_batch"], batch_id)
            await self._audit(connection, caller, "delete", name, before=_audited(row))

    async def _put(
        self, name: str, draft: Draft, set_by: str, caller: Caller, expected: int | None, *, activate: bool = False
    ) -> StoredBatch:
        check_name(name)
        async with self._pool.acquire() as connection, connection.transaction():
            found = await self._lock(connection, name)
            if found is None and expected is None:
                if await self._create(connection, name, draft, set_by, caller):
                    if activate and draft.settings.type == BatchType.AUTOMATIC:
                        await self._activate(connection, name, caller)
                    return StoredBatch(_detail(await self._row(connection, name)), created=True, changed=True)
                if await self._lock(connection, name) is None:
                    raise _name_taken(name)
            before = await self._row(connection, name)
            _check_version(before, expected)
            if set_by == "app" and before["set_by"] != "app":
                return StoredBatch(_detail(before), created=False, changed=False)
            changed = msgspec.json.decode(msgspec.json.encode(draft.document)) != document_of(before)
            if changed:
                await self._edit(connection, before, draft, set_by, caller)
            elif before["set_by"] != set_by:
                await connection.execute(SQL["take_over"], before["id"], set_by)
            after = await self._row(connection, name)
            if _audited(after) != _audited(before):
                await self._audit(connection, caller, "put", name, before=_audited(before), after=_audited(after))
            return StoredBatch(_detail(after), created=False, changed=changed)

    async def _create(self, connection: Connection, name: str, draft: Draft, set_by: str, caller: Caller) -> bool:
        """Write a new batch and its first version; false where the name is taken."""
        batch_id = await connection.fetchval(SQL["create_batch"], *self._columns(name, draft, set_by))
        if batch_id is None:
            return False
        await _put_version(connection, batch_id, draft, caller)
        await self._audit(connection, caller, "create", name, after={"version": 1, "definition": draft.document})
        return True

    async def _edit(self, connection: Connection, row: Any, draft: Draft, set_by: str, caller: Caller) -> None:
        """Write the next version of a locked batch; a changed schedule counts from now on."""
        settings, status, next_slot_at = draft.settings, row["status"], row["next_slot_at"]
        effect = batch_effect(BatchAction.EDIT, BatchFacts(BatchType(settings.type), BatchStatus(status)))
        if isinstance(effect, BatchEffect) and effect.status is not None:
            status, next_slot_at = str(effect.status), None
        elif status == "SCHEDULED" and schedule_of(document_of(row)) != schedule_of(draft.document):
            next_slot_at = first_from(settings.recurrence(), row["now"])
        columns = self._columns(row["name"], draft, set_by)
        batch_id: int = await connection.fetchval(SQL["edit_batch"], *columns, status, next_slot_at)
        await _put_version(connection, batch_id, draft, caller)

    def _columns(self, name: str, draft: Draft, set_by: str) -> tuple[Any, ...]:
        settings = draft.settings
        return (
            self.kind.name, name, set_by, settings.type, settings.date_time_execution, settings.time_zone,
            settings.restartable, settings.restartable_unit, settings.restartable_unit_type, settings.cron,
            settings.overlap, settings.misfire, settings.misfire_max, settings.misfire_grace,
            list(settings.product_codes), msgspec.json.encode(draft.definition).decode(),
        )  # fmt: skip

    async def act(self, action: BatchAction, name: str, *, caller: Caller) -> BatchChange:
        """Activate, deactivate, start or stop a batch.

        Raises:
            Rejected: ``<noun>_not_found`` (404), and the refusals (409) of the table in :mod:`..executions.states`.
                Permanent.
        """
        async with self._pool.acquire() as connection, connection.transaction():
            await self._lock(connection, name)
            row = await self._row(connection, name)
            opened = await connection.fetch(EXECUTIONS["lock_open"], row["id"])
            releasing = await connection.fetch(EXECUTIONS["lock_releasing"], row["id"])
            facts = BatchFacts(
                BatchType(row["type"]),
                BatchStatus(row["status"]),
                Overlap(row["overlap"]),
                is_open=bool(opened),
                is_releasing=bool(releasing),
                has_next=next_of(row) is not None,
            )
            effect = batch_effect(action, facts)
            if isinstance(effect, Refused):
                which = f"execution {opened[0]['id']} of {name} is {opened[0]['status']}" if opened else name
                raise effect.error(which, noun=self.kind.noun)
            ended = [*opened, *releasing] if effect.ends_releasing else opened
            return await self._apply(connection, action, row, effect, ended, caller)

    async def _activate(self, connection: Connection, name: str, caller: Caller) -> None:
        """Activate a new batch in the transaction that creates it."""
        row = await self._row(connection, name)
        facts = BatchFacts(BatchType(row["type"]), has_next=next_of(row) is not None)
        effect = batch_effect(BatchAction.ACTIVATE, facts)
        if isinstance(effect, Refused):
            _log.warning("batches.not_activated", batch=name, code=effect.code, advice=effect.advice)
        else:
            await self._apply(connection, BatchAction.ACTIVATE, row, effect, (), caller)

    async def _apply(  # noqa: PLR0917  an effect is written in one place
        self,
        connection: Connection,
        action: BatchAction,
        row: Any,
        effect: BatchEffect,
        ended: Sequence[Any],
        caller: Caller,
    ) -> BatchChange:
        """Write an effect on a locked batch and its locked executions."""
        status, next_slot_at = row["status"], row["next_slot_at"]
        if effect.status is not None:
            status = str(effect.status)
            next_slot_at = next_of(row) if effect.status is BatchStatus.SCHEDULED else None
            await connection.execute(SQL["set_status"], row["id"], status, next_slot_at)
        touched: list[TouchedExecution] = []
        if effect.ends_open is not None and ended:
            ids, end = [execution["id"] for execution in ended], str(effect.ends_open)
            await connection.execute(EXECUTIONS["end_executions"], ids, end, f"{_WHY[action]} by {caller.name}")
            touched += [TouchedExecution(id=execution_id, status=end) for execution_id in ids]
        if effect.is_starting:
            new = await connection.fetchrow(EXECUTIONS["start"], row["id"], caller.name)
            touched.append(TouchedExecution(id=new["id"], status=new["status"]))
        change = BatchChange(
            name=row["name"], outcome=effect.outcome, status=status, next_slot_at=next_slot_at, executions=touched
        )
        if effect.outcome != "unchanged":
            before = {"status": row["status"], "next_slot_at": row["next_slot_at"]}
            await self._audit(connection, caller, str(action), row["name"], before=before, after=change)
        return change

    async def _lock(self, connection: Connection, name: str) -> int | None:
        """Lock a batch until the end of the transaction and return its id; ``None`` where there is none."""
        found: int | None = await connection.fetchval(SQL["lock_batch"], self.kind.name, name)
        return found

    async def _row(self, connection: Connection, name: str) -> Any:
        """Return a batch's row with ``terms`` and the database's ``now``; errors as :meth:`get`."""
        row = await connection.fetchrow(SQL["get_batch"], self.kind.name, name)
        if row is None:
            names = [found["name"] for found in await connection.fetch(SQL["near_names"], self.kind.name)]
            near = get_close_matches(name, names, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            noun = self.kind.noun
            raise Rejected(f"{noun}_not_found", f"there is no {noun} {quoted(name)}{hint}", status=404)
        return row

    async def _audit(self, connection: Connection, caller: Caller, action: str, name: str, **what: Any) -> None:
        await write_audit(connection, caller, f"{self.kind.plural}.{action}", self.kind.subject(name), **what)


def check_name(name: str) -> None:
    """Refuse a name that no batch can have.

    Raises:
        Rejected: ``invalid_name``. Permanent.
    """
    if not NAME.fullmatch(name):
        message = "name: 1 to 100 letters, digits, '_', '.' or '-', a letter or digit first"
        raise Rejected("invalid_name", message, field="name")


async def _put_version(connection: Connection, batch_id: int, draft: Draft, caller: Caller) -> None:
    text = msgspec.json.encode(draft.document).decode()
    await connection.execute(SQL["put_version"], batch_id, text, caller.name)


def _detail(row: Any) -> BatchDetail:
    return view(BatchDetail, row, definition=document_of(row), next_slots=next_slots(row))


def _audited(row: Any) -> dict[str, Any]:
    return {"version": row["version"], "status": row["status"], "set_by": row["set_by"], "definition": document_of(row)}


def _name_taken(name: str) -> Rejected:
    return Rejected("name_taken", f"another kind of batch is called {name}; choose another name", status=409)


def _check_version(row: Any, expected: int | None) -> None:
    if expected is not None and row["version"] != expected:
        message = f"{row['name']} is at version {row['version']}, not {expected}; read it again"
        raise Contended("version_conflict", message, version=row["version"])


def _check_deletable(name: str, history: Any) -> None:
    if history["open"] or history["releasing"]:
        what = "has open executions; stop it first" if history["open"] else "still releases actions; wait for that"
        raise Rejected("execution_open", f"{name} {what}", status=409)
    if history["actions"] > ACTIONS_DELETED_MAX:
        advice = "deactivate it and wait until its old executions have been removed"
        message = f"{name} has {history['actions']} recorded actions, above the {ACTIONS_DELETED_MAX} that go at once"
        raise Rejected("too_much_history", f"{message}; {advice}", status=409)
