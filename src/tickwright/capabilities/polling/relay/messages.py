"""The message of a poll on the topic: the one place that writes and reads it.

The bytes derive from the outbox row alone, so every attempt to publish a poll sends the same. Its id is (tracker, due
second), which never repeats; consumers remember it.
"""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

import msgspec

from tickwright.capabilities.polling.relay.store import FrozenRow
from tickwright.ports.polls import PollRecord, Record

VERSION = 1
ID_MAX = 2**53 - 1
SLOT_MAX = 2**31 - 1
YEARS = (2000, 2200)
PARTNER_MAX = 50
NAME_MAX = 200
"""As in the columns: no row has a longer name, so longer ones are not kept in memory."""


class PollMessage(msgspec.Struct, frozen=True):
    """The value of a record; see docs/messages.md.

    Attributes:
        version: 1. Members may be added under it; none is renamed or gets another meaning.
        id: ``poll_<tracker id>_<due second since 1970>``.
        due_at: RFC 3339 in UTC, whole seconds.
        slot_id: Its slot in the slice ledger; ``None`` from relays up to 0.1, which wrote it in a header only.
    """

    version: int
    id: str
    tracker_id: int
    due_at: str
    partner: str
    account_id: str
    external_id: str
    slot_id: int | None = None


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(PollMessage).decode


def poll_records(rows: list[FrozenRow], accounts: Mapping[int, str]) -> Iterator[Record]:
    """Return the records of a frozen batch, always in the same order; a deleted account is named by its number."""
    for row in rows:
        slot = ("slot_id", b"%d" % row.slot_id)
        due_second = int(row.due_at.timestamp())
        due_at = row.due_at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        for tracker_id, account_no, external_id in zip(row.ids, row.account_nos, row.external_ids, strict=True):
            event_id = f"poll_{tracker_id}_{due_second}"
            account_id = accounts.get(account_no) or str(account_no)
            message = PollMessage(
                VERSION, event_id, tracker_id, due_at, row.partner, account_id, external_id, row.slot_id
            )
            yield Record(poll_key(tracker_id), _encode(message), [("event_id", event_id.encode()), slot])


def poll_key(tracker_id: int) -> bytes:
    """Return the key of a tracker's records: they have one partition, and are in order there."""
    return b"%d" % tracker_id


def read_poll(value: bytes) -> PollRecord:
    """Return the poll of a record.

    Its headers are not read: a name that is not UTF-8 ends the process inside the client library.

    Raises:
        ValueError: Not a poll of version 1. Permanent for this record.
    """
    try:
        message = _decode(value)
        poll = PollRecord(
            message.tracker_id,
            message.slot_id,
            datetime.fromisoformat(message.due_at),
            message.partner,
            message.account_id,
            message.external_id,
        )
    except (msgspec.MsgspecError, RecursionError) as error:  # the latter also for unknown members
        raise ValueError(repr(error)) from error
    if message.version != VERSION or not _is_storable(poll):
        raise ValueError(f"version {message.version} of {message.id[:80]!r}, due at {message.due_at[:40]!r}")
    return poll


def _is_storable(poll: PollRecord) -> bool:
    """Whether the database could have written it; a poll that no query accepts would be delivered for ever."""
    texts, longest = (poll.partner, poll.account_id, poll.external_id), (PARTNER_MAX, NAME_MAX, NAME_MAX)
    if any(len(text) > most or "\0" in text for text, most in zip(texts, longest, strict=True)):
        return False
    in_bounds = 1 <= poll.tracker_id <= ID_MAX and 0 <= (poll.slot_id or 0) <= SLOT_MAX
    return in_bounds and poll.due_at.tzinfo is not None and YEARS[0] <= poll.due_at.year <= YEARS[1]
