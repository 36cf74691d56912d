"""Secrets by reference: a document says ``${env:NAME}`` or ``${file:NAME}``, and the process that calls puts them in.

``domain.secret_hosts`` says where a secret may go, ``wiring.secrets`` where it is found.
"""

import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

from tickwright.domain.errors import Rejected

MASK = "***"

REFERENCE = re.compile(r"\$\{(?:env:([A-Za-z_][A-Za-z0-9_]{0,99})|(file:[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}))\}")
Secrets = Callable[[str], str | None]
"""The secret of a name; a file's name is ``file:NAME``."""


def put_in(document: Any, secrets: Secrets) -> Any:
    """Return ``document`` with every reference in its texts replaced, at any depth; keys stay as they are.

    Raises:
        Rejected: ``secret_missing``, or what ``secrets`` raises. Retry once the secret is there.
    """
    if isinstance(document, str):
        return REFERENCE.sub(lambda match: _found(match[1] or match[2], secrets), document)
    if isinstance(document, Mapping):
        return {key: put_in(value, secrets) for key, value in document.items()}
    if isinstance(document, list | tuple):
        return [put_in(value, secrets) for value in document]
    return document


def _found(name: str, secrets: Secrets) -> str:
    found = secrets(name)
    if found is None:
        raise Rejected("secret_missing", f"there is no variable {name} in the environment")
    return found


def spellings(secret: str) -> set[str]:
    """Return a secret as texts quote it: as it is, as Python shows it, as in a URL and in Base64."""
    encoded = b64encode(secret.encode("utf-8", "surrogateescape")).decode()
    in_urls = {quote(secret, safe=safe, errors="surrogateescape") for safe in ("", "/")}
    return {secret, repr(secret)[1:-1], encoded, *in_urls}


def without_any(text: str, secrets: Iterable[str]) -> str:
    """Return ``text`` with ``***`` for each secret; nothing is left of those that contain or overlap each other."""
    shown, end = "", 0
    for begin, until in sorted(_places(text, secrets)):
        if begin >= end:
            shown += text[end:begin] + MASK
        end = max(end, until)
    return shown + text[end:]


def _places(text: str, secrets: Iterable[str]) -> Iterator[tuple[int, int]]:
    for secret in secrets:
        begin = text.find(secret)
        while begin >= 0:
            yield begin, begin + len(secret)
            begin = text.find(secret, begin + 1)


class HandedOut:
    """Secrets as they are looked up, and remembered, so that what is said afterwards can be cleared of them.

    Exceptions of HTTP clients tell the request's headers and address.

    Args:
        secrets: Where they are found.
    """

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets
        self._told: set[str] = set()

    def __call__(self, name: str) -> str | None:
        """Return the secret of this name."""
        return self.remember(self._secrets(name))

    def remember(self, found: str | None) -> str | None:
        """Return ``found``, which :meth:`mask` takes out of texts from now on."""
        if found:
            self._told |= spellings(found)
        return found

    def mask(self, text: str) -> str:
        """Return ``text`` with ``***`` for every secret that was looked up, also as in a URL or in Base64.

        One that the function has encoded in another way, such as together with a name, is not recognised.
        """
        return without_any(text, self._told)
