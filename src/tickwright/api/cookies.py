"""The cookie that signs a browser's requests, and what proves that a page of ours sent them.

The cookie's value is the token of a session; see :mod:`tickwright.api.sessions`. Scripts cannot read it, and over TLS
at the root of a host its name begins with ``__Host-``, so that no neighbour can set it. What it signs is believed for
reading; a change needs two more proofs, each enough against a page of somebody else: it comes from this site, as the
browser says in headers that no script can set, and it carries what only who may read ``GET /v1/session`` knows.
Two cookies of the name, or one that is no token, are none: a neighbour's domain may have set the other.
"""

import hmac
import re
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from enum import Enum
from hashlib import sha256

from tickwright.domain.errors import Rejected

COOKIE = "tickwright_session"
HOST_COOKIE = f"__Host-{COOKIE}"
TOKEN_PREFIX = "tws_"  # noqa: S105  how every token begins
CSRF_HEADER = "x-tickwright-csrf"
MAX_AGE_S = 12 * 3600
SAFE_METHODS = frozenset({"GET", "HEAD"})
Headers = list[tuple[bytes, bytes]]
_KEY = re.compile(rb"tw_[A-Za-z0-9_-]{43}")
_TOKEN = re.compile(rb"tws_[A-Za-z0-9_-]{43}")
_DERIVED = b"tickwright csrf v1"
_OURS = frozenset({b"same-origin", b"none"})
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}


class Site(Enum):
    """Where a request was made, as far as the browser says."""

    OURS = "ours"
    OTHER = "other"
    UNSAID = "unsaid"


def session_tokens(headers: Headers) -> list[str | None]:
    """Return the value of every cookie of our name; ``None`` for one that cannot be a token.

    Where there is a cookie that no neighbour can have set, the others do not count.
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
    """Whether ``text`` has the shape of an API key."""
    return _KEY.fullmatch(text.encode()) is not None


def csrf_token(token: str) -> str:
    """Return what a page shows with each change: derived from the session's token, so nothing has to be kept."""
    return urlsafe_b64encode(hmac.digest(token.encode(), _DERIVED, sha256)).decode().rstrip("=")


def check_change(headers: Headers, token: str) -> None:
    """Refuse a change that the cookie signs, unless a page of ours sent it.

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


def signed_in(token: str, path: str, *, secure: bool) -> tuple[str, str]:
    """Return the header that keeps ``token`` in the browser for everything below ``path``."""
    return _set_cookie(token, path, MAX_AGE_S, secure=secure)


def signed_out(path: str, *, secure: bool) -> tuple[str, str]:
    """Return the header that makes the browser forget."""
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
