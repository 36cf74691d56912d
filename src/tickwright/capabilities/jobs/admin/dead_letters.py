"""Dead letters of both kinds, failed jobs and undeliverable outbox messages: list, count, requeue."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from tickwright.capabilities.jobs.admin.search import MANY_MAX, QUERIES, check_many
from tickwright.capabilities.jobs.admin.views import DeadLetter, Requeued
from tickwright.domain.errors import Rejected
from tickwright.domain.masking import masked_document
from tickwright.ports.caller import Caller
from tickwright.ports.views import Page, view
from tickwright.store.audit import write_audit
from tickwright.store.paging import LIMIT_DEFAULT, NEWEST, Cursors, checked_limit, fetch_page
from tickwright.store.pool import Connection, Pool
from tickwright.store.queries import load

_SQL = load("tickwright.capabilities.jobs.sql", "dead_letters.sql")
_END = datetime(9999, 1, 1, tzinfo=UTC)
Kind = Literal["job", "outbox"]
COUNTED_MAX = 100_000
"""How many dead letters a count reads: no index has their subjects."""
_KEY = ("idempotency_key", "request_digest")


@dataclass(frozen=True, slots=True)
class RevivedRows:
    """The result of reviving dead letters.

    Attributes:
        rows: The former rows of the revived ones, by id.
        key_reused: Ids of those that stay, because another job has their idempotency key.
        unfit: Ids of those that stay, because they break a rule that is newer than they are.
        last_id: The last id, where the limit left some over; else ``None``.
    """

    rows: list[Any]
    key_reused: list[int]
    unfit: list[int]
    last_id: int | None


class DeadLetterAdmin:
    """Lists and requeues dead letters."""

    def __init__(self, pool: Pool, cursors: Cursors) -> None:
        self._pool, self._cursors = pool, cursors

    async def list(
        self,
        *,
        kind: Kind | None = None,
        subject: str | None = None,
        cursor: str | None = None,
        limit: int = LIMIT_DEFAULT,
    ) -> Page[DeadLetter]:
        """Return one page, newest first; ``subject`` is a task type or a destination.

        Raises:
            Rejected: ``invalid_limit``, ``invalid_cursor``. Permanent.
        """
        limit = checked_limit(limit)
        before, before_id = _END, NEWEST
        if cursor is not None:
            before, before_id = await self._cursors.read(cursor, tuple[datetime, int], "dead", kind, subject)
        rows = await fetch_page(self._pool, _SQL["list_dead"], before, before_id, kind, subject, limit + 1)
        items = [view(DeadLetter, row) for row in rows[:limit]]
        if len(rows) <= limit:
            return Page(items)
        return Page(items, await self._cursors.make((items[-1].died_at, items[-1].id), "dead", kind, subject))

    async def count(self, kind: Kind, *, ids: Sequence[int] | None = None, subject: str | None = None) -> Requeued:
        """Count what a requeue would take, among at most 100,000; ``more`` where there are others.

        Raises:
            Rejected: ``empty_filter``. Permanent.
        """
        _check(ids, subject)
        row = await self._pool.fetchrow(_SQL["count_dead"], kind, ids, subject, COUNTED_MAX)
        return Requeued(row["found"], [], row["searched"] == COUNTED_MAX, dry_run=True)

    async def requeue(
        self,
        kind: Kind,
        *,
        caller: Caller,
        ids: Sequence[int] | None = None,
        subject: str | None = None,
        limit: int = MANY_MAX,
        cursor: str | None = None,
    ) -> Requeued:
        """Requeue dead letters, the oldest first, at most 1,000 in one transaction.

        Ids without a dead letter are left out of the result, so that a second call changes nothing. ``next`` continues
        behind the last one, so that a loop requeues no letter twice, even if its job fails again at once. Jobs whose
        idempotency key another job has stay, and are listed in ``key_reused``; letters that break a rule that is newer
        than they are stay, too, and are listed in ``unfit``.

        Raises:
            Rejected: ``empty_filter``, ``invalid_limit``, ``invalid_cursor``. Permanent.
        """
        _check(ids, subject)
        check_many(limit)
        listing = ("requeue", kind, ids, subject)
        after = 0 if cursor is None else await self._cursors.read(cursor, int, *listing)
        async with self._pool.acquire() as connection, connection.transaction():
            if kind == "job":
                revived = await revive(connection, ids, subject, limit, after)
            else:
                revived = await self._revive_messages(connection, ids, subject, limit, after)
            done = [row["id"] for row in revived.rows]
            if done:
                before = masked_document({"kind": kind, "ids": ids, "subject": subject})
                subjects = "jobs" if kind == "job" else "outbox"
                action = "dead_letters.requeue"
                await write_audit(connection, caller, action, subjects, before=before, after={"ids": done})
        following = None if revived.last_id is None else await self._cursors.make(revived.last_id, *listing)
        more, stay, unfit = following is not None, revived.key_reused, revived.unfit
        return Requeued(len(done), done, more, following, key_reused=stay, unfit=unfit)

    async def _revive_messages(
        self, connection: Connection, ids: Sequence[int] | None, destination: str | None, limit: int, after: int
    ) -> RevivedRows:
        rows = await connection.fetch(_SQL["pick_dead_messages"], ids, destination, limit, after)
        revived = [row for row in rows if row["fits"]]
        if revived:
            await connection.execute(_SQL["revive_messages"], [row["id"] for row in revived])
        unfit = [row["id"] for row in rows if not row["fits"]]
        return RevivedRows(revived, [], unfit, rows[-1]["id"] if len(rows) == limit else None)


def _check(ids: Sequence[int] | None, subject: str | None) -> None:
    """Refuse an empty filter, which would match every dead letter."""
    if not ids and subject is None:
        raise Rejected("empty_filter", "say which dead letters: ids or subject")


async def revive(
    connection: Connection, ids: Sequence[int] | None, task_type: str | None, limit: int, after: int = 0
) -> RevivedRows:
    """Make dead letters pending again, by id or of a type, behind the id ``after``.

    Where another job has its idempotency key, a letter stays: a key has one job. It also stays where it breaks a rule
    of new jobs, such as a payload that an earlier release accepted.
    """
    some = None if ids is None else list(ids)
    rows: list[Any] = await connection.fetch(QUERIES["pick_dead"], some, task_type, limit, after)
    fit = [row for row in rows if row["fits"]]
    revived = await _hold_keys(connection, fit)
    if revived:
        await connection.execute(QUERIES["revive"], [row["id"] for row in revived])
        await connection.execute(QUERIES["revive_fences"], *_columns(revived, "id", "fence", "edits", *_KEY))
        await connection.execute(QUERIES["reopen_nodes"], [row["id"] for row in revived])
    revived_ids = {row["id"] for row in revived}
    stay = [row["id"] for row in fit if row["id"] not in revived_ids]
    unfit = [row["id"] for row in rows if not row["fits"]]
    return RevivedRows(revived, stay, unfit, rows[-1]["id"] if len(rows) == limit else None)


async def _hold_keys(connection: Connection, rows: list[Any]) -> list[Any]:
    """Hold the keys of these dead letters again; return the rows without a key, or whose key no other job holds."""
    keyed = [row for row in rows if row["idempotency_key"] is not None]
    if not keyed:
        return rows
    held = await connection.fetch(QUERIES["hold_keys"], *_columns(keyed, "id", *_KEY))
    ours = {row["job_id"] for row in held}
    return [row for row in rows if row["idempotency_key"] is None or row["id"] in ours]


def _columns(rows: Sequence[Any], *names: str) -> list[list[Any]]:
    return [[row[name] for row in rows] for name in names]
