"""Schema migrations on a live system, with one migrator at a time.

Each revision is expand-only, so the previous release works on the new schema (docs/adr/0003). Each is a transaction of
its own, so no more tables are locked at once than one revision needs. A lock that is not free within two seconds, or
that ends in a deadlock, is given up and tried again, so that traffic does not queue behind a migration. A migrator that
freezes or is cut off inside a revision loses its session and its locks after ten seconds.
"""

import io
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import psycopg
import sqlalchemy
from alembic.migration import MigrationContext
from alembic.script import Script, ScriptDirectory
from alembic.script.revision import RevisionMap
from psycopg.errors import DeadlockDetected, IdleInTransactionSessionTimeout, LockNotAvailable
from sqlalchemy.exc import DBAPIError

from tickwright.domain.errors import Contended, Rejected
from tickwright.store.dsn import driver_url, servers
from tickwright.store.pool import unavailable
from tickwright.store.queries import REVISIONS, load

_GRANTS = load("tickwright.store.sql", "app_roles.sql")
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
    raise Contended("migration_locked", "a table stayed locked; find the long transaction, end it, and try again")


def migration_sql() -> str:
    """Return the whole schema as SQL text, to run by hand."""
    out = io.StringIO()
    _upgrade(None, output=out)
    return out.getvalue()


class _LockNotAvailable(Exception):
    """Another session holds a lock, and the migration did not wait longer."""


def _connect(url: str) -> psycopg.Connection:
    """Connect to the server that takes writes; libpq tries several one after the other, with the timeout for each."""
    timeout_s = servers(url)[0].connect_timeout_s or CONNECT_TIMEOUT_S
    return psycopg.connect(driver_url(url), connect_timeout=timeout_s, target_session_attrs="read-write")


def _migrate_once(engine: sqlalchemy.Engine, url: str) -> str:
    try:
        with engine.connect() as connection:
            _prepare(connection)
            context = _upgrade(connection)
            connection.exec_driver_sql(_GRANTS["grant_again"])
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


def _upgrade(
    connection: sqlalchemy.Connection | None, destination: str = "head", output: io.StringIO | None = None
) -> MigrationContext:
    """Run the revisions up to ``destination``, each in its own transaction; without a connection, write them out."""
    directory = ScriptDirectory(str(REVISIONS))
    directory.revision_map = RevisionMap(_revisions)
    context = MigrationContext.configure(
        connection,
        dialect_name="postgresql",
        opts={
            "fn": lambda current, _: directory._upgrade_revs(destination, current),  # noqa: SLF001  # see Alembic's cookbook
            "version_table": "schema_version",
            "version_table_schema": "tickwright",
            "transactional_ddl": True,
            "transaction_per_migration": bool(connection),
            "as_sql": not connection,
            "literal_binds": not connection,
            "output_buffer": output,
        },
    )
    with context.begin_transaction():
        if connection is None:
            context.impl.static_output("CREATE SCHEMA IF NOT EXISTS tickwright;")
        context.run_migrations(context=context)
    return context


def _revisions() -> Iterator[Script]:
    """Yield a revision for each ``versions/<number>_<name>.sql``, in the order of the numbers; none can be undone."""
    before = None
    for path in sorted(REVISIONS.glob("*.sql")):
        number, _, name = path.stem.partition("_")
        module = ModuleType(path.stem, name.replace("_", " "))

        def upgrade(context: MigrationContext, path: Path = path) -> None:
            _run_sql(path, context)

        vars(module).update(down_revision=before, upgrade=upgrade)
        yield Script(module, number, path)
        before = number


def _run_sql(path: Path, context: MigrationContext) -> None:
    """Run the file as it is, or write it out; no bind parameters, so ``:`` and ``%`` mean themselves.

    The rights of roles for plain SQL are set in the transaction of each revision: none keeps those of the one before.
    """
    text = path.read_text("utf-8")
    if context.as_sql:
        context.impl.static_output(text)
    elif context.connection:
        cursor = context.connection.connection.cursor()
        cursor.execute(text)
        cursor.execute(_GRANTS["grant_with_revision"])
