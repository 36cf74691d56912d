"""Database URLs: what is one, which servers it names, and what of it may be shown.

A URL may name several servers, as libpq has it (``postgresql://u@h1:5432,h2/db?target_session_attrs=read-write``): the
one that takes writes is asked. Python's own URL functions read one host only, and refuse some of these.
"""

import re
from collections.abc import Mapping

from tickwright.domain.errors import Rejected

_URL = re.compile(
    r"(?P<scheme>[\w+]+)://(?:(?P<who>[^/?#]*)@)?(?P<hosts>[^/?#@]*)(?P<path>/[^?#]*)?(?:\?(?P<query>[^#]*))?"
)
_HOST = re.compile(r"(?:\[[0-9A-Fa-f:.%\w]+\]|[^\[\]:]*)(?::(?P<port>\d{1,5}))?")
_QUERY_PASSWORD = re.compile(r"(?i)((?:^|&)(?:ssl)?password=)[^&]*")
_WANTED = re.compile(r"(?:^|&)target_session_attrs=([^&]*)")
_STANDBY = frozenset({"standby", "read-only", "prefer-standby"})
MASK = "***"


def check_url(url: str) -> None:
    """Refuse what is no URL of a PostgreSQL database.

    Raises:
        Rejected: ``invalid_database_url``. Permanent.
    """
    _parts(url)


def check_primary_url(url: str) -> None:
    """Refuse also a URL that asks for a standby: claims, leases and relays read the primary only.

    Raises:
        Rejected: ``invalid_database_url``. Permanent.
    """
    wanted = _WANTED.search(_parts(url)["query"])
    if wanted and wanted[1] in _STANDBY:
        text = f"target_session_attrs={wanted[1]} asks for a standby; leave it out, or write read-write"
        raise Rejected("invalid_database_url", text)


def driver_url(url: str) -> str:
    """Return ``url`` spelled as every driver reads it."""
    return f"postgresql://{url.partition('://')[2]}"


def server_urls(url: str) -> list[str]:
    """Return a URL for each server that ``url`` names, in its order."""
    parts = _parts(url)
    who, query = (parts["who"] and f"{parts['who']}@"), (parts["query"] and f"?{parts['query']}")
    return [f"postgresql://{who}{host}{parts['path']}{query}" for host in parts["hosts"].split(",")]


def shown_url(url: str) -> str:
    """Return ``url`` with its passwords masked, fit for logs and terminals."""
    parts = _parts(url)
    user, colon, _ = parts["who"].partition(":")
    who = f"{user}:{MASK}@" if colon else (user and f"{user}@")
    query = _QUERY_PASSWORD.sub(rf"\g<1>{MASK}", parts["query"])
    return f"postgresql://{who}{parts['hosts']}{parts['path']}" + (f"?{query}" if query else "")


def _parts(url: str) -> Mapping[str, str]:
    found = _URL.fullmatch(url)
    if found is None or not all(_is_host(host) for host in found["hosts"].split(",")):
        raise Rejected("invalid_database_url", "TICKWRIGHT_DATABASE_URL is not a postgresql:// URL")
    if not found["scheme"].startswith("postgres"):
        raise Rejected("invalid_database_url", f"{found['scheme']}:// is not PostgreSQL; use postgresql://…")
    return {name: value or "" for name, value in found.groupdict().items()}


def _is_host(text: str) -> bool:
    found = _HOST.fullmatch(text)
    return found is not None and (found["port"] is None or 0 < int(found["port"]) <= 65_535)
