"""The rules of :mod:`.states` as a page shows them: a diagram and two tables, in Markdown.

``docs/campaigns.md`` has this text between two marks; a test of the page says when it differs.
"""

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any

from tickwright.capabilities.batches.executions.states import BATCH_RULES, EXECUTION_RULES, TRANSITIONS, Refused, Rule

BEGIN, END = "<!-- states: begin, from capabilities/batches/executions/states.py -->", "<!-- states: end -->"
_YES_NO: Mapping[str, tuple[str, str]] = {
    "is_open": ("an execution is open", "none is open"),
    "is_going_on": ("an execution is open, or still releases", "none is open or still releases"),
    "is_same": ("the terms are the same", "the terms differ"),
    "has_next": ("an occurrence is left", "no occurrence is left"),
    "is_paused": ("it is paused", "it is not paused"),
    "goes_on": ("it goes on", "it has ended"),
}


def states_text() -> str:
    """Return the diagram and the tables."""
    return "\n".join((*_diagram(), "", *_table("a batch", BATCH_RULES), "", *_table("an execution", EXECUTION_RULES)))


def _diagram() -> Iterator[str]:
    yield from ("```mermaid", "stateDiagram-v2", "    [*] --> NEW : an occurrence, start")
    for old, news in TRANSITIONS.items():
        for new, why in news.items():
            yield f"    {old} --> {new} : {why}"
    yield "```"


def _table(what: str, rules: Sequence[Rule[Any]]) -> Iterator[str]:
    yield from (f"| to {what} | where | what comes of it |", "|---|---|---|")
    for rule in rules:
        where = ", ".join(_condition(name, values) for name, values in rule.when.items())
        yield f"| {rule.action} | {where or '–'} | {_comes(rule.comes)} |"


def _condition(name: str, values: frozenset[Any]) -> str:
    if name in _YES_NO:
        return _YES_NO[name][0 if True in values else 1]
    words = " ".join(f"`{value}`" for value in _in_order(values))
    return words if name in {"type", "status"} else f"{name} {words}"


def _in_order(values: frozenset[StrEnum]) -> list[StrEnum]:
    return [member for member in type(next(iter(values))) if member in values]


def _comes(comes: Any) -> str:
    if isinstance(comes, Refused):
        return f"refused: `{comes.code.format(noun='campaign')}` ({comes.advice})"
    return str(comes.says)
