"""Addresses and headers as viewers see them.

A path, a query or the user of a URL may be a secret, so only the host is shown. Of a header, references are shown,
because they are names; a plain value is shown only for headers that never contain a secret.
"""

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from tickwright.domain.secrets import MASK, REFERENCE, names_address
from tickwright.domain.targets import FORMS, WEB_PORTS

DIGITS_MAX = 4_000  # Python refuses longer numbers; documents written by SQL may have them
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)(.*)", re.DOTALL)
_HOST = re.compile(r"(?:\[[0-9A-Fa-f:.]*\]|[^\s:\\\[\]%&]*)(?::[0-9]*)?")
_WITHOUT_HOST = (FORMS.keys() - WEB_PORTS.keys()) | {"alert"}
_BROKEN_URL = re.compile(r"\s*(https?|wss?):", re.IGNORECASE)
_RUN = r"\\(?<!\\\\)\\*"  # JSON in JSON doubles them; from the first one only, else a run takes quadratic time
_SLASHES = rf"(?:/|{_RUN}(?:/|u002f)|%(?:25)*2f|&#x0*2f;|&#0*47;|&sol;)"
_COLONS = rf"(?::|{_RUN}u003a|%(?:25)*3a|&#x0*3a;|&#0*58;|&colon;)"
_SLASH, _COLON = (re.compile(spelled, re.IGNORECASE) for spelled in (_SLASHES, _COLONS))
SEPARATOR = _COLONS + _SLASHES + _SLASHES
"""The text between scheme and host, also as escaped by JSON, URLs or HTML; for Python and for PostgreSQL."""
_IN_TEXT = re.compile(SEPARATOR + r"([^\s\"<>]*)", re.IGNORECASE)
_WIDEST = re.compile(r"(?:&#x?[0-9a-f]+;|[^/?#])*", re.IGNORECASE)
_AT = re.compile(r"@|\\u0040|%(?:25)*40|&#x0*40;|&#0*64;|&commat;", re.IGNORECASE)
_TEXT = json.JSONDecoder(strict=False)
_ESCAPES = ("\\", "%", "&")
_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"')
_AROUND = re.compile(r"[A-Za-z-]{0,20} ?")
_ADDRESSES = frozenset({"target", "destination"})
_HARMLESS = frozenset({"accept", "accept-charset", "accept-language", "content-type", "user-agent"})


def masked_address(text: str) -> str:
    """Return ``https://host/…`` for a URL with more than a host, ``scheme:***`` for an unknown destination."""
    found = _SCHEME.fullmatch(text)
    if found is None:
        scheme, colon, _ = text.partition(":")
        return text if not colon or scheme in _WITHOUT_HOST else f"{scheme}:{MASK}"
    scheme, authority, rest = found.groups()
    host = authority.rpartition("@")[2]
    if _HOST.fullmatch(REFERENCE.sub("x", host)) is None:  # a password may contain a slash
        return f"{scheme}://{MASK}"
    return f"{scheme}://{host}{'' if not rest else '/' if rest == '/' else '/…'}"


def masked_text(text: str) -> str:
    """Return a text, such as an error, with only the hosts of its URLs."""

    def masked(found: re.Match[str]) -> str:
        return f"://{MASK}" if _may_hide_a_user(found[1]) else masked_address(f"x://{unescaped(found[1])}")[1:]

    return _IN_TEXT.sub(masked, text) if _may_name_an_address(text) else text


def _may_hide_a_user(address: str) -> bool:
    """Return whether an escaped slash is before an ``@``: it ends the host, or is part of a password."""
    widest = _WIDEST.match(address)
    return widest is not None and _AT.search(unescaped(widest[0]).partition("/")[2]) is not None


def _may_name_an_address(text: str) -> bool:
    """Return false for most texts, quickly."""
    return "//" in text or any(mark in text for mark in _ESCAPES)


def unescaped(text: str) -> str:
    """Return a text with its escaped slashes and colons made plain, so that addresses are recognised."""
    return _COLON.sub(":", _SLASH.sub("/", text))


def masked_tokens(document: bytes) -> bytes:
    """Return JSON with only the hosts of the URLs in its texts and names; all else stays byte for byte."""
    text = document.decode()
    return _TOKEN.sub(_masked_token, text).encode() if _may_name_an_address(text) else document


def _masked_token(found: re.Match[str]) -> str:
    if not _may_name_an_address(found[0]):
        return found[0]
    text = _TEXT.decode(found[0])
    masked = masked_text(text)
    return found[0] if masked == text else json.dumps(masked)  # in ASCII: half a surrogate pair is no UTF-8


def masked_urls(document: Any, *, named: bool = False) -> Any:
    """Return a document, such as a party, with only the hosts of its addresses, at any depth.

    ``named`` is true below a name of an address, where an address needs no scheme.
    """
    if isinstance(document, Mapping):
        items = document.items()
        return {masked_text(name): masked_urls(item, named=named or names_address(name)) for name, item in items}
    if isinstance(document, list):
        return [masked_urls(item, named=named) for item in document]
    return _masked_leaf(document, named) if isinstance(document, str) else document


def read_json(text: str) -> Any:
    """Return the value of a JSON text; a number that most readers refuse becomes a text.

    Raises:
        RecursionError: It is nested deeper than the API accepts.
    """

    def number(digits: str) -> float | str:
        return value if math.isfinite(value := float(digits)) else digits

    def whole(digits: str) -> int | str:
        return int(digits) if len(digits) <= DIGITS_MAX else digits

    return json.loads(text, parse_float=number, parse_int=whole)


def masked_json(text: str) -> str:
    """Return JSON text masked by :func:`masked_urls`; the text itself if it contains no address."""
    try:
        document = read_json(text)
        shown = masked_urls(document)
        return text if shown == document else json.dumps(shown, ensure_ascii=False)
    except RecursionError:  # nested too deep to be checked for addresses
        return json.dumps({MASK: MASK})


def _masked_leaf(text: str, named: bool) -> str:
    if (address := _SCHEME.fullmatch(text.strip())) is not None:
        scheme, authority, rest = address.groups()
        return f"{scheme}://{MASK}" if _may_hide_a_user(authority + rest) else masked_address(address[0])
    if (found := _BROKEN_URL.match(text)) is not None:
        return f"{found[1]}:{MASK}"
    if not named or "://" in (plain := unescaped(text)):
        return masked_text(text)
    if _may_hide_a_user(text):
        return MASK
    host, mark, _ = re.match(r"([^/?#]*)([/?#]?)(.*)", plain, re.DOTALL).groups()  # type: ignore[union-attr]
    return f"{host.rpartition('@')[2]}{mark and '/…'}"


def masked_http(table: Any) -> Any:
    """Return the ``http`` settings of a partner, without possible secrets."""
    if not isinstance(table, Mapping):
        return table
    shown = dict(table)
    if isinstance(shown.get("url"), str):
        shown["url"] = masked_address(shown["url"])
    if "headers" in shown:
        headers = shown["headers"]
        is_table = isinstance(headers, Mapping)
        shown["headers"] = {k: v if _is_shown(k, v) else MASK for k, v in headers.items()} if is_table else MASK
    return shown


def _is_shown(name: str, value: Any) -> bool:
    if name.lower() in _HARMLESS or not isinstance(value, str):
        return name.lower() in _HARMLESS
    return REFERENCE.search(value) is not None and _AROUND.fullmatch(REFERENCE.sub("", value)) is not None


def masked_document(document: Any) -> Any:
    """Return the document of a task type, a partner or a message for an audit row, without possible secrets."""
    if not isinstance(document, Mapping):
        return document
    addresses = _ADDRESSES | ({"subject"} if document.get("kind") == "outbox" else set())
    shown = {
        name: masked_address(value) if name in addresses and isinstance(value, str) else value
        for name, value in masked_urls(document).items()
    }
    settings = shown.get("settings")
    if isinstance(settings, Mapping) and "http" in settings:
        shown["settings"] = {**settings, "http": masked_http(settings["http"])}
    return shown
