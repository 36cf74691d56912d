"""What is kept of a text that another side sent as its refusal: its beginning, without the address that was asked."""

import re

from tickwright.domain.spellings import GROWTH_MAX, spellings, without_any

EXCERPT_CHARS_MAX = 500
VALUE_CHARS_MIN = 4
TAILS_MAX = 16
_BETWEEN = re.compile(r"[:;=,+ ]|%(?:20|2C|3A|3B|3D)", re.IGNORECASE)


def excerpt(body: bytes, path: str = "") -> str:
    """Return the beginning of a body as printable text, at most 500 characters, without ``path`` or a part of it.

    Its escapes stay: whether a slash was one decides what of another address in it is shown as its host.
    """
    spelled = set().union(*map(spellings, _hidden(path)))
    looked_at = 4 * EXCERPT_CHARS_MAX + GROWTH_MAX * len(path)
    text = body[:looked_at].decode("utf-8", "backslashreplace")
    text = without_any(text, spelled, mask="/…", until=4 * EXCERPT_CHARS_MAX)
    return "".join(character if character.isprintable() else " " for character in text)[:EXCERPT_CHARS_MAX].strip()


def _hidden(path: str) -> set[str]:
    """Return what of a URL may be a credential.

    Path and query, together and alone; the values of the query, and its names that have none; the tails of the path
    that begin at one of its first slashes, as a server shows them whose application is mounted below a prefix; and the
    segments that are no words: those with 8 characters and a digit among them, or with 16. So are the parts of segments
    and values that are no words, such as what is behind the blank of ``Bearer%20TOKEN``.
    """
    alone, _, query = path.partition("?")
    named = [(value or name) for name, _, value in (one.partition("=") for one in query.split("&"))]
    values = {one for one in named if len(one) >= VALUE_CHARS_MIN}
    within = alone.strip("/")
    segments = within.split("/")
    tails = {"/" + "/".join(segments[first:]) for first in range(1, min(len(segments), TAILS_MAX))}
    parts = {path, alone, alone.rstrip("/"), query, *values, *({within} if "/" in within else ())}
    return {
        *(one for one in parts if len(one) > 1),
        *(one for one in tails if len(one) > VALUE_CHARS_MIN),
        *filter(_is_no_word, _parts([*segments, *named])),
    }


def _parts(texts: list[str]) -> list[str]:
    return [*texts, *(part for text in texts for part in _BETWEEN.split(text))]


def _is_no_word(segment: str) -> bool:
    return len(segment) >= 16 or (len(segment) >= 8 and any(map(str.isdigit, segment)))
