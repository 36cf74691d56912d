"""The actions of operators and programs with fan-out, in one object; also modules against windows, and dead letters."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any

from tickwright.capabilities.fanout.entities.entities import Entities, EntityQuery, module_of
from tickwright.capabilities.fanout.entities.modules import Modules
from tickwright.capabilities.fanout.entities.schemas import (
    DeadTaskPage,
    DeadTaskView,
    EntityState,
    MatrixWindow,
    ModuleWindows,
    WindowMatrix,
    WindowState,
    masked,
)
from tickwright.capabilities.fanout.windows import parse_modules, window_at
from tickwright.domain.errors import Rejected
from tickwright.domain.time_texts import format_duration
from tickwright.engine.outbox.broker_dead_letters import BrokerDeadLetters, DeadLetterKind, common_fields
from tickwright.ports.task_queue import BODY_CHARS_MAX, DeadMessage, DeadMessages
from tickwright.ports.views import Page
from tickwright.store.paging import Cursors
from tickwright.store.pool import Connection, Pool
from tickwright.store.queries import load

NAME_CHARS_MAX = 100
_SQL = load("tickwright.capabilities.fanout.sql", "matrix.sql")
WINDOWS_MAX = 500
"""Shown of one module."""
ROWS_MAX = 20_000
COUNTED_MAX = 10_000
COUNTED_WINDOWS = 2
WINDOW_MAX = timedelta(days=1)
"""The longest window."""


class Matrix:
    """Modules against windows, and entities against modules; read only.

    Results of a window are consumers' counts. Its number of entities is the present one, since it is not stored.
    """

    def __init__(self, pool: Pool, entities: Entities) -> None:
        self._pool, self._entities = pool, entities

    async def windows(self, module: str | None, hours: int) -> WindowMatrix:
        """Return the windows of the last hours, of one module or of all, with their results.

        Raises:
            Rejected: ``module_not_found`` (404). Permanent.
        """
        name = None if module is None else module.strip().upper()
        async with self._pool.acquire() as connection:
            now: datetime = await connection.fetchval(_SQL["clock"])
            rows = await connection.fetch(_SQL["modules"], name)
            if name is not None and not rows:
                raise Rejected("module_not_found", f"there is no module {name[:50]!r}", status=404)
            since = now - timedelta(hours=hours)
            names = [row["name"] for row in rows]
            found = await connection.fetch(_SQL["windows"], since - WINDOW_MAX, names, ROWS_MAX)
            counts = {(row["task_type"], row["window_at"]): row for row in found}
            modules = [_module(row, now, since, counts) for row in rows]
            await _count_published(connection, modules)
        return WindowMatrix(at=now, since=since, modules=modules)

    async def entities(self, query: EntityQuery) -> Page[EntityState]:
        """Return a page of entities by their codes, each with its last results per module.

        Raises:
            Rejected: ``invalid_limit``, ``invalid_cursor``. Permanent.
        """
        page = await self._entities.list(query)
        codes = [entity.code for entity in page.items]
        lists = [",".join(parse_modules(entity.polling_enabled_modules)) for entity in page.items]
        rows = await self._pool.fetch(_SQL["states"], codes, lists)
        states = {n: [module_of(row) for row in group] for n, group in groupby(rows, lambda row: row["n"])}
        items = [
            EntityState(
                code=entity.code,
                is_polling_enabled=entity.is_polling_enabled,
                partner=entity.partner,
                modules=states.get(n, []),
            )
            for n, entity in enumerate(page.items, 1)
        ]
        return Page(items, page.next)


def _module(row: Any, now: datetime, since: datetime, counts: Mapping[tuple[str, datetime], Any]) -> ModuleWindows:
    starts = _starts(row, now, since)
    return ModuleWindows(
        name=row["name"],
        every=format_duration(timedelta(seconds=row["interval_seconds"])),
        paused=row["paused_at"] is not None,
        expected=row["entities"],
        last_success_window_at=row["last_success_window_at"],
        windows=[_window(row, now, at, counts.get((row["name"], at))) for at in starts[:WINDOWS_MAX]],
        more=len(starts) > WINDOWS_MAX,
    )


async def _count_published(connection: Connection, modules: Sequence[ModuleWindows]) -> None:
    """Set for how many entities each of the newest windows was published."""
    newest = {
        (module.name, window.window_at): window for module in modules for window in module.windows[:COUNTED_WINDOWS]
    }
    names, ats = [name for name, _ in newest], [at for _, at in newest]
    for row in await connection.fetch(_SQL["published"], names, ats, COUNTED_MAX):
        newest[row["task_type"], row["window_at"]].published = row["entities"]


def _starts(row: Any, now: datetime, since: datetime) -> Sequence[datetime]:
    """Return the starts of the windows that end after ``since``, the newest first; one more than are shown."""
    length_s = row["interval_seconds"]
    newest = int(window_at(now.timestamp(), length_s).start_s)
    oldest = int(window_at(since.timestamp(), length_s).start_s)
    starts = range(newest, max(oldest, newest - WINDOWS_MAX * length_s) - 1, -length_s)
    return [datetime.fromtimestamp(at, UTC) for at in starts]


def _window(row: Any, now: datetime, at: datetime, counts: Any) -> MatrixWindow:
    ends_at = at + timedelta(seconds=row["interval_seconds"])
    expected = row["entities"] if at >= row["created_at"] else 0
    succeeded, *rest = (0 if counts is None else counts[name] for name in _COUNTS)
    return MatrixWindow(
        **dict(zip(_COUNTS, [succeeded, *rest], strict=True)),
        window_at=at,
        ends_at=ends_at,
        state="open" if ends_at > now else _state(expected, succeeded, came=any(rest)),
        published=None,
    )


_COUNTS = ("succeeded", "failed", "superseded", "expired")


def _state(entities: int, succeeded: int, *, came: bool) -> WindowState:
    """Return the state of a window that is over."""
    if not (entities or came or succeeded):
        return "idle"
    if not succeeded:
        return "missed"
    return "done" if succeeded >= entities else "partly"


def _dead_task(dead: DeadMessage) -> DeadTaskView:
    text = dead.body.decode("utf-8", "backslashreplace")
    members: Any = None
    try:
        members = json.loads(text, parse_int=float)  # int refuses thousands of digits, and no number is shown
    except RecursionError:
        text = masked(text)
    except ValueError:
        members = None
    else:
        text = masked(text)
    fields = members if isinstance(members, dict) else {}
    return DeadTaskView(
        **{**common_fields(dead), "body": text[:BODY_CHARS_MAX]},
        entity_code=_name(fields.get("EntityCode")),
        task_type=_name(fields.get("TaskType")),
    )


def _name(value: Any) -> str | None:
    return value[:NAME_CHARS_MAX] if isinstance(value, str) else None


DEAD_TASKS = DeadLetterKind("fanout", "task_type", _dead_task, DeadTaskPage)


class FanoutService:
    """The actions of the API and the command line with fan-out.

    Attributes:
        entities: What is polled.
        modules: What entities are polled for, and how often.
        matrix: Modules against windows, and entities against modules.
    """

    def __init__(self, pool: Pool, dead_tasks: DeadMessages) -> None:
        self.entities = Entities(pool, Cursors(pool))
        self.modules = Modules(pool)
        self.matrix = Matrix(pool, self.entities)
        self.dead_letters = BrokerDeadLetters(pool, dead_tasks, DEAD_TASKS)
