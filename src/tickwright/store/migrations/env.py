"""Alembic's entry: one transaction for all revisions, under a lock that keeps a second migrator waiting."""

from alembic import context
from sqlalchemy import Connection

SCHEMA = "tickwright"


def _configure(connection: Connection | None) -> None:
    context.configure(
        connection=connection,
        dialect_name="postgresql",
        version_table="schema_version",
        version_table_schema=SCHEMA,
        literal_binds=connection is None,
        transactional_ddl=True,
    )


def _run() -> None:
    connection: Connection | None = context.config.attributes.get("connection")
    _configure(connection)
    with context.begin_transaction():
        if connection is None:
            context.get_context().impl.static_output(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA};")
        context.run_migrations()


_run()
