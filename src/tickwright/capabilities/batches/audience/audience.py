"""Audiences: cut once into ranges of the key, then read range by range by whoever has claimed one.

A range is "above this key, up to that one", so two processes read the same members for it whatever else happens, and
who joins within a range before it is read belongs to it. Members without a key are a range of their own that nobody is
selected from. What may be said of an audience: :mod:`audience_terms`; what a client is told: :mod:`audience_values`.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from datetime import datetime, timedelta
from difflib import get_close_matches
from typing import Any, NamedTuple

from tickwright.capabilities.batches.audience.reader import PROBLEMS_MAX, Reading
from tickwright.capabilities.batches.audience.schema import AudienceSettings, read_audience, refuse
from tickwright.capabilities.batches.audience.sql_text import (
    AudienceSql,
    KeyKind,
    Statement,
    as_bound,
    cast_of,
    key_kind,
    no_key,
    same_kind,
)
from tickwright.domain.errors import Rejected
from tickwright.ports.audiences import AudienceFile, AudienceFiles, FileFacts, SourceBook
from tickwright.ports.batches import Action, ChunkResult, Dialect, Judge, PlannedChunk, SqlFilter
from tickwright.ports.reports import Column, Rows, Source

CUT_TIMEOUT, READ_TIMEOUT, COUNT_TIMEOUT = timedelta(hours=1), timedelta(minutes=15), timedelta(seconds=30)
_LEFT_MIN = timedelta(milliseconds=10)
_KEYLESS = "members without a key: nobody can be told apart"


class Found(NamedTuple):
    """What a dry run counts: members, clients selected, members with a field missing, members skipped; some of each."""

    members: int
    selected: int
    missing: int
    skipped: int
    examples: list[Action]
    problems: list[dict[str, str]]


class Audience:
    """The members of one audience.

    Args:
        terms: What is said of it.
        source: Where they are.
        file: Where it is a file: the table of it.
    """

    def __init__(self, terms: AudienceSettings, source: Source, file: AudienceFile | None = None) -> None:
        self.terms, self._source, self._file = terms, source, file
        self._sql = (
            AudienceSql(terms, source.dialect)
            if file is None
            else AudienceSql(terms, source.dialect, table=file.table, place=file.place)
        )
        self._columns: tuple[Column, ...] | None = None

    @property
    def dialect(self) -> Dialect:
        """Whose SQL its source speaks."""
        return self._source.dialect

    async def cut(self, rows: int, *, timeout: timedelta = CUT_TIMEOUT) -> AsyncIterator[PlannedChunk]:
        """Cut the audience into ranges of ``rows`` members, in one pass over the keys in the source.

        Equal keys stay together, so a range may have more. Members without a key come first, as ``{"keyless": n}``. An
        audience of nobody has no range.

        Raises:
            Rejected: ``invalid_audience``: the key is missing, or of a type that cannot be one; ``source_refused``.
                Permanent.
            Unavailable: The source is away or too slow. Retry.
        """
        kind = await self._kind()
        after: Any = None
        async with self._ask(self._sql.cut(kind, rows), timeout) as found:
            async for piece in found:
                for until, members, *types in piece:
                    if until is None:
                        yield PlannedChunk(self._value(keyless=members), members)
                        continue
                    kind = same_kind(kind, types, self.terms)
                    yield PlannedChunk(self._value(kind=kind, after=after, until=as_bound(until)), members)
                    after = until

    @contextlib.asynccontextmanager
    async def read(
        self, value: Mapping[str, Any], judge: Judge | None, now: datetime, *, timeout: timedelta = READ_TIMEOUT
    ) -> AsyncIterator[Reading]:
        """Open one range: iterate what this gives, then look at its ``result``.

        Args:
            value: As :meth:`cut` planned it.
            judge: Who is selected; ``None``: everybody.
            now: What the expression calls so.
            timeout: From now to the last row.

        Raises:
            Rejected: ``invalid_audience``: a column has gone or changed its type; ``source_refused``. Permanent.
            Unavailable: The source is away or too slow. Retry.
        """
        if "keyless" in value:
            reading = Reading(self.terms, self._source.dialect, None, None, now)
            reading.result.seen = value["keyless"]
            reading.skip("", f"{value['keyless']} {_KEYLESS}", value["keyless"])
            yield reading
            return
        types = await self._types()
        members = self._sql.range(value["kind"], value["after"], value["until"])
        condition = self._condition(judge, now)
        asked = self._sql.read(members, types) if condition is None else self._sql.select(members, types, condition)
        async with self._ask(asked, timeout) as rows:
            yield Reading(self.terms, self._source.dialect, rows, judge if condition is None else None, now)

    async def count(
        self, judge: Judge | None, now: datetime, *, limit: int = 10, timeout: timedelta = COUNT_TIMEOUT
    ) -> Found:
        """Count who would be selected now, and give up to ``limit`` of them, as an execution would.

        Raises:
            Rejected: As :meth:`read`. Permanent.
            Unavailable: As :meth:`read`; ``source_timeout`` when ``timeout`` is over. Retry with more time.
        """
        left = _Countdown(timeout)
        types = await self._types()
        condition = self._condition(judge, now)
        if condition is not None:
            return await self._count_there(types, condition, now, limit, left)
        keyless = (await self._first(self._sql.count_keyless(), left()))[0]
        asked = self._sql.read(self._sql.everybody(), types, in_order=True)
        examples: list[Action] = []
        async with self._ask(asked, left()) as rows:
            reading = Reading(self.terms, self._source.dialect, rows, judge, now, in_order=True)
            async for piece in reading:
                examples += piece[: limit - len(examples)]
        return _found(reading.result, keyless, examples)

    async def _count_there(
        self, types: tuple[Column, ...], condition: SqlFilter, now: datetime, limit: int, left: "_Countdown"
    ) -> Found:
        asked = self._sql.counting(types, condition, "count")
        members, keyless, unreadable, missing, selected = await self._first(asked, left())
        result = ChunkResult(seen=members - keyless, selected=selected, missing=missing, skipped=unreadable)
        examples: list[Action] = []
        for name, wanted in (("examples", limit), ("bad_examples", PROBLEMS_MAX if unreadable else 0)):
            if not wanted:
                continue
            async with self._ask(self._sql.counting(types, condition, name, wanted), left()) as rows:
                reading = Reading(self.terms, self._source.dialect, rows, None, now)
                examples += [action async for piece in reading for action in piece]
                result.problems += reading.result.problems
        return _found(result, keyless, examples)

    async def columns(self) -> tuple[Column, ...]:
        """Return the columns of the source; a type of ``""`` is not known before the values."""
        if self._columns is None:
            async with self._ask(self._sql.columns(), COUNT_TIMEOUT) as rows:
                self._columns = tuple(rows.columns)
                async for _ in rows:  # none; an answer that is left before its end costs its connection
                    pass
        return self._columns

    async def try_key(self) -> None:
        """Ask how the audience is cut, of nobody.

        Raises:
            Rejected: ``source_refused``: it cannot be cut by this key. Permanent.
            Unavailable: As :meth:`read`. Retry.
        """
        async with self._ask(self._sql.try_key(await self._kind()), COUNT_TIMEOUT) as rows:
            async for _ in rows:
                pass

    async def try_fields(self) -> None:
        """Ask for the fields of nobody; errors as :meth:`try_key`."""
        async with self._ask(self._sql.read(self._sql.nobody(), await self._types()), COUNT_TIMEOUT) as rows:
            async for _ in rows:
                pass

    async def _types(self) -> tuple[Column, ...]:
        columns = await self.columns()
        known = {column.name: column for column in columns}
        for name in (self.terms.key, *self.terms.columns):
            if name not in known:
                raise _gone(name)
        for one in self.terms.fields:
            if one.column not in known:
                raise _gone(one.column)
            if cast_of(self._source.dialect, one.type, known[one.column]) is None:
                why = f"{one.column} is {known[one.column].type} now, which cannot be {one.type}"
                raise Rejected("invalid_audience", f"audience.fields.{one.name}: {why}", problems=[why])
        return columns

    async def _kind(self) -> KeyKind | None:
        """Return what the ranges are of; ``None`` where only the values say."""
        if self._file is not None:
            return "int"
        if self._source.dialect == "sqlite":
            return None
        columns = {column.name: column for column in await self.columns()}
        if self.terms.key not in columns:
            raise _gone(self.terms.key)
        kind = key_kind(columns[self.terms.key])
        if kind is None:
            raise no_key(self.terms, columns[self.terms.key].type)
        return kind

    def _value(self, **said: Any) -> dict[str, Any]:
        if self._file is None:
            return said
        return {**said, "bytes": self._file.facts.bytes, "checksum": self._file.facts.checksum}

    def _condition(self, judge: Judge | None, now: datetime) -> SqlFilter | None:
        if judge is None or self._source.dialect == "sqlite":
            return None  # SQLite's values are read here first
        return judge.sql(self._source.dialect, self._sql.column, now)

    def _ask(self, asked: Statement, timeout: timedelta) -> contextlib.AbstractAsyncContextManager[Rows]:
        opened: contextlib.AbstractAsyncContextManager[Rows] = self._source.query(
            asked.sql, asked.values, timeout=timeout, within=self.terms.query
        )
        return opened

    async def _first(self, asked: Statement, timeout: timedelta) -> tuple[Any, ...]:
        async with self._ask(asked, timeout) as rows:
            found = [tuple(row) async for piece in rows for row in piece]
        return found[0]


class _Countdown:
    """What is left of a time, never nothing: who asks then is told that it is over."""

    def __init__(self, lasts: timedelta) -> None:
        self._clock = asyncio.get_running_loop().time
        self._until = self._clock() + lasts.total_seconds()

    def __call__(self) -> timedelta:
        return max(timedelta(seconds=self._until - self._clock()), _LEFT_MIN)


class Audiences:
    """The audiences that this process can read.

    Args:
        sources: By name.
        files: Of the object store; ``None`` where there is none.
    """

    def __init__(self, sources: SourceBook, files: AudienceFiles | None) -> None:
        self._sources, self._files = sources, files

    @contextlib.asynccontextmanager
    async def open(self, terms: AudienceSettings, value: Mapping[str, Any] | None = None) -> AsyncIterator[Audience]:
        """Give an audience for the length of the block.

        Args:
            terms: Which.
            value: A range that will be read: a file must be the one that was cut.

        Raises:
            Rejected: ``unknown_source`` and others of a source; ``audience_changed`` and others of a file.
            Unavailable: The object store does not answer. Retry.
        """
        if terms.file is None:
            yield Audience(terms, self._sources.get(terms.source or ""))
            return
        if self._files is None:
            raise Rejected("object_store_missing", "audience.file: this process has no object store")
        expected = FileFacts(value["bytes"], value["checksum"]) if value is not None else None
        async with self._files.open(terms.file, terms.key, expected) as file:
            yield Audience(terms, file.source, file)


def _gone(name: str) -> Rejected:
    return Rejected("invalid_audience", f"audience: there is no column {name} any more", column=name)


def _found(result: ChunkResult, keyless: int, examples: list[Action]) -> Found:
    problems = [{"client_id": "", "problem": f"{keyless} {_KEYLESS}"}] if keyless else []
    return Found(
        result.seen + keyless,
        result.selected,
        result.missing,
        result.skipped + keyless,
        examples,
        [*problems, *result.problems][:PROBLEMS_MAX],
    )


# Whether an audience can be read as it is said, asked of its source when a campaign is saved: no member is read.
#
# The source, the table or query, the key and every column, each with the nearest name where it is not there.

_TOLD = {"unknown_source": "source", "unknown_source_scheme": "source", "secret_missing": "source"}
_TOLD |= {"invalid_source": "source", "object_missing": "file", "audience_unreadable": "file"}


async def check_audience(audiences: Audiences, document: Any, *, where: str = "audience") -> AudienceSettings:
    """Return the terms of an audience that can be read now.

    A file is fetched for this, as it is for an execution.

    Raises:
        Rejected: ``invalid_audience`` with every mistake in ``problems``, each behind its path. Permanent.
        Unavailable: The source or the object store does not answer. Retry.
    """
    terms = read_audience(document, where=where)
    problems: list[str] = []
    try:
        async with audiences.open(terms) as audience:
            await _check(audience, problems, where=where)
    except Rejected as error:
        if error.code not in _TOLD:
            raise
        problems.append(f"{where}.{_TOLD[error.code]}: {error.message}")
    refuse(problems)
    return terms


async def _check(audience: Audience, problems: list[str], *, where: str) -> None:
    terms, asked = audience.terms, next(word for word in ("table", "query", "file") if getattr(audience.terms, word))
    try:
        columns = await audience.columns()
    except Rejected as error:
        problems.append(f"{where}.{asked}: {error.message}")
        return
    known = {column.name: column for column in columns}
    _check_columns(terms, known, audience.dialect, problems, where=where)
    key = known.get(terms.key)
    if key is not None and audience.dialect != "sqlite" and key_kind(key) is None:
        problems.append(no_key(terms, key.type).message.replace("audience", where, 1))
    if problems:
        return
    for word, tried in (("key", audience.try_key), (asked, audience.try_fields)):
        try:
            await tried()
        except Rejected as error:
            problems.append(f"{where}.{word}: {error.message}")


def _check_columns(
    terms: AudienceSettings, known: Mapping[str, Column], dialect: Dialect, problems: list[str], *, where: str
) -> None:
    wanted = [("key", terms.key), *((f"fields.{one.name}", one.column) for one in terms.fields)]
    for path, name in [*wanted, *(("columns", name) for name in terms.columns)]:
        if name not in known:
            near = get_close_matches(name, known, n=3) or list(known)[:10]
            problems.append(f"{where}.{path}: there is no column {name}; there is {', '.join(near)[:500]}")
    for one in terms.fields:
        column = known.get(one.column)
        if column is not None and cast_of(dialect, one.type, column) is None:
            why = f"{one.column} is {column.type.lower()}, which cannot be read as {one.type}"
            problems.append(f"{where}.fields.{one.name}: {why}; declare another type, or write a query that casts it")
