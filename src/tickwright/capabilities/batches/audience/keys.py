"""What can be a key: whole numbers of 64 bits, texts and UUIDs, and what else has an order and a text in PostgreSQL."""

from collections.abc import Mapping, Sequence
from typing import Any

from tickwright.capabilities.batches.audience.schema import AudienceTerms
from tickwright.capabilities.batches.audience.sql_text import KeyKind
from tickwright.domain.errors import Rejected
from tickwright.ports.reports import NOT_UTF8

BOUND_CHARS_MAX = 8_192
_KINDS: Mapping[str, KeyKind] = {"integer": "int", "text": "text"}


def no_key(terms: AudienceTerms, kind: str) -> Rejected:
    """Return the error of a key whose type cannot be cut."""
    why = f"audience.key: {terms.key} is {kind.lower()}; a key is a whole number of 64 bits, a text or a UUID"
    why += "; write a query that casts it"
    return Rejected("invalid_audience", why, problems=[why])


def same_kind(kind: KeyKind | None, types: Sequence[Any], terms: AudienceTerms) -> KeyKind:
    """Return the kind of the keys: where the source has types per value, all of them must be of one.

    Args:
        kind: As far as it is known.
        types: The least and the greatest type of the keys of a range, in SQLite.
        terms: Of the audience, for the error.

    Raises:
        Rejected: ``invalid_audience``. Permanent.
    """
    least, greatest = types
    if least is None:
        assert kind is not None  # noqa: S101  # only SQLite does not know before
        return kind
    if least != greatest or kind not in {None, _KINDS.get(least)} or least not in _KINDS:
        raise no_key(terms, least if least == greatest else f"{least} and {greatest}")
    return _KINDS[least]


def as_bound(key: Any) -> Any:
    """Return a key as the end of a range, which is kept as JSON.

    Raises:
        Rejected: ``invalid_audience``: PostgreSQL could not keep it. Permanent.
    """
    if key is NOT_UTF8:
        why = "audience.key: a key at the end of a chunk is not UTF-8"
        raise Rejected("invalid_audience", why, problems=[why])
    if isinstance(key, str) and ("\0" in key or len(key) > BOUND_CHARS_MAX):
        shown = key[:100].replace("\0", "\\u0000")
        why = f"audience.key: the key {shown} has a NUL character or more than {BOUND_CHARS_MAX} characters"
        raise Rejected("invalid_audience", why, problems=[why])
    return key
