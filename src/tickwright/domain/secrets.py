"""Secrets by reference (``${env:NAME}``, ``${file:NAME}``), where they may be sent, and secrets masked in texts.

A document names a secret, and the process that makes the call resolves it; ``plugin.secrets`` reads it. A document with
references (a partner's settings, an entity's party) is a row, and less trusted than that process. So the operator of
the process binds each secret to hosts::

    cpo.example               this host on every port, by TLS
    *.dhl.example:443         every name below it, on this port
    http://10.0.0.7:8080      this host also without TLS

A text that URL parsers could read as different addresses is refused, not guessed.

A secret in a text is found in any escaped form: JSON, Python, a URL, HTML or Base64. Text and secret are compared
without their escapes, so one rule covers every program that escapes too much or too little. They are also compared
unchanged, for a secret that contains an escape. The time is linear in the length of the text.
"""

import re
from base64 import b64encode, urlsafe_b64encode
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from enum import Enum
from html import unescape
from typing import Any, NamedTuple

from tickwright.domain.addresses import Address
from tickwright.domain.errors import Rejected
from tickwright.domain.targets import WEB_PORTS, WebTarget, parse_target

MASK = "***"
GROWTH_MAX = 6
"""The most characters of one byte of a secret, as in ``\\u0026`` and ``&quot;``."""
_PASSES = 5  # nested escapes, such as JSON in a URL, take a pass each
_CHARS_MIN = 4
_HEX = "[0-9A-Fa-f]"
_ESCAPE = re.compile(
    rf"%{_HEX}{{2}}(?:%{_HEX}{{2}})*"
    rf"|\\\\*(?:x{_HEX}{{2}}(?:\\+x{_HEX}{{2}})*|u{_HEX}{{4}}(?:\\+u{_HEX}{{4}})*|U00(?:0{_HEX}|10){_HEX}{{4}}|.?)"
    rf"|&(?:#[xX]?{_HEX}{{1,8}}|[A-Za-z][A-Za-z0-9]{{1,31}});"
    r"|\"\"+|''+",  # as CSV and SQL double them
    re.DOTALL,
)
_ALIKE = str.maketrans("+\n\r\t\b\f\v\a\0", " nrtbfva0") | dict(
    zip(range(0xDC80, 0xDD00), range(0x80, 0x100), strict=True)
)
"""An escaped line break is an n without its backslash; ``+`` may be a blank; a byte that is not UTF-8 is Latin-1."""

Spans = Iterator[tuple[int, int]]


def spellings(secret: str) -> set[str]:
    """Return the texts that :func:`mask_secrets` searches: a secret, its Base64, and both without escapes."""
    plain = secret.encode("utf-8", "surrogateescape")
    encoded = [encode(plain).decode() for encode in (b64encode, urlsafe_b64encode)]
    whole = {secret, *encoded, *(text.rstrip("=") for text in encoded)}
    plain_texts = ((_Plain(text).text, len(text)) for text in whole)
    # the remainder of a secret of blanks or backslashes would be found everywhere
    return whole | {short for short, size in plain_texts if len(short.strip()) >= min(_CHARS_MIN, size)}


def mask_secrets(text: str, spelled: Collection[str], *, mask: str = MASK, until: int | None = None) -> str:
    """Return ``text`` with ``mask`` for each secret; of secrets that contain or overlap each other nothing is left.

    ``spelled`` are the results of :func:`spellings`. Only the text before ``until`` is returned; a secret that begins
    before it is masked whole.
    """
    until = len(text) if until is None else until
    shown: list[str] = []
    end = 0
    for begin, behind in sorted(_spans(text, spelled)) if spelled else ():
        if begin >= until:
            break
        if begin >= end:
            shown += (text[end:begin], mask)
        end = max(end, behind)
    return "".join([*shown, text[end:until]])


def _spans(text: str, spelled: Collection[str]) -> Spans:
    yield from _found(text, spelled)
    plain = _Plain(text)
    if plain.text != text:
        yield from ((plain.begin(begin), plain.end(end)) for begin, end in _found(plain.text, spelled))


def _found(text: str, spelled: Collection[str]) -> Spans:
    for spelling in spelled:
        begin = text.find(spelling)
        while begin >= 0:
            last = begin  # overlapping or touching ones are one span: a repetitive text has thousands
            while (again := text.rfind(spelling, last + 1, last + 2 * len(spelling))) >= 0:
                last = again
            yield begin, last + len(spelling)
            begin = text.find(spelling, last + 1)


class _Plain:
    """A text without its escapes, with the original offset of each part."""

    def __init__(self, text: str) -> None:
        self._passes: list[list[tuple[int, int, int, int]]] = []
        while len(self._passes) < _PASSES and _ESCAPE.search(text):
            text, units = _without_escapes(text)
            self._passes.append(units)
        self.text = text.translate(_ALIKE)

    def begin(self, at: int) -> int:
        """Return where the character at this offset begins in the text."""
        return self._original_span(at)[0]

    def end(self, at: int) -> int:
        """Return where the character before this offset ends in the text."""
        return self._original_span(at - 1)[1]

    def _original_span(self, at: int) -> tuple[int, int]:
        first = last = at
        for units in reversed(self._passes):
            first, last = _span(units, first)[0], _span(units, last)[1] - 1
        return first, last + 1


def _without_escapes(text: str) -> tuple[str, list[tuple[int, int, int, int]]]:
    """Return the text without escapes, and of each escape its span after and before."""
    pieces: list[str] = []
    units: list[tuple[int, int, int, int]] = []
    size = end = 0
    for found in _ESCAPE.finditer(text):
        character = _unescaped(found[0])
        begin = size + found.start() - end
        size = begin + len(character)
        units.append((begin, size, *found.span()))
        pieces += (text[end : found.start()], character)
        end = found.end()
    return "".join([*pieces, text[end:]]), units


def _span(units: list[tuple[int, int, int, int]], at: int) -> tuple[int, int]:
    before = bisect_right(units, at, key=lambda unit: unit[0]) - 1
    if before < 0:
        return at, at + 1
    _, end, original_begin, original_end = units[before]
    return (original_begin, original_end) if at < end else (original_end + at - end, original_end + at - end + 1)


def _unescaped(escape: str) -> str:
    if escape[0] == "&":
        return unescape(escape)
    if escape[0] in "\"'":
        return escape[0]
    short = escape.replace("\\", "")
    if len(short) < 2:
        return short
    kind, digits = short[0], short.replace(short[0], "")
    if kind == "U":
        return chr(int(digits, 16))
    if kind == "u":
        return bytes.fromhex(digits).decode("utf-16-be", "surrogatepass")
    return bytes.fromhex(digits).decode("utf-8", "surrogateescape")


REFERENCE = re.compile(r"\$\{(?:env:([A-Za-z_][A-Za-z0-9_]{0,99})|(file:[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}))\}")
Secrets = Callable[[str], str | None]
"""The secret of a name; a file's name is ``file:NAME``."""


def resolve_references(document: Any, secrets: Secrets) -> Any:
    """Return ``document`` with every reference in its texts replaced, at any depth; keys are not changed.

    Raises:
        Rejected: ``secret_missing``, or the errors of ``secrets``. Retry when the secret is there.
    """
    if isinstance(document, str):
        return REFERENCE.sub(lambda match: _secret(match[1] or match[2], secrets), document)
    if isinstance(document, Mapping):
        return {key: resolve_references(value, secrets) for key, value in document.items()}
    if isinstance(document, list | tuple):
        return [resolve_references(value, secrets) for value in document]
    return document


def _secret(name: str, secrets: Secrets) -> str:
    found = secrets(name)
    if found is None:
        raise Rejected("secret_missing", f"there is no variable {name} in the environment")
    return found


class ResolvedSecrets:
    """Resolves secrets and remembers them to mask later texts: errors of HTTP clients quote headers and addresses."""

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets
        self._found: set[str] = set()

    def __call__(self, name: str) -> str | None:
        """Return the secret of this name."""
        return self.remember(self._secrets(name))

    def remember(self, found: str | None) -> str | None:
        """Return ``found``, and mask it from now on."""
        if found:
            self._found |= spellings(found)
        return found

    def mask(self, text: str) -> str:
        """Return ``text`` with ``***`` for every secret that was looked up, in the forms of :func:`spellings`."""
        return mask_secrets(text, self._found)


# ------------------------------------------------------------ where a secret may be sent

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
