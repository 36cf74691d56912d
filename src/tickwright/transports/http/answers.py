"""What an HTTP answer means: pure decisions on a status, a ``Retry-After`` and a few bytes of body."""

from datetime import timedelta

from tickwright.domain.retry_after import parse_retry_after
from tickwright.outbound import excerpt
from tickwright.ports.broker import Refused, Unknown

RETRY_AFTER_MAX = timedelta(hours=1)


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
