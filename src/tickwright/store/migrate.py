"""Schema migrations on a live system, with one migrator at a time.

Each revision is expand-only, so the previous release works on the new schema (docs/adr/0003). Each is a transaction of
its own, so no more tables are locked at once than one revision needs. A lock that is not free within two seconds, or
that ends in a deadlock, is given up and tried again, so that traffic does not queue behind a migration. A migrator that
freezes or is cut off inside a revision loses its session and its locks after ten seconds.
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
from psycopg.errors import DeadlockDetected, IdleInTransactionSessionTimeout, LockNotAvailable
from sqlalchemy.exc import DBAPIError

from tickwright.domain.errors import Contended, Rejected
from tickwright.store.dsn import driver_url, servers
from tickwright.store.pool import unavailable
from tickwright.store.queries import load

_GRANT_AGAIN = load("tickwright.store.sql", "app_roles.sql")["grant_again"]
LOCK_TRIES_MAX = 30
CONNECT_TIMEOUT_S = 10
_MIGRATION_LOCK = 7313_0001
_SETTINGS = {
    "lock_timeout": "2s",
    "idle_in_transaction_session_timeout": "10s",  # a revision's locks block all traffic on their tables
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "30000",
}
"""Of the session. Between two revisions, keepalives end a dead one, which holds the lock against other migrators."""
_GIVES_WAY = (LockNotAvailable, DeadlockDetected)
_ENDED = (psycopg.OperationalError, IdleInTransactionSessionTimeout)


def migrate(url: str) -> str:
    """Run all outstanding revisions and return the resulting revision; ``url`` is direct, not through a pooler.

    Safe to run from many processes at once, and while the product works.

    Raises:
        Unavailable: The database does not answer, or has ended the session. Retry: what is committed stays.
        Contended: A table stayed locked for a minute. Retry.
        Rejected: The server is older than PostgreSQL 15. Permanent.
    """
    engine = sqlalchemy.create_engine(
        "postgresql+psycopg://", creator=lambda: _connect(url), poolclass=sqlalchemy.NullPool
    )
    for _ in range(LOCK_TRIES_MAX):
        with suppress(_LockNotAvailable):
            return _migrate_once(engine, url)
    raise Contended("migration_locked", "a table stayed locked; look for a long transaction and try again")


def migration_sql() -> str:
    """Return the whole schema as SQL text, to run by hand."""
    out = io.StringIO()
    config = _config(output=out)
    command.upgrade(config, "head", sql=True)
    return out.getvalue()


class _LockNotAvailable(Exception):
    """Another session holds a lock, and the migration did not wait longer."""


def _connect(url: str) -> psycopg.Connection:
    """Connect to the server that takes writes; libpq tries several in turn, with the timeout for each."""
    timeout_s = servers(url)[0].connect_timeout_s or CONNECT_TIMEOUT_S
    return psycopg.connect(driver_url(url), connect_timeout=timeout_s, target_session_attrs="read-write")


def _migrate_once(engine: sqlalchemy.Engine, url: str) -> str:
    try:
        with engine.connect() as connection:
            _prepare(connection)
            config = _config()
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
            connection.exec_driver_sql(_GRANT_AGAIN)
            context = MigrationContext.configure(
                connection, opts={"version_table": "schema_version", "version_table_schema": "tickwright"}
            )
            revision = context.get_current_revision() or ""
            connection.commit()
            return revision
    except (psycopg.Error, DBAPIError) as error:  # SQLAlchemy does not translate errors of a revision's own SQL
        cause = (error.orig or error) if isinstance(error, DBAPIError) else error
        if isinstance(cause, _GIVES_WAY):
            raise _LockNotAvailable from error
        if isinstance(cause, _ENDED):
            raise unavailable(url, cause) from error
        raise


def _prepare(connection: sqlalchemy.Connection) -> None:
    number = connection.exec_driver_sql("SHOW server_version_num").scalar_one()
    if int(number) < 150000:
        raise Rejected("postgresql_too_old", f"PostgreSQL 15 or newer is needed, this one is {number}")
    connection.exec_driver_sql("".join(f"SET {name} = '{value}';" for name, value in _SETTINGS.items()))
    connection.exec_driver_sql(f"SELECT pg_advisory_lock({_MIGRATION_LOCK})")  # until the connection ends
    connection.exec_driver_sql("CREATE SCHEMA IF NOT EXISTS tickwright")
    connection.commit()


def _config(output: Any = None) -> Config:
    config = Config(output_buffer=output) if output else Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.set_main_option("sqlalchemy.url", "postgresql://")
    config.set_main_option("path_separator", "os")
    return config
