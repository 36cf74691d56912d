"""The states and the fields of a campaign on the page of campaigns are those of the code."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

from tickwright.capabilities.batches.definitions.campaigns import CAMPAIGN_FIELDS, read_campaign
from tickwright.capabilities.batches.definitions.schema import Mistakes, field_readers
from tickwright.capabilities.batches.executions.states import BATCH_RULES, EXECUTION_RULES, TRANSITIONS, Refused, Rule

PAGE = Path(__file__).parents[2] / "docs/campaigns.md"
BEGIN, END = "<!-- states: begin, from capabilities/batches/executions/states.py -->", "<!-- states: end -->"
_YES_NO: Mapping[str, tuple[str, str]] = {
    "is_open": ("an execution is open", "none is open"),
    "is_going_on": ("an execution is open, or still releases", "none is open or still releases"),
    "is_same": ("the definition is the same", "the definition differs"),
    "has_next": ("an occurrence is left", "no occurrence is left"),
    "is_paused": ("it is paused", "it is not paused"),
    "goes_on": ("it goes on", "it has ended"),
}


def states_text() -> str:
    """Return the diagram and the tables of ``docs/campaigns.md`` in Markdown."""
    return "\n".join((*_diagram(), "", *_table("a batch", BATCH_RULES), "", *_table("an execution", EXECUTION_RULES)))


def _diagram() -> Iterator[str]:
    yield from ("```mermaid", "stateDiagram-v2", "    [*] --> NEW : an occurrence, start")
    for old, targets in TRANSITIONS.items():
        for new, why in targets.items():
            yield f"    {old} --> {new} : {why}"
    yield "```"


def _table(what: str, rules: Sequence[Rule[Any]]) -> Iterator[str]:
    yield from (f"| to {what} | where | effect |", "|---|---|---|")
    for rule in rules:
        where = ", ".join(_condition(name, values) for name, values in rule.when.items())
        yield f"| {rule.action} | {where or '–'} | {_effect_text(rule.effect)} |"


def _condition(name: str, values: frozenset[Any]) -> str:
    if name in _YES_NO:
        return _YES_NO[name][0 if True in values else 1]
    members: type[StrEnum] = type(next(iter(values)))
    names = " ".join(f"`{member}`" for member in members if member in values)
    return names if name in {"type", "status"} else f"{name} {names}"


def _effect_text(effect: Any) -> str:
    if isinstance(effect, Refused):
        return f"refused: `{effect.code.format(noun='campaign')}` ({effect.advice})"
    return str(effect.text)


def test_the_states_on_the_page_are_the_rules_of_the_code() -> None:
    """Diagram and tables, character by character: copy ``states_text()`` between the marks where they differ."""
    [shown] = [part.partition(END)[0] for part in PAGE.read_text(encoding="utf-8").split(BEGIN)[1:]]
    assert shown.strip("\n") == states_text()


def test_the_fields_on_the_page_are_those_that_are_read() -> None:
    """Every field has its line, with the default of the code."""
    said = PAGE.read_text(encoding="utf-8").partition("| word |")[2].partition("\n\n")[0]
    lines = dict(re.findall(r"^\| `(\w+)` \|.*\| (.+) \|$", said, re.MULTILINE))
    assert set(lines) == {"name", *field_readers(lambda _: None), *CAMPAIGN_FIELDS}
    shown = {"skip": "overlap", "one": "misfire", "1m": "misfire_grace", "UTC": "time_zone", "false": "restartable"}
    assert {lines[field].strip("`"): field for field in shown.values()} == shown


def test_the_campaign_on_the_page_is_valid() -> None:
    """It is read without a mistake, and fields that it leaves out have their defaults."""
    text, *_ = re.findall(r"^```json\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    definition = json.loads(text)
    assert definition.pop("name") == "loans"
    mistakes = Mistakes("campaign")
    campaign, _ = read_campaign(definition, mistakes, lambda _: None)
    assert (mistakes.found, campaign is None) == ([], False)
    assert campaign is not None
    settings = campaign.settings
    assert (settings.chunk_rows, settings.misfire_max, settings.attempts) == (5_000, 100, 10)
