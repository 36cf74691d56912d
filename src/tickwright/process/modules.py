"""Modules in one process: what the program brings and what the TOML file says become rows."""

from collections.abc import Mapping
from typing import Any

from tickwright.capabilities.fanout.entities.modules import Modules
from tickwright.capabilities.fanout.handlers import ModuleRegistry
from tickwright.ports.caller import Caller, Role
from tickwright.store.pool import Pool

_PROGRAM = Caller("python", Role.ADMIN)
_FILE = Caller("config", Role.ADMIN)


async def register_modules(pool: Pool, registry: ModuleRegistry, from_file: Mapping[str, Mapping[str, Any]]) -> None:
    """Register what the program brings where nobody has set it up by hand, and set what the TOML file says.

    What neither says of a module stays as it is. What is so already is written nowhere, not even in the audit trail.

    Raises:
        Rejected: ``invalid_module``. Permanent.
    """
    modules = Modules(pool)
    for declared in registry.all():
        await modules.declare(declared.name, declared.settings, caller=_PROGRAM)
    for name, table in from_file.items():
        await modules.set(name, table, caller=_FILE)
