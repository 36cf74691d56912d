"""Older schemas, for tests of migrations."""

import sqlalchemy

from kit.postgres import sqlalchemy_url
from tickwright.store import migrate as module


def upgrade_to(url: str, revision: str) -> None:
    """Bring a database to an older revision."""
    with sqlalchemy.create_engine(sqlalchemy_url(url), poolclass=sqlalchemy.NullPool).connect() as connection:
        module._prepare(connection)
        module._upgrade(connection, revision)
        connection.commit()
