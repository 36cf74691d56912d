"""The bytes of a message on its way to RabbitMQ, read by the client library."""

import struct
from datetime import timedelta

import pamqp.frame
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands
from pamqp.body import ContentBody
from pamqp.header import ContentHeader

from tickwright.ports.broker import Message
from tickwright.transports.rabbitmq.channel import content_frames, content_header, publish_frame

CHARACTERS = st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"])
SHORT = st.text(CHARACTERS, min_size=1, max_size=60)
NAMES = st.text(st.sampled_from("abcXYZ019_.:-"), max_size=255)
NUMBERS = st.integers(1, 65535)


def read(frame: bytes, channel: int) -> object:
    """Return what the library reads from exactly one frame."""
    size, found, value = pamqp.frame.unmarshal(frame)
    assert (size, found) == (len(frame), channel)
    return value


@given(NUMBERS, NAMES, NAMES)
def test_the_publish_frame_is_mandatory_and_names_exchange_and_key(channel: int, exchange: str, key: str) -> None:
    """Without the flag an unroutable message would be confirmed and lost."""
    frame = read(publish_frame(channel, exchange, key), channel)
    assert isinstance(frame, commands.Basic.Publish)
    assert (frame.exchange, frame.routing_key, frame.mandatory, frame.immediate) == (exchange, key, True, False)


@given(NUMBERS, SHORT, SHORT, st.dictionaries(SHORT, st.text(CHARACTERS), max_size=5), st.binary(max_size=300))
def test_the_header_frame_has_all_properties_of_the_message(
    channel: int, message_id: str, content_type: str, headers: dict[str, str], body: bytes
) -> None:
    """Persistent, with id, content type and headers as they are, and the size of the body."""
    message = Message(message_id, "amqp:x/y", body, None, headers, content_type, timedelta(seconds=1))
    header = read(content_frames(channel, content_header(message), body, 1000)[0], channel)
    assert isinstance(header, ContentHeader)
    found = header.properties
    assert (found.message_id, found.content_type, found.headers or {}) == (message_id, content_type, headers)
    assert (found.delivery_mode, header.body_size) == (2, len(body))


@given(NUMBERS, st.binary(max_size=500), st.integers(1, 200))
def test_the_body_is_cut_by_the_frame_size_of_the_connection(channel: int, body: bytes, most: int) -> None:
    """The pieces are the body, none is too large and none is empty: an empty body has no frame."""
    frames = content_frames(channel, content_header(Message("m", "amqp:x/y", body)), body, most)[1:]
    pieces = [read(frame, channel) for frame in frames]
    assert all(isinstance(piece, ContentBody) and 1 <= len(piece.value) <= most for piece in pieces)
    assert b"".join(piece.value for piece in pieces if isinstance(piece, ContentBody)) == body
    assert all(struct.unpack(">BHI", frame[:7])[2] <= most for frame in frames)
