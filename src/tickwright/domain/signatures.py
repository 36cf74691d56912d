"""Standard Webhooks signatures: how a receiver knows that a message is ours and unchanged.

Pure: the caller says what time it is. The signed text is ``id.timestamp.body``, with exactly the
bytes that are sent; one ``v1,`` signature per secret, newest first, so that a receiver which
knows either secret accepts during a rotation. The library ``standardwebhooks`` is the judge in
the tests; it is not the signer because it wants text and a clock, and we have bytes and a hot path.
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
"""Of a secret that we make."""

SECRET_BYTES_MIN = 16


def secret_of(key: bytes) -> str:
    """Return key bytes as the ``whsec_…`` secret that receivers are given."""
    return SECRET_PREFIX + base64.b64encode(key).decode()


@lru_cache(maxsize=1024)
def secret_key(secret: str) -> bytes:
    """Return the key bytes of a ``whsec_…`` secret.

    Raises:
        Rejected: ``invalid_secret``; the message never repeats the secret. Do not retry.
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
    """Return the value of ``webhook-signature``: ``v1,…`` per secret, separated by spaces.

    Args:
        message_id: Never contains a dot, which separates the signed parts.
        timestamp: Unix seconds, the same number that ``webhook-timestamp`` says.
        body: Exactly what is sent.
        secrets: ``whsec_…``, newest first. Empty gives an empty text: an unsigned message.

    Raises:
        Rejected: ``invalid_secret``.
    """
    signed = b"%s.%d.%s" % (message_id.encode(), timestamp, body)
    digests = (hmac.digest(secret_key(secret), signed, "sha256") for secret in secrets)
    return " ".join("v1," + base64.b64encode(digest).decode() for digest in digests)


def digest_of(*parts: object) -> bytes:
    """Return a digest of what makes two requests the same."""
    return hashlib.sha256("\x1f".join(map(str, parts)).encode()).digest()
