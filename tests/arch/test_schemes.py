"""Every list of destination schemes has the same ones: those of ``domain/targets.py``.

Places that cannot import it: the SQL of the outbox, the dashboard, docstrings and pages.
"""

import re
from pathlib import Path
from typing import get_args

import pytest

import tickwright
from kit.broker_sides import SIDES
from tickwright.domain.masking import masked_address
from tickwright.domain.targets import (
    DESTINATION_SCHEMES,
    FORMS,
    FORMS_SHOWN,
    WEB_PORTS,
    Target,
    WebTarget,
    is_internal,
    parse_target,
)

ROOT = Path(tickwright.__file__).parent
DOCS = ROOT.parents[1] / "docs"
MIGRATIONS = sorted((ROOT / "store/migrations/versions").glob("*.sql"))
WITHOUT_HOST = DESTINATION_SCHEMES - WEB_PORTS.keys()
EXAMPLES = {scheme: form.replace("…", "example.com") for scheme, form in FORMS.items()}
IS_TAKEN, IS_WITHOUT_HOST = r"destination !~ '\^\(([^)]+)\):'", r"destination ~ '\^\(([^)]+)\):'"
SHOWN = {
    ROOT / "ports/broker.py": r"destination: (``https.+)",
    ROOT / "app/program.py": r"destination: (``https.+)",
    ROOT / "dashboard/web/src/views/task-types/TypeForm.tsx": r'"Target", "(.+)"',
    DOCS / "glossary.md": r"\| \*\*destination\*\* \|(.+)",
}
"""Texts that show how a destination is written."""


def schemes_of(pattern: str, text: str) -> set[str]:
    """Return the schemes of the last regular expression that ``pattern`` finds in a text, such as ``wss?|amqp``."""
    found = re.findall(pattern, text)[-1].split("|")
    return {name for one in found for name in ([one[:-2], one[:-1]] if one.endswith("?") else [one])}


def test_each_scheme_has_a_form_that_is_parsed() -> None:
    """The forms are those of the grammar: none is missing, and none is refused."""
    parsed = {scheme: parse_target(text) for scheme, text in EXAMPLES.items()}
    assert {scheme: one.scheme for scheme, one in parsed.items()} == dict(zip(FORMS, FORMS, strict=True))
    assert {type(one) for one in parsed.values()} == set(get_args(Target))
    assert {scheme for scheme, one in parsed.items() if isinstance(one, WebTarget)} == WEB_PORTS.keys()


def test_each_broker_is_held_to_the_contract() -> None:
    """``tests/transports/test_brokers.py`` runs on every transport with a broker."""
    assert {path.parent.name for path in (ROOT / "transports").glob("*/broker.py")} == {*SIDES}


def test_the_outbox_takes_from_sql_what_a_relay_sends() -> None:
    """The trigger of the newest migration that has one refuses every other scheme."""
    text = "".join(path.read_text(encoding="utf-8") for path in MIGRATIONS)
    assert schemes_of(IS_TAKEN, text) == DESTINATION_SCHEMES
    assert schemes_of(IS_WITHOUT_HOST, text) == WITHOUT_HOST


def test_names_of_the_product_are_internal_in_every_scheme_that_has_names() -> None:
    """Python refuses what the function in SQL refuses; a new scheme of names cannot be forgotten."""
    own = {
        scheme: parse_target(re.sub(":[A-Z]+", ":tickwright.own", EXAMPLES[scheme])) for scheme in DESTINATION_SCHEMES
    }
    assert {scheme for scheme, target in own.items() if is_internal(target, ["tickwright"])} == WITHOUT_HOST


@pytest.mark.parametrize("scheme", sorted(FORMS.keys() - WEB_PORTS.keys()))
def test_a_destination_without_a_host_is_shown_whole(scheme: str) -> None:
    """It names an exchange, a topic or a function and has no place for a secret."""
    assert masked_address(EXAMPLES[scheme]) == EXAMPLES[scheme]


def test_the_search_of_the_dashboard_knows_what_a_relay_sends_to() -> None:
    """A destination that is typed there finds its messages."""
    text = (ROOT / "dashboard/web/src/views/outbox/view.ts").read_text(encoding="utf-8")
    assert schemes_of(r"/\^\(([^)]+)\):/", text) == DESTINATION_SCHEMES


@pytest.mark.parametrize("path", SHOWN, ids=lambda path: path.name)
def test_texts_that_show_destinations_show_every_one(path: Path) -> None:
    """In the same form as the command line does."""
    [said] = re.findall(SHOWN[path], path.read_text(encoding="utf-8"))
    only_of_jobs = {FORMS[scheme] for scheme in FORMS.keys() - DESTINATION_SCHEMES}
    shown = {form for form in only_of_jobs if form.partition(":")[0] + ":" in said}
    assert set(re.findall(r"[a-z]+:[^\s`,.]+", said)) == set(FORMS_SHOWN.split(", ")) - only_of_jobs | shown
