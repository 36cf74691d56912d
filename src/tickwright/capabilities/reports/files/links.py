"""Signed links to files: whoever has one may fetch one file until it ends, and nothing else. Pure.

The signature covers the report, the file's key and the end, so that a link to one file opens no other, and ends when
it says. Whoever replaces the secret ends every link.
"""

import hmac
from datetime import timedelta
from urllib.parse import urlencode

LIFE = timedelta(minutes=15)


def signature(secret: str, report_id: int, key: str, expires_s: int) -> str:
    """Return the signature of a link, 64 hexadecimal digits.

    Args:
        secret: Of the installation.
        report_id: Whose file it is.
        key: Where the file is kept; without a line break, as every key.
        expires_s: When the link ends, in Unix seconds by the database's clock.
    """
    text = f"tickwright report file\n{report_id}\n{expires_s}\n{key}"
    return hmac.digest(secret.encode(), text.encode(), "sha256").hex()


def path_of(secret: str, report_id: int, key: str, expires_s: int) -> str:
    """Return the link, as a path of the API."""
    query = {"expires": expires_s, "signature": signature(secret, report_id, key, expires_s)}
    return f"/v1/report-files/{report_id}?{urlencode(query)}"


def is_signed(secret: str, report_id: int, key: str, expires_s: int, given: str) -> bool:
    """Whether ``given`` is the signature; takes as long for every wrong one."""
    return hmac.compare_digest(signature(secret, report_id, key, expires_s).encode(), given.encode())
