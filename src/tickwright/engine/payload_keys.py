"""The keys of encrypted payloads: read by reference, and what they seal and open. See docs/encryption.md, ADR 0044.

::

    TICKWRIGHT_PAYLOAD_KEYS=2026-11=env:KEY_B,2026-05=file:/run/secrets/old

The first key seals, and all of them open. A key has 32 random bytes. It encrypts nothing by itself: each process
derives keys of its own from it and 16 random bytes, and takes new ones after a million texts. So the number of texts of
one key has no practical limit, although nonces of 12 bytes are random.
"""

import hmac
import os
from base64 import urlsafe_b64decode
from collections.abc import Iterable, Mapping
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from tickwright.domain.envelopes import (
    KEY_NAME,
    NONCE_BYTES,
    SALT_BYTES,
    Envelope,
    Purpose,
    bound_to,
    read_envelope,
    seal_text,
    unreadable,
)
from tickwright.domain.errors import Rejected, Unavailable
from tickwright.ports.ids import random_bytes

KEY_BYTES = 32
BASE64_CHARS = 43
KEYS_MAX = 16
FILE_BYTES_MAX = 4096
SALT_FOR_TEXTS = 1 << 20
DERIVED_KEPT = 256
FINGERPRINT_BYTES = 4
_SETTING = "TICKWRIGHT_PAYLOAD_KEYS"
_FORM = "write NAME=env:VARIABLE or NAME=file:/PATH, with commas between several; the key itself is not written there"


class PayloadKeys:
    """The payload keys of a process. Empty in one that has none.

    Attributes:
        names: Of each key, as envelopes have it: its name and its fingerprint; the first one seals.

    Invariants:
        ENC-2: ``open`` returns what ``seal`` was given for the same purpose and subject, or raises; an envelope of
            which any byte was changed is refused.
        ENC-3: neither ``repr`` nor an error has a part of a key.
    """

    def __init__(self, keys: Iterable[tuple[str, bytes]] = ()) -> None:
        """Take keys by name.

        Raises:
            Rejected: ``invalid_payload_keys``: a name or a key is malformed or given twice. Permanent.
        """
        given = list(keys)
        for name, key in given:
            _check(name, key)
        names, values = {name for name, _ in given}, {key for _, key in given}
        if len(names) < len(given) or len(values) < len(given) or len(given) > KEYS_MAX:
            raise _invalid(f"give at most {KEYS_MAX} keys, each once and with a name of its own")
        found = [_Key(name, key) for name, key in given]
        self._keys = {key.name: key for key in found}
        self.names = tuple(self._keys)

    @classmethod
    def parse(cls, text: str, environment: Mapping[str, str] | None = None) -> "PayloadKeys":
        """Return the keys that ``text`` refers to.

        Raises:
            Rejected: ``invalid_payload_keys``: what is wrong, without a part of a key. Permanent.
        """
        variables = os.environ if environment is None else environment
        return cls(_read(entry.strip(), variables) for entry in text.split(",") if entry.strip())

    def __bool__(self) -> bool:
        return bool(self._keys)

    def __repr__(self) -> str:
        return f"PayloadKeys({', '.join(self.names)})"

    def can_open(self, envelope: Envelope) -> bool:
        """Return whether the key of an envelope is one of these."""
        return envelope.key in self._keys

    def seal(self, text: str, purpose: Purpose, subject: str) -> str:
        """Return ``text`` as an envelope under the first key.

        Raises:
            Unavailable: ``payload_keys_missing``: there is none. Retry after the operator has set it.
        """
        for key in self._keys.values():
            return key.seal(text, purpose, subject)
        message = f"the {purpose} of {subject} is to be encrypted, and this process has no payload keys; set {_SETTING}"
        raise Unavailable("payload_keys_missing", message)

    def open(self, text: str, purpose: Purpose, subject: str) -> str:
        """Return the text of an envelope; any other JSON text as it is.

        Raises:
            Unavailable: ``payload_key_missing``: its key is not one of these. Retry after the operator has added it.
            Rejected: ``payload_unreadable``: it was changed, or it is that of another purpose or subject. Permanent.
        """
        envelope = read_envelope(text)
        if envelope is None:
            return text
        key = self._keys.get(envelope.key)
        if key is None:
            here = f"it has {', '.join(self.names)}" if self else "it has none"
            message = f"this process has no key {envelope.key}: {here}; add it to {_SETTING}"
            raise Unavailable("payload_key_missing", message, key=envelope.key)
        return key.open(envelope, purpose, subject)

    def digests(self, digest: bytes) -> tuple[bytes, ...]:
        """Return a request's digest under each key. Without a key, guesses of the request cannot be compared with it.

        The first one is stored. Each begins with the ``FINGERPRINT_BYTES`` of its key.
        """
        return tuple(key.digest(digest) for key in self._keys.values())


NO_KEYS = PayloadKeys()


class _Key:
    """One key, and the keys that are derived from it."""

    def __init__(self, name: str, secret: bytes) -> None:
        self._secret = secret
        self.fingerprint = _derive(secret, b"", b"fingerprint")[:FINGERPRINT_BYTES]
        self.name = f"{name}/{self.fingerprint.hex()}"
        self._digest_key = _derive(secret, b"", b"digest")
        self._cipher_of = lru_cache(maxsize=DERIVED_KEPT)(self._derived)
        self._salt, self._left = b"", 0

    def _derived(self, salt: bytes) -> Any:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        return AESGCM(_derive(self._secret, salt, b"text"))

    def seal(self, text: str, purpose: Purpose, subject: str) -> str:
        if self._left <= 0:
            self._salt, self._left = random_bytes(SALT_BYTES), SALT_FOR_TEXTS
        self._left -= 1
        salt, nonce = self._salt, random_bytes(NONCE_BYTES)
        sealed = self._cipher_of(salt).encrypt(nonce, text.encode(), bound_to(self.name, purpose, subject))
        return seal_text(self.name, salt, nonce, sealed)

    def open(self, envelope: Envelope, purpose: Purpose, subject: str) -> str:
        from cryptography.exceptions import InvalidTag

        salt, nonce, sealed = envelope.parts()
        try:
            opened: bytes = self._cipher_of(salt).decrypt(nonce, sealed, bound_to(self.name, purpose, subject))
        except InvalidTag:
            raise unreadable(f"it was changed, or it is not the {purpose} of {subject}") from None
        return opened.decode()

    def digest(self, digest: bytes) -> bytes:
        return self.fingerprint + hmac.digest(self._digest_key, digest, sha256)


def _derive(secret: bytes, salt: bytes, what: bytes) -> bytes:
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    derived: bytes = HKDF(SHA256(), KEY_BYTES, salt, b"tickwright payload v1 " + what).derive(secret)
    return derived


def _read(entry: str, environment: Mapping[str, str]) -> tuple[str, bytes]:
    name, separator, reference = entry.partition("=")
    kind, colon, where = reference.partition(":")
    if not separator or not colon or kind not in {"env", "file"} or not where:
        raise _invalid(_FORM)
    if not KEY_NAME.fullmatch(name):
        raise _invalid("a name has 1 to 40 letters, digits, '.', '_' or '-'")
    if kind == "env":
        text = environment.get(where, "")
        if not text.strip():
            raise _invalid(f"the variable of key {name} is not set")
    else:
        text = _file_text(name, Path(where))
    return name, _decoded(name, text.strip())


def _file_text(name: str, path: Path) -> str:
    if not path.is_absolute():
        raise _invalid(f"the file of key {name} needs an absolute path")
    try:
        if not path.is_file():
            raise _invalid(f"the file of key {name} is not there, or it is no regular file")
        with path.open("rb") as file:
            return file.read(FILE_BYTES_MAX).decode("ascii")
    except OSError as error:
        raise _invalid(f"the file of key {name} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise _invalid(f"the file of key {name} is not text") from None


def _decoded(name: str, text: str) -> bytes:
    """Return a key of 64 hexadecimal digits, or of 43 characters of Base64 with or without padding."""
    try:
        if len(text) == 2 * KEY_BYTES:
            return bytes.fromhex(text)
        plain = text.rstrip("=").replace("+", "-").replace("/", "_")
        if len(plain) == BASE64_CHARS:
            return urlsafe_b64decode(plain + "=")
    except ValueError:
        pass
    raise _invalid(f"key {name} is not 32 bytes as Base64 or hexadecimal; make one with tickwright payload-keys new")


def _check(name: str, key: bytes) -> None:
    if not KEY_NAME.fullmatch(name):
        raise _invalid("a name has 1 to 40 letters, digits, '.', '_' or '-'")
    if len(key) != KEY_BYTES or len(set(key)) < KEY_BYTES // 4:  # of random bytes, 29 to 32 differ
        raise _invalid(f"key {name} is not {KEY_BYTES} random bytes; make one with tickwright payload-keys new")


def _invalid(text: str) -> Rejected:
    return Rejected("invalid_payload_keys", text)
