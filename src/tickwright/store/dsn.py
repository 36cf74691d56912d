"""Database URLs: one spelling for users, one per driver, and one that may be shown.

SQLAlchemy is imported by migrations only: it costs a third of a second that no command should wait for.
"""

import re
from urllib.parse import urlsplit

from tickwright.domain.errors import Rejected

_URL = re.compile(r"[\w+]+://.*")
_QUERY_PASSWORD = re.compile(r"(?i)((?:^|&)(?:ssl)?password=)[^&]*")
MASK = "***"


def check_url(url: str) -> None:
    """Refuse what is no URL of a PostgreSQL database.

    Raises:
        Rejected: ``invalid_database_url``. Permanent.
    """
    scheme = url.partition("://")[0]
    if not _URL.fullmatch(url) or not _readable(url):
        raise Rejected("invalid_database_url", "TICKWRIGHT_DATABASE_URL is not a postgresql:// URL")
    if not scheme.startswith("postgres"):
        raise Rejected("invalid_database_url", f"{scheme}:// is not PostgreSQL; use postgresql://…")


def _readable(url: str) -> bool:
    try:
        urlsplit(url)
    except ValueError:
        return False
    return True


def sqlalchemy_url(url: str) -> str:
    """Return ``url`` for SQLAlchemy on psycopg 3.

    Raises:
        Rejected: ``invalid_database_url``. Permanent.
    """
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    check_url(url)
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError) as error:
        raise Rejected("invalid_database_url", "TICKWRIGHT_DATABASE_URL is not a postgresql:// URL") from error
    return parsed.set(drivername="postgresql+psycopg").render_as_string(hide_password=False)


def shown_url(url: str) -> str:
    """Return ``url`` with its passwords masked, fit for logs and terminals."""
    check_url(url)
    parts = urlsplit(url)
    who, at, where = parts.netloc.rpartition("@")
    user, colon, _ = who.partition(":")
    netloc = f"{user}:{MASK}@{where}" if colon else f"{user}{at}{where}"
    query = _QUERY_PASSWORD.sub(rf"\g<1>{MASK}", parts.query)
    return f"postgresql://{netloc}{parts.path}" + (f"?{query}" if query else "")
