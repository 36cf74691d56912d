"""The dashboard of Grafana: it queries metrics that exist, by labels that they have, and describes what it shows."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from kit.prometheus import DEPLOY, METRICS, RULES
from tickwright.observe.metrics import MetricSpec

BOARD = json.loads((DEPLOY / "grafana/tickwright.json").read_text())
SPECS = {spec.name: spec for spec in METRICS}
EVERYWHERE = {"instance", "job"}
UNITS = {"short", "s", "ops", "percentunit", "bool_yes_no"}


def panels() -> Iterator[dict[str, Any]]:
    """Every panel that shows something."""
    return (panel for panel in BOARD["panels"] if panel["type"] != "row")


def spec_of(name: str) -> MetricSpec:
    """Return the metric that a name of a query belongs to."""
    return SPECS.get(name) or SPECS[re.sub(r"_(bucket|count|sum)$", "", name)]


def labels_of(name: str) -> set[str]:
    """Return the labels that a series of this name has."""
    spec = spec_of(name)
    return {*spec.labels, *EVERYWHERE, *({"le"} if spec.kind == "histogram" else ())}


def test_every_panel_says_what_it_shows_and_in_which_unit() -> None:
    """A title of its own within its row, a description, a unit that Grafana knows; and no two at one place."""
    places: set[tuple[int, int]] = set()
    titles: set[tuple[str, str]] = set()
    row = ""
    for panel in BOARD["panels"]:
        if panel["type"] == "row":
            row = panel["title"]
            continue
        assert panel["title"], panel["id"]
        assert (row, panel["title"]) not in titles
        titles.add((row, panel["title"]))
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS, panel["title"]
        assert panel["targets"], panel["title"]
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & places, panel["title"]
        assert max(x for x, _ in cells) < 24, panel["title"]
        places |= cells
    ids = [panel["id"] for panel in BOARD["panels"]]
    assert len(ids) == len(set(ids))


def test_every_query_asks_for_metrics_and_labels_that_exist() -> None:
    """Names, selectors, groupings and legends; a recorded one is a rule of ours."""
    recorded = set(re.findall(r"- record: (\S+)", RULES.read_text()))
    for panel in panels():
        for target in panel["targets"]:
            text = target["expr"]
            names = set(re.findall(r"\btickwright_\w+", text))
            assert set(re.findall(r"\btickwright:[\w:]+", text)) <= recorded, text
            known = set().union(*(labels_of(name) for name in names)) if names else EVERYWHERE
            for name, selector in re.findall(r"\b(tickwright_\w+)\{([^}]*)\}", text):
                assert set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector)) <= labels_of(name), (name, selector)
            grouped = ",".join(re.findall(r"\b(?:by|on|group_left) \(([^)]*)\)", text))
            assert set(re.findall(r"\w+", grouped)) <= known, text
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= known, text


def test_every_metric_of_the_contract_is_on_it() -> None:
    """An operator who imports it sees all metrics."""
    used = {spec_of(name).name for name in re.findall(r"\btickwright_\w+", json.dumps(BOARD))}
    assert used == SPECS.keys()


def test_it_queries_the_prometheus_that_is_chosen_when_it_is_imported() -> None:
    """The data source is a variable, everywhere; nothing of the machine that it was made on is left."""
    [source] = [one for one in BOARD["templating"]["list"] if one["type"] == "datasource"]
    assert (source["name"], source["query"]) == ("datasource", "prometheus")
    for panel in panels():
        for one in (panel, *panel["targets"]):
            assert one["datasource"] == {"type": "prometheus", "uid": "${datasource}"}, panel["title"]
    assert BOARD["id"] is None
    named = set(re.findall(r"\$\{?(\w+)", json.dumps([panel["targets"] for panel in panels()])))
    assert named == {one["name"] for one in BOARD["templating"]["list"]} | {"__rate_interval"}


@pytest.mark.parametrize("variable", ["instance", "task_type"])
def test_a_choice_of_the_dashboard_is_a_label(variable: str) -> None:
    """What can be chosen from is what a metric has."""
    [chosen] = [one for one in BOARD["templating"]["list"] if one["name"] == variable]
    found = re.fullmatch(r"label_values\((\w+), (\w+)\)", chosen["query"]["query"])
    assert found is not None
    assert found[2] == variable
    assert variable in labels_of(found[1])
