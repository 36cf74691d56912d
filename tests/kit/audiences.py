"""Audiences for tests: the same members in every kind of source, and an expression that is only a class."""

import contextlib
import sqlite3
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import psycopg

from kit.postgres import as_reader
from tickwright.capabilities.batches.audience.audience import AudienceCount, Audiences
from tickwright.capabilities.batches.audience.schema import AudienceSettings, read_audience
from tickwright.domain.errors import Rejected
from tickwright.ports.batches import Action, ChunkResult, Judge, PlannedChunk, SqlFilter, Verdict
from tickwright.ports.objects import ObjectStore
from tickwright.ports.reports import Dialect
from tickwright.sources.named import Sources, SourceSettings
from tickwright.sources.object_files import ObjectFiles
from tickwright.transports.objectstore.plugin import open_store

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
KINDS = ["postgresql", "sqlite", "duckdb", "csv", "parquet"]
DATABASES = ["postgresql", "sqlite", "duckdb"]
KEY = "clients.key"


class OlderThan:
    """The expression ``client.age > years``; a client of age 13 cannot be judged.

    Args:
        translated: Whether it has SQL.
    """

    fields: Sequence[str] = ("age",)

    def __init__(self, years: int, *, translated: bool = True) -> None:
        self._years, self._translated = years, translated

    def sql(self, dialect: Dialect, column: Callable[[str], str], now: datetime) -> SqlFilter | None:
        """Return the comparison."""
        del dialect, now
        return SqlFilter(f"{column('age')} > :e0", {"e0": self._years}) if self._translated else None

    def judge(self, values: Mapping[str, Any], now: datetime) -> Verdict:
        """Compare."""
        del now
        age = values["age"]
        if age == 13:
            raise Rejected("not_judged", "unlucky")
        if age is None:
            return Verdict.MISSING
        return Verdict.SELECTED if age > self._years else Verdict.NOT


class Read(NamedTuple):
    """The result of reading one range."""

    actions: list[Action]
    result: ChunkResult


class AudienceWorld:
    """One kind of source with the table or file ``members``.

    Args:
        kind: One of ``KINDS``.
        url: URL of an empty database, for PostgreSQL.
    """

    def __init__(self, kind: str, folder: Path, url: str, objects: ObjectStore) -> None:
        self.kind, self.folder, self.url, self.objects = kind, folder, url, objects
        urls = {
            "postgresql": as_reader(url),
            "sqlite": f"sqlite://{folder}/shop.db",
            "duckdb": f"duckdb://{folder}/shop.duckdb",
        }
        self.sources = Sources({name: SourceSettings(url=where) for name, where in urls.items()}, lambda _: None)
        self.files = ObjectFiles(objects, folder)
        self.audiences = Audiences(self.sources, self.files)

    @property
    def place(self) -> dict[str, Any]:
        """Its address in an audience's settings."""
        if self.kind in DATABASES:
            return {"source": self.kind, "table": "members"}
        return {"file": f"audiences/members.{self.kind}"}

    def terms(self, **more: Any) -> AudienceSettings:
        """Return the settings of an audience in it."""
        return read_audience({**self.place, "key": "id", **more})

    async def fill(self, columns: Mapping[str, str], rows: Sequence[Sequence[Any]]) -> None:
        """Make the members, once; ``columns`` have PostgreSQL's types."""
        described = ", ".join(f'"{name}" {kind}' for name, kind in columns.items())
        self.run(f"CREATE TABLE members ({described})")
        self.add(rows)
        if self.kind not in DATABASES:
            path = self.folder / f"members.{self.kind}"
            with duckdb.connect(str(self.folder / "made.duckdb")) as made:
                made.execute(f"COPY members TO '{path}' ({'HEADER' if self.kind == 'csv' else 'FORMAT parquet'})")
            await self.objects.put_file(f"audiences/{path.name}", path)

    def run(self, statement: str) -> None:
        """Run a statement on the database, as its owner."""
        if self.kind == "postgresql":
            with psycopg.connect(self.url) as connection:
                connection.execute(statement.encode())
        elif self.kind == "sqlite":
            with contextlib.closing(sqlite3.connect(self.folder / "shop.db")) as opened:
                opened.execute(statement)
                opened.commit()
        else:
            with duckdb.connect(str(self._duckdb)) as opened_duckdb:
                opened_duckdb.execute("SET TimeZone = 'UTC'")
                opened_duckdb.execute(statement)

    def add(self, rows: Sequence[Sequence[Any]]) -> None:
        """Add members to the database."""
        if not rows:
            return
        marks = ", ".join(["%s" if self.kind == "postgresql" else "?"] * len(rows[0]))
        statement = f"INSERT INTO members VALUES ({marks})"  # marks only
        if self.kind == "postgresql":
            with psycopg.connect(self.url) as connection:
                connection.cursor().executemany(statement.encode(), rows)
        elif self.kind == "sqlite":
            with contextlib.closing(sqlite3.connect(self.folder / "shop.db")) as opened:
                opened.executemany(statement, rows)
                opened.commit()
        else:
            with duckdb.connect(str(self._duckdb)) as opened_duckdb:
                opened_duckdb.execute("SET TimeZone = 'UTC'")
                opened_duckdb.executemany(statement, rows)

    @property
    def _duckdb(self) -> Path:
        return self.folder / ("shop.duckdb" if self.kind == "duckdb" else "made.duckdb")

    async def cut(self, terms: AudienceSettings, rows: int) -> list[PlannedChunk]:
        """Return all ranges."""
        async with self.audiences.open(terms) as audience:
            return [chunk async for chunk in audience.cut(rows)]

    async def read(self, terms: AudienceSettings, value: Mapping[str, Any], judge: Judge | None = None) -> Read:
        """Read one range."""
        async with (
            self.audiences.open(terms, value) as audience,
            audience.read(value, judge, NOW) as reading,
        ):
            actions = [action async for piece in reading for action in piece]
        return Read(actions, reading.result)

    async def everything(self, terms: AudienceSettings, rows: int, judge: Judge | None = None) -> list[Read]:
        """Plan the ranges, and read each of them."""
        return [await self.read(terms, chunk.value, judge) for chunk in await self.cut(terms, rows)]

    async def count(self, terms: AudienceSettings, judge: Judge | None = None, limit: int = 10) -> AudienceCount:
        """Count without an execution."""
        async with self.audiences.open(terms) as audience:
            return await audience.count(judge, NOW, limit=limit)

    async def aclose(self) -> None:
        """Close what is open."""
        await self.sources.aclose()
        await self.files.aclose()


@contextlib.asynccontextmanager
async def audience_world(kind: str, folder: Path, url: str) -> AsyncIterator[AudienceWorld]:
    """Yield such a source with its objects in a folder."""
    objects = open_store((folder / "objects").as_uri(), {})
    world = AudienceWorld(kind, folder, url, objects)
    try:
        yield world
    finally:
        await world.aclose()
        objects.close()
