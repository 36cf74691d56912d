"""The cookie that signs a browser's requests, and what proves that a page of ours sent them.

The cookie's value is the API key itself: there is no session to keep, and revoking the key ends it. Scripts cannot
read it. What it signs is believed for reading; a change needs two more proofs, each enough against a page
of somebody else: it comes from this site, as the browser says in headers that no script can set, and it carries a
token that only who may read ``GET /v1/session`` knows. Two cookies of the name, or one that is no key, are none:
a neighbour's domain may have set the other, and nobody knows which is whose.
"""

import hmac
import re
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from enum import Enum
from hashlib import sha256

from tickwright.domain.errors import Rejected

COOKIE = "tickwright_session"
CSRF_HEADER = "x-tickwright-csrf"
MAX_AGE_S = 12 * 3600
SAFE_METHODS = frozenset({"GET", "HEAD"})
Headers = list[tuple[bytes, bytes]]
_KEY = re.compile(rb"tw_[A-Za-z0-9_-]{43}")
_DERIVED = b"tickwright csrf v1"
_OURS = frozenset({b"same-origin", b"none"})
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}


class Site(Enum):
    """Where a request was made, as far as the browser says."""

    OURS = "ours"
    OTHER = "other"
    UNSAID = "unsaid"


def session_keys(headers: Headers) -> list[str | None]:
    """Return the value of every cookie of our name; ``None`` for one that cannot be a key."""
    name = COOKIE.encode()
    pairs = (pair.partition(b"=") for value in _values(headers, b"cookie") for pair in value.split(b";"))
    found = (value.strip(b" \t") for left, _, value in pairs if left.strip(b" \t") == name)
    return [value.decode() if _KEY.fullmatch(value) else None for value in found]


def is_key(text: str) -> bool:
    """Whether ``text`` has the shape of an API key."""
    return _KEY.fullmatch(text.encode()) is not None


def csrf_token(key: str) -> str:
    """Return what a page shows with each change: derived from the key, so nothing has to be kept."""
    return urlsafe_b64encode(hmac.digest(key.encode(), _DERIVED, sha256)).decode().rstrip("=")


def check_change(headers: Headers, key: str) -> None:
    """Refuse a change that the cookie signs, unless a page of ours sent it.

    Raises:
        Rejected: ``cross_site``, ``csrf_token_missing`` or ``csrf_token_wrong`` (403). Permanent.
    """
    if site_of(headers) is not Site.OURS:
        raise cross_site()
    shown = list(_values(headers, CSRF_HEADER.encode()))
    if not shown:
        raise _forbidden("csrf_token_missing", f"send {CSRF_HEADER}: the csrf of GET /v1/session")
    if len(shown) > 1 or not hmac.compare_digest(shown[0], csrf_token(key).encode()):
        raise _forbidden("csrf_token_wrong", "this token belongs to another session; read GET /v1/session again")


def site_of(headers: Headers) -> Site:
    """Return where a request was made. ``Sec-Fetch-Site`` decides; plain HTTP has only ``Origin``.

    A proxy may have changed ``Host``; no page of another site can set ``X-Forwarded-Host`` without being asked first.
    """
    if said := list(_values(headers, b"sec-fetch-site")):
        return Site.OURS if set(said) <= _OURS else Site.OTHER
    origins = list(_values(headers, b"origin"))
    if not origins:
        return Site.UNSAID
    if len(origins) > 1:
        return Site.OTHER
    scheme, _, authority = origins[0].decode("latin-1").lower().partition("://")
    if scheme not in _DEFAULT_PORTS or not authority:
        return Site.OTHER
    ours = {_bare(host, scheme) for host in _hosts(headers)}
    return Site.OURS if _bare(authority, scheme) in ours else Site.OTHER


def cross_site() -> Rejected:
    """Return the refusal of what another site's page sent."""
    return _forbidden("cross_site", "a page of another site sent this; open Tickwright's own page")


def over_tls(headers: Headers, scheme: str) -> bool:
    """Whether the browser's side of the way is encrypted."""
    forwarded = [value.decode("latin-1").split(",")[0].strip() for value in _values(headers, b"x-forwarded-proto")]
    origins = [value.decode("latin-1").partition("://")[0] for value in _values(headers, b"origin")]
    return "https" in {proto.lower() for proto in (scheme, *forwarded, *origins)}


def signed_in(key: str, path: str, *, secure: bool) -> tuple[str, str]:
    """Return the header that keeps ``key`` in the browser for everything below ``path``."""
    return _set_cookie(key, path, MAX_AGE_S, secure=secure)


def signed_out(path: str, *, secure: bool) -> tuple[str, str]:
    """Return the header that makes the browser forget."""
    return _set_cookie("", path, 0, secure=secure)


def _set_cookie(value: str, path: str, max_age_s: int, *, secure: bool) -> tuple[str, str]:
    parts = [f"{COOKIE}={value}", f"Path={path}", f"Max-Age={max_age_s}", "HttpOnly", "SameSite=Strict"]
    return "set-cookie", "; ".join([*parts, "Secure"] if secure else parts)


def _values(headers: Headers, name: bytes) -> Iterator[bytes]:
    return (value for found, value in headers if found == name)


def _hosts(headers: Headers) -> Iterator[str]:
    for name in (b"host", b"x-forwarded-host"):
        found = list(_values(headers, name))
        if len(found) == 1:
            yield found[0].decode("latin-1").lower().split(",")[0].strip()


def _bare(host: str, scheme: str) -> str:
    return host.removesuffix(_DEFAULT_PORTS[scheme])


def _forbidden(code: str, message: str) -> Rejected:
    return Rejected(code, message, status=403)
