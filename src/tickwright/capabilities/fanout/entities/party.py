"""The party of an entity: how large it may be, and that no secret stands in it.

A party travels in messages, logs of brokers and dead letters. So a secret is named there, ``${env:NAME}``, and the
consumer puts it in for the call, for hosts that its operator declared. What looks like a secret by its key and is not
named like this is refused; by SQL it can be written nevertheless, and is then not shown.
"""

import json
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from tickwright.domain.errors import Rejected
from tickwright.domain.masking import masked_json, read_json
from tickwright.domain.references import REFERENCE
from tickwright.domain.spellings import MASK

PARTY_BYTES_MAX = 65_536
POINTER_CHARS_MAX = 300
_SECRET_WORDS = ("token", "password", "secret", "apikey", "authorization", "credential", "privatekey")
_SQUEEZED = re.compile("[^a-z0-9]")
_PLAIN_URL = re.compile(r"https?://[^\s@?#]+")
"""An address without a user or a query: ``tokenUrl`` and ``{"tokens": "https://…"}`` name places, not secrets."""
_USER = re.compile(r"://([^/?#\s]*)@")
_LONG_NUMBER = re.compile("(?<![0-9])[0-9]{300}")
"""Part of a number that not every reader of JSON takes."""


def check_party(party: Mapping[str, Any]) -> str:
    """Return the party as JSON text when it can be kept and sent.

    Args:
        party: From JSON that was read with care: no NUL, no half characters, no number that cannot be kept.

    Raises:
        Rejected: ``party_too_large``, ``plain_secret`` with the pointer of the first one. Permanent.
    """
    text = json.dumps(party, ensure_ascii=False, allow_nan=False)
    if len(text.encode()) + _unfolded(party) > PARTY_BYTES_MAX:
        raise Rejected("party_too_large", f"party: at most {PARTY_BYTES_MAX} bytes as JSON text", field="party")
    for pointer in plain_secrets(party):
        shown = f"/party{pointer}"[:POINTER_CHARS_MAX]
        raise Rejected(
            "plain_secret",
            f"{shown} looks like a secret in plain text, and a party is in every message; write ${{env:NAME}} there, "
            "and set TICKWRIGHT_SECRET_NAME and TICKWRIGHT_SECRET_HOSTS_NAME where the fanout-consumer runs",
            field="party",
            pointer=shown,
        )
    return text


def _unfolded(value: Any) -> int:
    """Return how many bytes longer numbers get, which PostgreSQL writes without an exponent."""
    if isinstance(value, float):
        text = repr(value)
        return max(0, len(format(Decimal(text), "f")) - len(text)) if "e" in text else 0
    if isinstance(value, Mapping):
        return sum(_unfolded(item) for item in value.values())
    return sum(_unfolded(item) for item in value) if isinstance(value, list) else 0


def plain_secrets(value: Any, pointer: str = "") -> Iterator[str]:
    """Return the JSON pointers of what looks like a secret in plain text."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            place = f"{pointer}/{name.replace('~', '~0').replace('/', '~1')}"
            if _is_secret(name) and any(_is_plain(text) for text in _texts(item)):
                yield place
            else:
                yield from plain_secrets(item, place)
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from plain_secrets(item, f"{pointer}/{number}")
    elif isinstance(value, str) and _has_user(value):
        yield pointer


def _is_secret(name: str) -> bool:
    squeezed = _SQUEEZED.sub("", name.lower())
    return any(word in squeezed for word in _SECRET_WORDS)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


def _is_plain(text: str) -> bool:
    return bool(text) and REFERENCE.search(text) is None and _PLAIN_URL.fullmatch(text) is None


def _has_user(text: str) -> bool:
    """Whether a URL in it has a user or a password that is no reference."""
    return any(REFERENCE.search(user) is None for user in _USER.findall(text))


def masked(text: str) -> str:
    """Return a party's JSON text with ``***`` in place of every secret that was written into it by SQL.

    A number that not every reader of JSON takes becomes a text.
    """
    try:
        party = read_json(text)
        changed = _LONG_NUMBER.search(text) is not None or next(plain_secrets(party), None) is not None
        return json.dumps(_mask(party), ensure_ascii=False) if changed else text
    except RecursionError:  # nested deeper than the API takes: what is in it is unknown
        return json.dumps({MASK: MASK})


def masked_hosts(text: str) -> str:
    """Return a party's JSON text as viewers and the audit see it: masked, and with the hosts only of its addresses."""
    return masked_json(masked(text))


def _mask(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: MASK if _is_secret(name) and any(_is_plain(text) for text in _texts(item)) else _mask(item)
            for name, item in value.items()
        }
    if isinstance(value, str):
        return MASK if _has_user(value) else value
    return [_mask(item) for item in value] if isinstance(value, list) else value
