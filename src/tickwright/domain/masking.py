"""What is shown of an address or a header to those who may not have it whole. Pure.

A path, a query or the user of a URL may open a door, so the host is what is left of it. A header shows its references,
which are names; a plain value is shown only where headers of this name never hold a secret.
"""

import re
from collections.abc import Mapping
from typing import Any

from tickwright.domain.references import MASK, REFERENCE

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)(.*)", re.DOTALL)
_AROUND = re.compile(r"[A-Za-z-]{0,20} ?")
_ADDRESSES = frozenset({"target", "destination", "subject"})
_HARMLESS = frozenset({"accept", "accept-charset", "accept-language", "content-type", "user-agent"})


def masked_address(text: str) -> str:
    """Return ``https://host/…`` for a URL with more to it; what has no host stays as it is."""
    found = _SCHEME.fullmatch(text)
    if found is None:
        return text
    scheme, authority, rest = found.groups()
    return f"{scheme}://{authority.rpartition('@')[2]}{'' if not rest else '/' if rest == '/' else '/…'}"


def masked_http(table: Any) -> Any:
    """Return what a partner's settings say of HTTP, without what may open a door."""
    if not isinstance(table, Mapping):
        return table
    shown = dict(table)
    if isinstance(shown.get("url"), str):
        shown["url"] = masked_address(shown["url"])
    if "headers" in shown:
        headers = shown["headers"]
        shown["headers"] = _headers(headers) if isinstance(headers, Mapping) else MASK
    return shown


def _headers(headers: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value if _is_shown(name, value) else MASK for name, value in headers.items()}


def _is_shown(name: str, value: Any) -> bool:
    if name.lower() in _HARMLESS or not isinstance(value, str):
        return name.lower() in _HARMLESS
    return REFERENCE.search(value) is not None and _AROUND.fullmatch(REFERENCE.sub("", value)) is not None


def masked_document(document: Any) -> Any:
    """Return what an audit row has of a task type, a partner or a message, without what may open a door."""
    if not isinstance(document, Mapping):
        return document
    shown = {
        name: masked_address(value) if name in _ADDRESSES and isinstance(value, str) else value
        for name, value in document.items()
    }
    settings = shown.get("settings")
    if isinstance(settings, Mapping) and "http" in settings:
        shown["settings"] = {**settings, "http": masked_http(settings["http"])}
    return shown
