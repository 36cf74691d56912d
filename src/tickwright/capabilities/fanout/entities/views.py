"""The answers of the REST API and of ``--json``: entities, modules, both against windows, and dead letters."""

from datetime import datetime
from typing import Any, ClassVar, Literal, Self

import msgspec

from tickwright.capabilities.fanout.entities.requests import masked_hosts
from tickwright.ports.user_data import Doors, UserData
from tickwright.ports.views import Reason


class EntityView(msgspec.Struct, kw_only=True):
    """An entity without its party.

    Attributes:
        polling_enabled_modules: Names with commas between, as the column has them.
        partner: Whose limits and breaker calls to this entity keep to.
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
    """What became of polling an entity for one module. Runs that the database does not have yet are missing.

    Attributes:
        known: Whether there is such a module; no entity is polled for one that is unknown.
        every: Length of a window; none where the module is unknown, as the windows.
        paused: The module is, for every entity.
        last_window_at: The newest window that ran with success.
        last_success_at: When that run began: ``LastExecutedAt`` of the next one.
        running_since: When the current run began.
        running_window_at: Its window.
        failures: Runs that failed since the last success.
        window_at: The current window.
        next_window_at: Where the next one begins.
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
        party: Goes into messages as it is. A secret that was written into it by SQL is shown as ``***``.
        modules: Those that it is polled for, in its order, and others that it was polled for once.
    """

    USER_DATA: ClassVar[tuple[str, ...]] = ("party",)
    party: Any
    modules: list[EntityModule]
    payload_hidden: bool = False

    def masked(self) -> Self:
        """Return it with no more of the addresses in its party than their hosts."""
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
    """What entities are polled for.

    Attributes:
        every: Length of a window.
        timeout: Of one run.
        gated: Polled only where a scheduler's environment says ``ENABLE_<NAME>_POLLING=true``.
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
    """What became of one window of a module, as consumers have counted it.

    Attributes:
        failed: Runs that failed, those that were tried again included.
        superseded: Messages that came when a newer window had run already.
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
        entities: That are polled for it.
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
        ends_at: Where the next one begins.
        state: ``open`` while it is the current one, ``done`` when it succeeded for as many entities as are polled now,
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


class DeadTaskView(msgspec.Struct, UserData, kw_only=True):
    """A task that was given up.

    Attributes:
        id: Of the message; none where it has none, and then it is requeued with ``all`` only.
        entity_code: As far as the body can be read, as ``task_type``.
        reason: Why, as a code: ``delivery_limit``, ``rejected`` or ``expired`` where RabbitMQ moved it by itself.
        body: At most 64 KiB, escaped; what looks like a secret is ``***``.
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
