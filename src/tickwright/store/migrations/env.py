"""Alembic's entry: a transaction for each revision, under a lock that keeps a second migrator waiting."""

from typing import Any

from alembic import context
from sqlalchemy import Connection

from tickwright.store.queries import load

SCHEMA = "tickwright"
_GRANT = load("tickwright.store.sql", "app_roles.sql")["grant_with_revision"]


def _configure(connection: Connection | None) -> None:
    context.configure(
        connection=connection,
        dialect_name="postgresql",
        version_table="schema_version",
        version_table_schema=SCHEMA,
        literal_binds=connection is None,
        transactional_ddl=True,
        transaction_per_migration=connection is not None,
        on_version_apply=None if connection is None else _set_rights,  # type: ignore[arg-type]  # called with names
    )


def _set_rights(*, ctx: Any, **_more: Any) -> None:
    """Set the rights of roles for plain SQL in the transaction of each revision: none keeps those of the one before."""
    ctx.connection.exec_driver_sql(_GRANT)


def _run() -> None:
    connection: Connection | None = context.config.attributes.get("connection")
    _configure(connection)
    with context.begin_transaction():
        if connection is None:
            context.get_context().impl.static_output(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA};")
        context.run_migrations()


_run()
