"""Views of fan-out, for the REST API and ``--json``: entities, modules, both against windows, and dead letters."""

from datetime import datetime
from typing import Any, ClassVar, Literal, Self

import msgspec

from tickwright.capabilities.fanout.entities.requests import masked_hosts
from tickwright.ports.user_data import Doors, UserData
from tickwright.ports.views import Reason


class EntityView(msgspec.Struct, kw_only=True):
    """An entity without its party.

    Attributes:
        polling_enabled_modules: Names with commas between, as in the column.
        partner: Its limits and breaker apply to calls for this entity.
        config_version: One more with each change of the row; messages carry it.
    """

    code: str
    is_polling_enabled: bool
    polling_enabled_modules: str
    partner: str | None
    config_version: int
    created_at: datetime
    updated_at: datetime


class EntityModule(msgspec.Struct, kw_only=True):
    """Results of one entity for one module. Runs that are not written to the database yet are missing.

    Attributes:
        known: Whether the module exists; no entity is polled for an unknown one.
        every: Length of a window; null for an unknown module, as are the windows.
        paused: The module is paused for every entity.
        last_window_at: The newest window with a successful run.
        last_success_at: When that run began: ``LastExecutedAt`` of the next one.
        running_window_at: Window of the current run.
        failures: Failed runs since the last success.
    """

    name: str
    known: bool
    every: str | None
    paused: bool
    last_window_at: datetime | None
    last_success_at: datetime | None
    running_since: datetime | None
    running_window_at: datetime | None
    failures: int
    last_error: str | None
    last_error_at: datetime | None
    window_at: datetime | None
    next_window_at: datetime | None


class EntityDetail(EntityView, UserData, Doors, kw_only=True):
    """One entity.

    Attributes:
        party: Messages contain it unchanged. A secret that was written into it by SQL is shown as ``***``.
        modules: Those that it is polled for, in its order, then others that it was polled for before.
    """

    USER_DATA: ClassVar[tuple[str, ...]] = ("party",)
    party: Any
    modules: list[EntityModule]
    payload_hidden: bool = False

    def masked(self) -> Self:
        """Return it with only the hosts of the addresses in its party."""
        if not isinstance(self.party, msgspec.Raw):
            return self
        return msgspec.structs.replace(self, party=msgspec.Raw(masked_hosts(bytes(self.party).decode()).encode()))


class StoredEntity(msgspec.Struct):
    """The answer to a put."""

    entity: EntityView
    created: bool


class EntityExplanation(msgspec.Struct):
    """Why an entity is polled for a module now, or is not; ``status`` is not_polled, running, failing, ran or due."""

    entity: str
    module: str
    status: str
    summary: str
    reasons: list[Reason]


class ModuleView(msgspec.Struct, kw_only=True):
    """A module: what entities are polled for.

    Attributes:
        gated: Published only by schedulers that have ``ENABLE_<NAME>_POLLING=true`` in their environment.
        set_by: ``default``, ``app``, ``operator`` or ``sql``; a program replaces the first two only.
        paused_at: Since when no entity is polled for it.
    """

    name: str
    every: str
    timeout: str
    gated: bool
    set_by: str
    paused_at: datetime | None
    created_at: datetime
    updated_at: datetime


class ModuleWindow(msgspec.Struct, kw_only=True):
    """Consumers' counts of one window of a module.

    Attributes:
        failed: Failed runs, those that were retried included.
        superseded: Messages that arrived when a newer window had run already.
        expired: Messages dropped after the window's end without a success.
    """

    window_at: datetime
    succeeded: int
    failed: int
    superseded: int
    expired: int


class ModuleDetail(ModuleView, kw_only=True):
    """One module.

    Attributes:
        entities_stale: Of these, without a success for three windows, as the alert ``fanout_stale`` counted last.
        windows: The current one, and the three before it.
    """

    entities: int
    entities_stale: int
    windows: list[ModuleWindow]


class StoredModule(msgspec.Struct):
    """The answer to a put."""

    module: ModuleView
    created: bool


WindowState = Literal["open", "done", "partly", "missed", "idle"]


class MatrixWindow(ModuleWindow, kw_only=True):
    """One window of a module.

    Attributes:
        ends_at: Start of the next one.
        state: ``open`` for the current one; ``done`` when it succeeded for as many entities as are polled now,
            ``partly`` for fewer, ``missed`` for none; ``idle`` when there was nothing to poll and no message, as before
            the module existed.
        published: Entities it was published for, of the last two windows, when marks are in PostgreSQL. Null for older
            ones, and with Redis.
    """

    ends_at: datetime
    state: WindowState
    published: int | None


class ModuleWindows(msgspec.Struct, kw_only=True):
    """A module and its windows, the newest first.

    Attributes:
        expected: Entities that are polled for it now.
        last_success_window_at: The newest window with a successful run.
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


class DeadTaskView(msgspec.Struct, UserData, kw_only=True):
    """A dead-lettered task.

    Attributes:
        id: Of the message; null if it has none: then only ``all`` requeues it.
        entity_code: If the body can be read, as ``task_type``.
        reason: A code; ``delivery_limit``, ``rejected`` or ``expired`` if RabbitMQ itself moved it.
        body: At most 64 KiB, escaped; values that look like secrets are ``***``.
    """

    USER_DATA: ClassVar[tuple[str, ...]] = ("body",)
    id: str | None
    entity_code: str | None
    task_type: str | None
    reason: str
    error_message: str
    died_at: datetime | None
    body: str | None
    payload_hidden: bool = False


class DeadTaskPage(msgspec.Struct):
    """The oldest dead letters, and how many there are in all."""

    items: list[DeadTaskView]
    count: int
