"""The cookie of a browser session, and the proofs that our own page sent a change.

The cookie's value is the token of a session; see :mod:`tickwright.api.sessions`. Scripts cannot read it. Over TLS at
the root of a host its name begins with ``__Host-``, so neighbour domains cannot set it. The cookie is sufficient for
reading. A change needs two more proofs, each sufficient against a page of another site: the browser's headers, which
scripts cannot set, say that the request comes from this site; and it carries the token from ``GET /v1/session``.
Several cookies of the name, or an invalid token, are refused: a neighbour's domain may have set the other.
"""

import hmac
import re
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from datetime import timedelta
from enum import Enum
from hashlib import sha256

from tickwright.domain.errors import Rejected

COOKIE = "tickwright_session"
HOST_COOKIE = f"__Host-{COOKIE}"
TOKEN_PREFIX = "tws_"  # noqa: S105  the prefix of every token
CSRF_HEADER = "x-tickwright-csrf"
MAX_AGE_S = 12 * 3600
IDLE = timedelta(hours=2)
SAFE_METHODS = frozenset({"GET", "HEAD"})
Headers = list[tuple[bytes, bytes]]
_KEY = re.compile(rb"tw_[A-Za-z0-9_-]{43}")
_TOKEN = re.compile(rb"tws_[A-Za-z0-9_-]{43}")
_DERIVED = b"tickwright csrf v1"
_OURS = frozenset({b"same-origin", b"none"})
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}


class Site(Enum):
    """Origin of a request, as reported by the browser."""

    OURS = "ours"
    OTHER = "other"
    UNSAID = "unsaid"


def session_tokens(headers: Headers) -> list[str | None]:
    """Return the value of every cookie of our name; ``None`` for an invalid token.

    If there is a cookie that no neighbour can have set, the others are ignored.
    """
    pairs = (pair.partition(b"=") for value in _values(headers, b"cookie") for pair in value.split(b";"))
    found: dict[bytes, list[str | None]] = {HOST_COOKIE.encode(): [], COOKIE.encode(): []}
    for left, _, value in pairs:
        name, shown = left.strip(b" \t"), value.strip(b" \t")
        if name in found:
            found[name].append(shown.decode() if _TOKEN.fullmatch(shown) else None)
    sure, plain = found.values()
    return sure or plain


def is_key(text: str) -> bool:
    """Return whether ``text`` has the form of an API key."""
    return _KEY.fullmatch(text.encode()) is not None


def csrf_token(token: str) -> str:
    """Return the token that a page sends with each change; derived from the session's token, so it is not stored."""
    return urlsafe_b64encode(hmac.digest(token.encode(), _DERIVED, sha256)).decode().rstrip("=")


def check_change(headers: Headers, token: str) -> None:
    """Refuse a change with a cookie, unless our own page sent it.

    Raises:
        Rejected: ``cross_site``, ``csrf_token_missing`` or ``csrf_token_wrong`` (403). Permanent.
    """
    if site_of(headers) is not Site.OURS:
        raise cross_site()
    shown = list(_values(headers, CSRF_HEADER.encode()))
    if not shown:
        raise _forbidden("csrf_token_missing", f"send {CSRF_HEADER}: the csrf of GET /v1/session")
    if len(shown) > 1 or not hmac.compare_digest(shown[0], csrf_token(token).encode()):
        raise _forbidden("csrf_token_wrong", "this token belongs to another session; read GET /v1/session again")


def site_of(headers: Headers) -> Site:
    """Return the origin of a request. ``Sec-Fetch-Site`` decides; plain HTTP has only ``Origin``.

    A proxy may have changed ``Host``. A page of another site cannot set ``X-Forwarded-Host`` without a preflight
    request.
    """
    if sites := list(_values(headers, b"sec-fetch-site")):
        return Site.OURS if set(sites) <= _OURS else Site.OTHER
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
    """Return the refusal of a request from another site's page."""
    return _forbidden("cross_site", "a page of another site sent this; open Tickwright's own page")


def over_tls(headers: Headers, scheme: str) -> bool:
    """Return whether the browser's connection is encrypted."""
    forwarded = [value.decode("latin-1").split(",")[0].strip() for value in _values(headers, b"x-forwarded-proto")]
    origins = [value.decode("latin-1").partition("://")[0] for value in _values(headers, b"origin")]
    return "https" in {proto.lower() for proto in (scheme, *forwarded, *origins)}


def signed_in(token: str, path: str, *, secure: bool) -> tuple[str, str]:
    """Return the header that stores ``token`` in the browser for all paths below ``path``."""
    return _set_cookie(token, path, MAX_AGE_S, secure=secure)


def signed_out(path: str, *, secure: bool) -> tuple[str, str]:
    """Return the header that deletes the cookie."""
    return _set_cookie("", path, 0, secure=secure)


def _set_cookie(value: str, path: str, max_age_s: int, *, secure: bool) -> tuple[str, str]:
    name = HOST_COOKIE if secure and path == "/" else COOKIE
    parts = [f"{name}={value}", f"Path={path}", f"Max-Age={max_age_s}", "HttpOnly", "SameSite=Strict"]
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
