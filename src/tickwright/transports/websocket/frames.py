"""The frames of the push protocol: what we send and how an acknowledgement is read. No I/O."""

from datetime import timedelta

import msgspec

from tickwright.domain.errors import Rejected
from tickwright.domain.signatures import sign
from tickwright.outbound import check_message, excerpt
from tickwright.ports.broker import Accepted, Message, Outcome, Refused

FRAME_BYTES_MAX = 1024 * 1024
ACK_BYTES_MAX = 64 * 1024
RETRY_AFTER_S_MAX = 3600.0

_encode = msgspec.json.Encoder().encode


class Ack(msgspec.Struct, rename={"webhook_id": "webhook-id"}):
    """What a gateway answers; unknown members are ignored."""

    webhook_id: str
    ack: bool
    error: str = ""
    retry_after: float | None = None


_acks = msgspec.json.Decoder(Ack)


def encode_push(message: Message, *, now_unix_s: int) -> str:
    """Return the text frame of a message; its last member is the body, byte for byte.

    Raises:
        Rejected: ``not_json``, ``too_large``, ``invalid_secret``, or a header that cannot be sent.
            Permanent: do not retry.
    """
    check_message(message)
    headers = {**message.headers, "webhook-timestamp": str(now_unix_s)}
    if message.signing_secrets:
        headers["webhook-signature"] = sign(message.id, now_unix_s, message.body, message.signing_secrets)
    frame = b'{"webhook-id":%b,"type":%b,"headers":%b,"payload":%b}' % (
        _encode(message.id),
        _encode(message.headers.get("tickwright-task-type", "")),
        _encode(headers),
        message.body,
    )
    if len(frame) > FRAME_BYTES_MAX:
        raise Rejected("too_large", f"A push frame has at most {FRAME_BYTES_MAX} bytes.")
    try:
        msgspec.json.decode(message.body, type=msgspec.Raw)
        return frame.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Rejected("not_json", "A WebSocket push carries JSON in UTF-8.") from None


def decode_ack(text: str) -> Ack | None:
    """Return the acknowledgement in a frame, or ``None`` when it is something else."""
    try:
        return _acks.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None


def outcome_of_ack(ack: Ack, path: str) -> Outcome:
    """Return what the gateway said, without the path and the query of its address."""
    if ack.ack:
        return Accepted()
    text = excerpt(ack.error.encode("utf-8", "backslashreplace"), path)
    retry_after: timedelta | None = None
    if ack.retry_after is not None and ack.retry_after >= 0:
        retry_after = timedelta(seconds=min(ack.retry_after, RETRY_AFTER_S_MAX))
    return Refused("gateway_refused", text or "The gateway refused the message.", retry_after=retry_after)
