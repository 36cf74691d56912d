"""What is kept of a refusal that repeats the address it was asked at."""

import html
import json
from urllib.parse import quote

import pytest

from tickwright.domain.masking import masked_text
from tickwright.outbound import EXCERPT_CHARS_MAX, excerpt

PATH = "/hook/T0?tenant=7&key=it's+SECRET=="


@pytest.mark.parametrize(
    "said",
    [
        f"no {PATH} here",
        f"no {html.escape(PATH)} here",
        "no " + json.dumps(PATH).replace("&", "\\u0026").replace("=", "\\u003d").replace("'", "\\u0027") + " here",
        "no " + json.dumps({"path": PATH, "url": f"https://host{PATH}"}).replace("/", "\\/") + " here",
        f"no {quote(PATH, safe='/')} here",
        f"no {quote(PATH, safe='/?=&')} here",
        f"no {quote(quote(PATH, safe=''), safe='')} here",
        "no tenant=7&key=it's+SECRET== here",
        f"no {html.escape(PATH.partition('?')[2])} here",
        "no {'key': \"it's SECRET==\"} here",
        "no key it%27s%20SECRET%3d%3D here",
    ],
)
def test_a_refusal_is_kept_without_path_and_query_however_it_escapes_them(said: str) -> None:
    """Whole, the query alone, and a value alone; what is around them stays."""
    shown = excerpt(said.encode(), PATH)
    assert "SECRET" not in shown
    assert shown.startswith("no ")
    assert shown.endswith(" here")


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/hook/SECRET/", "no route for /hook/SECRET"),
        ("/hook/SECRET/", "no route for hook/SECRET"),
        ("/hook/SECRET?a=1", "no route for /hook/SECRET/"),
        ("/hook/SECRET==/x", "no route for /hook/SECRET%3D%3D/x"),
        ("/hook/it's-SECRET", "no route for /hook/it&#x27;s-SECRET"),
        ("/hook/a&SECRET", r"no route for /hook/a\u0026SECRET"),
        ("/hook/SECRET%2Fa", "no route for /hook/SECRET/a"),
        ("/hook/a%20SECRET", "no route for /hook/a SECRET"),
        ("/hook/SECRET~a", "no route for /hook/SECRET%7ea"),
    ],
)
def test_a_refusal_is_kept_without_the_path_as_others_write_it(path: str, said: str) -> None:
    """Also without its last slash or its first one."""
    assert excerpt(said.encode(), path).rstrip("/") == "no route for /…"


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("Cannot POST /T024BE7LD/B01/SECRET7SECRET", "Cannot POST /…"),
        ("Cannot POST /B01/SECRET7SECRET?a=1", "Cannot POST /…?a=1"),
        ("Cannot POST \\/B01\\/SECRET7SECRET", "Cannot POST /…"),
        ("invalid token SECRET7SECRET", "invalid token /…"),
        ("services of T024BE7LD are off", "services of /… are off"),
    ],
)
def test_a_refusal_is_kept_without_tails_and_segments_of_the_path(said: str, shown: str) -> None:
    """An application below a prefix shows what is behind it, and one with a token in its path the token."""
    assert excerpt(said.encode(), "/services/T024BE7LD/B01/SECRET7SECRET/") == shown


def test_a_long_segment_is_hidden_without_a_digit() -> None:
    """No word of a refusal has 16 characters; the path's words stay."""
    assert excerpt(b"the webhooks of SECRETsecretSECRET: v1", "/webhooks/v1/SECRETsecretSECRET") == (
        "the webhooks of /…: v1"
    )


@pytest.mark.parametrize(
    "path",
    [
        "/hook?SECRET7SECRET&x=1",
        "/hook?x=1&SECRET7SECRET=",
        "/hook?x=1&auth=Bearer%20SECRET7SECRET",
        "/hook?x=1&auth=Bearer+SECRET7SECRET",
        "/hook?x=1&auth=user%3ASECRET7SECRET",
        "/bot12:SECRET7SECRET/send",
        "/hook;key=SECRET7SECRET,v1/send",
        "/hook/v1%3BSECRET7SECRET",
    ],
)
def test_a_refusal_is_kept_without_parts_of_values_and_segments(path: str) -> None:
    """A name without a value may be a token, and a server that has read an address shows its parts."""
    assert excerpt(b"token SECRET7SECRET of v1 is unknown", path) == "token /… of v1 is unknown"


def test_words_of_a_refusal_stay() -> None:
    """A short value of the query, and a path of one name, are in many texts."""
    assert excerpt(b"a hook has at most 7 of them, see /docs", "/hook?n=7&on=yes") == (
        "a hook has at most 7 of them, see /docs"
    )
    assert excerpt(b"see / or ?", "/?") == "see / or ?"
    said = b"the field user name is required; type json"
    assert excerpt(said, "/hook?q=user+name+required&format=application/json;type=json") == said.decode()


def test_another_address_in_a_refusal_keeps_its_escapes() -> None:
    """A password with an escaped slash would else end where its path begins, and pass for the host."""
    shown = excerpt(b"no clone of https://SECRET%2Fa@git.example/repo.git", "/hook")
    assert masked_text(shown) == "no clone of https://***"


def test_a_long_path_is_masked_whole_where_the_excerpt_ends() -> None:
    """It may begin inside the excerpt and end far behind it."""
    path = "/" + "&S" * 1000
    shown = excerpt(b"x" * (EXCERPT_CHARS_MAX - 20) + b" " + path.replace("&", "\\u0026").encode() + b" end", path)
    assert shown.endswith("x /…")
