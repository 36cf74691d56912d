"""Batches as operators see them: made, edited, looked at, forgotten. What is done with them is in :mod:`.running`.

Every edit is a version and every version stays readable. Executions that are under way keep the version with which they
began. Whoever sets a batch up by hand is right: what a program declares replaces what came from a program, and nothing
else.
"""

from difflib import get_close_matches
from typing import Any

import msgspec
import structlog

from tickwright.capabilities.batches.definitions import store
from tickwright.capabilities.batches.definitions.schema import NAME
from tickwright.capabilities.batches.definitions.store import SQL, Draft, Kind, words_of
from tickwright.capabilities.batches.executions.explain import explain_batch
from tickwright.capabilities.batches.executions.facts import batch_facts
from tickwright.capabilities.batches.executions.states import BatchAction, BatchFacts, BatchType, Refused, batch_effect
from tickwright.capabilities.batches.views import (
    BatchChange,
    BatchDetail,
    BatchExplanation,
    BatchView,
    StoredBatch,
    VersionDetail,
    VersionView,
)
from tickwright.domain.errors import Contended, Rejected
from tickwright.domain.strict_json import shown
from tickwright.domain.time_texts import parse_instant
from tickwright.ports.caller import Caller
from tickwright.ports.views import Page, view
from tickwright.store.audit import write_audit
from tickwright.store.paging import LIMIT_DEFAULT, Cursors, bounded, fetch_page
from tickwright.store.pool import Connection, Pool

LAST_NAME = "~"
"""Behind every name that there can be."""
LOOKED_MAX = 5_000
"""Batches that a page looks at."""
ACTIONS_DELETED_MAX = 200_000
NEWEST_VERSION = 2**31 - 1

_log = structlog.get_logger("tickwright.batches")


class BatchQuery(msgspec.Struct, frozen=True):
    """What a listing of batches is asked for.

    Attributes:
        type: ``MANUAL`` or ``AUTOMATIC``.
        status: ``SCHEDULED`` or ``IDLE``.
        q: What their names begin with.
        limit: 1 to 200.
    """

    type: str | None = None
    status: str | None = None
    q: str = ""
    cursor: str | None = None
    limit: int = LIMIT_DEFAULT


class Batches:
    """The batches of one kind."""

    def __init__(self, pool: Pool, cursors: Cursors, kind: Kind) -> None:
        self._pool, self._cursors, self.kind = pool, cursors, kind

    # ------------------------------------------------------------------ looked at

    async def list(self, query: BatchQuery) -> Page[BatchView]:
        """Return one page of batches, by their names. It looks at 5,000, so it may hold fewer than it could.

        Raises:
            Rejected: ``invalid_limit``, ``invalid_cursor``. Permanent.
        """
        limit = bounded(query.limit)
        listing = (self.kind.name, query.type, query.status, query.q)
        after = "" if query.cursor is None else await self._cursors.read(query.cursor, str, *listing)
        rows = await fetch_page(
            self._pool, SQL["list_batches"], self.kind.name, after, query.q, query.q + LAST_NAME, query.type,
            query.status, limit + 1, LOOKED_MAX,
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
            return detail(await self.row(connection, name))

    async def versions(self, name: str, cursor: str | None = None, limit: int = LIMIT_DEFAULT) -> Page[VersionView]:
        """Return one page of versions, newest first; errors as :meth:`get`."""
        limit = bounded(limit)
        listing = ("batch_versions", self.kind.name, name)
        before = NEWEST_VERSION if cursor is None else await self._cursors.read(cursor, int, *listing)
        async with self._pool.acquire() as connection:
            row = await self.row(connection, name)
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
            await self.row(connection, name)
            row = await connection.fetchrow(SQL["get_version"], self.kind.name, name, number)
        if row is None:
            raise Rejected("version_not_found", f"{name} has no version {number}", status=404)
        return VersionDetail(
            version=row["version"], made_by=row["made_by"], made_at=row["made_at"], definition=words_of(row)
        )

    async def explain(self, name: str, slot: str | None = None) -> BatchExplanation:
        """Return why a batch runs or does not; with ``slot`` what became of that occurrence.

        Raises:
            Rejected: ``<noun>_not_found`` (404); what :func:`parse_instant` says of ``slot``. Permanent.
        """
        slot_at = None if slot is None else parse_instant(slot, field="slot")
        async with self._pool.acquire() as connection, connection.transaction(readonly=True, isolation=SNAPSHOT):
            facts = await batch_facts(connection, await self.row(connection, name), slot_at)
        return explain_batch(facts)

    async def row(self, connection: Connection, name: str) -> Any:
        """Return the row of a batch; errors as :meth:`get`."""
        row = await store.get(connection, self.kind, name)
        if row is None:
            names = [found["name"] for found in await connection.fetch(SQL["near_names"], self.kind.name)]
            near = get_close_matches(name, names, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            noun = self.kind.noun
            raise Rejected(f"{noun}_not_found", f"there is no {noun} {shown(name)}{hint}", status=404)
        return row

    # ------------------------------------------------------------------ set

    async def create(self, name: str, draft: Draft, *, caller: Caller) -> BatchDetail:
        """Make a batch; it is ``IDLE`` and its version is 1.

        Raises:
            Rejected: ``invalid_name``; ``<noun>_exists``, ``name_taken`` (409). Permanent.
        """
        self.check_name(name)
        async with self._pool.acquire() as connection, connection.transaction():
            if await self._create(connection, name, draft, "operator", caller):
                return detail(await self.row(connection, name))
            if await store.lock(connection, self.kind, name) is None:
                raise self._taken(name)
        noun = self.kind.noun
        raise Rejected(f"{noun}_exists", f"there is a {noun} {name} already; a put edits it", status=409)

    async def put(self, name: str, draft: Draft, *, caller: Caller, expected: int | None = None) -> StoredBatch:
        """Make a batch or set it whole: a new version. The same again changes nothing.

        Args:
            name: 1 to 100 letters, digits, '_', '.' or '-'.
            draft: Checked.
            caller: Who does it.
            expected: The version that is edited; refused where it is another one by now.

        Raises:
            Rejected: ``invalid_name``; ``<noun>_not_found`` (404) where a version is expected; ``name_taken`` (409).
                Permanent.
            Contended: ``version_conflict``. Retry after reading it again.
        """
        return await self._put(name, draft, "operator", caller, expected)

    async def declare(self, name: str, draft: Draft, *, caller: Caller, is_to_run: bool = False) -> StoredBatch:
        """Set up a batch that a program brings, unless an operator or a file has done so; errors as :meth:`put`.

        With ``is_to_run`` a new one that is ``AUTOMATIC`` is activated with it, where an occurrence is left.
        """
        return await self._put(name, draft, "app", caller, None, is_to_run=is_to_run)

    async def delete(self, name: str, *, caller: Caller) -> None:
        """Forget a batch with its versions, executions and actions.

        Raises:
            Rejected: ``<noun>_not_found`` (404); ``execution_open``, ``too_much_history`` (409). Permanent until it has
                ended, or its history has been removed.
        """
        async with self._pool.acquire() as connection, connection.transaction():
            batch_id = await store.lock(connection, self.kind, name)
            row = await self.row(connection, name)
            _check_deletable(name, await connection.fetchrow(SQL["history"], batch_id))
            await connection.execute(SQL["delete_actions"], batch_id)
            await connection.execute(SQL["delete_batch"], batch_id)
            await self._audit(connection, caller, "delete", name, before=_said(row))

    def check_name(self, name: str) -> None:
        """Refuse a name that no batch can have.

        Raises:
            Rejected: ``invalid_name``. Permanent.
        """
        if not NAME.fullmatch(name):
            message = "name: 1 to 100 letters, digits, '_', '.' or '-', a letter or digit first"
            raise Rejected("invalid_name", message, field="name")

    async def _put(
        self, name: str, draft: Draft, set_by: str, caller: Caller, expected: int | None, *, is_to_run: bool = False
    ) -> StoredBatch:
        self.check_name(name)
        async with self._pool.acquire() as connection, connection.transaction():
            found = await store.lock(connection, self.kind, name)
            if found is None and expected is None:
                if await self._create(connection, name, draft, set_by, caller):
                    if is_to_run and draft.terms.type == BatchType.AUTOMATIC:
                        await self._activate(connection, name, caller)
                    return StoredBatch(detail(await self.row(connection, name)), created=True, changed=True)
                if await store.lock(connection, self.kind, name) is None:
                    raise self._taken(name)
            before = await self.row(connection, name)
            _check_version(before, expected)
            if set_by == "app" and before["set_by"] != "app":
                return StoredBatch(detail(before), created=False, changed=False)
            changed = _as_json(draft.words) != words_of(before)
            if changed:
                await store.edit(connection, self.kind, before, draft, set_by, caller.name)
            elif before["set_by"] != set_by:
                await connection.execute(SQL["take_over"], before["id"], set_by)
            after = await self.row(connection, name)
            if _said(after) != _said(before):
                await self._audit(connection, caller, "put", name, before=_said(before), after=_said(after))
            return StoredBatch(detail(after), created=False, changed=changed)

    async def _create(self, connection: Connection, name: str, draft: Draft, set_by: str, caller: Caller) -> bool:
        made = await store.create(connection, self.kind, name, draft, set_by=set_by, made_by=caller.name)
        if made is None:
            return False
        await self._audit(connection, caller, "create", name, after={"version": 1, "definition": draft.words})
        return True

    async def _activate(self, connection: Connection, name: str, caller: Caller) -> None:
        """Let a new batch run by itself, in the transaction that makes it."""
        row = await self.row(connection, name)
        facts = BatchFacts(BatchType(row["type"]), has_next=store.next_of(row) is not None)
        effect = batch_effect(BatchAction.ACTIVATE, facts)
        if isinstance(effect, Refused):
            _log.warning("batches.not_activated", batch=name, code=effect.code, advice=effect.advice)
            return
        next_slot_at = await store.set_status(connection, row, effect)
        after = BatchChange(
            name=name, outcome=effect.outcome, status=str(effect.status), next_slot_at=next_slot_at, executions=[]
        )
        before = {"status": row["status"], "next_slot_at": None}
        await self._audit(connection, caller, "activate", name, before=before, after=after)

    async def _audit(self, connection: Connection, caller: Caller, action: str, name: str, **what: Any) -> None:
        await write_audit(connection, caller, f"{self.kind.plural}.{action}", self.kind.subject(name), **what)

    def _taken(self, name: str) -> Rejected:
        return Rejected("name_taken", f"another kind of batch is called {name}; choose another name", status=409)


SNAPSHOT = "repeatable_read"


def detail(row: Any) -> BatchDetail:
    """Return a row as callers see it."""
    return view(BatchDetail, row, definition=words_of(row), next_slots=store.next_slots(row))


def _said(row: Any) -> dict[str, Any]:
    return {"version": row["version"], "status": row["status"], "set_by": row["set_by"], "definition": words_of(row)}


def _as_json(words: dict[str, Any]) -> Any:
    return msgspec.json.decode(msgspec.json.encode(words))


def _check_version(row: Any, expected: int | None) -> None:
    if expected is not None and row["version"] != expected:
        message = f"{row['name']} is at version {row['version']} by now, not {expected}; read it again"
        raise Contended("version_conflict", message, version=row["version"])


def _check_deletable(name: str, history: Any) -> None:
    if history["open"] or history["releasing"]:
        what = "has open executions; stop it first" if history["open"] else "still releases actions; wait for that"
        raise Rejected("execution_open", f"{name} {what}", status=409)
    if history["actions"] > ACTIONS_DELETED_MAX:
        message = (
            f"{name} has {history['actions']} recorded actions, above the {ACTIONS_DELETED_MAX} that go at once; "
            "deactivate it and wait until its old executions have been removed"
        )
        raise Rejected("too_much_history", message, status=409)
