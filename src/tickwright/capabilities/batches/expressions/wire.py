"""Protocol Buffers as bytes: what CEL serialises is read field by field, without a library for messages.

Only what we made ourselves a moment ago is read here, never a stranger's bytes. Fields that we do not know are passed
over.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MASK = 2**64


class Field(NamedTuple):
    """One field of a message: its number, and an unsigned integer or bytes."""

    number: int
    value: int | bytes

    @property
    def bytes(self) -> bytes:
        """A text, a message or a list."""
        assert isinstance(self.value, bytes)  # noqa: S101  # the schema says so
        return self.value

    @property
    def int64(self) -> int:
        """A signed integer."""
        assert isinstance(self.value, int)  # noqa: S101  # the schema says so
        return self.value - _MASK if self.value >= _MASK // 2 else self.value

    @property
    def double(self) -> float:
        """A floating-point number."""
        assert isinstance(self.value, int)  # noqa: S101  # the schema says so
        made: float = struct.unpack("<d", struct.pack("<Q", self.value))[0]
        return made

    @property
    def text(self) -> str:
        """A text."""
        return self.bytes.decode()


def fields_of(message: bytes) -> Iterator[Field]:
    """Yield the fields of a message in their order."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        kind = tag & 7
        if kind == _VARINT:
            value, at = _varint(message, at)
            yield Field(tag >> 3, value)
        elif kind == _BYTES:
            size, at = _varint(message, at)
            yield Field(tag >> 3, message[at : at + size])
            at += size
        else:
            size = {_FIXED64: 8, _FIXED32: 4}[kind]
            yield Field(tag >> 3, int.from_bytes(message[at : at + size], "little"))
            at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value, shift = message[at], 7
    at += 1
    if value < 0x80:
        return value, at
    value &= 0x7F
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7
