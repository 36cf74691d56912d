"""The parts that plugins name exist and are what the methods of the contract promise."""

from collections.abc import Callable
from inspect import iscoroutinefunction
from pkgutil import resolve_name
from typing import Any

import pytest

from tickwright.observe.alerts import AlertRule
from tickwright.observe.metrics import MetricSpec
from tickwright.plugin import Plugin
from tickwright.plugin.overview import OverviewPart
from tickwright.process.plugins import PLUGINS

CHECKS: dict[str, Callable[[Any], bool]] = {
    "metrics": lambda part: all(isinstance(one, MetricSpec) for one in part),
    "overview": lambda part: issubclass(part, OverviewPart),
    "alert_rules": lambda part: all(isinstance(one, AlertRule) for one in part),
    "holdings": lambda part: isinstance(part, tuple) and all(isinstance(one, str) for one in part),
    "reclaim": iscoroutinefunction,
    "examine": iscoroutinefunction,
    "schemas": lambda part: isinstance(part, tuple) and part != (),
}


@pytest.mark.parametrize("plugin", PLUGINS, ids=lambda plugin: plugin.name)
def test_every_part_that_a_plugin_names_exists(plugin: Plugin) -> None:
    """A wrong name would only be found when a process needs the part."""
    for name, place in plugin.parts.items():
        assert CHECKS[name](resolve_name(place)), (name, place)
        assert getattr(type(plugin), name) is getattr(Plugin, name), f"{name} is also a method"
    assert all(callable(check) for check in plugin.config_tables().values())
