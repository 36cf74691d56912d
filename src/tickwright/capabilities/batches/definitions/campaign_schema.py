"""What is said of a campaign: the words that every batch has, an audience, an expression and an action.

::

    {"type": "AUTOMATIC", "date_time_execution": "2026-11-01T09:00", "time_zone": "Europe/Kyiv",
     "restartable": true, "restartable_unit": 6, "restartable_unit_type": "HOURS", "product_codes": ["LOAN"],
     "audience": {"source": "crm", "table": "clients", "key": "id", "fields": {"age": "int"}},
     "expression": "client.age > 25",
     "action": {"target": "python:apply",      # or https://… amqp:… kafka:… pg:…
                "release": "finished"}}        # or "chunk": as soon as a chunk is done

The words of every batch are in :mod:`tickwright.capabilities.batches.definitions.schema`, those of an audience in
:mod:`..audience.schema`. Every mistake is named at once; one in the expression with its place.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tickwright.capabilities.batches.audience.schema import AudienceTerms, read_audience
from tickwright.capabilities.batches.definitions.problems import Problems
from tickwright.capabilities.batches.definitions.schema import Terms, destination, terms_of, words_for
from tickwright.capabilities.batches.definitions.store import Draft
from tickwright.domain.errors import Rejected
from tickwright.domain.wording import one_of
from tickwright.ports.batches import FieldType, Judge

Allow = Callable[[str], None]
OWN = ("audience", "expression", "action")


class Campaign(NamedTuple):
    """A campaign whose every word has been read; its source has not been asked.

    Attributes:
        draft: What is written.
        judge: The expression, over the fields of ``audience``.
    """

    draft: Draft
    audience: AudienceTerms
    judge: Judge


class Selection(NamedTuple):
    """Whom a campaign is about; ``None`` for a part that has a mistake."""

    audience: AudienceTerms | None
    judge: Judge | None


def read_campaign(document: Any, problems: Problems, allow: Allow) -> tuple[Campaign | None, AudienceTerms | None]:
    """Return the campaign that ``document`` describes, or ``None`` and every mistake in ``problems``.

    Takes up to 100 ms, in which the expression is compiled.

    Args:
        document: Its words, without its name.
        problems: Gets what is wrong.
        allow: Refuses a destination that could never be sent to.

    Returns:
        The campaign, and beside it its audience, which may be right where the campaign is not.
    """
    if not isinstance(document, Mapping):
        problems.add("", "write an object with the words of a campaign")
        return None, None
    rest = {name: value for name, value in document.items() if name not in OWN}
    values = problems.read(rest, words_for(allow))
    selection = read_selection(document, problems)
    action = _action(document, problems, allow)
    terms = terms_of(values, problems)
    if terms is None or selection.audience is None or selection.judge is None:
        return None, selection.audience
    return Campaign(_draft(terms, document, action), selection.audience, selection.judge), selection.audience


def read_selection(document: Mapping[str, Any], problems: Problems) -> Selection:
    """Return whom ``document`` is about, and add what is wrong with its audience and its expression to ``problems``."""
    audience = judge = None
    if document.get("audience") is None:
        problems.add("audience", "missing; say where the clients are")
    else:
        try:
            audience = read_audience(document["audience"])
        except Rejected as error:
            problems.of(error, "audience")
    text = document.get("expression")
    if not isinstance(text, str):
        problems.add("expression", 'missing; write one, such as "client.age > 25"; true selects everybody')
    elif audience is not None:
        try:
            judge = _compiled(text, audience.types)
        except Rejected as error:
            problems.of(error, "expression")
    else:
        _read_alone(text, problems)
    return Selection(audience, judge)


def _read_alone(text: str, problems: Problems) -> None:
    """An expression beside a wrong audience: what is wrong with it whatever the fields are."""
    try:
        _compiled(text, _NO_FIELDS)
    except Rejected as error:
        if error.code not in {"unknown_field", "expression_type", "expression_not_boolean"}:
            problems.of(error, "expression")


_NO_FIELDS: Mapping[str, FieldType] = {}


def _compiled(text: str, fields: Mapping[str, FieldType]) -> Judge:
    """Only who reads a definition loads CEL."""
    from tickwright.capabilities.batches.expressions import compile_expression

    return compile_expression(text, fields)


def _action(document: Mapping[str, Any], problems: Problems, allow: Allow) -> dict[str, Any]:
    said = document.get("action")
    if not isinstance(said, Mapping):
        problems.add("action", 'missing; write an object, such as {"target": "python:apply"}')
        return {}
    readers = {"target": destination(allow), "release": one_of("finished", "chunk")}
    values = problems.read(said, readers, inside="action")
    if "target" not in said:
        problems.add("action.target", 'missing; write a destination, such as "https://…" or "python:apply"')
    return {"target": values.get("target"), "release": values.get("release", "finished")}


def _draft(terms: Terms, document: Mapping[str, Any], action: Mapping[str, Any]) -> Draft:
    own = {"audience": document["audience"], "expression": document["expression"], "action": dict(action)}
    return Draft(terms, own)
