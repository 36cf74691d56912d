"""The process of a query: its messages, and how a thread of the parent starts, queries and ends it.

::

    ──▶ query            ◀── begun, opened, rows until there are none; failed instead of opened or rows
    ──▶ load             ◀── begun, loaded or failed

The pipe blocks a process whose rows are not read. A request is pickled, because the parent is trusted; it is read as
one of a few types and imports nothing. An answer is bounded MessagePack, read as one of a few types, because untrusted
SQL and files can influence it. ``begun`` precedes all work, so a query whose process had died before can go to another
one.
"""

import io
import pickle
import struct
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, BinaryIO, Final, Literal, NamedTuple

import msgspec
import structlog

from tickwright.domain.errors import Rejected
from tickwright.ports.reports import NOT_UTF8, Column, UndecodableText
from tickwright.sources.confined import (
    Problem,
    command,
    died_for_memory,
    environment,
    killed_for_memory,
    shown_errors,
    shown_status,
    tell,
)
from tickwright.sources.rows import PLAIN, ROW_BYTES_MAX, row_too_large

PIECE_BYTES_MAX = 16 * 1024 * 1024
"""Of one answer with rows, unless a single row is larger."""
ANSWER_BYTES_MAX = 5 * ROW_BYTES_MAX
"""A character has up to four bytes; the rest is for numbers."""
DATA_BYTES = 1024**3
"""Memory that a process may allocate. DuckDB counts 256 MiB, without the 2,048 values that it holds of a column."""
THREADS = 2
"""Of DuckDB, for one query."""
TOO_MUCH_MEMORY = (
    f"it takes more memory than its limit ({DATA_BYTES // 2**20} MiB); select fewer rows or columns, or cut long values"
)
ROW_NUMBER = "tickwright row number"
"""The column with a row's number in a loaded file."""
_LENGTH = struct.Struct(">Q")
_APART: Final[frozenset[type]] = frozenset({bytes, UndecodableText})
"""Types of SQLite's values besides numbers and texts."""

Kind = Literal["sqlite", "duckdb", "files"]

Version = tuple[int, int, int]
KnownTypes = dict[Path, tuple[Version, Mapping[str, str]]]
"""The columns of JSON files, each with the version of the scanned file."""


class Query(NamedTuple):
    """One query.

    Attributes:
        kind: An SQLite database, a DuckDB database, or a folder of files.
        path: Of the database or folder.
        spill: An existing folder for this query's spilled data alone.
        known: The known columns of JSON files.
        sql: With numbered placeholders.
        given: The values, made plain by :func:`tickwright.sources.rows.plain`.
        within: The operator's part, or ``None``; see :meth:`tickwright.sources.file_sources.FileSource.query`.
    """

    name: str
    kind: Kind
    path: Path
    spill: Path
    spill_bytes_max: int
    known: KnownTypes
    sql: str
    given: Sequence[Any]
    within: str | None


class Load(NamedTuple):
    """A CSV or Parquet file to load, ordered by a column; see :mod:`tickwright.sources.object_files`."""

    key: str
    raw: Path
    database: Path
    spill: Path
    bytes_max: int
    rows_max: int
    order: str


class Begun(msgspec.Struct, frozen=True, tag=True):
    """The request has arrived; its work has not started."""


class Opened(msgspec.Struct, frozen=True, tag=True):
    """The columns of the query, and the columns of scanned JSON files."""

    columns: tuple[Column, ...]
    known: dict[str, tuple[Version, dict[str, str]]]


class Rows(msgspec.Struct, frozen=True, tag=True):
    """Some rows; none at the end.

    Attributes:
        again: Whether the process takes another query; its memory is released.
        apart: Values that are ``None`` in ``rows``, each with its row and its column: bytes, or ``None`` for a text
            that is not UTF-8.
    """

    rows: list[tuple[bool | int | float | str | None, ...]]
    again: bool = False
    apart: list[tuple[int, int, bytes | None]] = []


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The query failed; ``again`` as in :class:`Rows`."""

    problem: Problem
    again: bool = False


class Loaded(msgspec.Struct, frozen=True, tag=True):
    """The database is complete; ``again`` as in :class:`Rows`."""

    again: bool = False


Answer = Begun | Opened | Rows | Loaded | Failed
_answers: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)
_encoder = msgspec.msgpack.Encoder()


def request_of(asked: Query | Load) -> bytes:
    """Return a request with its length in front; raises the errors of pickling a value."""
    return _framed(pickle.dumps(asked))


def read_request(stream: IO[bytes]) -> Query | Load | None:
    """Return the next request; ``None`` at the end.

    Raises:
        pickle.UnpicklingError: A value has none of the types of a request.
    """
    content = _read(stream, None)
    if content is None:
        return None
    request: Query | Load = _Requests(io.BytesIO(content)).load()
    return request


def write_answer(stream: BinaryIO, answer: Answer) -> None:
    """Write an answer."""
    tell(stream, _framed(_encoder.encode(answer)))


def read_answer(stream: IO[bytes]) -> Answer | None:
    """Return the next answer; ``None`` at the end, and for an invalid or too long one."""
    content = _read(stream, ANSWER_BYTES_MAX)
    try:
        answer = None if content is None else _answers.decode(content)
        return _whole(answer) if isinstance(answer, Rows) and answer.apart else answer
    except (msgspec.MsgspecError, ValueError, RecursionError, IndexError):  # a text that is not UTF-8 is a ValueError
        return None


def answers_of(rows: Sequence[Sequence[Any]], of: str) -> list[bytes]:
    """Return rows as answers of bounded size; ``of`` names their origin for the error.

    Raises:
        Rejected: ``row_too_large``: a single row is too large. Permanent.
    """
    content = _encoder.encode(_rows(rows))
    if len(content) <= PIECE_BYTES_MAX or (len(rows) == 1 and len(content) <= ANSWER_BYTES_MAX):
        return [_framed(content)]
    if len(rows) == 1:
        raise row_too_large(of)
    half = len(rows) // 2
    return [*answers_of(rows[:half], of), *answers_of(rows[half:], of)]


def too_much_memory(of: str) -> Rejected:
    """Return the error of a query that needs more memory than its limit."""
    return Rejected("source_refused", f"{of} refuses the query: {TOO_MUCH_MEMORY}")


def too_many_bytes(key: str, bytes_max: int) -> Rejected:
    """Return the error of a file whose database is too large."""
    return Rejected("audience_unreadable", f"{key} has more than {bytes_max} bytes when it is unpacked")


class _Requests(pickle.Unpickler):
    """Reads the types of a request only, and imports nothing."""

    def find_class(self, module: str, name: str) -> type:
        """Return one of the types."""
        try:
            return _TYPES[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"{module}.{name} is no type of a request") from None


_TYPES = {(kind.__module__, kind.__qualname__): kind for kind in (Query, Load, type(Path()), *PLAIN)}


def _rows(rows: Sequence[Sequence[Any]]) -> Rows:
    plain, apart = [*map(tuple, rows)], []
    for number, row in enumerate(plain):
        if not _APART.isdisjoint(map(type, row)):
            places = [place for place, value in enumerate(row) if value.__class__ in _APART]
            apart += [(number, place, row[place] if row[place].__class__ is bytes else None) for place in places]
            plain[number] = tuple(None if value.__class__ in _APART else value for value in row)
    return Rows(plain, apart=apart)


def _whole(answer: Rows) -> Rows:
    rows: list[list[Any]] = [*map(list, answer.rows)]
    for row, column, value in answer.apart:
        rows[row][column] = NOT_UTF8 if value is None else value
    return Rows([*map(tuple, rows)], answer.again)


def _framed(content: bytes) -> bytes:
    return _LENGTH.pack(len(content)) + content


def _read(stream: IO[bytes], most: int | None) -> bytes | None:
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    if most is not None and length > most:
        return None
    content = stream.read(length)
    return content if len(content) == length else None


EXIT_WAIT_S = 5.0
"""How long an ending process may take to exit before it is killed."""
PROGRAM = "tickwright.sources.query_program"

_log = structlog.get_logger("tickwright.sources")


class QueryProcess:
    """One process with the program :mod:`query_program`. One thread at a time may call its methods, except ``kill``.

    Invariants:
        SRC-8: it has no secret of Tickwright: a few variables of the environment, and no open file.
        SRC-9: it is gone when :meth:`end` returns, and soon after this process ends for any reason.

    Raises:
        OSError: It cannot be started.
    """

    def __init__(self) -> None:
        self._killed_before, self._killed = 0, False
        self._process = subprocess.Popen(
            command(PROGRAM),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd="/",
            env=environment(),
            start_new_session=True,
        )
        assert self._process.stdin and self._process.stdout and self._process.stderr  # noqa: S101, PT018  pipes
        self._requests, self._answers, self._errors = self._process.stdin, self._process.stdout, self._process.stderr

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def begin(self, request: bytes) -> bool:
        """Send a request and wait for ``begun``; ``False``: the process had died and did nothing of it."""
        self._killed_before = killed_for_memory()
        with suppress(OSError):  # it is dead, which the read detects as well
            self._requests.write(request)
            self._requests.flush()
        return isinstance(self.answer(), Begun)

    def answer(self) -> Answer | None:
        """Return its next answer; ``None`` if it died or is to be ended."""
        return read_answer(self._answers)

    def exit_reason(self) -> str | None:
        """End a process that does not answer, and return how it died; ``None``: of its own memory bound."""
        wanted = self._killed
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(EXIT_WAIT_S)
        self.kill()
        status, errors = self._process.wait(), self._errors.read()
        if not wanted:
            _log.warning("sources.process_lost", pid=self.pid, status=status, errors=shown_errors(errors))
        if died_for_memory(status, errors):
            return None
        return shown_status(status, killed=killed_for_memory() > self._killed_before)

    def kill(self) -> None:
        """Kill it, from any thread, any number of times."""
        self._killed = True
        self._process.kill()

    def end(self) -> None:
        """Kill it and wait until it is gone, any number of times."""
        self.kill()
        self._process.wait()
        for pipe in (self._requests, self._answers, self._errors):
            with suppress(OSError):  # data that was not written yet
                pipe.close()
