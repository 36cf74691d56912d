"""Modules for operators: what entities are polled for, how often, and whether at all.

An operator's settings win: a program's declaration replaces only defaults and earlier declarations. In a configuration
file::

    [modules.LOCATIONS]
    every = "15m"        # length of a window: whole seconds, 1s to 1d
    timeout = "60s"      # of one run: 10ms to 25m
    gated = false        # true: polled only where ENABLE_LOCATIONS_POLLING=true
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Literal

import msgspec

from tickwright.capabilities.fanout.entities.schemas import (
    ModuleDetail,
    ModuleRequest,
    ModuleView,
    ModuleWindow,
    StoredModule,
)
from tickwright.capabilities.fanout.windows import MODULE_NAME
from tickwright.domain.errors import Rejected
from tickwright.domain.field_readers import Reader, bad, flag, lasting, read_fields
from tickwright.domain.time_texts import DURATION_MAX, format_duration
from tickwright.ports.caller import Caller
from tickwright.store.audit import write_audit
from tickwright.store.pool import Connection, Pool
from tickwright.store.queries import load

EVERY_DEFAULT = timedelta(minutes=15)
EVERY_MAX = timedelta(days=1)
TIMEOUT_DEFAULT = timedelta(seconds=60)
TIMEOUT_MAX = timedelta(minutes=25)
_duration = lasting(timedelta(), DURATION_MAX)


class ModuleSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The given settings; ``None`` for the others."""

    every: timedelta | None = None
    timeout: timedelta | None = None
    gated: bool | None = None


def read_module(name: str, table: Any, problems: list[str], *, where: str) -> ModuleSettings:
    """Return the settings in ``table``, and add every mistake to ``problems`` with its remedy."""
    if not MODULE_NAME.fullmatch(name):
        problems.append(f"{where}: a name has 1 to 50 capitals, digits or '_', a letter first, such as LOCATIONS")
    if not isinstance(table, Mapping):
        problems.append(f"{where}: write a table, [modules.NAME]")
        return ModuleSettings()
    return ModuleSettings(**read_fields(table, _READERS, problems, where=where))


def check_module(name: str, table: Any, *, where: str = "module") -> ModuleSettings:
    """Return the settings in ``table``.

    Raises:
        Rejected: ``invalid_module`` with every mistake. Permanent.
    """
    problems: list[str] = []
    settings = read_module(name, table, problems, where=where)
    if problems:
        raise Rejected("invalid_module", "\n".join(problems), problems=problems)
    return settings


def _within(low: timedelta, high: timedelta, step: timedelta, *, between: str, steps: str) -> Reader:
    def read(value: Any) -> timedelta:
        length: timedelta = _duration(value)
        if not low <= length <= high:
            raise bad(f"between {between}")
        if length % step:
            raise bad(f"whole {steps}")
        return length

    return read


_SECOND, _MILLISECOND = timedelta(seconds=1), timedelta(milliseconds=1)
_READERS: Mapping[str, Reader] = {
    "every": _within(
        _SECOND,
        EVERY_MAX,
        _SECOND,
        between="1s and 1d",
        steps="seconds: a window is known by the second in which it begins",
    ),
    "timeout": _within(
        10 * _MILLISECOND,
        TIMEOUT_MAX,
        _MILLISECOND,
        steps="milliseconds",
        between="10ms and 25m: RabbitMQ takes a message back that is not acknowledged within 30 minutes",
    ),
    "gated": flag,
}


_SQL = load("tickwright.capabilities.fanout.sql", "modules.sql")


class Modules:
    """The rows of ``tickwright.modules``."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def list(self) -> list[ModuleView]:
        """Return every module by name."""
        return [_view(row) for row in await self._pool.fetch(_SQL["list_modules"], None)]

    async def get(self, name: str) -> ModuleView:
        """Return one module.

        Raises:
            Rejected: ``module_not_found`` (404). Permanent.
        """
        row = await self._pool.fetchrow(_SQL["list_modules"], name)
        if row is None:
            raise _not_found(name)
        return _view(row)

    async def show(self, name: str) -> ModuleDetail:
        """Return one module with the counts of its last windows.

        Raises:
            Rejected: ``module_not_found`` (404). Permanent.
        """
        view = await self.get(name)
        counts = await self._pool.fetchrow(_SQL["module_counts"], name)
        windows = [ModuleWindow(**dict(row)) for row in await self._pool.fetch(_SQL["module_windows"], name)]
        return ModuleDetail(**msgspec.structs.asdict(view), **dict(counts), windows=windows)

    async def put(self, name: str, request: ModuleRequest, *, caller: Caller) -> StoredModule:
        """Create a module or replace its settings; schedulers are notified at once. Equal settings change nothing.

        A new length of windows counts from the next round on; the current window may then have run in part under the
        old length.

        Raises:
            Rejected: ``invalid_module`` with every mistake. Permanent.
        """
        return await self.set(name, msgspec.structs.asdict(request), caller=caller)

    async def set(
        self, name: str, settings: Mapping[str, Any], *, caller: Caller, set_by: str = "operator"
    ) -> StoredModule:
        """Write the settings that are given; others stay, or get their defaults.

        ``set_by`` ``app`` changes nothing that an operator, a file or SQL has set.

        Raises:
            Rejected: ``invalid_module`` with every mistake. Permanent.
        """
        return await self._put(name, check_module(name, settings), set_by, caller)

    async def _put(self, name: str, settings: ModuleSettings, set_by: str, caller: Caller) -> StoredModule:
        every_s = None if settings.every is None else settings.every // _SECOND
        timeout_ms = None if settings.timeout is None else settings.timeout // _MILLISECOND
        async with self._pool.acquire() as connection, connection.transaction():
            before = await self._locked(connection, name)
            put = await connection.fetchrow(
                _SQL["put_module"], name, every_s, timeout_ms, settings.gated, set_by, set_by == "app",
                EVERY_DEFAULT // _SECOND, TIMEOUT_DEFAULT // _MILLISECOND,
            )  # fmt: skip
            after = _view(await connection.fetchrow(_SQL["list_modules"], name))
            if put is not None:
                await write_audit(connection, caller, "modules.put", f"module:{name}", before=before, after=after)
        return StoredModule(after, put is not None and put["created"])

    async def switch(self, name: str, action: Literal["pause", "enable"], *, caller: Caller) -> ModuleView:
        """Stop polling entities for a module, or poll them again from the current window on. Published tasks still run.

        Raises:
            Rejected: ``module_not_found`` (404). Permanent.
        """
        async with self._pool.acquire() as connection, connection.transaction():
            before = await self._locked(connection, name)
            if before is None:
                raise _not_found(name)
            await connection.execute(_SQL[f"{action}_module"], name)
            after = _view(await connection.fetchrow(_SQL["list_modules"], name))
            if after != before:
                await write_audit(connection, caller, f"modules.{action}", f"module:{name}", before=before, after=after)
        return after

    async def _locked(self, connection: Connection, name: str) -> ModuleView | None:
        await connection.execute(_SQL["lock_module"], name)
        row = await connection.fetchrow(_SQL["list_modules"], name)
        return None if row is None else _view(row)


def _view(row: Any) -> ModuleView:
    return ModuleView(
        name=row["name"],
        every=format_duration(timedelta(seconds=row["interval_seconds"])),
        timeout=format_duration(timedelta(milliseconds=row["timeout_ms"])),
        gated=row["is_gated"],
        set_by=row["set_by"],
        paused_at=row["paused_at"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
    )


def _not_found(name: str) -> Rejected:
    return Rejected("module_not_found", f"there is no module {name[:50]!r}", status=404)
