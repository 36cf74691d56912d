"""Secrets in texts, however a text spells them."""

import html
import json
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable
from time import process_time
from urllib.parse import quote, quote_plus, urlencode

import pytest
from yarl import URL

from tickwright.domain.secrets import _found, mask_secrets, spellings

SECRET = "a\"b&c+d e'ü<中\\%/=$\n\t😀z?"


def known(*secrets: str) -> set[str]:
    """Return what is looked for."""
    return set().union(*map(spellings, secrets))


def go(text: str) -> str:
    """Return JSON as Go's encoding/json and Gson write it."""
    return json.dumps(text).replace("&", "\\u0026").replace("<", "\\u003C").replace("=", "\\u003d")


def lower(text: str) -> str:
    """Return a text as in a URL, with lower-case escapes."""
    return "".join(one if one.isalnum() else "".join(f"%{byte:02x}" for byte in one.encode()) for one in text)


SPELLED: dict[str, Callable[[str], str]] = {
    "as it is": str,
    "JSON": json.dumps,
    "JSON beyond ASCII": lambda text: json.dumps(text, ensure_ascii=False),
    "JSON in JSON": lambda text: json.dumps(json.dumps(text)),
    "JSON of Go": go,
    "Python": repr,
    "Python in ASCII": ascii,
    "Python's bytes": lambda text: repr(text.encode()),
    "a path": quote,
    "a whole part of a URL": lambda text: quote(text, safe=""),
    "a form": quote_plus,
    "a query": lambda text: urlencode({"key": text}),
    "yarl's query": lambda text: str(URL("http://host/").with_query(key=text)),
    "requests' query": lambda text: quote("http://host/?key=" + text, safe="!#$%&'()*+,/:;=?@[]~"),
    "a URL in a URL": lambda text: quote(quote(text)),
    "lower-case percents": lower,
    "HTML": html.escape,
    "HTML in numbers": lambda text: "".join(f"&#{ord(one)};" for one in text),
    "HTML in hexadecimal": lambda text: "".join(f"&#X{ord(one):X};" for one in text),
    "JSON in HTML": lambda text: html.escape(json.dumps(text)),
    "JSON in a URL": lambda text: quote(json.dumps(text)),
    "CSV": lambda text: '"' + text.replace('"', '""') + '"',
    "SQL": lambda text: "'" + text.replace("'", "''") + "'",
    "Base64": lambda text: b64encode(text.encode()).decode(),
    "Base64 without padding": lambda text: b64encode(text.encode()).decode().rstrip("="),
    "Base64 for URLs": lambda text: urlsafe_b64encode(text.encode()).decode().rstrip("="),
    "Base64 in a URL": lambda text: quote(b64encode(text.encode()).decode(), safe=""),
}


@pytest.mark.parametrize("spelled", SPELLED.values(), ids=SPELLED)
@pytest.mark.parametrize(
    "secret", [SECRET, "Tok:en+42xyz", "p@ss&word1!", 'aB3"xY9zQ&k', "Zür1ch-Schlüssel-77", "a~b?c>d+>"]
)
def test_a_secret_is_masked_however_the_text_spells_it(spelled: Callable[[str], str], secret: str) -> None:
    """Whole: nothing of it is left but a quote or the padding; and what is around it stays."""
    shown = mask_secrets(f"C:\\new 5+5 {spelled(secret)} 100% \\u00fc", known(secret))
    assert shown.startswith("C:\\new 5+5 ")
    assert shown.endswith(" 100% \\u00fc")
    assert set(shown[11:-12].replace("http://host/", "").replace("key=", "")) <= set("*?=b\"'\\&quot;%225C")
    assert shown.count("***") == 1


def test_a_secret_that_is_no_utf_8_is_masked_as_in_a_url() -> None:
    """Bytes of the environment are kept by Python as half of a surrogate pair."""
    assert mask_secrets("?key=ab%FFcd&x", known("ab\udcffcd")) == "?key=***&x"
    assert mask_secrets("ab%fccd%2b", known("abücd+")) == "***"


@pytest.mark.parametrize("secret", ["50%cafe+x", "ab%2Fcd", "a\\u0041bc", "a&lt;b+c", "pass\\new"])
@pytest.mark.parametrize("spelled", [str, json.dumps, quote, html.escape])
def test_a_secret_that_looks_escaped_itself_is_masked(spelled: Callable[[str], str], secret: str) -> None:
    """It is compared as it is, and without what looks like escapes on both sides."""
    assert mask_secrets(f"at {spelled(secret)} end", known(secret)).replace('"', "") == "at *** end"


@pytest.mark.parametrize("secret", ["      ", "++++++", "\\" * 20, '"' * 20, "%20" * 5])
def test_a_secret_of_nothing_but_escapes_masks_itself_only(secret: str) -> None:
    """What is left of it without them is in every text."""
    text = 'a \\"quoted\\" text with a     gap'
    assert mask_secrets(text, known(secret)) == text
    assert mask_secrets(f"at{secret}.", known(secret)) == "at***."


def test_nothing_is_left_of_secrets_that_contain_or_overlap_each_other() -> None:
    """In whatever order they are known; each of those side by side is a mask; also where one is escaped."""
    for secrets in (("abc-def", "def-ghi", "f-g", "ghi"), ("ghi", "f-g", "def-ghi", "abc-def")):
        assert mask_secrets("x abc-def-ghi y abc-defghi z", known(*secrets)) == "x *** y ****** z"
        assert mask_secrets("x %61bc-def-gh%69 y", known(*secrets)) == "x *** y"
    assert mask_secrets("aaaaa b", ["aa"]) == "*** b"


def test_a_secret_that_is_repeated_is_one_place() -> None:
    """A refusal of nothing but the beginning of a path held the event loop for half a second."""
    assert list(_found("x" + "/a" * 10_000 + "y", ["/a" * 500])) == [(1, 20_001)]
    assert list(_found("abab-ab", ["ab"])) == [(0, 4), (5, 7)]


def test_of_a_text_that_is_cut_no_part_of_a_secret_is_returned() -> None:
    """Neither of one that the cut goes through nor of what follows."""
    text = "begin a%2Bb%2Bc middle a%2Bb%2Bc end"
    assert [mask_secrets(text, known("a+b+c"), until=until) for until in (3, 10, 20, 30, 99)] == [
        "beg", "begin ***", "begin *** midd", "begin *** middle ***", "begin *** middle *** end",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "piece", ["y", "ü", '\\"', "\\", "%41", "%41 ", "%25", "25%", "&amp;", "amp;", "\\u0041", "&a", "'", "'\"", "a+b"]
)
def test_a_text_costs_its_length_and_not_its_square(piece: str) -> None:
    """Whatever it is made of: a megabyte takes about a second, and its square hours."""
    spelled, text = known(SECRET * 20), "%&\\" + piece * (1_000_000 // len(piece))
    began_s = process_time()
    mask_secrets(text, spelled)
    assert process_time() - began_s < 60
