"""Connections of one PostgreSQL source: so many at once, each used by one query, kept for half a minute in between.

A connection that was kept is tried by the statements that every query begins with; one that died meanwhile is replaced
before the query is sent, so nothing is ever sent twice. The same statements ask what the role may do beside reading: a
role that could run programs or read files of the server is refused before the query is sent.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import timedelta
from typing import Any, TypeAlias, TypeVar

import psycopg
from psycopg import generators, waiting
from psycopg.abc import PQGen
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import ExecStatus, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult

from tickwright.domain.errors import Rejected, Unavailable
from tickwright.sources.postgres_errors import lost
from tickwright.store.queries import load

_Q = load("tickwright.sources.sql", "postgres.sql")
BEGIN = f"{_Q['begin']};\n{_Q['powers']}"
IDLE_S = 30.0
KEPT_S = 3.0
"""How long a connection that was kept may take to say that it lives."""
CONNECT_TIMEOUT_S = 10
CANCEL_S = 2.0
LOOK_S = 1.0
"""While the socket is silent the driver is asked so often; its own default is without a pause."""
GRACE_S = 2.0
"""How much longer than the server's own clock ours waits: its word says more than our impatience."""
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
    """Return what the driver connects by; what the URL says outranks our habits.

    Raises:
        Rejected: ``invalid_source``. Permanent; the URL is not repeated.
    """
    scheme, is_url, rest = url.partition("://")
    authority, _, path = rest.partition("?")[0].partition("/")
    if is_url and scheme in {"postgresql", "postgres"} and (authority.count("@") > 1 or "@" in path):
        # libpq would take the end of the password for the host or the database, and name it in its errors
        raise Rejected("invalid_source", f"percent-encode the user and the password in the url of source {name}")
    try:
        said = conninfo_to_dict(url)
    except psycopg.Error:
        raise Rejected("invalid_source", f"the url of source {name} is not one that PostgreSQL takes") from None
    return make_conninfo(**{**_HABITS, **said, "client_encoding": "utf8"})


class Talk:
    """One conversation with a server: until when it may last, and how its end is told.

    Args:
        name: Of the source.
        allowed: From now on, by the server's clock; ours waits ``GRACE_S`` longer.
        mask: Takes secrets out of a text.
    """

    def __init__(self, name: str, allowed: timedelta, mask: Callable[[str], str]) -> None:
        self.name, self.allowed, self.mask = name, allowed, mask
        self._until = asyncio.get_running_loop().time() + allowed.total_seconds() + GRACE_S

    @contextlib.asynccontextmanager
    async def in_time(self) -> AsyncIterator[None]:
        """Do what is inside until the time is over; what the driver raises becomes ours."""
        try:
            async with asyncio.timeout_at(self._until):
                yield
        except TimeoutError:
            raise Unavailable("source_timeout", f"source {self.name} did not answer in time") from None
        except (psycopg.Error, OSError) as error:
            raise lost(self.name, self.mask(str(error))) from None


class Connections:
    """What is open to one source.

    Args:
        conninfo: Of :func:`conninfo_of`.
        most: At once, 1 to 50.
    """

    def __init__(self, conninfo: str, most: int) -> None:
        self._conninfo = conninfo
        self._places = asyncio.Semaphore(most)
        self._idle: list[Connection] = []

    @contextlib.asynccontextmanager
    async def transaction(self, talk: Talk) -> AsyncIterator[Connection]:
        """Give a connection in a transaction that cannot write, with the terms of a query; leaving ends what runs.

        Raises:
            Rejected: ``source_role_too_powerful``. Permanent until an operator gives the source another role.
            Unavailable: ``source_unavailable``, ``source_timeout``. Retry.
        """
        async with talk.in_time():
            await self._places.acquire()
        try:
            connection = await self._begin(talk)
            try:
                yield connection
            finally:
                await self._leave(connection)
        finally:
            self._places.release()

    async def _begin(self, talk: Talk) -> Connection:
        while self._idle:
            kept = self._idle.pop()
            with contextlib.suppress(Unavailable, TimeoutError):
                async with asyncio.timeout(KEPT_S):
                    return await _prepare(kept, talk)
        async with talk.in_time():
            connection = await psycopg.AsyncConnection.connect(self._conninfo, prepare_threshold=None)
        return await _prepare(connection, talk)

    async def _leave(self, connection: Connection) -> None:
        """End what still runs on the server, and the transaction; keep the connection if nothing is left of it."""
        sound = connection.pgconn.transaction_status == TransactionStatus.INTRANS
        with contextlib.suppress(psycopg.Error, OSError, TimeoutError):
            if connection.pgconn.transaction_status == TransactionStatus.ACTIVE:
                await connection.cancel_safe(timeout=CANCEL_S)
            else:
                async with asyncio.timeout(CANCEL_S):
                    await _say(connection, _Q["end"])
        if sound and connection.pgconn.transaction_status == TransactionStatus.IDLE:
            self._keep(connection)
        else:
            await connection.close()

    def _keep(self, connection: Connection) -> None:
        self._idle.append(connection)
        asyncio.get_running_loop().call_later(IDLE_S, self._forget, connection)

    def _forget(self, connection: Connection) -> None:
        if connection in self._idle:
            self._idle.remove(connection)
            connection.pgconn.finish()

    async def aclose(self) -> None:
        """Close what is kept. Twice is harmless."""
        kept, self._idle = self._idle, []
        for connection in kept:
            await connection.close()


async def _prepare(connection: Connection, talk: Talk) -> Connection:
    timeout_ms = max(1, talk.allowed // timedelta(milliseconds=1))
    try:
        async with talk.in_time():
            results = await _say(connection, BEGIN.replace("{timeout_ms}", str(timeout_ms)))
        _check_role(talk.name, results[-1])
    except BaseException:
        await connection.close()
        raise
    return connection


def _check_role(name: str, powers: PGresult) -> None:
    """Refuse a role that could do more to the server than read: what is sent to it is an operator's SQL."""
    if not powers.ntuples:
        return
    role, found = (value.decode("utf-8", "replace") for value in (powers.get_value(0, at) or b"" for at in range(2)))
    text = (
        f"source {name} does not ask anything as the role {role}: it {found}, so its queries could run programs or "
        "read and write files on the database's host; make a plain role (create role reader login password '…'; grant "
        f"select on … to reader) and put it into the url of [sources.{name}]"
    )
    raise Rejected("source_role_too_powerful", text, role=role)


async def _say(connection: Connection, sql: str) -> Sequence[PGresult]:
    """Run statements of our own; unlike the driver's way, a silent server costs no longer than the caller waits."""
    connection.pgconn.send_query(sql.encode())
    results: Sequence[PGresult] = await wait_for(connection.pgconn, generators.execute(connection.pgconn))
    for result in results:
        if result.status == ExecStatus.FATAL_ERROR:
            raise psycopg.OperationalError(result.error_message.decode("utf-8", "replace"))
    return results


async def wait_for(pg: PGconn, talking: PQGen[_T]) -> _T:
    """Let one of the driver's generators talk to the server, and sleep while there is nothing to read."""
    return await waiting.wait_async(talking, pg.socket, interval=LOOK_S)
