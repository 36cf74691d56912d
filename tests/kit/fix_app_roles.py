"""A database role for programs that use plain SQL only, as the command creates it."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

import asyncpg
import psycopg
import pytest

from tickwright.store.app_roles import create_app_role

PASSWORD = "a-pass-word.8"


@dataclass(frozen=True)
class AppRole:
    """An existing role, and its connection URLs."""

    name: str
    owner_url: str

    @property
    def url(self) -> str:
        """The URL of the database for the role."""
        return self.at(self.owner_url)

    def at(self, url: str) -> str:
        """Return ``url`` with the role's credentials."""
        parts = urlsplit(url)
        return f"postgresql://{self.name}:{PASSWORD}@{parts.hostname}:{parts.port}{parts.path}"


@pytest.fixture
def app_role(database_url: str) -> Iterator[AppRole]:
    """Create a role by the command."""
    made = AppRole(f"app_{urlsplit(database_url).path[1:]}", database_url)

    async def create() -> None:
        connection = await asyncpg.connect(database_url)
        await create_app_role(connection, made.name, login=True, password=PASSWORD)
        await connection.close()

    asyncio.run(create())
    yield made
    drop(database_url, made.name)


def drop(url: str, *names: str) -> None:
    """Remove roles with all their rights."""
    with psycopg.connect(url, autocommit=True) as connection:
        for name in names:
            connection.execute(f"DROP OWNED BY {name}")
            connection.execute(f"DROP ROLE {name}")
