"""Bring the schema forward, on a live system, with one migrator at a time.

Decides nothing about data. Each revision is expand-only, so the release before keeps working on
the schema after (docs/adr/0003). A lock that cannot be had in two seconds gives way to the
traffic and is tried again, so that a migration never queues everybody behind itself.
"""

import io
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import sqlalchemy
from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from psycopg.errors import LockNotAvailable
from sqlalchemy.exc import OperationalError

from tickwright.domain.errors import Contended, Rejected
from tickwright.store.dsn import driver_url, servers
from tickwright.store.pool import unavailable
from tickwright.store.queries import load

_GRANT_AGAIN = load("tickwright.store.sql", "app_roles.sql")["grant_again"]
LOCK_TRIES_MAX = 30
CONNECT_TIMEOUT_S = 10
_MIGRATION_LOCK = 7313_0001


def migrate(url: str) -> str:
    """Run all outstanding revisions and return the revision that the database then has.

    Safe to run from many processes at once, and while the product works.

    Args:
        url: A direct PostgreSQL URL (not through PgBouncer in transaction mode).

    Raises:
        Unavailable: The database does not answer. Retry.
        Contended: A table stayed locked for a minute. Retry.
        Rejected: The server is older than PostgreSQL 15. Do not retry.
    """
    engine = sqlalchemy.create_engine(
        "postgresql+psycopg://", creator=lambda: _connect(url), poolclass=sqlalchemy.NullPool
    )
    for _ in range(LOCK_TRIES_MAX):
        with suppress(_LockNotAvailable):
            return _migrate_once(engine, url)
    raise Contended("migration_locked", "a table stayed locked; look for a long transaction and try again")


def migration_sql() -> str:
    """Return the whole schema as SQL text, for people who run migrations by hand."""
    out = io.StringIO()
    config = _config(output=out)
    command.upgrade(config, "head", sql=True)
    return out.getvalue()


class _LockNotAvailable(Exception):
    """Another session holds a lock that we did not wait for."""


def _connect(url: str) -> psycopg.Connection:
    """Connect to the server that takes writes; libpq goes through several by itself, and each has the timeout."""
    timeout_s = servers(url)[0].connect_timeout_s or CONNECT_TIMEOUT_S
    return psycopg.connect(driver_url(url), connect_timeout=timeout_s, target_session_attrs="read-write")


def _migrate_once(engine: sqlalchemy.Engine, url: str) -> str:
    try:
        with engine.begin() as connection:
            _prepare(connection)
            config = _config()
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
            connection.exec_driver_sql(_GRANT_AGAIN)
            context = MigrationContext.configure(
                connection, opts={"version_table": "schema_version", "version_table_schema": "tickwright"}
            )
            return context.get_current_revision() or ""
    except LockNotAvailable as error:  # a revision's own SQL goes past SQLAlchemy's translation
        raise _LockNotAvailable from error
    except OperationalError as error:
        if getattr(error.orig, "sqlstate", None) == "55P03":
            raise _LockNotAvailable from error
        raise unavailable(url, error.orig or error) from error


def _prepare(connection: sqlalchemy.Connection) -> None:
    number = connection.exec_driver_sql("SHOW server_version_num").scalar_one()
    if int(number) < 150000:
        raise Rejected("postgresql_too_old", f"PostgreSQL 15 or newer is needed, this one is {number}")
    connection.exec_driver_sql("SET LOCAL lock_timeout = '2s'")
    connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_MIGRATION_LOCK})")
    connection.exec_driver_sql("CREATE SCHEMA IF NOT EXISTS tickwright")


def _config(output: Any = None) -> Config:
    config = Config(output_buffer=output) if output else Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.set_main_option("sqlalchemy.url", "postgresql://")
    config.set_main_option("path_separator", "os")
    return config
