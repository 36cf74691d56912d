"""One digest for what makes two things the same: requests under one key, listings under one cursor."""

import hashlib


def digest_of(*parts: object) -> bytes:
    """Return a digest of what makes two requests the same."""
    return hashlib.sha256("\x1f".join(map(str, parts)).encode()).digest()
