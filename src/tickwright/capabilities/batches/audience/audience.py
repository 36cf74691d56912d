"""Audiences: cut once into ranges of the key, then read range by range.

A range is "above this key, up to that one", so two processes read the same members for it whatever else happens, and a
member that is added within a range before it is read belongs to it. Members without a key are a range of their own, of
which none is selected. The definition of an audience is in :mod:`.schema`, the rows of a range in :mod:`.reader`.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from datetime import datetime, timedelta
from difflib import get_close_matches
from typing import Any, NamedTuple

from tickwright.capabilities.batches.audience.reader import PROBLEMS_MAX, RangeReader
from tickwright.capabilities.batches.audience.schema import AudienceSettings, read_audience, refuse
from tickwright.capabilities.batches.audience.sql_text import (
    AudienceSql,
    KeyKind,
    Statement,
    as_bound,
    cast_of,
    invalid_key,
    key_kind,
    same_kind,
)
from tickwright.domain.errors import Rejected
from tickwright.ports.batches import (
    Action,
    AudienceFile,
    AudienceFiles,
    ChunkResult,
    FileFacts,
    Judge,
    PlannedChunk,
    SqlFilter,
)
from tickwright.ports.reports import Column, Dialect, Rows, Source
from tickwright.sources.named import Sources

CUT_TIMEOUT, READ_TIMEOUT, COUNT_TIMEOUT = timedelta(hours=1), timedelta(minutes=15), timedelta(seconds=30)
_LEFT_MIN = timedelta(milliseconds=10)
_KEYLESS = "members without a key, so that no client is identified"
_FIELD_OF_ERROR = {
    "unknown_source": "source",
    "unknown_source_scheme": "source",
    "secret_missing": "source",
    "invalid_source": "source",
    "object_missing": "file",
    "audience_unreadable": "file",
}


class AudienceCount(NamedTuple):
    """The result of a dry run: numbers of members, of clients selected, with a field missing, and skipped; examples."""

    members: int
    selected: int
    missing: int
    skipped: int
    examples: list[Action]
    problems: list[dict[str, str]]


class Audience:
    """The members of one audience in their source; of a file, ``file`` is its table there."""

    def __init__(self, settings: AudienceSettings, source: Source, file: AudienceFile | None = None) -> None:
        self.settings, self._source, self._file, self.dialect = settings, source, file, source.dialect
        table, place = (None, None) if file is None else (file.table, file.place)
        self._sql = AudienceSql(settings, source.dialect, table=table, place=place)
        self._columns: tuple[Column, ...] | None = None

    async def cut(self, rows: int) -> AsyncIterator[PlannedChunk]:
        """Cut the audience into ranges of ``rows`` members, in one pass over the keys in the source.

        Equal keys stay together, so a range may have more. Members without a key come first, as ``{"keyless": n}``. An
        empty audience has no range.

        Raises:
            Rejected: ``invalid_audience``: the key is missing, or of a type that cannot be one; ``source_refused``.
                Permanent.
            Unavailable: The source does not answer, or is too slow. Retry.
        """
        kind = await self._kind()
        after: Any = None
        async with self._query(self._sql.cut(kind, rows), CUT_TIMEOUT) as found:
            async for piece in found:
                for until, members, *types in piece:
                    if until is None:
                        yield PlannedChunk(self._value(keyless=members), members)
                        continue
                    kind = same_kind(kind, types, self.settings)
                    yield PlannedChunk(self._value(kind=kind, after=after, until=as_bound(until)), members)
                    after = until

    @contextlib.asynccontextmanager
    async def read(
        self, value: Mapping[str, Any], judge: Judge | None, now: datetime, *, timeout: timedelta = READ_TIMEOUT
    ) -> AsyncIterator[RangeReader]:
        """Open one range: iterate the reader, then read its ``result``.

        ``value`` is as :meth:`cut` planned it; without a judge all are selected; ``now`` is that of the expression;
        ``timeout`` is up to the last row.

        Raises:
            Rejected: ``invalid_audience``: a column has gone or changed its type; ``source_refused``. Permanent.
            Unavailable: The source does not answer, or is too slow. Retry.
        """
        if "keyless" in value:
            reader = RangeReader(self.settings, self.dialect, None, None, now)
            reader.result.seen = value["keyless"]
            reader.skip("", f"{value['keyless']} {_KEYLESS}", value["keyless"])
            yield reader
            return
        types = await self._types()
        members = self._sql.range(value["kind"], value["after"], value["until"])
        condition = self._condition(judge, now)
        sql = self._sql.read(members, types) if condition is None else self._sql.select(members, types, condition)
        async with self._query(sql, timeout) as rows:
            yield RangeReader(self.settings, self.dialect, rows, judge if condition is None else None, now)

    async def count(
        self, judge: Judge | None, now: datetime, *, limit: int = 10, timeout: timedelta = COUNT_TIMEOUT
    ) -> AudienceCount:
        """Count the clients that an execution would select now, and return up to ``limit`` of them.

        Raises:
            Rejected: As :meth:`read`. Permanent.
            Unavailable: As :meth:`read`; ``source_timeout`` when ``timeout`` is over. Retry with more time.
        """
        left = _Countdown(timeout)
        types = await self._types()
        condition = self._condition(judge, now)
        if condition is not None:
            return await self._count_in_source(types, condition, now, limit, left)
        keyless = (await self._first(self._sql.count_keyless(), left()))[0]
        sql = self._sql.read(self._sql.with_key(), types, in_order=True)
        examples: list[Action] = []
        async with self._query(sql, left()) as rows:
            reader = RangeReader(self.settings, self.dialect, rows, judge, now, in_order=True)
            async for piece in reader:
                examples += piece[: limit - len(examples)]
        return _count(reader.result, keyless, examples)

    async def _count_in_source(
        self, types: tuple[Column, ...], condition: SqlFilter, now: datetime, limit: int, left: "_Countdown"
    ) -> AudienceCount:
        sql = self._sql.counting(types, condition, "count")
        members, keyless, unreadable, missing, selected = await self._first(sql, left())
        result = ChunkResult(seen=members - keyless, selected=selected, missing=missing, skipped=unreadable)
        examples: list[Action] = []
        for name, wanted in (("examples", limit), ("bad_examples", PROBLEMS_MAX if unreadable else 0)):
            if not wanted:
                continue
            async with self._query(self._sql.counting(types, condition, name, wanted), left()) as rows:
                reader = RangeReader(self.settings, self.dialect, rows, None, now)
                examples += [action async for piece in reader for action in piece]
                result.problems += reader.result.problems
        return _count(result, keyless, examples)

    async def columns(self) -> tuple[Column, ...]:
        """Return the columns of the source; a type of ``""`` is not known before the values."""
        if self._columns is None:
            async with self._query(self._sql.columns(), COUNT_TIMEOUT) as rows:
                self._columns = tuple(rows.columns)
                await _exhaust(rows)  # closing before the end would cost the connection
        return self._columns

    async def try_key(self) -> None:
        """Run the statement that cuts the audience, over no members.

        Raises:
            Rejected: ``source_refused``: it cannot be cut by this key. Permanent.
            Unavailable: As :meth:`read`. Retry.
        """
        async with self._query(self._sql.try_key(await self._kind()), COUNT_TIMEOUT) as rows:
            await _exhaust(rows)

    async def try_fields(self) -> None:
        """Run the statement that reads the fields, over no members; errors as :meth:`try_key`."""
        async with self._query(self._sql.read(self._sql.no_member(), await self._types()), COUNT_TIMEOUT) as rows:
            await _exhaust(rows)

    async def _types(self) -> tuple[Column, ...]:
        columns = await self.columns()
        by_name = {column.name: column for column in columns}
        for name in (self.settings.key, *self.settings.columns, *(field.column for field in self.settings.fields)):
            if name not in by_name:
                raise _column_missing(name)
        for field in self.settings.fields:
            if cast_of(self.dialect, field.type, by_name[field.column]) is None:
                why = f"{field.column} is {by_name[field.column].type} now, which cannot be {field.type}"
                raise Rejected("invalid_audience", f"audience.fields.{field.name}: {why}", problems=[why])
        return columns

    async def _kind(self) -> KeyKind | None:
        """Return the kind of the keys; ``None`` where only the values tell it."""
        if self._file is not None:
            return "int"
        if self.dialect == "sqlite":
            return None
        key = next((column for column in await self.columns() if column.name == self.settings.key), None)
        if key is None:
            raise _column_missing(self.settings.key)
        kind = key_kind(key)
        if kind is None:
            raise invalid_key(self.settings, key.type)
        return kind

    def _value(self, **value: Any) -> dict[str, Any]:
        if self._file is None:
            return value
        return {**value, "bytes": self._file.facts.bytes, "checksum": self._file.facts.checksum}

    def _condition(self, judge: Judge | None, now: datetime) -> SqlFilter | None:
        if judge is None or self.dialect == "sqlite":  # whose values this process reads before they are judged
            return None
        return judge.sql(self.dialect, self._sql.column, now)

    def _query(self, statement: Statement, timeout: timedelta) -> contextlib.AbstractAsyncContextManager[Rows]:
        opened: contextlib.AbstractAsyncContextManager[Rows] = self._source.query(
            statement.sql, statement.values, timeout=timeout, within=self.settings.query
        )
        return opened

    async def _first(self, statement: Statement, timeout: timedelta) -> tuple[Any, ...]:
        async with self._query(statement, timeout) as rows:
            found = [tuple(row) async for piece in rows for row in piece]
        return found[0]


class _Countdown:
    """The rest of a time; at least 10 ms, so that the source reports the timeout."""

    def __init__(self, lasts: timedelta) -> None:
        self._clock = asyncio.get_running_loop().time
        self._until = self._clock() + lasts.total_seconds()

    def __call__(self) -> timedelta:
        return max(timedelta(seconds=self._until - self._clock()), _LEFT_MIN)


class Audiences:
    """The audiences that this process can read; ``files`` are in the object store, if there is one."""

    def __init__(self, sources: Sources, files: AudienceFiles | None) -> None:
        self._sources, self._files = sources, files

    @contextlib.asynccontextmanager
    async def open(self, settings: AudienceSettings, value: Mapping[str, Any] | None = None) -> AsyncIterator[Audience]:
        """Yield an audience for the length of the block; of a file that is the one of which ``value`` was cut.

        Raises:
            Rejected: ``unknown_source`` and others of a source; ``audience_changed`` and others of a file.
            Unavailable: The object store does not answer. Retry.
        """
        if settings.file is None:
            yield Audience(settings, self._sources.get(settings.source or ""))
            return
        if self._files is None:
            raise Rejected("object_store_missing", "audience.file: this process has no object store")
        expected = FileFacts(value["bytes"], value["checksum"]) if value is not None else None
        async with self._files.open(settings.file, settings.key, expected) as file:
            yield Audience(settings, file.source, file)


async def _exhaust(rows: Rows) -> None:
    async for _ in rows:
        pass


def _column_missing(name: str) -> Rejected:
    return Rejected("invalid_audience", f"audience: there is no column {name} any more", column=name)


def _count(result: ChunkResult, keyless: int, examples: list[Action]) -> AudienceCount:
    problems = [{"client_id": "", "problem": f"{keyless} {_KEYLESS}"}] if keyless else []
    return AudienceCount(
        result.seen + keyless,
        result.selected,
        result.missing,
        result.skipped + keyless,
        examples,
        [*problems, *result.problems][:PROBLEMS_MAX],
    )


async def check_audience(audiences: Audiences, document: Any) -> AudienceSettings:
    """Return the definition of an audience that can be read now; for definitions that are being saved.

    The source is queried for its columns and types; no member is read. A file is fetched, as for an execution.

    Raises:
        Rejected: ``invalid_audience`` with every mistake in ``problems``, each after its path. Permanent.
        Unavailable: The source or the object store does not answer. Retry.
    """
    settings = read_audience(document)
    problems: list[str] = []
    try:
        async with audiences.open(settings) as audience:
            await _check(audience, problems)
    except Rejected as error:
        if error.code not in _FIELD_OF_ERROR:
            raise
        problems.append(f"audience.{_FIELD_OF_ERROR[error.code]}: {error.message}")
    refuse(problems)
    return settings


async def _check(audience: Audience, problems: list[str]) -> None:
    settings = audience.settings
    place = next(name for name in ("table", "query", "file") if getattr(settings, name))
    try:
        columns = await audience.columns()
    except Rejected as error:
        problems.append(f"audience.{place}: {error.message}")
        return
    by_name = {column.name: column for column in columns}
    _check_columns(settings, by_name, audience.dialect, problems)
    key = by_name.get(settings.key)
    if key is not None and audience.dialect != "sqlite" and key_kind(key) is None:
        problems.append(invalid_key(settings, key.type).message)
    if problems:
        return
    for field, attempt in (("key", audience.try_key), (place, audience.try_fields)):
        try:
            await attempt()
        except Rejected as error:
            problems.append(f"audience.{field}: {error.message}")


def _check_columns(
    settings: AudienceSettings, by_name: Mapping[str, Column], dialect: Dialect, problems: list[str]
) -> None:
    wanted = [("key", settings.key), *((f"fields.{field.name}", field.column) for field in settings.fields)]
    for path, name in [*wanted, *(("columns", name) for name in settings.columns)]:
        if name not in by_name:
            near = get_close_matches(name, by_name, n=3) or list(by_name)[:10]
            problems.append(f"audience.{path}: there is no column {name}; there is {', '.join(near)[:500]}")
    for field in settings.fields:
        column = by_name.get(field.column)
        if column is not None and cast_of(dialect, field.type, column) is None:
            why = f"{field.column} is {column.type.lower()}, which cannot be read as {field.type}"
            problems.append(
                f"audience.fields.{field.name}: {why}; declare another type, or write a query that casts it"
            )
