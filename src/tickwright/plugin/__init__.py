"""The contract between the product and what it is made of: README.md describes a plugin, its order and its limits.

A plugin is one object that says what the product needs to know of a capability, a transport or another part: the
settings it reads, what it provides, what it registers, the services and routes it adds. ``process`` loops over plugins
and knows none by name. Adding one means a folder with a ``plugin.py`` and one line in ``process.plugins``, or an
installed package with the entry point ``tickwright.capabilities``.
"""

from tickwright.plugin.context import Context, Ports
from tickwright.plugin.contract import Ownership, Plugin
from tickwright.plugin.registrations import Registrations
from tickwright.plugin.settings import Settings, SettingsPart

__all__ = ["Context", "Ownership", "Plugin", "Ports", "Registrations", "Settings", "SettingsPart"]
