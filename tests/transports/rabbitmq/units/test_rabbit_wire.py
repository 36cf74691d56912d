"""Headers of AMQP are read like the library reads them, in a time that grows only with their length."""

import struct
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from pamqp import decode, encode

from tickwright.transports.rabbitmq import connection as wire

TABLE: dict[str, Any] = {
    "text": "x" * 300,
    "bytes": bytearray(b"\xff\x00"),
    "numbers": [0, -1, 2**15, 2**31, 2**40, 1.5, Decimal("1.5"), True, None],
    "at": datetime(2026, 1, 1, tzinfo=UTC),
    "nested": {"array": [{"a": [1, [2, {}]]}, []], "": ""},
}


class Counted(bytes):
    """Bytes that count how many of them were copied."""

    copied = 0

    def __getitem__(self, key: Any) -> Any:
        """Count the copied bytes."""
        found = super().__getitem__(key)
        self.copied += len(found) if isinstance(found, bytes) else 0
        return found


def test_headers_are_read_like_the_library_reads_them() -> None:
    """Every kind of value, in tables and arrays."""
    data = encode.field_table(TABLE)
    assert decode.by_type(data + b"more", "table") == decode.field_table(data + b"more")
    found: Any = decode.by_type(data, "table")[1]
    assert found["nested"] == TABLE["nested"]


@pytest.mark.parametrize(
    ("read", "entry"), [(wire._field_table, b"\x01hV"), (wire._field_array, b"V"), (wire._field_array, b"S\0\0\0\x01x")]
)
def test_many_values_cost_no_more_than_their_length(read: Any, entry: bytes) -> None:
    """The library copies the rest for each value: the square of the length."""
    data = Counted(struct.pack(">I", len(entry) * 10_000) + entry * 10_000)
    read(data)
    assert 0 < data.copied < 50 * len(data)


@pytest.mark.parametrize("data", [b"", b"\0\0", b"\0\0\0\x05", b"\0\0\0\x01\x05"])
def test_a_table_that_is_cut_is_refused(data: bytes) -> None:
    """With an error that counts as unreadable headers."""
    with pytest.raises(wire._UNREADABLE):
        wire._field_table(data)
