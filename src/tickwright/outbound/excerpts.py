"""What is kept of a text that another side sent as its refusal: its beginning, without the address that was asked."""

from tickwright.domain.spellings import GROWTH_MAX, spellings, without_any

EXCERPT_CHARS_MAX = 500
VALUE_CHARS_MIN = 4


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
    """Return what of a URL may be a credential: path and query, together and alone, and the values of the query."""
    alone, _, query = path.partition("?")
    values = {value for one in query.split("&") if len(value := one.partition("=")[2]) >= VALUE_CHARS_MIN}
    within = alone.strip("/")
    parts = {path, alone, alone.rstrip("/"), query, *values, *({within} if "/" in within else ())}
    return {one for one in parts if len(one) > 1}
