"""What callers get to see of modules against windows, and of entities against modules."""

from datetime import datetime
from typing import Literal

import msgspec

from tickwright.capabilities.fanout.entities.views import EntityModule, ModuleWindow

WindowState = Literal["open", "done", "partly", "missed", "idle"]


class MatrixWindow(ModuleWindow, kw_only=True):
    """One window of a module.

    Attributes:
        ends_at: Where the next one begins.
        state: ``open`` while it lies around now, ``done`` when it succeeded for as many entities as are polled now,
            ``partly``, ``missed`` when it did for none, ``idle`` where nothing came and nothing was to come,
            as before the module was there.
        published: Entities it was published for, of the last two windows: where PostgreSQL says who publishes. None
            for older ones; with Redis that is not known.
    """

    ends_at: datetime
    state: WindowState
    published: int | None


class ModuleWindows(msgspec.Struct, kw_only=True):
    """A module and its windows, the newest first.

    Attributes:
        expected: Entities that are polled for it now.
        last_success_window_at: The newest window in which a run succeeded.
        more: There are older windows in the range; 500 are shown.
    """

    name: str
    every: str
    paused: bool
    expected: int
    last_success_window_at: datetime | None
    windows: list[MatrixWindow]
    more: bool


class WindowMatrix(msgspec.Struct, kw_only=True):
    """Modules against windows."""

    at: datetime
    since: datetime
    modules: list[ModuleWindows]


class EntityStanding(msgspec.Struct, kw_only=True):
    """An entity and the modules that it is polled for."""

    code: str
    is_polling_enabled: bool
    partner: str | None
    modules: list[EntityModule]
