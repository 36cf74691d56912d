"""The contract between the product and its parts. docs/plugins.md describes how to write one.

A plugin is one object that declares what the product needs to know of a capability, a transport or another part: its
settings, what it provides and registers, its services and routes. ``process`` loops over plugins and knows none by
name. To add one, add a folder with a ``plugin.py`` and one line in ``process.plugins``, or install a package with the
entry point ``tickwright.capabilities``.
"""

from tickwright.plugin.context import Context, Ports
from tickwright.plugin.contract import Ownership, Plugin
from tickwright.plugin.registrations import Registrations
from tickwright.plugin.settings import Settings, SettingsPart

__all__ = ["Context", "Ownership", "Plugin", "Ports", "Registrations", "Settings", "SettingsPart"]
