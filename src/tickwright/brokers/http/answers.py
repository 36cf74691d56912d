"""What an HTTP answer means: pure decisions on a status, a ``Retry-After`` and a few bytes of body."""

from datetime import timedelta

from tickwright.domain.retry_after import parse_retry_after
from tickwright.domain.spellings import GROWTH_MAX, spellings, without_any
from tickwright.ports.broker import Refused, Unknown

RETRY_AFTER_MAX = timedelta(hours=1)
EXCERPT_CHARS_MAX = 500
VALUE_CHARS_MIN = 4


def refusal_of(
    status: int, retry_after: str | None, body: bytes, *, path: str = "", now_unix_s: int
) -> Refused | Unknown:
    """Return the outcome of a status that is not 2xx.

    Args:
        status: 100..999 as it was read.
        retry_after: The header as it came, trusted in nothing.
        body: The first bytes of the answer, for a person.
        path: What the URL that was asked has behind its host, which may hold a credential; not repeated.
        now_unix_s: What ``Retry-After`` dates are compared with.
    """
    if status < 200:
        return Unknown("bad_response", f"The answer switched protocols (HTTP {status}).")
    if 300 <= status < 400:
        return Refused("http_redirect", f"HTTP {status}: redirects are never followed.", status=status)
    text = excerpt(body, path)
    return Refused(
        f"http_{status}",
        f"HTTP {status}: {text}" if text else f"HTTP {status}",
        gone=status == 410,
        status=status,
        retry_after=retry_after_of(retry_after, now_unix_s=now_unix_s),
    )


def retry_after_of(value: str | None, *, now_unix_s: int) -> timedelta | None:
    """Return how long the other side asks us to wait, 0 to 1 hour; ``None`` for nothing or garbage."""
    return parse_retry_after(value, now_unix_s=now_unix_s, most=RETRY_AFTER_MAX)


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
