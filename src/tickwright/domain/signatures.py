"""Standard Webhooks signatures, by which a receiver verifies that a message is ours and unchanged; rotated secrets.

There is one ``v1,`` signature per secret, newest first, so that during a rotation a receiver with either secret accepts
it. Tests verify it with the library ``standardwebhooks``, which does not sign here, because it takes text and a clock.
Source: the Standard Webhooks specification.
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence
from datetime import timedelta
from functools import lru_cache

import msgspec

from tickwright.domain.errors import Rejected
from tickwright.domain.time_texts import DurationText

SECRET_PREFIX = "whsec_"  # noqa: S105  a prefix, not a secret
SECRET_BYTES = 32
"""Of a secret that Tickwright generates."""
SECRET_BYTES_MIN = 16
OVERLAP_DEFAULT, OVERLAP_MAX = timedelta(hours=24), timedelta(days=30)


def secret_of(key: bytes) -> str:
    """Return key bytes as a ``whsec_…`` secret for receivers."""
    return SECRET_PREFIX + base64.b64encode(key).decode()


@lru_cache(maxsize=1024)
def secret_key(secret: str) -> bytes:
    """Return the key bytes of a ``whsec_…`` secret.

    Raises:
        Rejected: ``invalid_secret``; the message never repeats the secret. Permanent.
    """
    try:
        key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except binascii.Error:
        key = b""
    if len(key) < SECRET_BYTES_MIN:
        message = f"A signing secret is whsec_ and the base64 of at least {SECRET_BYTES_MIN} bytes."
        raise Rejected("invalid_secret", message)
    return key


def sign(message_id: str, timestamp: int, body: bytes, secrets: Sequence[str]) -> str:
    """Return the value of ``webhook-signature``: ``v1,…`` per secret, separated by spaces; empty without secrets.

    ``message_id`` has no dot, which separates the signed parts; ``timestamp`` is Unix seconds, as in
    ``webhook-timestamp``; ``body`` is exactly as it is sent; ``secrets`` are ``whsec_…``, newest first.

    Raises:
        Rejected: ``invalid_secret``. Permanent.
    """
    signed = b"%s.%d.%s" % (message_id.encode(), timestamp, body)
    digests = (hmac.digest(secret_key(secret), signed, "sha256") for secret in secrets)
    return " ".join("v1," + base64.b64encode(digest).decode() for digest in digests)


def digest_of(*parts: object) -> bytes:
    """Return a digest of the parts that identify a request."""
    return hashlib.sha256("\x1f".join(map(str, parts)).encode()).digest()


class RotateRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """How long the old secret stays valid beside the new one; at most 30 days."""

    overlap: DurationText = "24h"


def check_overlap(overlap: timedelta) -> timedelta:
    """Return a valid ``overlap``.

    Raises:
        Rejected: ``invalid_overlap``. Permanent.
    """
    if not timedelta() <= overlap <= OVERLAP_MAX:
        raise Rejected("invalid_overlap", f"overlap: 0s to {OVERLAP_MAX.days}d", field="overlap")
    return overlap
