"""Database URLs: their syntax, the servers that they name, and their masked form.

A URL may name several servers, as in libpq (``postgresql://u@h1:5432,h2/db?target_session_attrs=read-write``, or
``postgresql://u@/db?host=h1,h2&port=5432``); the one that takes writes is used. Python's own URL functions read only
one host, and refuse some of these.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import quote, unquote

from tickwright.domain.errors import Rejected

_URL = re.compile(
    r"(?P<scheme>[\w+]+)://(?:(?P<who>[^/?#]*)@)?(?P<hosts>[^/?#@]*)(?P<path>/[^?#]*)?(?:\?(?P<query>[^#]*))?"
)
_HOST_PORT = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%\w]+\]|[^\[\]:]*)(?::(?P<port>\d{1,5}))?")
_QUERY_PASSWORD = re.compile(r"(?i)((?:^|&)(?:ssl)?password=)[^&]*")
_TARGET_SESSION = re.compile(r"(?:^|&)target_session_attrs=([^&]*)")
_STANDBY_ATTRIBUTES = frozenset({"standby", "read-only", "prefer-standby"})
_LIBPQ_ONLY = re.compile(
    "hostaddr|connect_timeout|client_encoding|fallback_application_name|keepalives.*|tcp_user_timeout|load_balance_hosts"
    "|(?:channel_binding|gssencmode|gssdelegation|sslcertmode|sslcompression|sslsni)|(?:min|max)_protocol_version"
)
"""Parameters that only libpq reads. asyncpg would send them to the server as settings, which refuses them."""

_UNSUPPORTED = re.compile(
    "(?:channel_binding|gssencmode|sslcertmode)=require|(?:require_auth|requirepeer|requiressl|scram_.*|oauth_.*)=.*"
)
"""Demands that asyncpg cannot fulfil: the connection would be less safe than the URL requires."""

MASK = "***"


class Server(NamedTuple):
    """One server of a URL, in a form that every driver reads: one host, and no parameters that only libpq reads.

    ``connect_timeout_s`` is the URL's; None without one, or for 0 (no limit).
    """

    url: str
    connect_timeout_s: int | None


def check_url(url: str) -> None:
    """Check that ``url`` is a URL of a PostgreSQL database.

    Raises:
        Rejected: ``invalid_database_url``. Permanent.
    """
    servers(url)


def check_primary_url(url: str) -> None:
    """Check as ``check_url``, and refuse standbys: claims, leases and relays read only the primary.

    Raises:
        Rejected: ``invalid_database_url``. Permanent.
    """
    check_url(url)
    target = _TARGET_SESSION.search(_parts(url)["query"])
    if target and target[1] in _STANDBY_ATTRIBUTES:
        text = f"target_session_attrs={target[1]} asks for a standby; leave it out, or write read-write"
        raise Rejected("invalid_database_url", text)


def driver_url(url: str) -> str:
    """Return ``url`` with the scheme that every driver reads."""
    return f"postgresql://{url.partition('://')[2]}"


def servers(url: str) -> list[Server]:
    """Return the servers of ``url``, in order; the parameters ``host`` and ``port`` count as in libpq.

    Raises:
        Rejected: ``invalid_database_url``; also when the number of ports is neither one nor the number of hosts.
            Permanent.
    """
    parts = _parts(url)
    query = dict(word.partition("=")[::2] for word in parts["query"].split("&") if word)
    hosts = [_HOST_PORT.fullmatch(host) for host in parts["hosts"].split(",")]
    addresses = [(found["host"], found["port"] or "") for found in hosts if found]
    if "host" in query:
        addresses = [(host, "") for host in unquote(query.pop("host")).split(",")]
    if "port" in query:
        ports = unquote(query.pop("port")).split(",")
        if len(ports) not in {1, len(addresses)} or not all(not port or _is_port(port) for port in ports):
            raise Rejected("invalid_database_url", f"port={','.join(ports)} is not one port, or one for each host")
        each = ports * len(addresses) if len(ports) == 1 else ports
        addresses = [(host, port) for (host, _), port in zip(addresses, each, strict=True)]
    timeout = query.get("connect_timeout", "")
    timeout_s = int(timeout) or None if timeout.isdecimal() else None
    kept = [f"{name}={value}" for name, value in query.items() if not _LIBPQ_ONLY.fullmatch(name)]
    who = parts["who"] and f"{parts['who']}@"
    path = parts["path"].removesuffix("/")
    return [Server(_server_url(who, host, port, path, kept), timeout_s) for host, port in addresses]


def _server_url(who: str, host: str, port: str, path: str, query: list[str]) -> str:
    """Return the URL of one server. The folder of a socket becomes a parameter, because no authority holds a slash."""
    if unquote(host).startswith(("/", "@")):
        query = [*query, f"host={quote(unquote(host))}", *([f"port={port}"] if port else [])]
        host = port = ""
    host = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return f"postgresql://{who}{host}{port and f':{port}'}{path}" + (f"?{'&'.join(query)}" if query else "")


def shown_url(url: str) -> str:
    """Return ``url`` with masked passwords, for logs and terminals."""
    parts = _parts(url)
    user, colon, _ = parts["who"].partition(":")
    who = f"{user}:{MASK}@" if colon else (user and f"{user}@")
    query = _QUERY_PASSWORD.sub(rf"\g<1>{MASK}", parts["query"])
    return f"postgresql://{who}{parts['hosts']}{parts['path']}" + (f"?{query}" if query else "")


def _parts(url: str) -> Mapping[str, str]:
    found = _URL.fullmatch(url)
    if found is None or not all(_is_host(host) for host in found["hosts"].split(",")):
        raise Rejected("invalid_database_url", "not a postgresql:// URL")
    if not found["scheme"].startswith("postgres"):
        raise Rejected("invalid_database_url", f"{found['scheme']}:// is not PostgreSQL; use postgresql://…")
    for word in (found["query"] or "").split("&"):
        if _UNSUPPORTED.fullmatch(word):
            text = f"{word.partition('=')[0]} of a database URL is not supported; use sslmode=verify-full"
            raise Rejected("invalid_database_url", text)
    return {name: value or "" for name, value in found.groupdict().items()}


def _is_host(text: str) -> bool:
    found = _HOST_PORT.fullmatch(text)
    return found is not None and (found["port"] is None or _is_port(found["port"]))


def _is_port(text: str) -> bool:
    return text.isdecimal() and 0 < int(text) <= 65_535
