"""Creating the product's own database on a new server, and a plain role for sources."""

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
    """Create the database ``name`` (at most 63 bytes, quoted) if it is missing, and return its URL.

    Any number of processes can call it concurrently; one of them creates it. The user of ``server_url`` may create
    databases. Raises ``Unavailable`` (``embedded_database_failed``: the server does not answer or refuses). Retry.
    """
    try:
        with psycopg.connect(server_url, autocommit=True, connect_timeout=_CONNECT_TIMEOUT_S) as connection:
            _create_if_missing(connection, name)
    except psycopg.Error as error:
        raise Unavailable("embedded_database_failed", f"Database {name!r} could not be made: {error}") from error
    parts = urlsplit(server_url)
    return urlunsplit(parts._replace(path="/" + quote(name, safe="")))


def ensure_reader(database_url: str, name: str) -> str:
    """Create a plain role that reads the tables in a database's schema ``public``; return its URL for a source.

    The user of ``database_url`` owns the tables. The role's password is derived from the one in ``database_url``, so
    each call returns the same; if that has no password, the role has none. Any number of processes can call it
    concurrently. If the user may not create roles, its own URL is returned, because it is plain enough. Raises
    ``Unavailable`` (``embedded_database_failed``: the server does not answer or refuses). Retry.
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
        return  # another process was faster


def _statement(name: str) -> str:
    return (_STATEMENTS / f"{name}.sql").read_text(encoding="utf-8")
