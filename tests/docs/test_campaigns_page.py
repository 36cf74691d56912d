"""What the page of campaigns says of states and words is what the code looks at and reads."""

import json
import re
from pathlib import Path

from tickwright.capabilities.batches.definitions.campaigns import CAMPAIGN_FIELDS, read_campaign
from tickwright.capabilities.batches.definitions.schema import Mistakes, field_readers
from tickwright.capabilities.batches.executions.states import BEGIN, END, states_text

PAGE = Path(__file__).parents[2] / "docs/campaigns.md"


def test_the_states_on_the_page_are_the_rules_of_the_code() -> None:
    """Diagram and tables, character by character: copy ``states_text()`` between the marks where they differ."""
    [shown] = [part.partition(END)[0] for part in PAGE.read_text(encoding="utf-8").split(BEGIN)[1:]]
    assert shown.strip("\n") == states_text()


def test_the_words_on_the_page_are_those_that_are_read() -> None:
    """Every word has its line, with the defaults of the code."""
    said = PAGE.read_text(encoding="utf-8").partition("| word |")[2].partition("\n\n")[0]
    lines = dict(re.findall(r"^\| `(\w+)` \|.*\| (.+) \|$", said, re.MULTILINE))
    assert set(lines) == {"name", *field_readers(lambda _: None), *CAMPAIGN_FIELDS}
    shown = {"skip": "overlap", "one": "misfire", "1m": "misfire_grace", "UTC": "time_zone", "false": "restartable"}
    assert {lines[word].strip("`"): word for word in shown.values()} == shown


def test_the_campaign_on_the_page_is_one() -> None:
    """It is read without a mistake, and its words are the defaults where it says none."""
    text, *_ = re.findall(r"^```json\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    words = json.loads(text)
    assert words.pop("name") == "loans"
    mistakes = Mistakes("campaign")
    campaign, _ = read_campaign(words, mistakes, lambda _: None)
    assert (mistakes.found, campaign is None) == ([], False)
    assert campaign is not None
    settings = campaign.settings
    assert (settings.chunk_rows, settings.misfire_max, settings.attempts) == (5_000, 100, 10)
