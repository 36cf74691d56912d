"""Database URLs: one spelling for users, one per driver, and one that may be shown."""

from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from tickwright.domain.errors import Rejected


def sqlalchemy_url(url: str) -> str:
    """Return ``url`` for SQLAlchemy on psycopg 3."""
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise Rejected("invalid_database_url", "TICKWRIGHT_DATABASE_URL is not a postgresql:// URL") from error
    if not parsed.drivername.startswith("postgres"):
        raise Rejected("invalid_database_url", f"{parsed.drivername}:// is not PostgreSQL; use postgresql://…")
    return parsed.set(drivername="postgresql+psycopg").render_as_string(hide_password=False)


def shown_url(url: str) -> str:
    """Return ``url`` with its password masked, fit for logs and terminals."""
    return make_url(sqlalchemy_url(url)).set(drivername="postgresql").render_as_string(hide_password=True)
