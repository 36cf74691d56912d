"""Encrypted JSON as JSON: the envelope that the database, the brokers, REST and the dashboard carry without a key.

::

    {"$encrypted": {"v": 1, "key": "2026-11/3f9a2c1b", "data": "…"}}

``key`` names the key and has a fingerprint of it, so that another key under an old name is found as missing, not as a
broken text. ``data`` is base64url without padding: 16 bytes of salt, 12 of nonce, then the cipher text of AES-256-GCM
with its tag. The tag also covers :func:`bound_to`: what the text is and whose it is.
"""

import binascii
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from tickwright.domain.errors import Rejected

MEMBER = "$encrypted"
VERSION = 1
SALT_BYTES, NONCE_BYTES, TAG_BYTES = 16, 12, 16
KEY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
_LEAST = SALT_BYTES + NONCE_BYTES + TAG_BYTES


class Purpose(StrEnum):
    """What a text is.

    The subject: of a payload its task type, of a message its destination, of a step the job's id, a slash and the name
    of the step; else the job's id.
    """

    PAYLOAD = "payload"
    RESULT = "result"
    PROGRESS = "progress"
    MESSAGE = "message"
    STEP = "step"


class Envelope(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of an envelope."""

    v: Annotated[int, Meta(ge=VERSION, le=VERSION)]
    key: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,39}/[0-9a-f]{8}\Z")]
    data: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]+\Z")]

    def parts(self) -> tuple[bytes, bytes, bytes]:
        """Return salt, nonce and cipher text.

        Raises:
            Rejected: ``payload_unreadable``: ``data`` is not what :func:`seal_text` writes. Permanent.
        """
        try:
            raw = urlsafe_b64decode(self.data + "=" * (-len(self.data) % 4))
        except binascii.Error:
            raw = b""
        if len(raw) < _LEAST or _encoded(raw) != self.data:  # the last character may have unused bits
            raise unreadable("its data is cut off or changed")
        return raw[:SALT_BYTES], raw[SALT_BYTES : SALT_BYTES + NONCE_BYTES], raw[SALT_BYTES + NONCE_BYTES :]


class _Sealed(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"envelope": MEMBER}):
    envelope: Envelope


_decode = msgspec.json.Decoder(_Sealed).decode


def read_envelope(text: str) -> Envelope | None:
    """Return the envelope in a JSON text; ``None`` where it is any other JSON."""
    if MEMBER not in text:
        return None
    try:
        return _decode(text).envelope
    except msgspec.DecodeError:
        return None


def seal_text(key: str, salt: bytes, nonce: bytes, cipher_text: bytes) -> str:
    """Return an envelope as JSON text."""
    return f'{{"{MEMBER}":{{"v":{VERSION},"key":"{key}","data":"{_encoded(salt + nonce + cipher_text)}"}}}}'


def bound_to(key: str, purpose: Purpose, subject: str) -> bytes:
    """Return the data that the tag covers beside the text, so that it opens only as what it was sealed as.

    Invariants:
        ENC-1: different keys, purposes or subjects give different data.
    """
    return msgspec.json.encode(["tickwright", VERSION, key, purpose, subject])


def unreadable(why: str) -> Rejected:
    """Return the error of a text that no key opens."""
    return Rejected("payload_unreadable", f"an encrypted text cannot be opened: {why}")


def _encoded(raw: bytes) -> str:
    return urlsafe_b64encode(raw).rstrip(b"=").decode()
