"""PostgreSQL as a source: one query in one read-only transaction.

PostgreSQL checks that the text is one query: it first parses the text behind ``DECLARE … CURSOR FOR``, where its
grammar accepts nothing else. ``BEGIN READ ONLY`` alone would not stop ``COPY … TO PROGRAM``. The cursor is never
declared, so plans stay parallel and PgBouncer's transaction mode is enough.

libpq delivers the rows in pieces while the server produces them. A slow reader holds the server back, and the server's
``statement_timeout`` covers the whole transfer. libpq buffers a whole row of any size, so the server checks the size of
each row before it sends it.

A connection serves one query at a time and is kept for half a minute after it. The statements that begin every query
test a kept connection; a dead one is replaced before the query is sent, so nothing is sent twice. They also check the
role: one that could run programs or read files of the server is refused before the query is sent.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import date, time, timedelta
from decimal import Decimal
from typing import Any, NamedTuple, TypeAlias, TypeVar
from uuid import UUID

import msgspec
import psycopg
from psycopg import generators, waiting
from psycopg.abc import PQGen
from psycopg.adapt import AdaptersMap, Loader, Transformer
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import DiagnosticField, ExecStatus, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult
from psycopg.types.array import register_array
from psycopg.types.bool import BoolLoader
from psycopg.types.numeric import FloatLoader, IntLoader
from psycopg.types.string import ByteaLoader, TextLoader

from tickwright.domain.errors import Rejected, TickwrightError, Unavailable
from tickwright.domain.placeholders import Bound, bare, bind
from tickwright.ports.reports import Column, Dialect
from tickwright.sources.named import SourceSettings
from tickwright.sources.rows import CHUNK_ROWS, ROW_BYTES_MAX, cells_of, is_full, row_too_large, weighed
from tickwright.store.queries import load

# ---------------------------------------------------------------------- types

DECIMAL_DIGITS_MAX = 38
_INTEGERS = {"int2": "SMALLINT", "int4": "INTEGER", "int8": "BIGINT", "oid": "BIGINT"}
_FLOATS = {"float4": "FLOAT", "float8": "DOUBLE"}
_JSON = {"json": "JSON", "jsonb": "JSON"}
_INSTANTS = {"date": "DATE", "timestamp": "TIMESTAMP", "timestamptz": "TIMESTAMPTZ"}
_TEXTS = {"text": "VARCHAR", "varchar": "VARCHAR", "bpchar": "VARCHAR", "uuid": "UUID", "time": "TIME"}
_OTHERS = {"bool": "BOOLEAN", "bytea": "VARCHAR", "interval": "INTERVAL", "numeric": "DECIMAL"}
_TYPES = {**_INTEGERS, **_FLOATS, **_JSON, **_INSTANTS, **_TEXTS, **_OTHERS}
_known = psycopg.adapters.types


def _oid(name: str) -> int:
    return _known[name].oid


TEXT_OID = _oid("text")
_NAMES = {_oid(name): kind for name, kind in _TYPES.items()}
_ARRAYS = {
    _known[name].array_oid: "JSON" if kind == "JSON" else f"{'VARCHAR' if kind == 'DECIMAL' else kind}[]"
    for name, kind in _TYPES.items()
    if kind != "INTERVAL"
}
_INSTANT_OIDS = frozenset(_oid(name) for name in _INSTANTS)


class JsonLoader(Loader):
    """Keeps a document as text. Replaces line feeds, which are only between tokens and would end a line of NDJSON."""

    def load(self, data: Any) -> msgspec.Raw:
        """Return the document, ready to be embedded in another."""
        return msgspec.Raw(bytes(data).replace(b"\n", b" ").replace(b"\r", b" "))


class IntervalLoader(Loader):
    """Keeps an interval as text without ``+``: PostgreSQL writes it after a minus, and DuckDB does not read it."""

    def load(self, data: Any) -> str:
        """Return the text without ``+``."""
        return bytes(data).replace(b"+", b"").decode()


class Spelling(NamedTuple):
    """The context of the driver's value loaders; ``connection`` is always ``None``."""

    adapters: AdaptersMap
    connection: None = None


def _spelling() -> Spelling:
    adapters = AdaptersMap(types=_known)
    adapters.register_loader(0, TextLoader)
    for names, loader in ((_INTEGERS, IntLoader), (_FLOATS, FloatLoader), (_JSON, JsonLoader)):
        for name in names:
            adapters.register_loader(name, loader)
    adapters.register_loader("bool", BoolLoader)
    adapters.register_loader("bytea", ByteaLoader)
    adapters.register_loader("interval", IntervalLoader)
    for oid in (*_INSTANT_OIDS, *map(_oid, _TEXTS), _oid("numeric")):
        adapters.register_loader(oid, TextLoader)
    made = Spelling(adapters)
    for name, kind in _TYPES.items():
        if kind != "INTERVAL":
            register_array(_known[name], made)
    return made


SPELLING = _spelling()


def columns_of(result: PGresult) -> tuple[Column, ...]:
    """Return the columns of a result; a type without a counterpart becomes ``VARCHAR``."""
    return tuple(
        Column((result.fname(place) or b"").decode(), _type_of(result.ftype(place), result.fmod(place)))
        for place in range(result.nfields)
    )


def _type_of(oid: int, modifier: int) -> str:
    if oid == _oid("numeric"):
        return _decimal(modifier)
    return _NAMES.get(oid) or _ARRAYS.get(oid) or "VARCHAR"


def _decimal(modifier: int) -> str:
    if modifier < 4:
        return "DECIMAL"
    digits, scale = (modifier - 4) >> 16 & 0xFFFF, ((modifier - 4 & 0x7FF) ^ 1024) - 1024
    return f"DECIMAL({digits},{scale})" if 0 <= scale <= digits <= DECIMAL_DIGITS_MAX else "DECIMAL"


def instants_of(result: PGresult) -> tuple[int, ...]:
    """Return the positions of dates and timestamps: DuckDB writes their years before Christ differently."""
    return tuple(place for place in range(result.nfields) if result.ftype(place) in _INSTANT_OIDS)


def as_parameter(name: int, value: Any) -> bytes | None:
    """Return the text of a placeholder's value for PostgreSQL; ``None`` is null.

    Raises:
        Rejected: ``invalid_value``. Permanent.
    """
    if value is None:
        return None
    text = _array(value) if isinstance(value, list | tuple) else _text(value)
    try:
        made = text.encode()
    except UnicodeEncodeError:
        made = b"\0"
    if b"\0" in made:
        raise Rejected("invalid_value", f"value {name}: \\u0000 and lone surrogates are no text to PostgreSQL")
    return made


def _text(value: Any) -> str:
    for kind, spelled in _SPELL.items():
        if isinstance(value, kind):
            return spelled(value)
    raise Rejected("invalid_value", f"a {type(value).__name__} cannot be given to a query")


_SPELL: Mapping[type, Callable[[Any], str]] = {
    str: str.__str__,
    bool: lambda value: "true" if value else "false",
    int: int.__str__,
    float: float.__repr__,
    Decimal: str,
    UUID: str,
    date: lambda value: value.isoformat(),
    time: time.isoformat,
    timedelta: lambda span: f"{span.days} days {span.seconds} seconds {span.microseconds} microseconds",
    bytes: lambda value: f"\\x{value.hex()}",
    Mapping: lambda value: msgspec.json.encode(value).decode(),
}


def _array(items: list[Any] | tuple[Any, ...]) -> str:
    return "{" + ",".join(map(_element, items)) + "}"


def _element(item: Any) -> str:
    if item is None:
        return "NULL"
    if isinstance(item, list | tuple):
        return _array(item)
    return '"' + _text(item).replace("\\", "\\\\").replace('"', '\\"') + '"'


# ---------------------------------------------------------------------- errors

MESSAGE_CHARS_MAX = 1000
_TIMEOUT = "57014"
_TOO_LARGE = ("tickwright row_too_large", "invalid memory alloc request size")
"""Texts of the error of ``bounded``, and of PostgreSQL's error for a row beyond 1 GB; neither is ever translated."""
_ONE_QUERY_HINT = "a source answers one query: a single select, values or with that only reads"
_UNTYPED = "write its type behind the name, as :name::text"
_HINTS = {"42P08": _UNTYPED, "42P18": _UNTYPED, "42601": _ONE_QUERY_HINT, "0A000": _ONE_QUERY_HINT}
_PASSING = ("08", "28", "3D", "40", "53", "55", "57", "58", "XX", "25P")
"""Classes of SQLSTATE that do not concern the query: connection, authentication, conflicts, the server's resources."""


def lost(name: str, text: str) -> Unavailable:
    """Return the error of a server that cannot be reached or that closed the connection."""
    first = text.strip().partition("\n")[0] or "the connection was closed"
    return Unavailable("source_unavailable", f"source {name} is not available: {first[:MESSAGE_CHARS_MAX]}")


def refused(
    name: str, result: PGresult, bound: Bound, sql: str, mask: Callable[[str], str], *, ahead: int = 0
) -> TickwrightError:
    """Return the error of a failed result, with the place in the written ``sql`` if PostgreSQL names one.

    ``ahead`` is the number of Tickwright's characters that were sent before the query.
    """
    state = _field(result, DiagnosticField.SQLSTATE)
    said = mask(_field(result, DiagnosticField.MESSAGE_PRIMARY) or "no reason given")[:MESSAGE_CHARS_MAX]
    if state == _TIMEOUT and "statement timeout" in said:
        return Unavailable("source_timeout", f"source {name} did not finish the query in time")
    if any(text in said for text in _TOO_LARGE):
        return row_too_large(f"source {name}")
    if not state or state.startswith(_PASSING):
        return lost(name, said)
    server_hint = mask(_field(result, DiagnosticField.MESSAGE_HINT))[:MESSAGE_CHARS_MAX]
    hint = _HINTS.get(state, server_hint)
    text = f"source {name} refuses the query{_place(result, bound, sql, ahead)}: {said}{f' ({hint})' if hint else ''}"
    return Rejected("source_refused", text, sqlstate=state)


def _place(result: PGresult, bound: Bound, sql: str, ahead: int) -> str:
    position = _field(result, DiagnosticField.STATEMENT_POSITION)
    if not position.isdigit() or int(position) <= ahead:
        return ""
    at = bound.original(int(position) - 1 - ahead)
    line = sql.count("\n", 0, at) + 1
    return f" at line {line}, column {at - (sql.rfind(chr(10), 0, at) + 1) + 1}"


def _field(result: PGresult, field: DiagnosticField) -> str:
    return (result.error_field(field) or b"").decode("utf-8", "replace")


# ---------------------------------------------------------------------- connections

_SQL = load("tickwright.sources.sql", "postgres.sql")
BEGIN = f"{_SQL['begin']};\n{_SQL['powers']}"
IDLE_S = 30.0
KEPT_S = 3.0
"""How long the test of a kept connection may take."""
CONNECT_TIMEOUT_S = 10
CANCEL_S = 2.0
POLL_S = 1.0
"""Interval at which the driver checks a silent socket; its default has no pause."""
GRACE_S = 2.0
"""How much longer than the server this process waits, because the server's error has more details."""
_HABITS: dict[str, Any] = {
    "application_name": "tickwright",
    "connect_timeout": CONNECT_TIMEOUT_S,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
Connection: TypeAlias = psycopg.AsyncConnection[Any]
_T = TypeVar("_T")


def conninfo_of(name: str, url: str) -> str:
    """Return the driver's connection string; settings in the URL override the defaults.

    Raises:
        Rejected: ``invalid_source``. Permanent; the error does not repeat the URL.
    """
    scheme, is_url, rest = url.partition("://")
    authority, _, path = rest.partition("?")[0].partition("/")
    if is_url and scheme in {"postgresql", "postgres"} and (authority.count("@") > 1 or "@" in path):
        # libpq would take the end of the password for the host or the database, and show it in its errors
        raise Rejected("invalid_source", f"percent-encode the user and the password in the url of source {name}")
    try:
        said = conninfo_to_dict(url)
    except psycopg.Error:
        raise Rejected("invalid_source", f"the url of source {name} is not one that PostgreSQL takes") from None
    return make_conninfo(**{**_HABITS, **said, "client_encoding": "utf8"})


class QueryTalk:
    """The time limit and the error translation of one exchange with a server.

    The limit ``allowed`` begins now, by the server's clock; this process waits ``GRACE_S`` longer.
    """

    def __init__(self, name: str, allowed: timedelta, mask: Callable[[str], str]) -> None:
        self.name, self.allowed, self.mask = name, allowed, mask
        self._until = asyncio.get_running_loop().time() + allowed.total_seconds() + GRACE_S

    @contextlib.asynccontextmanager
    async def in_time(self) -> AsyncIterator[None]:
        """Bound the block by the time limit, and translate the driver's errors."""
        try:
            async with asyncio.timeout_at(self._until):
                yield
        except TimeoutError:
            raise Unavailable("source_timeout", f"source {self.name} did not answer in time") from None
        except (psycopg.Error, OSError) as error:
            raise lost(self.name, self.mask(str(error))) from None


class Connections:
    """The connections to one source, at most ``most`` (1 to 50) at once."""

    def __init__(self, conninfo: str, most: int) -> None:
        self._conninfo = conninfo
        self._slots = asyncio.Semaphore(most)
        self._idle: list[Connection] = []

    @contextlib.asynccontextmanager
    async def transaction(self, talk: QueryTalk) -> AsyncIterator[Connection]:
        """Yield a connection in a read-only transaction with the settings of a query; leaving ends the running query.

        Raises:
            Rejected: ``source_role_too_powerful``. Permanent until an operator gives the source another role.
            Unavailable: ``source_unavailable``, ``source_timeout``. Retry.
        """
        async with talk.in_time():
            await self._slots.acquire()
        try:
            connection = await self._begin(talk)
            try:
                yield connection
            finally:
                await self._leave(connection)
        finally:
            self._slots.release()

    async def _begin(self, talk: QueryTalk) -> Connection:
        while self._idle:
            kept = self._idle.pop()
            with contextlib.suppress(Unavailable, TimeoutError):
                async with asyncio.timeout(KEPT_S):
                    return await _prepare(kept, talk)
        async with talk.in_time():
            connection = await psycopg.AsyncConnection.connect(self._conninfo, prepare_threshold=None)
        return await _prepare(connection, talk)

    async def _leave(self, connection: Connection) -> None:
        """End the query on the server and the transaction; keep the connection only if it is clean."""
        sound = connection.pgconn.transaction_status == TransactionStatus.INTRANS
        with contextlib.suppress(psycopg.Error, OSError, TimeoutError):
            if connection.pgconn.transaction_status == TransactionStatus.ACTIVE:
                await connection.cancel_safe(timeout=CANCEL_S)
            else:
                async with asyncio.timeout(CANCEL_S):
                    await _execute(connection, _SQL["end"])
        if sound and connection.pgconn.transaction_status == TransactionStatus.IDLE:
            self._idle.append(connection)
            asyncio.get_running_loop().call_later(IDLE_S, self._forget, connection)
        else:
            await connection.close()

    def _forget(self, connection: Connection) -> None:
        if connection in self._idle:
            self._idle.remove(connection)
            connection.pgconn.finish()

    async def aclose(self) -> None:
        """Close kept connections. May be called twice."""
        kept, self._idle = self._idle, []
        for connection in kept:
            await connection.close()


async def _prepare(connection: Connection, talk: QueryTalk) -> Connection:
    timeout_ms = max(1, talk.allowed // timedelta(milliseconds=1))
    try:
        async with talk.in_time():
            results = await _execute(connection, BEGIN.replace("{timeout_ms}", str(timeout_ms)))
        _check_role(talk.name, results[-1])
    except BaseException:
        await connection.close()
        raise
    return connection


def _check_role(name: str, powers: PGresult) -> None:
    """Refuse a role that may do more than read: the SQL that it runs is an operator's."""
    if not powers.ntuples:
        return
    role, found = (value.decode("utf-8", "replace") for value in (powers.get_value(0, at) or b"" for at in range(2)))
    text = (
        f"source {name} does not ask anything as the role {role}: it {found}, so its queries could run programs or "
        "read and write files on the database's host; make a plain role (create role reader login password '…'; grant "
        f"select on … to reader) and put it into the url of [sources.{name}]"
    )
    raise Rejected("source_role_too_powerful", text, role=role)


async def _execute(connection: Connection, sql: str) -> Sequence[PGresult]:
    """Run Tickwright's own statements. Unlike in the driver's method, the caller's deadline ends a silent server."""
    connection.pgconn.send_query(sql.encode())
    results: Sequence[PGresult] = await wait_for(connection.pgconn, generators.execute(connection.pgconn))
    for result in results:
        if result.status == ExecStatus.FATAL_ERROR:
            raise psycopg.OperationalError(result.error_message.decode("utf-8", "replace"))
    return results


async def wait_for(pg: PGconn, talking: PQGen[_T]) -> _T:
    """Run one of the driver's generators; sleep while there is nothing to read."""
    return await waiting.wait_async(talking, pg.socket, interval=POLL_S)


_ONE_QUERY = _SQL["one_query"].rpartition("\n")[2].removesuffix("{query}")
_AHEAD, _BEHIND = _SQL["bounded"].replace("{bytes_max}", str(ROW_BYTES_MAX)).split("{query}")
_ROWS = {ExecStatus.TUPLES_CHUNK, ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK}


class PostgresSource:
    """A database that speaks PostgreSQL's protocol, named as in ``[sources.NAME]``.

    The ``url`` (``postgresql://…``) has resolved references and is never shown. ``mask`` masks secrets in a text.

    Raises:
        Rejected: ``invalid_source``. Permanent.
    """

    dialect: Dialect = "postgresql"

    def __init__(self, name: str, url: str, terms: SourceSettings, *, mask: Callable[[str], str]) -> None:
        self.name = name
        self._terms, self._mask = terms, mask
        self._connections = Connections(conninfo_of(name, url), terms.connections_max)

    @contextlib.asynccontextmanager
    async def query(
        self, sql: str, values: Mapping[str, Any], *, timeout: timedelta, within: str | None = None
    ) -> AsyncIterator["PostgresRows"]:
        """Run a query and yield its rows as they arrive; leaving early ends it on the server.

        Args:
            sql: One query.
            values: For its placeholders: texts, numbers, booleans, dates, lists of them, ``None``.
            timeout: From now to the last row.
            within: As in :meth:`tickwright.sources.file_sources.FileSource.query`.

        Raises:
            Rejected: ``source_refused`` with PostgreSQL's text, ``source_role_too_powerful``, ``missing_value``,
                ``invalid_value``, ``invalid_sql``. Permanent.
            Unavailable: ``source_unavailable``, ``source_timeout``. Retry.
        """
        bound = bind(sql, values, "${}".format)
        texts = [as_parameter(number, value) for number, value in enumerate(bound.values, 1)]
        talk = QueryTalk(self.name, min(timeout, self._terms.statement_timeout), self._mask)
        async with self._connections.transaction(talk) as connection:
            if within is None:
                await _check_one_query(connection, talk, bound, sql)
            else:
                await _check_one_query(connection, talk, bind(within, values, "${}".format), within)
            rows = PostgresRows(connection, talk, bound, sql)
            await rows.open(texts)
            yield rows

    async def aclose(self) -> None:
        """Close kept connections. May be called twice."""
        await self._connections.aclose()


async def _check_one_query(connection: Connection, talk: QueryTalk, bound: Bound, sql: str) -> None:
    """Have PostgreSQL parse the text where its grammar accepts one query only; nothing runs.

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

    def __init__(self, connection: Connection, talk: QueryTalk, bound: Bound, sql: str) -> None:
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
        """Yield pieces of some hundred rows, or some MiB."""
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
        else:  # it arrived with the previous result
            result = self._pg.get_result()
        if result is None or result.status in _ROWS:
            return result
        if result.status == ExecStatus.FATAL_ERROR:
            raise refused(self._talk.name, result, self._bound, self._sql, self._talk.mask, ahead=len(_AHEAD))
        raise Rejected("source_refused", f"{self._of} only reads; write a single query")


def _behind(sql: str) -> int:
    """Return the number of characters after one query: parentheses cannot contain a semicolon."""
    end = bare(sql).find(";") if ";" in sql else -1
    return len(sql) - end if end >= 0 else 0
