"""The plugins of this installation, in the order in which they are called and started, and their roles."""

from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points

from tickwright.domain.errors import Rejected
from tickwright.plugin import Plugin
from tickwright.plugin.contract import PARTS

ENTRY_POINT = "tickwright.capabilities"
BUILT_IN = (
    "transports.http",
    "transports.websocket",
    "transports.rabbitmq",
    "transports.kafka",
    "transports.postgres",
    "transports.redis",
    "transports.objectstore",
    "sources",
    "partners",
    "capabilities.jobs",
    "capabilities.operations",
    "capabilities.polling",
    "capabilities.fanout",
    "capabilities.reports",
    "capabilities.batches",
)
"""Packages whose ``plugin.py`` has a ``PLUGIN``. If two offer one port, the first is used."""


def load_plugins() -> tuple[Plugin, ...]:
    """Return the plugins of the product and of installed packages.

    Raises:
        Rejected: ``invalid_plugin``: an installed package cannot be imported or has no plugin at its entry point, the
            name of its plugin is taken, or it names an unknown part. Permanent until it is repaired or removed.
    """
    found: dict[str, Plugin] = {}
    for origin, plugin in _plugins():
        if not isinstance(plugin, Plugin):
            raise Rejected("invalid_plugin", f"{origin} is not a tickwright.plugin.Plugin: {plugin!r}")
        if plugin.name in found:
            raise Rejected("invalid_plugin", f"{origin}: there is a plugin named {plugin.name!r} already")
        if unknown := plugin.parts.keys() - PARTS:
            says = f"{origin}: there is no part {min(unknown)!r}; parts are {', '.join(sorted(PARTS))}"
            raise Rejected("invalid_plugin", says)
        found[plugin.name] = plugin
    return tuple(found.values())


def _plugins() -> Iterator[tuple[str, object]]:
    for package in BUILT_IN:
        yield package, import_module(f"tickwright.{package}.plugin").PLUGIN
    for point in entry_points(group=ENTRY_POINT):
        yield f"{ENTRY_POINT}: {point.name} = {point.value}", _loaded(point)


def _loaded(point: EntryPoint) -> object:
    try:
        return point.load()
    except Exception as error:
        raise Rejected("invalid_plugin", f"{ENTRY_POINT}: {point.name} = {point.value} fails: {error!r}") from error


PLUGINS = load_plugins()
API_ROLE = "api"
ROLES = (*(role for plugin in PLUGINS for role in plugin.roles), API_ROLE)


def check_roles(roles: Sequence[str]) -> tuple[str, ...]:
    """Return ``roles`` without repetition.

    Raises:
        Rejected: ``unknown_role``. Permanent.
    """
    for role in roles:
        if role not in ROLES:
            raise Rejected("unknown_role", f"there is no role {role!r}; roles: {', '.join(ROLES)}")
    return tuple(dict.fromkeys(roles))
