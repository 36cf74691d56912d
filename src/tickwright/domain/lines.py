"""Streams of lines of any length: splitting, and the report of an import about rejected lines."""

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec

from tickwright.domain import strict_json
from tickwright.domain.errors import Rejected, TickwrightError

LINE_BYTES_MAX = 262_144
REJECTS_SHOWN_MAX = 1_000
T = TypeVar("T")


class LineReject(msgspec.Struct):
    """A rejected line: its number from 1, a stable code and the reason."""

    line: int
    code: str
    message: str


class ImportResult(msgspec.Struct):
    """The result of an import.

    Attributes:
        import_id: The row of the audit trail.
        lines: All received ones, including empty ones.
        existing: Lines whose item existed already.
        rejected: Rejected lines; the first 1,000 are in ``rejects``.
        committed_lines: Every line up to this one is committed.
    """

    import_id: int = 0
    lines: int = 0
    created: int = 0
    existing: int = 0
    rejected: int = 0
    committed_lines: int = 0
    rejects: list[LineReject] = []
    rejects_left_out: int = 0

    def reject(self, line: int, error: TickwrightError) -> None:
        """Count a rejected line."""
        self.rejected += 1
        if len(self.rejects) < REJECTS_SHOWN_MAX:
            self.rejects.append(LineReject(line, error.code, error.message))
        else:
            self.rejects_left_out += 1


class LineSplitter:
    """Splits a stream into lines; a line that is too long is dropped while it arrives."""

    def __init__(self) -> None:
        self._kept, self._dropping = bytearray(), False  # a line without its end; grows in place

    def feed(self, chunk: bytes) -> Iterator[bytes | None]:
        """Yield the lines that ``chunk`` completes; ``None`` for one that is too long."""
        begun, *lines = chunk.split(b"\n")
        self._keep(begun)
        if not lines:
            return
        *whole, rest = lines
        yield self._take()
        for line in whole:
            yield line if len(line) <= LINE_BYTES_MAX else None
        self._keep(rest)

    def end(self) -> Iterator[bytes | None]:
        """Yield a last line without a line end."""
        if self._kept or self._dropping:
            yield self._take()

    def _keep(self, part: bytes) -> None:
        if not self._dropping:
            self._kept += part
            self._dropping = len(self._kept) > LINE_BYTES_MAX
        if self._dropping:
            self._kept.clear()

    def _take(self) -> bytes | None:
        line = None if self._dropping else bytes(self._kept)
        self._kept.clear()
        self._dropping = False
        return line


def _text_of(line: bytes) -> str:
    try:
        return line.decode().removesuffix("\r")
    except UnicodeDecodeError:
        raise Rejected("invalid_csv", "not UTF-8", status=400) from None


def _cells_of(text: str) -> list[str]:
    if '"' not in text:
        return text.split(",")
    try:
        return next(csv.reader([text], strict=True))
    except csv.Error as error:
        raise Rejected("invalid_csv", f"not a row of CSV: {error}", status=400) from None


def _columns_of(head: str, needed: Sequence[str], optional: Sequence[str]) -> list[str]:
    names = [name.strip().strip('"') for name in head.lstrip("\ufeff").split(",")]
    known = {*needed, *optional}
    if not known.issuperset(names) or not set(needed).issubset(names) or len(set(names)) != len(names):
        raise Rejected(
            "invalid_columns",
            f"the first line names the columns: {', '.join(needed)} and optionally {', '.join(optional)}",
            status=400,
            found=[strict_json.quoted(name)[1:-1] for name in names[:20]],
        )
    return names


def csv_reader(
    needed: Sequence[str], optional: Sequence[str], read_row: Callable[[Mapping[str, str]], T]
) -> Callable[[bytes], T | None]:
    """Return a reader of CSV lines: the first one names the columns, ``read_row`` converts the cells of the others.

    Quoted cells contain no line end. It raises ``invalid_csv`` (400, permanent) for a line that is not a row of UTF-8,
    and ``invalid_columns`` (400, permanent) when a needed column is missing, or one is unknown or repeated.
    """
    columns: list[str] = []

    def read(line: bytes) -> T | None:
        nonlocal columns
        text = _text_of(line)
        if not columns:
            columns = _columns_of(text, needed, optional)
            return None
        cells = _cells_of(text)
        if len(cells) != len(columns):
            raise Rejected("invalid_csv", f"{len(cells)} cells under {len(columns)} columns", status=400)
        return read_row(dict(zip(columns, cells, strict=True)))

    return read
