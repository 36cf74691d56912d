"""A task as a message of the queue: this module alone writes it, reads it and checks its signature.

The message carries the whole entity, so a consumer needs no database to read it. Messages are not trusted: each mistake
in one has a code, which the dead letters show.

Roles that may not decide which task runs with which party can still write to the queue, its exchange, a topic inside
PostgreSQL and the outbox. So schedulers sign each message with a key that only the owner of the schema can read, and
consumers run only signed ones. Keys are kept in memory, so no message needs a query.
"""

import base64
import hmac
import math
from collections.abc import Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, NamedTuple

import asyncpg
import msgspec

from tickwright.capabilities.fanout.windows import MODULE_NAME, Window
from tickwright.domain.errors import Rejected, Unavailable
from tickwright.domain.message_versions import check_version
from tickwright.ports.ids import monotonic
from tickwright.ports.task_queue import Delivery
from tickwright.store.pool import Connection, Pool
from tickwright.store.queries import load

VERSION = 1
BODY_BYTES_MAX = 262_144
SKEW_S = 60
TIMEOUT_MS_MAX = 1_500_000
CODE_CHARS_MAX = 100
ID_CHARS_MAX = 255
WINDOW_S_MAX = 86_400
YEAR_2200_S = 7_258_118_400


class GOCPITaskMsg(msgspec.Struct, frozen=True, rename="pascal"):
    """See docs/messages.md. Members may be added under version 1; none is renamed or gets another meaning.

    Attributes:
        last_executed_at: When the last successful run began, as the sender knew it; a hint.
        drop_dead_at: The end of the window: no run begins after that.
        partner: The limits of this partner apply to the run; ``None`` for no limits.
    """

    version: int
    message_id: str
    task_type: str
    entity_code: str
    entity_party: msgspec.Raw
    last_executed_at: str | None
    window: str
    drop_dead_at: str
    timeout_ms: int
    partner: str | None = None
    config_version: int = 0


class _Head(msgspec.Struct, rename="pascal"):
    version: Any = None
    message_id: Any = None


class Task(msgspec.Struct, frozen=True):
    """A message that was read and checked. Instants in seconds since 1970."""

    id: str
    task_type: str
    entity_code: str
    party: dict[str, Any]
    last_success_s: float | None
    window: Window
    timeout_s: float
    partner: str | None
    config_version: int


_encode = msgspec.json.Encoder().encode
_head = msgspec.json.Decoder(_Head).decode
_decode = msgspec.json.Decoder(GOCPITaskMsg).decode


def message_id(entity_code: str, task_type: str, window: Window) -> str:
    """Return the id of a task's message: equal on every attempt, different for every other task.

    Neither part can have a colon. A dot, which message ids may not have, becomes ``%2E``. If the id would be too long,
    the code is replaced by an empty part and its hash.
    """
    plain_id = f"fanout:{entity_code.replace('.', '%2E')}:{task_type}:{window.start_s}"
    if len(plain_id) <= ID_CHARS_MAX:
        return plain_id
    return f"fanout::{sha256(entity_code.encode()).hexdigest()}:{task_type}:{window.start_s}"


def write_task(  # noqa: PLR0917  the members of the message
    entity_code: str,
    task_type: str,
    party: bytes,
    window: Window,
    last_success_s: float | None,
    timeout_ms: int,
    partner: str | None,
    config_version: int,
) -> tuple[str, bytes]:
    """Return the id and the body of a task's message; ``party`` is JSON text."""
    task_id = message_id(entity_code, task_type, window)
    last = None if last_success_s is None else _instant(last_success_s)
    message = GOCPITaskMsg(
        VERSION,
        task_id,
        task_type,
        entity_code,
        msgspec.Raw(party),
        last,
        _instant(window.start_s),
        _instant(window.end_s),
        timeout_ms,
        partner,
        config_version,
    )
    return task_id, _encode(message)


def read_task(delivery: Delivery, now_s: float | None) -> Task:
    """Return the task of a message.

    A window that begins more than a minute after ``now_s``, the database's clock if known, is refused.

    Raises:
        Rejected: The reason for a dead letter: ``oversize``, ``encoded``, ``not_json``, ``missing_id``,
            ``unknown_version``, ``invalid_message``, ``window_in_future``. Permanent for this message.
        FutureVersionError: Retry in another consumer.
    """
    if len(delivery.body) > BODY_BYTES_MAX:
        raise Rejected("oversize", f"{len(delivery.body)} bytes; at most {BODY_BYTES_MAX}")
    if delivery.content_encoding not in {None, "", "identity", "utf-8"}:
        raise Rejected("encoded", f"content-encoding {delivery.content_encoding!r:.60}; send it plain")
    _check_head(delivery)
    try:
        message = _decode(delivery.body)
        party = msgspec.json.decode(message.entity_party, type=dict[str, Any])
        task = _task(message, party)
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as error:
        raise Rejected("invalid_message", str(error)[:500]) from None
    if now_s is not None and task.window.start_s > now_s + SKEW_S:
        raise Rejected("window_in_future", f"the window begins at {message.window}")
    return task


def _check_head(delivery: Delivery) -> None:
    try:
        head = _head(delivery.body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Rejected("not_json", str(error)[:500]) from None
    check_version(head.version, VERSION, field="Version")
    if not isinstance(head.message_id, str) or not head.message_id:
        raise Rejected("missing_id", "MessageId: missing")


def _task(message: GOCPITaskMsg, party: dict[str, Any]) -> Task:
    begin, end = _seconds(message.window), _seconds(message.drop_dead_at)
    last = None if message.last_executed_at is None else _seconds(message.last_executed_at)
    window = Window(int(begin), int(end) - int(begin))
    if begin != window.start_s or not 1 <= window.length_s <= WINDOW_S_MAX:
        raise ValueError("Window and DropDeadAt: whole seconds, and DropDeadAt after Window by a day at most")
    if not MODULE_NAME.fullmatch(message.task_type):
        raise ValueError("TaskType: 1 to 50 capitals, digits or '_'")
    if not 0 < len(message.entity_code) <= CODE_CHARS_MAX or not message.entity_code.isprintable():
        raise ValueError(f"EntityCode: 1 to {CODE_CHARS_MAX} printable characters")
    if len(message.message_id) > ID_CHARS_MAX:
        raise ValueError(f"MessageId: at most {ID_CHARS_MAX} characters")
    if not 0 < message.timeout_ms <= TIMEOUT_MS_MAX:
        raise ValueError(f"TimeoutMs: 1 to {TIMEOUT_MS_MAX}")
    return Task(
        message.message_id,
        message.task_type,
        message.entity_code,
        party,
        last,
        window,
        message.timeout_ms / 1000,
        message.partner,
        message.config_version,
    )


def _instant(seconds: float) -> str:
    whole = math.floor(seconds)
    text = datetime.fromtimestamp(whole, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    micros = round((seconds - whole) * 1e6) % 1_000_000
    return f"{text}.{micros:06}Z" if micros else f"{text}Z"


def _seconds(text: str) -> float:
    at = datetime.fromisoformat(text)
    if at.tzinfo is None or not 0 <= at.timestamp() < YEAR_2200_S:
        raise ValueError(f"{text[:40]!r}: an instant with its offset, from 1970 to 2200")
    return at.timestamp()


SIGNATURE = "tickwright-signature"
SIGNATURE_VERSION = "v1,"
FRESH_S = 15.0
_PURPOSE = b"tickwright.fanout."

_SQL = load("tickwright.capabilities.fanout.sql", "snapshot.sql")


class MessageKeys(NamedTuple):
    """Keys as they were read, the signing one first."""

    keys: Sequence[bytes] = ()
    read_s: float = float("-inf")

    def sign(self, body: bytes) -> str:
        """Return the value of the header ``tickwright-signature``.

        Raises:
            Unavailable: ``no_message_key``. Retry when there is one.
        """
        if not self.keys:
            remedy = "the owner of the schema makes one with tickwright.rotate_message_key()"
            raise Unavailable("no_message_key", f"tickwright.message_keys has no key to sign with; {remedy}")
        return _signature(self.keys[0], body)

    def refusal(self, delivery: Delivery) -> str | None:
        """Return why a message has no valid signature: ``unsigned`` or ``signature_wrong``; ``None`` if it has one."""
        header = delivery.headers.get(SIGNATURE)
        if header is None:
            return "unsigned"
        if not isinstance(header, str):
            return "signature_wrong"
        wanted = (_signature(key, delivery.body) for key in self.keys)
        given = header.encode("utf-8", "replace")
        return (
            None if any(hmac.compare_digest(signature.encode(), given) for signature in wanted) else "signature_wrong"
        )

    @property
    def fresh(self) -> bool:
        """Whether the keys were read so recently that a signature by another key is wrong."""
        return bool(self.keys) and monotonic() - self.read_s < FRESH_S


NO_KEYS = MessageKeys()


def _signature(key: bytes, body: bytes) -> str:
    digest = hmac.digest(key, _PURPOSE + body, "sha256")
    return SIGNATURE_VERSION + base64.b64encode(digest).decode()


async def read_keys(database: Pool | Connection) -> MessageKeys:
    """Return the present keys. Raises ``UNAVAILABLE``; retry."""
    rows: list[asyncpg.Record] = await database.fetch(_SQL["message_keys"])
    return MessageKeys([row["key"] for row in rows], monotonic())
