"""A persistent, mandatory message as bytes of AMQP 0-9-1, many of which are joined into one write.

The client library builds an object for every frame, field by field, which costs twenty times as much as the bytes do.
A test lets the library read what is written here.
"""

from functools import lru_cache
from struct import Struct

from tickwright.ports.broker import Message

_METHOD, _HEADER, _BODY = 1, 2, 3
_END = b"\xce"
_FRAME = Struct(">BHI")  # kind, channel, bytes of payload
_BASIC_PUBLISH = Struct(">HHH").pack(60, 40, 0)
_MANDATORY = b"\x01"
_CONTENT = Struct(">HHQH")  # class, weight, bytes of body, which properties follow
_BASIC = 60
_PROPERTIES = 0x8000 | 0x2000 | 0x1000 | 0x0080  # content type, headers, delivery mode, message id
_PERSISTENT = b"\x02"
_LENGTH = Struct(">I")


@lru_cache(maxsize=1024)
def publish_frame(channel: int, exchange: str, routing_key: str) -> bytes:
    """Return ``basic.publish``, mandatory; names of at most 255 bytes."""
    return _frame(_METHOD, channel, _BASIC_PUBLISH + _short(exchange) + _short(routing_key) + _MANDATORY)


def content_header(message: Message) -> bytes:
    """Return the content of the header frame. It cannot be cut, and RabbitMQ closes the connection if it is too large.

    Args:
        message: Id, content type and names of headers have at most 255 bytes, and everything can be encoded.
    """
    table = b"".join([_short(name) + b"S" + _long(value) for name, value in message.headers.items()])
    properties = _short(message.content_type) + _LENGTH.pack(len(table)) + table + _PERSISTENT + _short(message.id)
    return _CONTENT.pack(_BASIC, 0, len(message.body), _PROPERTIES) + properties


def content_frames(channel: int, header: bytes, body: bytes, frame_bytes_max: int) -> list[bytes]:
    """Return the header and the body, which is cut where the connection asks for it.

    Args:
        channel: Number of the channel.
        header: Of ``content_header``, at most ``frame_bytes_max``.
        body: Of the same message.
        frame_bytes_max: Of one frame, without its own eight bytes.
    """
    starts = range(0, len(body), frame_bytes_max)
    pieces = [_frame(_BODY, channel, body[start : start + frame_bytes_max]) for start in starts]
    return [_frame(_HEADER, channel, header), *pieces]


def _frame(kind: int, channel: int, payload: bytes) -> bytes:
    return _FRAME.pack(kind, channel, len(payload)) + payload + _END


def _short(text: str) -> bytes:
    encoded = text.encode()
    return len(encoded).to_bytes(1, "big") + encoded


def _long(text: str) -> bytes:
    encoded = text.encode()
    return _LENGTH.pack(len(encoded)) + encoded
