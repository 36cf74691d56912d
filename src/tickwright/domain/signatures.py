"""Standard Webhooks signatures: a receiver verifies that a message is ours and unchanged.

Pure: the caller passes the time. The signed text is ``id.timestamp.body``, with exactly the bytes that are sent. There
is one ``v1,`` signature per secret, newest first, so that during a rotation a receiver with either secret accepts it.
Tests verify it with the library ``standardwebhooks``, which does not sign here, because it takes text and a clock.
Source: the Standard Webhooks specification.
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence
from functools import lru_cache

from tickwright.domain.errors import Rejected

SECRET_PREFIX = "whsec_"  # noqa: S105  a prefix, not a secret
SECRET_BYTES = 32
"""Of a secret that Tickwright generates."""

SECRET_BYTES_MIN = 16


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
