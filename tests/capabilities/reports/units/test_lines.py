"""Lines of a stream that is cut anywhere: each once, and a line in small pieces is not copied with each piece."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tickwright.capabilities.reports.parts.spool import rows_of
from tickwright.domain.lines import LINE_BYTES_MAX, LineSplitter


class Piece(bytes):
    """A piece that counts the bytes that are copied when it is appended to them."""

    copied = 0

    def __radd__(self, before: bytes) -> bytes:
        """Count, and add."""
        Piece.copied += len(before)
        return bytes(before) + bytes(self)


def split(*chunks: bytes) -> list[bytes | None]:
    """Return the lines of a stream in these chunks."""
    splitter = LineSplitter()
    return [*(line for chunk in chunks for line in splitter.feed(chunk)), *splitter.end()]


@pytest.mark.parametrize("size", [1, 2, 3, 100, LINE_BYTES_MAX, 10**6])
def test_lines_are_the_same_however_the_stream_is_cut(size: int) -> None:
    """Lines that are too long are ``None``, at the beginning, in the middle and at the end."""
    long, longest = b"y" * (LINE_BYTES_MAX + 1), b"z" * LINE_BYTES_MAX
    stream = b"\n".join([long, b"a", b"", longest, long, b"bc", long])
    cut = [stream[at : at + size] for at in range(0, len(stream), size)]
    assert split(*cut) == [None, b"a", b"", longest, None, b"bc", None]
    assert split(*cut, b"\n", b"d") == [None, b"a", b"", longest, None, b"bc", None, b"d"]


def test_a_line_that_comes_in_small_pieces_is_not_copied_with_each() -> None:
    """Neither by imports nor by rows of a report: the work is linear."""
    text = b'{"a": "' + b"x" * 20_000 + b'"}'
    pieces = [Piece(text[at : at + 7]) for at in range(0, len(text), 7)]

    async def stream() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    async def rows() -> list[object]:
        return [row async for row in rows_of(stream())]

    Piece.copied = 0
    assert split(*pieces) == [text]
    assert asyncio.run(rows()) == [{"a": "x" * 20_000}]
    assert Piece.copied <= len(text)
