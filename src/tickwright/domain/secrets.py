"""Secrets by reference (``${env:NAME}``, ``${file:NAME}``) in documents, and secrets masked in texts.

A document names a secret, and the process that makes the call resolves it. ``domain.secret_hosts`` decides where a
secret may be sent; ``process.secrets`` reads it.

A secret in a text is found in any escaped form: JSON, Python, a URL, HTML or Base64. Text and secret are compared
without their escapes, so one rule covers every program that escapes too much or too little. They are also compared
unchanged, for a secret that contains an escape. The time is linear in the length of the text.
"""

import re
from base64 import b64encode, urlsafe_b64encode
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping
from html import unescape
from typing import Any

from tickwright.domain.errors import Rejected

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
