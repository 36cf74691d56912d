"""Modules for operators: what entities are polled for, how often, and whether at all.

An operator's settings win: a program's declaration replaces only defaults and earlier declarations. In a configuration
file::

    [modules.LOCATIONS]
    every = "15m"        # length of a window: whole seconds, 1s to 1d
    timeout = "60s"      # of one run: 10ms to 25m
    gated = false        # true: polled only where ENABLE_LOCATIONS_POLLING=true
    target = "remote:ocpi"   # remote workers of this pool run it, instead of a program's function; "" for the function
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

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
from tickwright.domain.targets import remote_target
from tickwright.domain.time_texts import DURATION_MAX, format_duration
from tickwright.ports.caller import Caller
from tickwright.ports.views import view
from tickwright.store.audit import AuditedRows
from tickwright.store.pool import Pool
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
    target: str | None = None


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
    "target": lambda value: "" if value == "" else remote_target(value),
}


_SQL = load("tickwright.capabilities.fanout.sql", "modules.sql")


class Modules(AuditedRows[ModuleView]):
    """The rows of ``tickwright.modules``; a change that changes nothing is not audited.

    For a paused module no entities are polled; published tasks still run. An enabled one is polled from the current
    window on.

    Raises:
        Rejected: ``module_not_found`` (404) from every method with a name, except ``put`` and ``set``. Permanent.
    """

    def __init__(self, pool: Pool) -> None:
        switches = {action: _SQL[f"{action}_module"] for action in ("pause", "enable")}
        lock, read = _SQL["lock_module"], _SQL["list_modules"]
        super().__init__(pool, "module", module_view, lock=lock, read=read, switches=switches, audits_equal=False)

    async def show(self, name: str) -> ModuleDetail:
        """Return one module with the counts of its last windows."""
        module = await self.get(name)
        counts = await self._pool.fetchrow(_SQL["module_counts"], name)
        windows = [ModuleWindow(**dict(row)) for row in await self._pool.fetch(_SQL["module_windows"], name)]
        return ModuleDetail(**msgspec.structs.asdict(module), **dict(counts), windows=windows)

    async def put(self, name: str, request: ModuleRequest, *, caller: Caller) -> StoredModule:
        """Create a module or replace its settings; schedulers are notified at once. Equal settings change nothing.

        A new length of windows counts from the next round on; the current window may then have run in part under the
        old length.

        Raises:
            Rejected: ``invalid_module`` with every mistake. Permanent.
        """
        settings = {**msgspec.structs.asdict(request), "target": request.target or ""}
        return await self.set(name, settings, caller=caller)

    async def set(
        self, name: str, settings: Mapping[str, Any], *, caller: Caller, set_by: str = "operator"
    ) -> StoredModule:
        """Write the settings that are given; others stay, or get their defaults.

        ``set_by`` ``app`` changes nothing that an operator, a file or SQL has set.

        Raises:
            Rejected: ``invalid_module`` with every mistake. Permanent.
        """
        new = check_module(name, settings)
        every_s = None if new.every is None else new.every // _SECOND
        timeout_ms = None if new.timeout is None else new.timeout // _MILLISECOND
        async with self.changing("put", name, caller, creates=True) as change:
            put = await change.connection.fetchrow(
                _SQL["put_module"], name, every_s, timeout_ms, new.gated, set_by, set_by == "app",
                EVERY_DEFAULT // _SECOND, TIMEOUT_DEFAULT // _MILLISECOND, new.target,
            )  # fmt: skip
        return StoredModule(change.after, put is not None and put["created"])


def module_view(row: Mapping[str, Any]) -> ModuleView:
    """Return a row of ``modules`` as :class:`ModuleView`."""
    every = format_duration(timedelta(seconds=row["interval_seconds"]))
    timeout = format_duration(timedelta(milliseconds=row["timeout_ms"]))
    return view(ModuleView, row, every=every, timeout=timeout, gated=row["is_gated"])
