"""Secrets by reference: a document says ``${env:NAME}`` or ``${file:NAME}``, and the process that calls puts them in.

``domain.secret_hosts`` says where a secret may go, ``wiring.secrets`` where it is found.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from tickwright.domain.errors import Rejected
from tickwright.domain.spellings import spellings, without_any

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
        """Return ``text`` with ``***`` for every secret that was looked up, however it is escaped, and in Base64.

        One that the function has encoded in another way, such as together with a name, is not recognised.
        """
        return without_any(text, self._told)
