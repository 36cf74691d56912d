"""Groups of jobs, for operators: which wait, which run, which have stopped, and letting a stopped one go on."""

from datetime import datetime

import msgspec

from tickwright.domain.errors import Rejected
from tickwright.ports.caller import Caller
from tickwright.ports.views import Page, view
from tickwright.store.audit import write_audit
from tickwright.store.paging import Cursors, checked_limit
from tickwright.store.pool import Pool
from tickwright.store.queries import load

WAITING_SHOWN_MAX = 1000
_SQL = load("tickwright.capabilities.jobs.admin.sql", "group_admin.sql")


class GroupView(msgspec.Struct, kw_only=True):
    """A group with jobs; ``waiting`` stops at 1,000.

    ``next_at`` is when claims look at it next, null while its places are taken or it has nothing to do. ``free_at`` is
    the first start that its rate leaves. ``stopped_by`` is the failed job behind which it stopped.
    """

    group: str
    waiting: int
    running: int
    next_at: datetime | None
    free_at: datetime | None
    stopped_by: int | None


class ReleasedGroup(msgspec.Struct):
    """A group that goes on, although the job ``passed`` and those before it have failed."""

    task_type: str
    group: str
    passed: int


class JobGroups:
    """The groups of task types; one per process and pool."""

    def __init__(self, pool: Pool, cursors: Cursors) -> None:
        self._pool, self._cursors = pool, cursors

    async def list(
        self, task_type: str, *, stopped: bool = False, cursor: str | None = None, limit: int = 50
    ) -> Page[GroupView]:
        """Return a page of the groups of a type by name, all or those that have stopped.

        Raises:
            Rejected: ``invalid_limit``, ``invalid_cursor``. Permanent.
        """
        limit = checked_limit(limit)
        after = "" if cursor is None else await self._cursors.read(cursor, str, "groups", task_type, stopped)
        sql = _SQL["list_stopped" if stopped else "list"]
        rows = await self._pool.fetch(sql, task_type, after, limit + 1, WAITING_SHOWN_MAX)
        items = [view(GroupView, row) for row in rows[:limit]]
        if len(rows) <= limit:
            return Page(items)
        return Page(items, await self._cursors.make(items[-1].group, "groups", task_type, stopped))

    async def release(self, task_type: str, group: str, *, caller: Caller) -> ReleasedGroup:
        """Let a stopped group go on. Its failed jobs stay dead letters, which can still be retried.

        Raises:
            Rejected: ``group_not_stopped`` (409). Permanent.
        """
        async with self._pool.acquire() as connection, connection.transaction():
            passed = await connection.fetchval(_SQL["release"], task_type, group)
            if passed is None:
                text = f"no failed job of {task_type} stops this group; groups that have stopped are in its list"
                raise Rejected("group_not_stopped", text, status=409, field="group")
            after = {"group": group, "passed": passed}
            await write_audit(connection, caller, "task_types.release_group", f"task_type:{task_type}", after=after)
        return ReleasedGroup(task_type, group, passed)
