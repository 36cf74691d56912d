"""How a revision runs its SQL file."""

from importlib import resources

from alembic import context, op


def run_sql(name: str) -> None:
    """Run ``versions/<name>.sql`` as it is; no bind parameters, so ``:`` and ``%`` mean themselves."""
    text = resources.files("tickwright.store.migrations.versions").joinpath(f"{name}.sql").read_text("utf-8")
    if context.is_offline_mode():
        context.get_context().impl.static_output(text)
        return
    connection = op.get_bind().connection.dbapi_connection
    if connection is None:  # pragma: no cover - Alembic always gives an open one online
        raise RuntimeError("migration without a connection")
    connection.cursor().execute(text)
