"""Records that no client library writes, in a handmade produce request: Produce v3, record batch v2."""

import socket
import struct
import time
import zlib
from collections.abc import Iterator, Sequence

GZIP = 1


def _crc_table() -> Iterator[int]:
    for number in range(256):
        found = number
        for _ in range(8):
            found = (found >> 1) ^ 0x82F63B78 if found & 1 else found >> 1
        yield found


_CRC32C = list(_crc_table())


def _crc32c(data: bytes) -> int:
    found = 0xFFFFFFFF
    for byte in data:
        found = _CRC32C[(found ^ byte) & 255] ^ (found >> 8)
    return found ^ 0xFFFFFFFF


def _varint(number: int) -> bytes:
    rest, made = (number << 1) ^ (number >> 63), bytearray()
    while rest > 127:
        made.append(rest & 127 | 128)
        rest >>= 7
    return bytes([*made, rest])


def _sized(part: bytes) -> bytes:
    return _varint(len(part)) + part


def record(value: bytes, headers: Sequence[tuple[bytes, bytes]] = ()) -> bytes:
    """Return a record with the key 0; names of headers are bytes."""
    body = b"\0" + _varint(0) + _varint(0) + _sized(b"0") + _sized(value) + _varint(len(headers))
    body += b"".join(_sized(part) for header in headers for part in header)
    return _varint(len(body)) + body


def bomb(size_bytes: int) -> bytes:
    """Return a batch with one record of spaces, which is a thousand times smaller on the wire."""
    packed = zlib.compressobj(9, zlib.DEFLATED, 31)
    return batch(packed.compress(record(b" " * size_bytes)) + packed.flush(), codec=GZIP)


def batch(records: bytes, *, codec: int = 0) -> bytes:
    """Return a batch of one record."""
    now_ms = int(time.time() * 1000)
    body = struct.pack(">hiqqqhii", codec, 0, now_ms, now_ms, -1, -1, -1, 1) + records
    rest = struct.pack(">ibI", -1, 2, _crc32c(body)) + body
    return struct.pack(">qi", 0, len(rest)) + rest


def send(bootstrap: str, topic: str, partition: int, made: bytes) -> int:
    """Put a batch on a topic; return the broker's error code, 0 for none. Blocks."""
    host, port = bootstrap.split(",", maxsplit=1)[0].split(":")
    name = topic.encode()
    request = struct.pack(">hhih", 0, 3, 1, 4) + b"test" + struct.pack(">hhi", -1, -1, 20_000)
    request += struct.pack(">ih", 1, len(name)) + name + struct.pack(">iii", 1, partition, len(made)) + made
    with socket.create_connection((host, int(port)), 20) as connection, connection.makefile("rb") as answers:
        connection.sendall(struct.pack(">i", len(request)) + request)
        answer = answers.read(struct.unpack(">i", answers.read(4))[0])
    error: int = struct.unpack_from(">h", answer, 4 + 4 + 2 + len(name) + 4 + 4)[0]
    return error
