"""One transaction per test: a pool that lends one connection to all, and rolls everything back at the end.

::

    BEGIN ── statements of the test, of the app, of drained jobs ── ROLLBACK
              a transaction is a savepoint; a statement outside of one has a savepoint of its own,
              so that an error that a test expects costs nothing else

The connection is lent to several borrowers at once, as a pool's connections are: a job may hold one while the app
schedules with another. Statements wait for each other; transactions overlap. A rollback also takes back what another
borrower wrote meanwhile, which two connections would have kept. That is an error, not a silent difference: a handler
that schedules without ``connection=`` inside a transaction that fails has a job in production.

What differs from separate connections: a borrower sees what another one has not committed, nothing waits for a lock of
another one, and no notification arrives, because nothing is ever committed.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, NamedTuple, Self

import asyncpg

from tickwright.domain.errors import Rejected
from tickwright.store.pool import Connection, connect

_SETTINGS = {
    "idle_in_transaction_session_timeout": "0",  # a debugger may hold up a test for hours
    "tickwright_test.isolated": "on",
}

TEXT_CHARS_MAX = 200
_WRITES = re.compile(r"\b(INSERT|UPDATE|DELETE|MERGE|COPY|CREATE|ALTER|DROP|TRUNCATE)\b", re.IGNORECASE)
_COMMENT = re.compile(r"--[^\n]*\n?")
_ENDS = re.compile(r"\s*(COMMIT|END|ABORT|ROLLBACK(?!\s+((WORK|TRANSACTION)\s+)?TO\b))\b", re.IGNORECASE)
"""A statement that ends the transaction of the test."""


@asynccontextmanager
async def isolated_pool(url: str) -> "AsyncIterator[IsolatedPool]":
    """Yield a pool of one connection to ``url``, in a transaction that is rolled back after the block.

    Raises:
        One of ``UNAVAILABLE``: The server does not answer. Retry.
    """
    connection = await connect(url, **_SETTINGS)
    try:
        await connection.execute("BEGIN; SET CONSTRAINTS tickwright.workflow_ends_advance IMMEDIATE")  # none commits
        yield IsolatedPool(url, connection)
        await connection.execute("ROLLBACK")
        await connection.close()
    finally:
        connection.terminate()


class _Write(NamedTuple):
    """A statement that may have written, while a savepoint was open."""

    number: int
    borrower: "IsolatedConnection"
    text: str


class _Line:
    """The connection itself: one statement at a time, and the open savepoints in their order."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.lock = asyncio.Lock()
        self.savepoints: list[_Savepoint] = []
        self.writes: list[_Write] = []
        self._numbers = 0

    def next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def note(self, borrower: "IsolatedConnection", text: object) -> None:
        """Note a statement that a rollback of another borrower would take back."""
        if self.savepoints and isinstance(text, str) and _WRITES.search(_COMMENT.sub("", text)):
            self.writes.append(_Write(self.next_number(), borrower, _COMMENT.sub("", text).strip()[:TEXT_CHARS_MAX]))

    async def alone(self, call: Callable[..., Awaitable[Any]], *args: Any, **more: Any) -> Any:
        """Run one statement in a savepoint of its own."""
        name = _name(self.next_number())
        await self.connection.execute(f"SAVEPOINT {name}")
        try:
            answer = await call(*args, **more)
        except BaseException:
            await self.connection.execute(f"ROLLBACK TO {name}; RELEASE {name}")
            raise
        await self.connection.execute(f"RELEASE {name}")
        return answer


def _name(number: int) -> str:
    return f"tickwright_{number}"


class _Savepoint:
    """A transaction of a borrower; asyncpg's interface."""

    def __init__(self, borrower: "IsolatedConnection") -> None:
        self._borrower, self._line = borrower, borrower.line
        self._number = 0
        self._is_over = False
        self._lost: _Write | None = None
        self._outer: _Savepoint | None = None

    async def start(self) -> None:
        async with self._line.lock:
            self._number = self._line.next_number()
            await self._line.connection.execute(f"SAVEPOINT {_name(self._number)}")
            self._line.savepoints.append(self)
            self._borrower.depth += 1
            self._outer, self._borrower.current = self._borrower.current, self

    async def commit(self) -> None:
        async with self._line.lock:
            self._end()
            if self._lost is not None:
                raise _overlap(self._lost)
            await self._release()

    async def rollback(self) -> None:
        """Take back what was written since the start; say so where another borrower wrote some of it."""
        async with self._line.lock:
            self._end()
            if self not in self._line.savepoints:  # an outer one has taken it back
                return
            del self._line.savepoints[self._line.savepoints.index(self) :]
            name = _name(self._number)
            await self._line.connection.execute(f"ROLLBACK TO {name}; RELEASE {name}")
            lost = [write for write in self._line.writes if write.number > self._number]
            self._line.writes = [write for write in self._line.writes if write.number <= self._number]
            self._note_lost(lost)

    def _note_lost(self, lost: Sequence[_Write]) -> None:
        """Raise where another borrower's writes are lost; one whose transaction is open is the one to raise."""
        for write in lost:
            if write.borrower is self._borrower:
                continue
            if write.borrower.current is None:
                raise _overlap(write)
            write.borrower.current._lost = write  # noqa: SLF001  of this class

    def _end(self) -> None:
        self._borrower.depth -= 1
        self._borrower.current = self._outer
        self._is_over = True

    async def _release(self) -> None:
        """Release every ended savepoint at the end of the line; one with others behind it waits for them."""
        savepoints = self._line.savepoints
        while savepoints and savepoints[-1]._is_over:  # noqa: SLF001  of this class
            await self._line.connection.execute(f"RELEASE {_name(savepoints.pop()._number)}")  # noqa: SLF001
        if not savepoints:
            self._line.writes.clear()

    async def __aenter__(self) -> None:
        await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await (self.commit() if kind is None else self.rollback())


def _overlap(write: _Write) -> Rejected:
    return Rejected(
        "isolated_transactions_overlap",
        "a transaction of this isolated test was rolled back, and with it what another connection wrote meanwhile: "
        f"{write.text!r}; outside of a test that is kept. Give that call connection=… if it belongs to the transaction,"
        " or open the app with isolated=False",
    )


def _ending(text: str) -> Rejected:
    return Rejected(
        "isolated_transaction_ends",
        f"the statement {text.strip()[:TEXT_CHARS_MAX]!r} would end the transaction of this isolated test, and what it "
        "commits would stay: use connection.transaction(), or open the app with isolated=False",
    )


class IsolatedConnection(asyncpg.pool.PoolConnectionProxy):  # type: ignore[misc]  # the driver has no types
    """One loan of the connection: statements and transactions as of a connection of its own."""

    def __init__(self, line: _Line) -> None:  # not the base's, which lends a connection to one borrower
        self._con, self._holder = line.connection, None
        self.line = line
        self.depth = 0
        self.current: _Savepoint | None = None

    def is_in_transaction(self) -> bool:
        """Return whether this borrower has begun one."""
        return self.depth > 0

    async def close(self, *, timeout: float | None = None) -> None:
        """Do nothing: the test ends the connection."""

    def is_closed(self) -> bool:
        """Return whether the test is over."""
        return bool(self.line.connection.is_closed())

    def transaction(self, **_options: Any) -> _Savepoint:
        """Return a transaction; a savepoint has no isolation level, and is never read-only."""
        return _Savepoint(self)

    async def _run(self, name: str, *args: Any, **more: Any) -> Any:
        if isinstance(args[0], str) and _ENDS.match(_COMMENT.sub("", args[0])):
            raise _ending(args[0])
        call = getattr(self.line.connection, name)
        async with self.line.lock:
            answer = await (call(*args, **more) if self.depth else self.line.alone(call, *args, **more))
            self.line.note(self, args[0] if name != "copy_records_to_table" else f"COPY {args[0]}")
            return answer

    async def execute(self, *args: Any, **more: Any) -> Any:  # noqa: D102  asyncpg's, as those below
        return await self._run("execute", *args, **more)

    async def executemany(self, *args: Any, **more: Any) -> Any:  # noqa: D102
        return await self._run("executemany", *args, **more)

    async def fetch(self, *args: Any, **more: Any) -> Any:  # noqa: D102
        return await self._run("fetch", *args, **more)

    async def fetchrow(self, *args: Any, **more: Any) -> Any:  # noqa: D102
        return await self._run("fetchrow", *args, **more)

    async def fetchval(self, *args: Any, **more: Any) -> Any:  # noqa: D102
        return await self._run("fetchval", *args, **more)

    async def copy_records_to_table(self, *args: Any, **more: Any) -> Any:  # noqa: D102
        return await self._run("copy_records_to_table", *args, **more)


class _Loan:
    """What ``acquire`` returns: to be awaited, or entered."""

    def __init__(self, line: _Line) -> None:
        self._line = line

    async def _lend(self) -> IsolatedConnection:
        return IsolatedConnection(self._line)

    def __await__(self) -> Generator[Any, None, IsolatedConnection]:
        return self._lend().__await__()

    async def __aenter__(self) -> IsolatedConnection:
        return await self._lend()

    async def __aexit__(self, *_: object) -> None:
        pass


class IsolatedPool:
    """The part of asyncpg's pool that the product uses, on one connection; statements are those of one loan each."""

    def __init__(self, url: str, connection: Connection) -> None:
        self.url = url
        self._line = _Line(connection)

    def acquire(self, *, timeout: float | None = None) -> _Loan:  # noqa: ARG002  a loan never waits
        """Lend the connection."""
        return _Loan(self._line)

    async def release(self, connection: Any, *, timeout: float | None = None) -> None:
        """Take it back."""

    async def close(self) -> None:
        """Do nothing: the test ends the transaction."""

    def terminate(self) -> None:
        """Do nothing, as ``close``."""

    def __getattr__(self, name: str) -> Any:
        """Return ``fetch``, ``fetchrow``, ``fetchval``, ``execute``, ``executemany`` or ``copy_records_to_table``."""
        return getattr(IsolatedConnection(self._line), name)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass
