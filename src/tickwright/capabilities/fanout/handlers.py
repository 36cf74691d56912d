"""The functions of modules, as programs register them: called once per entity and window."""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeAlias

from tickwright.domain.errors import Rejected
from tickwright.domain.secrets import SecretsFor, destination_of, destinations_of, resolve_references
from tickwright.engine.registry import Registry


@dataclass(frozen=True, slots=True)
class EntityTask:
    """One entity, polled for one module in one window.

    Attributes:
        id: Of the message; equal on every attempt.
        party: The entity's document when the message was sent; secrets in it are references.
        last_executed_at: When the last successful run began: fetch what has changed since then. ``None`` for the first
            one.
        drop_dead_at: End of the window; no run begins after it.
        timeout: The run is cancelled after it.
        fence: Higher with each run of this entity and module; a store of the fetched data can refuse older ones.
    """

    id: str
    entity_code: str
    task_type: str
    party: Mapping[str, Any]
    last_executed_at: datetime | None
    window_at: datetime
    drop_dead_at: datetime
    timeout: timedelta
    config_version: int
    fence: int
    secrets: SecretsFor = field(repr=False, compare=False)

    def resolve(self, document: Any, *, to: str | None = None) -> Any:
        """Return ``document``, part of the party, with its ``${env:NAME}`` and ``${file:NAME}`` resolved, for one call.

        A party comes from a row, so a secret is resolved only if it may be sent to every address in the party. Pass
        ``to``, the URL of the call, if the party has other addresses or lacks this one. Then the secret must be bound
        to it only.

        Raises:
            Rejected: ``secret_not_declared``, ``secret_host_not_allowed``, ``secret_host_unknown``,
                ``invalid_secret_hosts``, ``secret_unreadable``. Retry when the operator has declared it.
        """

        def find(name: str) -> str | None:
            where = destinations_of(self.party) if to is None else (destination_of(to),)
            return self.secrets(where)(name)

        return resolve_references(document, find)


Handler: TypeAlias = Callable[[EntityTask], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class DeclaredModule:
    """A module that a program declares.

    Attributes:
        settings: Those of ``every``, ``timeout``, ``gated`` that were given, checked.
    """

    name: str
    settings: Mapping[str, Any]
    function: Handler


class ModuleRegistry(Registry[DeclaredModule]):
    """The module handlers of one program, by the module's name."""

    kind = "module"

    def _check(self, declared: DeclaredModule) -> None:
        if not inspect.iscoroutinefunction(declared.function):
            raise Rejected("invalid_module", f"{declared.name}: the function must be async")
