"""Where a secret may be sent: the hosts that were declared for it, and the addresses in a document.

A document with references (a partner's settings, an entity's party) is a row, and less trusted than the process that
resolves them. So the operator of the process binds each secret to hosts::

    cpo.example               this host on every port, by TLS
    *.dhl.example:443         every name below it, on this port
    http://10.0.0.7:8080      this host also without TLS

A text that URL parsers could read as different addresses is refused, not guessed.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

from tickwright.domain.addresses import Address
from tickwright.domain.errors import Rejected
from tickwright.domain.secrets import REFERENCE, Secrets
from tickwright.domain.targets import WEB_PORTS, WebTarget, parse_target

HOSTS_MAX = 100
PLAIN = "http://"
_TLS = frozenset({"https", "wss"})

_URL = re.compile(r"(?<![A-Za-z0-9+.-])([A-Za-z][A-Za-z0-9+.-]*)://([A-Za-z0-9._~%!$&'()*+,;=:@\[\]-]*)(?=[/?#]|\Z)")
"""Begins at the start of a word: otherwise a long word takes quadratic time."""
_RESEMBLES_URL = re.compile(r"://|\A\s*(?:(?:https?|wss?):|[/\\]{2})", re.IGNORECASE)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
"""URL parsers drop some of these, before a text and within it."""
_ADDRESS_NAME = re.compile(
    "(?:host|hostname|url|uri|endpoint|server|address|addr|authority|base|callback|domain|gateway|href|link|origin|peer"
    r"|proxy|site|target|webhook)(?:e?s)?\Z"
)
_HOST_NAME = re.compile(r"(?:host|hostname|url|uri|endpoint)\Z")
_WORD = re.compile("[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_PORT = re.compile(r":[0-9]+\Z")
_SQUEEZED = re.compile("[^a-z]")
_IN_A_HOST = re.compile(r"\.|:[0-9]|\[")


class Destination(NamedTuple):
    """A host that a secret would be sent to; ``port`` is ``None`` when it is unknown."""

    host: str
    port: int | None
    tls: bool
    literal: Address | None = None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'' if self.tls else PLAIN}{host}{'' if self.port is None else f':{self.port}'}"


SecretsFor = Callable[[Sequence[Destination]], Secrets]
"""Returns the secrets that may be sent to all of these."""


class HostRule(NamedTuple):
    """One entry of a secret's hosts; ``suffix`` if it began with ``*``."""

    host: str
    port: int | None
    plain: bool
    suffix: bool

    def covers(self, to: Destination, *, plain: bool = False) -> bool:
        """Return whether the secret may be sent there; ``plain``: another rule allows this address without TLS."""
        named = to.host.endswith(self.host) if self.suffix else to.host == self.host
        return named and self.port in {None, to.port} and (to.tls or self.plain or plain)


def parse_hosts(text: str) -> tuple[HostRule, ...]:
    """Read ``cpo.example, *.dhl.example:443``; commas, blanks and lines separate entries.

    Raises:
        Rejected: ``invalid_secret_hosts``, naming the entry. Permanent.
    """
    entries = re.split(r"[,\s]+", text.strip())
    if len(entries) > HOSTS_MAX:
        raise Rejected("invalid_secret_hosts", f"a secret has at most {HOSTS_MAX} hosts")
    return tuple(_rule(entry) for entry in entries if entry)


def _rule(entry: str) -> HostRule:
    text, suffix = entry.removeprefix(PLAIN), entry.removeprefix(PLAIN).startswith("*.")
    try:
        target = _host(text.removeprefix("*."))
    except Rejected:
        remedy = "write HOST, HOST:PORT, *.DOMAIN, or http://HOST for one without TLS"
        raise Rejected("invalid_secret_hosts", f"{entry[:80]!r} is no host of a secret; {remedy}") from None
    port = target.port if _PORT.search(text) else None
    return HostRule(f".{target.host}" if suffix else target.host, port, entry.startswith(PLAIN), suffix)


def _host(authority: str) -> WebTarget:
    target = parse_target(f"https://{authority}/")
    if not isinstance(target, WebTarget) or target.url.count("/") != 3:
        raise Rejected("invalid_target", "not a host")
    return target


def destination_of(url: str) -> Destination:
    """Return the destination of a URL.

    Raises:
        Rejected: ``secret_host_unknown``. Permanent.
    """
    if len(found := [*_in_text(url, "the address")]) != 1:
        raise _unknown("the address")
    return found[0]


def destinations_of(document: Any) -> tuple[Destination, ...]:
    """Return every address in a document, at any depth: URLs, and hosts below a member that names an address.

    ``host``, ``url``, ``uri`` and ``endpoint`` always contain one. Below other such names and their plurals, and in
    documents below any of them, a text with a dot, a port or a bracket is one. If this finds too much, the function
    can pass the address itself: ``task.resolve(document, to=url)``.

    Raises:
        Rejected: ``secret_host_unknown``: a text resembles an address and cannot be read, or there is none.
    """
    found = dict.fromkeys(_in_document(document, "", _Named.NO))
    if not found:
        text = "the document names no address, so there is no host that its secret is bound to; write the url into it, "
        text += "or name it where the secret is put in: task.resolve(document, to=url)"
        raise Rejected("secret_host_unknown", text)
    return tuple(found)


def names_address(name: str) -> bool:
    """Return whether the member of this name contains addresses, also without a scheme."""
    words = (_SQUEEZED.sub("", name.lower()), *(word.lower() for word in _WORD.findall(name)))
    return any(_ADDRESS_NAME.search(word) for word in words)


class _Named(Enum):
    """Whether the names above a text mark it as an address."""

    NO = 0
    MAYBE = 1
    YES = 2


def _named(name: str, above: _Named) -> _Named:
    if _HOST_NAME.search(_SQUEEZED.sub("", name.lower())):
        return _Named.YES
    return _Named.MAYBE if above is not _Named.NO or names_address(name) else _Named.NO


def _in_document(value: Any, pointer: str, named: _Named) -> Iterator[Destination]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _in_document(item, f"{pointer}/{key}", _named(str(key), named))
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _in_document(item, f"{pointer}/{number}", named)
    elif isinstance(value, str):
        yield from _in_text(value, pointer, named)


def _in_text(text: str, pointer: str, named: _Named = _Named.NO) -> Iterator[Destination]:
    plain = REFERENCE.sub("x", text)
    found, bare = [*_URL.finditer(plain)], _CONTROL.sub("", plain)
    if len(found) != plain.count("://") or (found and ("\\" in plain or bare != plain)):
        raise _unknown(pointer)
    if not found and _RESEMBLES_URL.search(bare):
        raise _unknown(pointer)
    for scheme, authority in (match.groups() for match in found):
        yield _destination(scheme.lower(), authority, pointer)
    if not plain or found or plain.startswith("/"):
        return
    authority = re.split("[/?#]", plain, maxsplit=1)[0]
    resembles_host = _IN_A_HOST.search(authority) is not None and len(authority.split()) == 1
    if named is _Named.YES or (named is _Named.MAYBE and resembles_host):
        yield _destination("", authority, pointer)


def _destination(scheme: str, authority: str, pointer: str) -> Destination:
    if authority.count("@") > 1:
        raise _unknown(pointer)
    host = authority.rpartition("@")[2]
    try:
        target = _host(host)
    except Rejected:
        raise _unknown(pointer) from None
    port = target.port if _PORT.search(host) else WEB_PORTS.get(scheme)
    return Destination(target.host, port, scheme in _TLS or not scheme, target.literal)


def _unknown(pointer: str) -> Rejected:
    text = f"{pointer[:300]} looks like an address and cannot be read as one, so no secret is put in"
    return Rejected("secret_host_unknown", f"{text}; write https://HOST[:PORT]/PATH")
