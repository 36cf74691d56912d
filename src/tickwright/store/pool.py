"""Connections: asyncpg pools with the session settings that the promises need, and with time limits."""

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, ClassVar, NamedTuple, TypeAlias

import asyncpg
import structlog

from tickwright.domain.errors import Unavailable
from tickwright.ports.ids import monotonic
from tickwright.store.bounds import Request, Shares, TookTooLong, current_request, left_s, run_within
from tickwright.store.dsn import Server, servers, shown_url
from tickwright.store.queries import load

Pool: TypeAlias = asyncpg.Pool
Connection: TypeAlias = asyncpg.Connection

SETTINGS = {
    "timezone": "UTC",
    "application_name": "tickwright",
    "lock_timeout": "5000",
    "statement_timeout": "60000",
    "idle_in_transaction_session_timeout": "3000",  # below every lease, so a paused owner blocks no takeover
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",  # the hot queries have one right plan; see tests/plans
    "enable_seqscan": "off",  # a plan from an empty live table would stay in use when the table fills
}
IN_TRANSACTIONS = "".join(
    f"SET LOCAL {name} = '{SETTINGS[name]}';"
    for name in ("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout")
)
"""Settings that a pooler's connections cannot keep: a process that freezes in a transaction must not keep its locks."""
CONNECT_TIMEOUT_S = 10
FAR_CONNECT_TIMEOUT_S = 30
"""For a single server: a connection takes six round trips, and there is no other server to try."""
BESIDE_TIMEOUT_S = 2.0
IDLE_S = 5.0
"""After which a connection of a pool is closed: an idle process needs one at the most."""
RELEASE_S = 5.0
RELEASE_BOUNDED_S = 0.5
FULL_S = 10.0
NO_ROOM = (
    "the database has no room left on its disk (53100): free some, or enlarge it; what was acknowledged is there, "
    "reads work, and everything goes on by itself"
)
_TIMELINES = load("tickwright.store.sql", "timelines.sql")
_log = structlog.get_logger("tickwright.store")


class NotificationQueueFullError(asyncpg.InsufficientResourcesError):  # type: ignore[misc]  # the driver has no types
    """PostgreSQL's queue of notifications is full: commits that notify fail until it has room again.

    PostgreSQL reports 54000, the SQLSTATE of values that are too large. Those are permanent errors; this is not.
    """


UNAVAILABLE = (
    OSError,
    TimeoutError,
    asyncpg.InterfaceError,  # a closed connection or pool
    asyncpg.InternalClientError,  # a connection that broke between a fatal message and its end
    asyncpg.InvalidCachedStatementError,  # 0A000: a migration has changed a table; the driver prepares again
    asyncpg.PostgresConnectionError,  # 08
    asyncpg.ReadOnlySQLTransactionError,  # 25006: a standby, or read-only by its operator, to protect a full disk
    asyncpg.IdleInTransactionSessionTimeoutError,  # 25P03
    asyncpg.InvalidAuthorizationSpecificationError,  # 28
    asyncpg.TransactionRollbackError,  # 40
    asyncpg.InsufficientResourcesError,  # 53
    asyncpg.ObjectNotInPrerequisiteStateError,  # 55
    asyncpg.OperatorInterventionError,  # 57
    asyncpg.PostgresSystemError,  # 58
)
"""The database is unavailable: lost, shutting down, silent, full, read-only or locked. It decided nothing: retry.

Every other error of the driver is one of :data:`REFUSED` or a bug in a statement. No loop retries a bug: the loop
raises it, and the supervisor restarts the service.
"""
REFUSED = (
    asyncpg.DataError,  # 22
    asyncpg.IntegrityConstraintViolationError,  # 23
    asyncpg.ProgramLimitExceededError,  # 54
    asyncpg.PLPGSQLError,  # P0: a trigger or a function raises it
)
"""PostgreSQL refuses the values of a statement. Permanent."""
CANNOT_CONNECT = (*UNAVAILABLE, asyncpg.PostgresError)
"""Errors of a refused connection, such as 3D000, no such database."""


async def open_pool(url: str, *, min_size: int = 0, max_size: int = 8, behind_pooler: bool = False) -> Pool:
    """Open a pool of ``min_size`` to ``max_size`` connections; of several servers, to the one that takes writes.

    ``behind_pooler`` means PgBouncer in transaction mode: no prepared statements, and settings in each transaction.

    Raises:
        Unavailable: The server does not answer. Retry.
    """
    try:
        return await _BoundedPool(
            url,
            connection_class=_PoolerConnection if behind_pooler else _BoundedConnection,
            record_class=asyncpg.Record,
            init_size=None,
            min_size=min_size,
            max_size=max_size,
            max_queries=50_000,
            loop=None,
            connect=connect_to,
            setup=None,
            init=None,
            statement_cache_size=0 if behind_pooler else 200,
            server_settings={"timezone": "UTC", "application_name": "tickwright"} if behind_pooler else SETTINGS,
            command_timeout=60,
            timeout=CONNECT_TIMEOUT_S,
            max_inactive_connection_lifetime=IDLE_S,
            reset=_keep_session,
        )
    except CANNOT_CONNECT as error:
        raise unavailable(url, error) from error


class DiskFull:
    """When the database last reported a full disk to a statement of this process."""

    seen_s = float("-inf")

    @classmethod
    def is_recent(cls) -> bool:
        """Return whether that was within the last ten seconds."""
        return monotonic() - cls.seen_s < FULL_S


class HeldUp:
    """When a statement of this process last failed after a wait: for a lock, or for an answer.

    :class:`tickwright.engine.table_locks.TableLocks` then searches for the cause.
    """

    ERRORS = (
        asyncpg.LockNotAvailableError,
        asyncpg.QueryCanceledError,
        TimeoutError,
        TookTooLong,
        asyncio.CancelledError,  # the caller stopped waiting
    )
    AFTER_S = 0.4
    seen_s = float("-inf")


class RoundTrips:
    """Distance of the database: the shortest of the last statements of this process, which excludes slow statements."""

    SLOW_MS = 500
    _last_s: ClassVar[deque[float]] = deque(maxlen=5)

    @classmethod
    def note(cls, took_s: float) -> None:
        """Record how long one statement took."""
        cls._last_s.append(took_s)

    @classmethod
    def shortest_ms(cls) -> int:
        """Return an upper bound of the round trip in milliseconds; 0 before five statements."""
        return round(1000 * min(cls._last_s)) if len(cls._last_s) == cls._last_s.maxlen else 0

    @classmethod
    def complaint(cls) -> str | None:
        """Return a message for operators when the database is too far for reliable work."""
        if (took_ms := cls.shortest_ms()) <= cls.SLOW_MS:
            return None
        return (
            f"database_slow: a round trip takes {took_ms} ms, more than {cls.SLOW_MS} ms: everything runs late and "
            "leases may be lost; run Tickwright near its database, or set TICKWRIGHT_LEASE=10s"
        )


class Exchanges:
    """How long this process needs to agree with others on partners' limits: the median of the last times."""

    SLOW_MS = 3000
    RECENT_S = 60.0
    _last_s: ClassVar[deque[float]] = deque(maxlen=5)
    _noted_s = float("-inf")

    @classmethod
    def note(cls, took_s: float) -> None:
        """Record how long one exchange took."""
        cls._last_s.append(took_s)
        cls._noted_s = monotonic()

    @classmethod
    def usual_s(cls) -> float:
        """Return the median in seconds; 0 before the first exchange."""
        return sorted(cls._last_s)[len(cls._last_s) // 2] if cls._last_s else 0.0

    @classmethod
    def usual_ms(cls) -> int:
        """Return the median in milliseconds for operators; 0 without an exchange in the last minute."""
        return round(1000 * cls.usual_s()) if monotonic() - cls._noted_s < cls.RECENT_S else 0

    @classmethod
    def complaint(cls) -> str | None:
        """Return a message for operators when grants expire before they arrive."""
        if (took_ms := cls.usual_ms()) <= cls.SLOW_MS:
            return None
        return (
            f"database_slow: an exchange over partners' limits takes {took_ms} ms, more than {cls.SLOW_MS} ms: no "
            "partner is called from here; run consumers near the database, or fewer of them"
        )


def slowness() -> str | None:
    """Return what is too slow between this process and its database, if anything."""
    return RoundTrips.complaint() or Exchanges.complaint()


async def _run_statement(call: Callable[..., Awaitable[Any]], *args: Any, **more: Any) -> Any:
    asked_s = monotonic()
    try:
        answer = await run_within(call, *args, **more)
    except BaseException as error:
        if isinstance(error, asyncpg.DiskFullError):
            DiskFull.seen_s = monotonic()
        if isinstance(error, HeldUp.ERRORS) and monotonic() - asked_s > HeldUp.AFTER_S:
            HeldUp.seen_s = monotonic()
        if isinstance(error, asyncpg.ProgramLimitExceededError) and error.server_source_filename == "async.c":
            raise NotificationQueueFullError(str(error)) from error
        if isinstance(error, asyncpg.InterfaceError) and _is_of_arguments(error):
            raise asyncpg.DataError(str(error)) from error
        raise
    RoundTrips.note(monotonic() - asked_s)
    return answer


def _is_of_arguments(error: asyncpg.InterfaceError) -> bool:
    """Return whether the driver could not encode the arguments; the connection then still works."""
    return isinstance(error, ValueError) or str(error).startswith("the server expects")


FIRST_OID_OF_USERS = 16384
"""Types below it are the same on every server."""
_Introspected = tuple[Sequence[Any], Any]
_builtin_types: dict[frozenset[int], _Introspected] = {}


class _BoundedConnection(asyncpg.Connection):  # type: ignore[misc]  # the driver has no types
    """A connection whose statements obey :func:`tickwright.store.bounds.within`."""

    __slots__ = ()

    async def _introspect_types(self, typeoids: Iterable[int], timeout: float | None) -> _Introspected:
        """Remember what built-in arrays consist of: else each new connection asks the server, in three statements."""
        wanted = frozenset(typeoids)
        if (known := _builtin_types.get(wanted)) is None:
            known = await super()._introspect_types(typeoids, timeout)
            if max(wanted) < FIRST_OID_OF_USERS:
                _builtin_types[wanted] = known[0], _NAMED
        return known

    async def execute(self, *args: Any, timeout: float | None = None) -> Any:
        return await _run_statement(super().execute, *args, timeout=timeout)

    async def executemany(self, *args: Any, timeout: float | None = None) -> Any:
        return await _run_statement(super().executemany, *args, timeout=timeout)

    async def fetch(self, *args: Any, timeout: float | None = None, **more: Any) -> Any:
        return await _run_statement(super().fetch, *args, timeout=timeout, **more)

    async def fetchrow(self, *args: Any, timeout: float | None = None, **more: Any) -> Any:
        return await _run_statement(super().fetchrow, *args, timeout=timeout, **more)

    async def fetchval(self, *args: Any, timeout: float | None = None, **more: Any) -> Any:
        return await _run_statement(super().fetchval, *args, timeout=timeout, **more)


class _NamedStatement(NamedTuple):
    """Tells the driver that no statement without a name was prepared meanwhile."""

    name: str = "none"


_NAMED = _NamedStatement()


class _PoolerConnection(_BoundedConnection):
    """A connection behind a pooler, where each transaction may run in another server session."""

    __slots__ = ()

    async def execute(self, *args: Any, timeout: float | None = None) -> Any:
        if len(args) == 1 and args[0].startswith("BEGIN"):  # sent by the driver for a transaction
            args = (f"{args[0]} {IN_TRANSACTIONS}",)
        return await super().execute(*args, timeout=timeout)


class _BoundedPool(asyncpg.Pool):  # type: ignore[misc]  # the same
    """A pool whose loans obey the same bound, and whose releases do not wait for the server.

    The driver waits until the server confirms that a statement is cancelled. A server process that is stopped never
    does; then the pool closes the connection, and the caller that released it gets no error.

    Connections for a request of the API count for the caller's share; see :mod:`tickwright.store.bounds`.
    """

    def __init__(self, url: str, *, max_size: int, **options: Any) -> None:
        super().__init__(url, max_size=max_size, **options)
        self.url = url
        self._shares = Shares(max_size)
        self._lent: dict[Any, Request] = {}

    def acquire(self, *, timeout: float | None = None) -> Any:
        return super().acquire(timeout=_within_left(timeout))

    async def _acquire(self, timeout: float | None) -> Any:
        """Lend a connection; for a request of the API, once its share allows it."""
        request = current_request()
        if request is None or not await self._shares.enter(request, timeout):
            return await super()._acquire(timeout)
        try:
            connection = await super()._acquire(_within_left(timeout))
        except BaseException:
            self._shares.leave(request)
            raise
        self._lent[connection] = request
        return connection

    async def release(self, connection: Any, *, timeout: float | None = None) -> None:
        within_s = RELEASE_S if left_s() is None else RELEASE_BOUNDED_S
        request = self._lent.pop(connection, None)
        try:
            await super().release(connection, timeout=within_s if timeout is None else timeout)
        except TimeoutError:
            _log.warning("database.connection_given_up", waited_s=within_s)
        finally:
            if request is not None:
                self._shares.leave(request)


def _within_left(timeout_s: float | None) -> float | None:
    left = left_s()
    return timeout_s if left is None else min(left, timeout_s or left)


@asynccontextmanager
async def beside(pool: Pool) -> AsyncIterator[Connection]:
    """Open a connection to a pool's database that waits for nothing that the pool may wait for.

    It enters no timeline and is only for reading catalogues.

    Raises:
        One of UNAVAILABLE: No server answers, or none takes writes. Retry.
    """
    connection = await connect_to(pool.url, timeout=BESIDE_TIMEOUT_S, enter=False, statement_cache_size=0)
    try:
        yield connection
    finally:
        connection.terminate()


_writable: dict[str, str] = {}
"""By URL with several servers: the one that took writes last, which is tried first."""


async def connect_to(url: str, *, timeout: float = CONNECT_TIMEOUT_S, enter: bool = True, **options: Any) -> Connection:
    """Connect to the server of ``url``; of several, to the one that takes writes now.

    Each of several servers gets its share of ``timeout``, so a silent one leaves time for the next. A
    ``connect_timeout`` in the URL applies to each server, as in libpq. Without ``enter`` the server may be on a
    timeline that no process has noticed.

    Raises:
        One of UNAVAILABLE: No server answers, or none takes writes. Retry.
    """
    found = servers(url)
    if len(found) == 1:
        timeout = max(timeout, FAR_CONNECT_TIMEOUT_S)
    found.sort(key=lambda server: server.url != _writable.get(url))
    for server in found[:-1]:
        with suppress(*CANNOT_CONNECT):
            return await _connect_writable(url, server, timeout / len(found), options, enter=enter)
    return await _connect_writable(url, found[-1], timeout / len(found), options, enter=enter)


async def _connect_writable(
    url: str, server: Server, timeout_s: float, options: dict[str, Any], *, enter: bool
) -> Connection:
    timeout_s = server.connect_timeout_s or timeout_s
    connection = await asyncpg.connect(server.url, timeout=timeout_s, target_session_attrs="read-write", **options)
    _writable[url] = server.url
    return await _entered(connection) if enter else connection


def unavailable(url: str, error: BaseException) -> Unavailable:
    """Return an error whose one line says why the database at ``url`` cannot be used."""
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    if isinstance(error, (asyncpg.TargetServerAttributeNotMatched, asyncpg.ReadOnlySQLTransactionError)):
        reason = (
            "it is a standby, or read-only, and takes no writes; name its primary, or every server: "
            "postgresql://user@host1,host2/database"
        )
    return Unavailable("database_unavailable", f"cannot connect to {shown_url(url)}: {reason}")


async def _entered(connection: Connection) -> Connection:
    """Return the connection once the database issues no number of an older timeline; ADR 0025.

    A connection that takes writes stays on one timeline, so once per connection is enough.
    """
    try:
        await enter_timeline(connection)
    except BaseException:
        connection.terminate()
        raise
    return connection


async def enter_timeline(database: Pool | Connection) -> None:
    """Make every number jump if the database's history has changed. Behind a pooler, heartbeats call this."""
    with suppress(asyncpg.UndefinedFunctionError, asyncpg.InvalidSchemaNameError, asyncpg.InsufficientPrivilegeError):
        # no schema, an older one, or a role without it
        status = await database.execute(_TIMELINES["enter"], timeout=CONNECT_TIMEOUT_S)
        if status.endswith(" 0"):  # no row: unchanged
            return
        advice = "see the alert possible_data_loss; no id and no fence is given out twice"
        change = await database.fetchval(_TIMELINES["last_change"], timeout=CONNECT_TIMEOUT_S)
        _log.error("database.timeline_changed", **json.loads(change or "{}"), advice=advice)


async def _keep_session(_connection: Connection) -> None:
    """Skip the driver's RESET ALL, a transaction and a round trip per use: this product sets no session state."""


async def connect(url: str, **settings: str) -> Connection:
    """Open a connection outside the pool, for LISTEN and session locks; ``settings`` override those of the session."""
    return await connect_to(
        url,
        connection_class=_BoundedConnection,
        server_settings={**SETTINGS, **settings},
        command_timeout=60,
        statement_cache_size=200,
    )
