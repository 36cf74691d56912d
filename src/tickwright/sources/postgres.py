"""PostgreSQL as a source: one query in one transaction that cannot write.

That it is one query PostgreSQL decides: it has to parse it behind ``DECLARE … CURSOR FOR``, where its grammar takes
nothing else, before anything is run. ``BEGIN READ ONLY`` alone would not stop ``COPY … TO PROGRAM``. The cursor is only
parsed, never declared, so plans stay parallel and PgBouncer's transaction mode is enough.

libpq hands the rows over in pieces while the server still makes them: it is held back when we are slow, and its
``statement_timeout`` covers the whole of it. libpq keeps all of a row before it gives it, however large, so the server
weighs each row before it sends it.
"""

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from psycopg import generators
from psycopg.adapt import Transformer
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGresult

from tickwright.domain.errors import Rejected
from tickwright.domain.placeholders import Bound, bare, bind
from tickwright.ports.batches import Dialect
from tickwright.ports.reports import Column
from tickwright.sources.named import SourceTerms
from tickwright.sources.pieces import CHUNK_ROWS, ROW_BYTES_MAX, cells_of, is_full, weighed
from tickwright.sources.postgres_connections import Connection, Connections, Talk, conninfo_of, wait_for
from tickwright.sources.postgres_errors import refused
from tickwright.sources.postgres_types import SPELLING, TEXT_OID, as_parameter, columns_of, instants_of
from tickwright.store.queries import load

_Q = load("tickwright.sources.sql", "postgres.sql")
_ONE_QUERY = _Q["one_query"].rpartition("\n")[2].removesuffix("{query}")
_AHEAD, _BEHIND = _Q["bounded"].replace("{bytes_max}", str(ROW_BYTES_MAX)).split("{query}")
_ROWS = {ExecStatus.TUPLES_CHUNK, ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK}


class PostgresSource:
    """A database that is read by PostgreSQL's protocol.

    Args:
        name: As in ``[sources.NAME]``.
        url: ``postgresql://…`` with everything put in; never shown.
        terms: Its bounds.
        mask: Takes secrets out of a text.

    Raises:
        Rejected: ``invalid_source``. Permanent.
    """

    dialect: Dialect = "postgresql"

    def __init__(self, name: str, url: str, terms: SourceTerms, *, mask: Callable[[str], str]) -> None:
        self.name = name
        self._terms, self._mask = terms, mask
        self._connections = Connections(conninfo_of(name, url), terms.connections_max)

    @contextlib.asynccontextmanager
    async def query(
        self, sql: str, values: Mapping[str, Any], *, timeout: timedelta, within: str | None = None
    ) -> AsyncIterator["PostgresRows"]:
        """Run a query and give its rows while they come; leaving early ends it on the server.

        Args:
            sql: One query.
            values: For its placeholders: texts, numbers, booleans, dates, lists of them, ``None``.
            timeout: From now to the last row.
            within: What in ``sql`` is an operator's, in parentheses of ours: one query by itself, so that it cannot
                close them.

        Raises:
            Rejected: ``source_refused`` with what PostgreSQL says, ``source_role_too_powerful``, ``missing_value``,
                ``invalid_value``, ``invalid_sql``. Permanent.
            Unavailable: ``source_unavailable``, ``source_timeout``. Retry.
        """
        bound = bind(sql, values, "${}".format)
        texts = [as_parameter(number, value) for number, value in enumerate(bound.values, 1)]
        talk = Talk(self.name, min(timeout, self._terms.statement_timeout), self._mask)
        async with self._connections.transaction(talk) as connection:
            if within is None:
                await _check_one_query(connection, talk, bound, sql)
            else:
                await _check_one_query(connection, talk, bind(within, values, "${}".format), within)
            rows = PostgresRows(connection, talk, bound, sql)
            await rows.open(texts)
            yield rows

    async def aclose(self) -> None:
        """Close what is kept open between queries. Twice is harmless."""
        await self._connections.aclose()


async def _check_one_query(connection: Connection, talk: Talk, bound: Bound, sql: str) -> None:
    """Have PostgreSQL parse it where its grammar takes one query and nothing else; nothing is run.

    Raises:
        Rejected: ``source_refused``, with the place in ``sql``. Permanent.
    """
    pg = connection.pgconn
    async with talk.in_time():
        pg.send_prepare(b"", (_ONE_QUERY + bound.sql).encode(), _types(bound, len(bound.values)))
        (result,) = await wait_for(pg, generators.execute(pg))
    if result.status == ExecStatus.FATAL_ERROR:
        raise refused(talk.name, result, bound, sql, talk.mask, ahead=len(_ONE_QUERY))


def _types(bound: Bound, count: int) -> list[int]:
    return [TEXT_OID if number in bound.tested else 0 for number in range(1, count + 1)]


class PostgresRows:
    """An open query."""

    def __init__(self, connection: Connection, talk: Talk, bound: Bound, sql: str) -> None:
        self._pg, self._talk, self._bound, self._sql = connection.pgconn, talk, bound, sql
        self._of = f"source {talk.name}"
        self._values = Transformer.from_context(SPELLING)
        self._first: PGresult | None = None
        self._instants: tuple[int, ...] = ()
        self.columns: tuple[Column, ...] = ()

    async def open(self, texts: Sequence[bytes | None]) -> None:
        """Send the query and wait for the first piece, which names the columns."""
        query = self._bound.sql[: len(self._bound.sql) - _behind(self._sql)]
        async with self._talk.in_time():
            self._pg.send_query_params(f"{_AHEAD}{query}{_BEHIND}".encode(), texts, _types(self._bound, len(texts)))
            self._pg.set_chunked_rows_mode(CHUNK_ROWS)
            await wait_for(self._pg, generators.send(self._pg))
        self._first = await self._next()
        if self._first is None or not self._first.nfields:
            text = f"the query of source {self._talk.name} gives no rows; write a single query"
            raise Rejected("source_refused", text)
        self.columns = columns_of(self._first)
        self._instants = instants_of(self._first)
        self._values.set_pgresult(self._first, set_loaders=True)

    async def __aiter__(self) -> AsyncIterator[Sequence[Sequence[Any]]]:
        """Give pieces of some hundred rows, or some MiB."""
        chunk, self._first = self._first, None
        rows: list[tuple[Any, ...]] = []
        size_bytes = cells = 0
        while chunk is not None:
            if chunk.ntuples:
                self._values.set_pgresult(chunk, set_loaders=False)
                some = self._load(chunk.ntuples)
                rows += some
                size_bytes += weighed(some, self._of)
                cells += cells_of(some)
            del chunk
            if is_full(len(rows), size_bytes, cells):
                yield rows
                rows, size_bytes, cells = [], 0, 0
            chunk = await self._next()
        if rows:
            yield rows

    def _load(self, count: int) -> list[tuple[Any, ...]]:
        try:
            rows = self._values.load_rows(0, count, tuple)
        except UnicodeDecodeError:
            raise Rejected("source_refused", f"{self._of} has text that is not UTF-8") from None
        for place in self._instants:
            if " BC" in "".join(row[place] or "" for row in rows):
                where = f"column {self.columns[place].name} of {self._of}"
                raise Rejected("source_refused", f"{where} has a year before Christ; cast it to text")
        return rows

    async def _next(self) -> PGresult | None:
        if self._pg.is_busy():
            async with self._talk.in_time():
                result: PGresult | None = await wait_for(self._pg, generators.fetch(self._pg))
        else:  # it has come with the one before
            result = self._pg.get_result()
        if result is None or result.status in _ROWS:
            return result
        if result.status == ExecStatus.FATAL_ERROR:
            raise refused(self._talk.name, result, self._bound, self._sql, self._talk.mask, ahead=len(_AHEAD))
        raise Rejected("source_refused", f"{self._of} only reads; write a single query")


def _behind(sql: str) -> int:
    """Return how many characters are behind one query: a semicolon has no place in parentheses."""
    end = bare(sql).find(";") if ";" in sql else -1
    return len(sql) - end if end >= 0 else 0
