"""Making the product's own database on a server that has none yet, and a plain role for sources."""

from contextlib import suppress
from hashlib import sha256
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


def ensure_reader(database_url: str, name: str) -> str:
    """Make a plain role that reads the tables of a database's schema ``public``, and return its URL for a source.

    Its password follows from the one in ``database_url``, so each call gives the same; through a socket that asks for
    none it has none. Any number of processes may call it at once. A user that may make no roles is plain enough itself.

    Args:
        database_url: For the owner of the tables.
        name: Of the role.

    Raises:
        Unavailable: ``embedded_database_failed``, the server does not answer or refuses. Retry.
    """
    parts = urlsplit(database_url)
    password = sha256(f"{name}:{parts.password}".encode()).hexdigest() if parts.password else ""
    try:
        with psycopg.connect(database_url, autocommit=True, connect_timeout=_CONNECT_TIMEOUT_S) as connection:
            connection.execute(_statement("one_at_a_time"))
            _put_reader(connection, name, password)
    except errors.InsufficientPrivilege:
        return database_url
    except psycopg.Error as error:
        raise Unavailable("embedded_database_failed", f"Role {name!r} could not be made: {error}") from error
    user = quote(name, safe="") + (f":{password}" if password else "")
    return urlunsplit(parts._replace(netloc=f"{user}@{parts.netloc.rpartition('@')[2]}"))


def _put_reader(connection: psycopg.Connection, name: str, password: str) -> None:
    role = sql.Identifier(name)
    with suppress(errors.DuplicateObject):
        connection.execute(sql.SQL(_statement("make_reader")).format(name=role))
    if password:
        text = _statement("set_reader_password")
        connection.execute(sql.SQL(text).format(name=role, password=sql.Literal(password)))
    connection.execute(sql.SQL(_statement("let_reader_in")).format(name=role))


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
