"""What is masked in JSON that is copied into an answer as it is."""

import json
from time import process_time
from urllib.parse import quote

import pytest

from tickwright.domain.masking import masked_json, masked_text, masked_tokens

URL = "https://user:pw@hooks.example/T0/SECRET?key=SECRET"
HOST = "https://hooks.example/…"


@pytest.mark.parametrize(
    "document",
    [
        json.dumps({"a": [f"see {URL}", {"b": URL}], URL: 1}),
        json.dumps(URL),
        '{"a": "https:\\/\\/hooks.example\\/SECRET"}',
        '{"a": "https\\u003a\\u002f/hooks.example/SECRET"}',
        '{"a": "\\ud800 https://hooks.example/SECRET \\\\"}',
        '{"a\\"": "\\"https://hooks.example/SECRET\\""}',
    ],
)
def test_an_address_in_json_is_masked_however_it_is_spelled(document: str) -> None:
    """At any depth, in names too, and behind escapes; it stays JSON."""
    masked = masked_tokens(document.encode()).decode()
    assert "SECRET" not in masked
    assert "hooks.example/…" in json.dumps(json.loads(masked), ensure_ascii=False)


INNER = json.dumps({"callback": "https://hooks.example/T0/SECRET?key=SECRET"})


@pytest.mark.parametrize(
    "text",
    [
        INNER.replace("/", "\\/"),
        json.dumps(json.dumps(INNER.replace("/", "\\/"))),
        INNER.replace("/", "\\u002F").replace(":", "\\u003A"),
        f"to={quote('https://hooks.example/SECRET?key=SECRET', safe='')}&x=1",
        f"to={quote(quote('https://hooks.example:8080/SECRET', safe=''))}",
        "https:%2F%2Fhooks.example%2FSECRET",
        "see https:&#x2F;&#47;hooks.example&sol;SECRET",
        "https&colon;//hooks.example/SECRET",
    ],
)
def test_an_address_is_masked_although_it_is_escaped_inside_a_text(text: str) -> None:
    """As JSON in JSON, a URL in a URL and HTML have it; the host is shown."""
    for shown in (
        masked_text(text),
        masked_tokens(json.dumps([text]).encode()).decode(),
        masked_json(json.dumps({"url": text})),
    ):
        assert "SECRET" not in shown
        assert "hooks.example" in shown or "https:***" in shown


@pytest.mark.parametrize("rest", ["%3Fkey=SECRET", "%2FSECRET", "&#47;SECRET", "\\/SECRET", "%5CSECRET"])
@pytest.mark.parametrize("separator", ["://", ":%2F%2F", ":\\/\\/"])
@pytest.mark.parametrize("user", ["", "SECRET%40", "SECRET&#64;"])
def test_nothing_of_an_address_with_escapes_passes_for_its_host(user: str, separator: str, rest: str) -> None:
    """Where it is not sure which part is the host, none is shown."""
    assert "SECRET" not in masked_text(f"see https{separator}{user}hooks.example{rest} again")


@pytest.mark.parametrize("user", ["SECRET{}a", "user:1234{}SECRET", "SECRET{}a%3Fb&amp;c=d"])
@pytest.mark.parametrize("slash", ["%2F", "%252f", "&#47;", "&#x2F;", "&sol;", "\\u002f"])
@pytest.mark.parametrize("at", ["@", "%40", "%2540", "&#64;", "&commat;", "\\u0040"])
@pytest.mark.parametrize("end", ["/repo.git", "\\/repo.git", "%2Frepo.git", ""])
def test_no_part_of_a_user_with_an_escaped_slash_passes_for_the_host(user: str, slash: str, at: str, end: str) -> None:
    """A slash in a password has to be escaped; the same text may be an escaped address whose path has an ``@``."""
    address = f"{user.format(slash)}{at}git.example{end}"
    for separator in ("://", ":%2F%2F", ":\\/\\/"):
        text = f"clone of https{separator}{address} failed"
        assert masked_text(text) == "clone of https://*** failed"
        assert "SECRET" not in masked_tokens(json.dumps([text]).encode()).decode()
        assert "SECRET" not in masked_json(json.dumps({"error": text, "url": address}))


def test_an_address_that_is_a_whole_text_is_masked_as_one_inside_a_text() -> None:
    """An escaped slash before an ``@`` hides the host in a document's leaf, too."""
    for address in ("https://hooks.example%2f@SECRET", " https://hooks.example%2FSECRET%40b/c ", "x://a&#47;b@SECRET"):
        assert json.loads(masked_json(json.dumps({"v": address})))["v"] == masked_text(address).strip()
        assert "SECRET" not in masked_text(address)
    assert masked_json(json.dumps([URL])) == json.dumps([HOST], ensure_ascii=False)


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("https://user:SECRET@git.example/repo.git", "https://git.example/…"),
        ("https:\\/\\/user:SECRET@git.example\\/@SECRET", "https://git.example/…"),
        ("https://git.example/@SECRET%2Fa", "https://git.example/…"),
        ("https://git.example?to=SECRET%2F@b", "https://git.example/…"),
        ("https:%2F%2Fgit.example%2FSECRET", "https://git.example/…"),
    ],
)
def test_the_host_is_shown_where_every_reader_finds_the_same(address: str, host: str) -> None:
    """An ``@`` behind a plain slash, or before the host, leaves no doubt."""
    assert masked_text(f"clone of {address} failed") == f"clone of {host} failed"


@pytest.mark.parametrize("piece", ["\\", ":\\", "%25", "&#0", ":/", "https:%2F%2F", "://"])
def test_a_long_text_costs_its_length_and_not_its_square(piece: str) -> None:
    """Payloads have up to a megabyte, and a page has hundreds of them."""
    began_s = process_time()
    masked_text(piece * (1_000_000 // len(piece)))
    assert process_time() - began_s < 10


@pytest.mark.parametrize("backslashes", [31, 32, 63, 2**16 - 1])
def test_a_slash_is_recognised_behind_any_number_of_backslashes(backslashes: int) -> None:
    """JSON in JSON doubles them; a run is read once from its beginning, so it needs no bound."""
    slash = "\\" * backslashes + "/"
    assert masked_text(f"https:{slash}{slash}hooks.example{slash}SECRET") == HOST


def test_escapes_without_an_address_stay_as_they_are() -> None:
    """Paths of Windows, shares of a hundred, and slashes."""
    for text in ("C:\\dir\\file", "100 % of a\\/b, c%2Fd & e", '{"a": "b\\/c"}'):
        assert masked_text(text) == text
        assert masked_tokens(json.dumps([text]).encode()) == json.dumps([text]).encode()


def test_what_is_no_text_stays_byte_for_byte() -> None:
    """Numbers that a reader would round or refuse, white space and escapes of other texts."""
    rest = f'[ 1e400, 0.10, {"9" * 5000}, -0.0, true, null, "\\u00e9 // \\n", "a:/ /b" '
    masked = masked_tokens(f'{rest}, "{URL}"]'.encode()).decode()
    assert masked == f"{rest}, {json.dumps(HOST)}]"


def test_deep_json_is_masked_too() -> None:
    """No reader that gives up at some depth is asked."""
    masked = masked_tokens(("[" * 100_000 + f'"{URL}"' + "]" * 100_000).encode())
    assert b"SECRET" not in masked
