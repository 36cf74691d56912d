"""Making the product's own database on a server that has none yet."""

from importlib.resources import files
from urllib.parse import quote, urlsplit, urlunsplit

import psycopg
from psycopg import errors, sql

from tickwright.domain.errors import Unavailable

_CONNECT_TIMEOUT_S = 10
_STATEMENTS = files("tickwright.embedded") / "sql"


def ensure_database(server_url: str, name: str = "tickwright") -> str:
    """Make the database ``name`` unless it is there, and return its URL.

    Any number of processes may call it at once; one of them makes it.

    Args:
        server_url: URL of any database of the server, for a user that may make databases.
        name: Any name that PostgreSQL takes; it is quoted. At most 63 bytes.

    Raises:
        Unavailable: ``embedded_database_failed``, the server does not answer or refuses. Retry.
    """
    try:
        with psycopg.connect(server_url, autocommit=True, connect_timeout=_CONNECT_TIMEOUT_S) as connection:
            _create_if_missing(connection, name)
    except psycopg.Error as error:
        raise Unavailable("embedded_database_failed", f"Database {name!r} could not be made: {error}") from error
    parts = urlsplit(server_url)
    return urlunsplit(parts._replace(path="/" + quote(name, safe="")))


def _create_if_missing(connection: psycopg.Connection, name: str) -> None:
    found = connection.execute(_statement("database_exists"), {"name": name}).fetchone()
    if found is not None and found[0]:
        return
    create = sql.SQL(_statement("create_database")).format(name=sql.Identifier(name))
    try:
        connection.execute(create)
    except (errors.DuplicateDatabase, errors.UniqueViolation):
        return  # another process was quicker


def _statement(name: str) -> str:
    return (_STATEMENTS / f"{name}.sql").read_text(encoding="utf-8")
