"""Logs: one line an event, whatever a value holds, and no secret in any of them."""

import json
import logging
from base64 import b64encode
from collections.abc import Callable, Iterator
from time import process_time
from urllib.parse import quote

import pytest
import structlog

from tickwright.domain.secrets import MASK
from tickwright.observe.logs import (
    configure_logging,
    flatten_event,
    forget_secrets,
    know_secret,
    redact,
    redact_event,
    redact_text,
    without_secrets,
)

CANARY = "c4n4ry-s3cret-value"


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """Leave logging as it was."""
    handlers, level = logging.getLogger().handlers[:], logging.getLogger().level
    yield
    structlog.reset_defaults()
    logging.getLogger().handlers[:] = handlers
    logging.getLogger().setLevel(level)
    forget_secrets()


@pytest.mark.parametrize(
    "event",
    [
        {"password": CANARY},
        {"db_password": CANARY, "nested": {"api_key": CANARY, "list": [{"Authorization": f"Bearer {CANARY}"}]}},
        {"url": f"postgresql://user:{CANARY}@host/db"},
        {"text": f"cannot reach amqp://guest:{CANARY}@rabbit:5672/ now"},
        {"dsn": f"host=x password={CANARY} dbname=y"},
        {"dsn": f"host=x password='{CANARY}' dbname=y"},
        {"error": ValueError(f"postgresql://u:{CANARY}@h/")},
        {"text": f"whsec_{CANARY}"},
        {"key": f"tw_{CANARY}"},
        {"header": f"Bearer {CANARY}"},
        {f"https://u:{CANARY}@h": 1},
        {"raw": f"https://u:{CANARY}@h".encode()},
    ],
    ids=str,
)
def test_a_secret_is_masked_by_its_name_or_shape(event: dict[str, object]) -> None:
    """Names, URLs, DSNs, keys and bearer tokens: the value never gets through."""
    assert CANARY not in str(redact_event(None, "info", dict(event)))


def test_a_known_secret_is_masked_wherever_it_is() -> None:
    """Under any name, in the middle of any text, also as part of a key."""
    know_secret(CANARY)
    event = {"a": f"x{CANARY}y", "b": [f"{CANARY}"], CANARY: 1, "c": {"d": (CANARY,)}}
    assert CANARY not in str(redact_event(None, "info", event))


def test_nothing_is_left_of_a_known_secret_that_contains_another() -> None:
    """Whichever was known first."""
    for number in range(20):
        know_secret(f"hunter2{number:02}")
        know_secret(f"hunter2{number:02}-rotated-9f3kQ")
    said = " ".join(f"hunter2{number:02}-rotated-9f3kQ" for number in range(20))
    assert without_secrets(said) == " ".join([MASK] * 20)


@pytest.mark.parametrize("spelled", [repr, quote, lambda secret: b64encode(secret.encode()).decode()])
def test_a_known_secret_is_masked_in_each_of_its_spellings(spelled: Callable[[str], str]) -> None:
    """As Python shows it, as in a URL and in Base64: texts of errors quote what they are about."""
    secret = "can\\ary'with\"quotes/and+more"
    know_secret(secret)
    assert without_secrets(f"at {spelled(secret)} end").startswith("at ")
    assert spelled(secret).strip("'\"") not in without_secrets(f"at {spelled(secret)} end")


@pytest.mark.parametrize("piece", ["y", "a://", "a://b:c", "password ", "bearer "])
def test_a_long_text_costs_its_length_and_not_its_square(piece: str) -> None:
    """An error with a large body in it is logged in milliseconds: the event loop is blocked meanwhile."""
    began_s = process_time()
    redact_event(None, "info", {"error": piece * (400_000 // len(piece))})
    assert process_time() - began_s < 2


CUT = 16 * 1024


@pytest.mark.parametrize("before", [CUT + 100, CUT, CUT - 1, CUT - 5, CUT - 9, CUT - 20, CUT - 200])
@pytest.mark.parametrize(
    "quoted",
    [
        "{0} {0} {0}",
        "see https://user:{0}@host/",
        "see https://user:" + "A" * 300 + "{0}@host/",
        "see a://b:" + "A" * 20_000 + "{0}@host/",
        "password={0} x",
        "password = 'a b " + "A" * 20_000 + " {0}' x",
        "password = 'a b\\\\{0}' x",
        "whsec_{0} x",
        "tw_{0} x",
        "bearer" + " " * 90 + "{0} x",
    ],
)
@pytest.mark.parametrize("filled", ["x", "known-before-the-cut ", "pwd=y "])
def test_a_secret_that_the_cut_of_a_long_text_goes_through_is_not_shown_in_part(
    before: int, quoted: str, filled: str
) -> None:
    """Also where masks before it make the text so short that its end is shown."""
    secret = "Z" * 30
    if quoted.startswith("{0}"):
        know_secret(secret)
    know_secret("known-before-the-cut")
    text = (filled * CUT)[: before - len(quoted.partition("{0}")[0]) - 1] + " " + quoted.format(secret)
    shown = without_secrets(text + " y" * CUT)
    assert "Z" not in shown
    assert "A" not in shown
    assert len(shown) <= 2 * CUT


@pytest.mark.parametrize("before", [CUT - 70, CUT - 100, CUT - 150, CUT - 170])
def test_an_escaped_secret_that_the_cut_goes_through_is_not_shown_in_part(before: int) -> None:
    """It is longer than the secret, and looked for in as much of the text."""
    know_secret("&Z" * 20)
    shown = without_secrets("x" * (before - 1) + " " + "\\u0026\\u005A" * 20 + " y" * CUT)
    assert "005A" not in shown
    assert shown.endswith("…")


def test_a_long_text_is_kept_up_to_a_bound() -> None:
    """What follows is not looked through: that would take the event loop for as long as the text is."""
    shown = without_secrets("begin " + "x" * 10_000_000)
    assert shown.startswith("begin xxx")
    assert shown.endswith("xxx…")
    assert 16_000 < len(shown) <= CUT


def test_what_is_no_secret_stays() -> None:
    """Ids, counts and tokens that fence are what an operator looks for."""
    event = {"token": 42, "task_type": "secretary.call", "key": "k", "url": "https://host/path?x=1", "attempts": 3}
    assert redact_event(None, "info", dict(event)) == event


def test_values_are_bounded() -> None:
    """Neither length nor depth of a value is the caller's choice."""
    deep: list[object] = []
    deep.append(deep)
    assert len(redact_text("x" * 100_000)) == 4000
    assert MASK not in str(redact(deep))


@pytest.mark.parametrize("json_lines", [True, False])
def test_an_event_is_one_line(capsys: pytest.CaptureFixture[str], json_lines: bool) -> None:
    """Whatever a value contains, it forges no second event."""
    configure_logging(json=json_lines, level="info")
    structlog.get_logger("t").info("real", text="a\nfake event\r\n\x1b[31mred\u2028z", items=["x\ny"], **{"n\nme": 1})
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert "\x1b[31mred" not in lines[0]


def test_the_console_line_of_an_exception_is_one_line_too(capsys: pytest.CaptureFixture[str]) -> None:
    """A traceback is a value like any other, and secrets in it are masked."""
    configure_logging(json=False, level="info")
    try:
        int(f"postgresql://u:{CANARY}@h\nforged")
    except ValueError:
        structlog.get_logger("t").exception("broken")
    error = capsys.readouterr().err
    assert CANARY not in error
    assert "forged" not in [line.strip() for line in error.splitlines()]


def test_json_lines_parse_and_levels_hold(capsys: pytest.CaptureFixture[str]) -> None:
    """Below the level nothing is written; above it the standard library's logs come the same way."""
    configure_logging(json=True, level="warning")
    structlog.get_logger("t").info("quiet")
    structlog.get_logger("t").warning("loud", password=CANARY)
    logging.getLogger("library").error("old style %s", f"https://u:{CANARY}@h")
    events = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [event["event"] for event in events] == ["loud", f"old style https://u:{MASK}@h"]
    assert events[0]["password"] == MASK


def test_an_unknown_level_is_refused() -> None:
    """A typing error must not turn logs off."""
    with pytest.raises(ValueError, match="log level"):
        configure_logging(json=True, level="loud")


def test_flattening_keeps_numbers() -> None:
    """Only texts are rewritten."""
    assert flatten_event(None, "info", {"a": 1, "b": "x\ny"}) == {"a": 1, "b": "x\\ny"}
