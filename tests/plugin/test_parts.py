"""The parts that plugins name exist and are what the methods of the contract promise."""

from collections.abc import Callable
from inspect import iscoroutinefunction
from pkgutil import resolve_name
from types import MappingProxyType
from typing import Any

import pytest

from tickwright.domain.errors import Rejected
from tickwright.observe.alerts import AlertRule
from tickwright.observe.metrics import MetricSpec
from tickwright.plugin import Plugin
from tickwright.plugin.contract import PARTS
from tickwright.plugin.overview import OverviewPart
from tickwright.process import plugins
from tickwright.process.plugins import PLUGINS

CHECKS: dict[str, Callable[[Any], bool]] = {
    "metrics": lambda part: all(isinstance(one, MetricSpec) for one in part),
    "overview": lambda part: issubclass(part, OverviewPart),
    "alert_rules": lambda part: all(isinstance(one, AlertRule) for one in part),
    "holdings": lambda part: isinstance(part, tuple) and all(isinstance(one, str) for one in part),
    "reclaim": iscoroutinefunction,
    "examine": iscoroutinefunction,
}


@pytest.mark.parametrize("plugin", PLUGINS, ids=lambda plugin: plugin.name)
def test_every_part_that_a_plugin_names_exists(plugin: Plugin) -> None:
    """A wrong name would only be found when a process needs the part."""
    for name, place in plugin.parts.items():
        assert CHECKS[name](resolve_name(place)), (name, place)
        assert getattr(type(plugin), name) is getattr(Plugin, name), f"{name} is also a method"
    assert all(callable(check) for check in plugin.config_tables().values())


def test_every_part_has_a_check_here() -> None:
    """A part that is added to the contract is checked, too."""
    assert CHECKS.keys() == PARTS


@pytest.mark.parametrize("place", ["missing_of_greetings:PART", "json:missing", "a part"])
def test_a_part_that_cannot_be_imported_names_its_plugin(place: str) -> None:
    """The operator sees which package to repair."""

    class Broken(Plugin):
        name = "broken"
        parts = MappingProxyType({"metrics": place})

    with pytest.raises(Rejected, match=f"plugin broken: '{place}' cannot be imported") as refused:
        Broken().metrics()
    assert refused.value.code == "invalid_plugin"


def test_a_part_that_does_not_exist_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its figures would be missing without an error."""

    class Misspelt(Plugin):
        name = "misspelt"
        parts = MappingProxyType({"metric": "json:loads"})

    monkeypatch.setattr(plugins, "_plugins", lambda: iter([("here", Misspelt())]))
    with pytest.raises(Rejected, match="here: there is no part 'metric'; parts are alert_rules, ") as refused:
        plugins.load_plugins()
    assert refused.value.code == "invalid_plugin"
