"""Explains why a tracker is where it is, as codes and text. Deciding is pure; the store loads the facts.

Reasons are in order: what ended it, what delays it, its last poll. The first one is the summary.

No row is kept for a poll that went to Kafka. The slice ledger has the batches of a slot's minute, a batch has its
offsets in each partition, and a tracker's partition follows from its id. So the answer is a range of offsets. Only
the reader of a partition knows whether a poll between the group's position and its own waits or is called.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from tickwright.capabilities.polling.relay.batches import SQL, poll_key
from tickwright.capabilities.polling.trackers.events import is_terminal
from tickwright.domain.time_texts import instant_text, wait_text
from tickwright.partners.state import reasons_not_called
from tickwright.ports.views import Explanation, Reason
from tickwright.store.pool import Pool

Row = Mapping[str, Any]
BATCHES_FOUND_MAX = 200


@dataclass(frozen=True, slots=True)
class TopicPosition:
    """Where a poll is on the topic.

    Attributes:
        first_no: First of the batches that may hold it, to ``last_no``; usually one.
        published_at: When the last of them was marked; ``None``, as all fields below, when they are deleted.
        partition: Of the tracker; ``None`` when only the position proved the batch.
        first_offset: First of these batches in the partition, to ``last_offset``; ``None`` when unknown.
        group: Progress of the consumers: ``position read_to seen_at reader_name``.
    """

    first_no: int
    last_no: int
    published_at: datetime | None = None
    topic: str = ""
    partition: int | None = None
    first_offset: int | None = None
    last_offset: int | None = None
    group: Row | None = None


async def find_in_kafka(pool: Pool, facts: Row) -> TopicPosition | None:
    """Return where the poll of a tracker's last slot is; ``None`` when it did not go to Kafka or is done.

    ``facts`` is the row of the query ``explain``.
    """
    if facts["done_at"] is not None or facts["turn_selected"] is None:
        return None
    turn = [facts[name] for name in ("slot_id", "prev_due_at", "partner_no", "turn_at")]
    found = await pool.fetch(SQL["find_batches"], *turn, BATCHES_FOUND_MAX)
    if not found:
        return None
    position = locate(found, facts["id"])
    if position.partition is None:
        return position
    return replace(position, group=await pool.fetchrow(SQL["group_at"], position.topic, position.partition))


def locate(found: Sequence[Row], tracker_id: int) -> TopicPosition:
    """Return where one tracker's poll is by the rows of ``find_batches``. Pure."""
    if found[0]["batch_no"] is None:
        return TopicPosition(found[0]["first_batch_no"], found[0]["last_batch_no"])
    batches = [row for row in found if row["fits"]] or found  # none fits: a catch-up released it, at another second
    first, last = batches[0], batches[-1]
    position = TopicPosition(first["batch_no"], last["batch_no"], last["published_at"], last["topic"])
    counts = {row["partition_count"] for row in batches}
    if len(counts) != 1 or not min(counts):
        return position
    partition = partition_of(poll_key(tracker_id), counts.pop())
    edges = [
        edge
        for row in batches
        for number, *edge in zip(row["partitions"], row["first_offsets"], row["last_offsets"], strict=True)
        if number == partition
    ]
    first_offset, last_offset = (
        min((edge[0] for edge in edges), default=None),
        max((edge[1] for edge in edges), default=None),
    )
    return replace(position, partition=partition, first_offset=first_offset, last_offset=last_offset)


def in_kafka(position: TopicPosition, due: str) -> Iterator[Reason]:
    """Yield where the poll is, and then how far the consumer group is."""
    batch = f"batch {position.first_no}"
    if position.first_no != position.last_no:
        batch = f"one of the batches {position.first_no} to {position.last_no}"
    if position.published_at is None:
        yield Reason("published", f"selected for {due}, published in {batch}; its offsets are no longer known")
        return
    text = f"selected for {due}, published at {instant_text(position.published_at)} in {batch}, to "
    if position.partition is None:
        yield Reason("published", f"{text}{position.topic}; only the position proved it, so its partition is unknown")
        return
    text += f"partition {position.partition} of {position.topic}"
    if position.first_offset is None or position.last_offset is None:
        yield Reason("published", f"{text}, at an offset that is not known")
        return
    at = f"at offset {position.first_offset}"
    if position.first_offset != position.last_offset:
        at = f"between the offsets {position.first_offset} and {position.last_offset}"
    yield Reason("published", f"{text}, {at}")
    yield _group(position.group, position.partition, position.first_offset, position.last_offset)


def _group(group: Row | None, partition: int, first: int, last: int) -> Reason:
    if group is None or group["position"] is None:
        return Reason("not_read", f"no consumer has read partition {partition} yet")
    position, read_to = group["position"], group["read_to"]
    seen = instant_text(group["seen_at"])
    where = f"the group is at {position}"
    if position > last:
        text = "its poll was made, or dropped: its next poll was due, its tracker had ended, or its partner is unknown"
        return Reason("passed", f"{where}, past it, since {seen} or before: {text}")
    if group["reader_name"] is None:
        return Reason("not_read", f"no consumer reads partition {partition} now; {where} since {seen}")
    reader = group["reader_name"]
    if read_to <= first:
        text = f"waits in partition {partition}: {where}, and {reader} reads at {read_to}, as of {seen}"
        return Reason("in_partition", text)
    text = "may have reached it"
    if read_to > last:
        text = "waits there for its call, is being made, or is done and not committed yet"
    text = f"in flight on {reader}, which has read partition {partition} to {read_to}: {text}; {where}, as of {seen}"
    return Reason("in_flight", text)


BUDGET_SHOWN = timedelta(seconds=2)
"""Consumers take their calls a moment ahead; a budget that is taken for longer is a wait."""


def explain(facts: Row, position: TopicPosition | None = None) -> Explanation:
    """Return the reasons for one tracker, from the row of the query ``explain`` and its poll's position in Kafka."""
    if facts["ended_at"] is not None:
        reasons = [_ended(facts)]
    elif facts["waiting"]:
        reasons = [*_paused(facts), *_waiting(facts), *_not_callable(facts)]
    else:
        reasons = [
            *_in_transit(facts, position),
            *_paused(facts),
            *_not_called(facts),
            *_held_back(facts),
            *_next_poll(facts),
        ]
    if facts["answered_at"] is not None:
        reasons.append(Reason("answered", f"its last answer came at {instant_text(facts['answered_at'])}"))
    if facts["status_at"] is not None:
        text = f"its status {facts['status']} is of {instant_text(facts['status_at'])}"
        reasons.append(Reason("status_known", text))
    return Explanation(facts["id"], facts["status"], reasons[0].text, reasons)


def _ended(facts: Row) -> Reason:
    at, status, partner = instant_text(facts["ended_at"]), facts["status"], facts["partner"]
    terminal_now, by = is_terminal(status, facts["terminal"]), facts["ended_by"]
    if by == "request":
        return Reason("ended_by_request", f"it ended at {at} by request")
    if by == "terminal" and not terminal_now:
        text = f"{status} was terminal then; {partner}'s settings do not list it now"
        return Reason("ended_terminal", f"it ended at {at}: {text}")
    if by == "terminal" or (by is None and terminal_now):
        return Reason("ended_terminal", f"it ended at {at}: {status} is a terminal status of {partner}")
    if by == "aged" or facts["ended_at"] >= facts["tracking_until"]:
        return Reason("ended_aged", f"it ended at {at}: it was tracked until {instant_text(facts['tracking_until'])}")
    text = f"by request, or because {status} was a terminal status of {partner}; which of the two is not recorded"
    return Reason("ended_unknown", f"it ended at {at}: {text}")


def _waiting(facts: Row) -> Iterator[Reason]:
    since = instant_text(facts["created_at"])
    yield Reason("not_placed", f"registered at {since}; the registrar has not placed it yet")
    if facts["registrar_lives"] is not True:
        yield Reason("no_registrar", "no process runs the registrar, so trackers get no place")


def _paused(facts: Row) -> Iterator[Reason]:
    for kind, name in (("account", facts["account_id"]), ("partner", facts["partner"])):
        since = facts[f"{kind}_paused_at"]
        if since is not None:
            text = f"the {kind} {name} is paused since {instant_text(since)}, so it is not selected"
            yield Reason(f"{kind}_paused", text)


def _in_transit(facts: Row, position: TopicPosition | None) -> Iterator[Reason]:
    """Yield how far its last poll has come."""
    if facts["done_at"] is not None or facts["turn_selected"] is None:
        return
    due = instant_text(facts["turn_at"])
    if facts["batch_no"] is not None:
        yield Reason("in_batch", f"selected for {due}, frozen in batch {facts['batch_no']}, which is being published")
    elif facts["release_at"] is not None:
        until = instant_text(facts["release_at"])
        late = facts["release_at"] < facts["now"]
        text = f"since {until}: the relay is behind" if late else f"until {until}"
        yield Reason("in_outbox", f"selected for {due}, waits in the outbox {text}")
    elif facts["owner"] is not None:
        worker = facts["worker_name"] or f"session {facts['owner']}"
        yield Reason("in_flight", f"selected for {due}, in flight on {worker} since {instant_text(facts['taken_at'])}")
    elif facts["queue_seq"] is not None:
        yield Reason("in_queue", f"selected for {due}, published, waits in the queue until a consumer takes it")
    elif _was_selected(facts):
        if facts["polls_per_slice_max"] is not None and facts["turn_deferred"]:  # which trackers is not recorded
            yield Reason(
                "deferred",
                f"its account has at most {facts['polls_per_slice_max']} polls in five minutes: the selection of {due} "
                f"deferred {facts['turn_deferred']} trackers of {facts['partner']}, perhaps this one",
            )
        if position is not None:
            yield from in_kafka(position, due)
        else:
            published = facts["published_at"]
            when = f" at or before {instant_text(published)}" if published is not None else ""
            yield Reason("published", f"selected for {due}, published{when}; no answer is written yet")


def _was_selected(facts: Row) -> bool:
    """Return whether its slot's last selection included this tracker, as far as its row shows."""
    turn_at = facts["turn_at"]
    skipped = facts["skip_until"] is not None and facts["skip_until"] > turn_at
    later = facts["answered_at"] is not None and facts["answered_at"] >= turn_at
    paused = facts["account_paused_at"] is not None or facts["partner_paused_at"] is not None
    return bool(facts["created_at"] < facts["prev_due_at"] and not skipped and not later and not paused)


def _not_called(facts: Row) -> Iterator[Reason]:
    """Yield why no process calls the partner now: its state, settings, quiet hours, budget, or no consumer."""
    partner, now = facts["partner"], facts["now"]
    yield from reasons_not_called(partner, facts, facts["last_error"])
    if facts["next_free_at"] is not None and facts["next_free_at"] > now + BUDGET_SHOWN:
        free = instant_text(facts["next_free_at"])
        yield Reason("budget_taken", f"the budget of {partner} is used up until {free}")
    if not facts["consumers"]:
        yield Reason("no_consumer", "no live process has the role poll-consumer, so no partner is called")
    yield from _not_callable(facts)


def _not_callable(facts: Row) -> Iterator[Reason]:
    """Yield that no live consumer can call the partner, which may be misspelled."""
    if facts["consumers"] and facts["called_by"] is None:
        text = "its settings have no http, and no live poll-consumer has a function for it"
        yield Reason("partner_not_callable", f"no process can call {facts['partner']}: {text}")


def _held_back(facts: Row) -> Iterator[Reason]:
    now, skip = facts["now"], facts["skip_until"]
    if skip is not None and skip > now:
        yield Reason("skipped", f"an event of the partner postponed its next poll to {instant_text(skip)}")
    if facts["missed_due_at"] is not None:
        missed = instant_text(facts["missed_due_at"])
        yield Reason("turn_missed", f"its poll of {missed} was not selected; the catch-up selects it")
    if facts["placed_interval_minutes"] != facts["polling_interval_minutes"]:
        minutes = facts["polling_interval_minutes"]
        yield Reason("moves", f"its account is polled every {minutes} minutes now; the corrector moves it there")
    if facts["selector_lives"] is not True:
        yield Reason("no_selector", "no process runs the selector, so no poll is selected")


def _next_poll(facts: Row) -> Iterator[Reason]:
    due: datetime | None = facts["next_poll_at"]
    if due is None:
        if facts["account_paused_at"] is None and facts["partner_paused_at"] is None:
            until = instant_text(facts["tracking_until"])
            yield Reason("last_turn_over", f"it is tracked until {until}, before its next poll; then it ends")
        return
    slot = f"slot {facts['slot_id']}, second {facts['second']}, every {facts['interval_minutes']} minutes"
    wait = wait_text(due - facts["now"]) if due > facts["now"] else "now"
    yield Reason("in_slot", f"its next poll is at {instant_text(due)}, in {wait} ({slot})")


# Kafka's clients hash a key with murmur2 and take the remainder by the number of partitions; our producer is
# configured to do the same. So the partition of a poll follows without a request to Kafka. A test compares both.

_SEED = 0x9747B28C
_FACTOR = 0x5BD1E995
_WORD = 0xFFFFFFFF


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition of a key, not empty, in a topic that had ``partitions``, at least 1, at that time."""
    return (_murmur2(key) & 0x7FFFFFFF) % partitions


def _murmur2(data: bytes) -> int:
    whole = len(data) & ~3
    found = _SEED ^ len(data)
    for begin in range(0, whole, 4):
        word = int.from_bytes(data[begin : begin + 4], "little") * _FACTOR & _WORD
        word = (word ^ word >> 24) * _FACTOR & _WORD
        found = (found * _FACTOR & _WORD) ^ word
    if len(data) > whole:
        found = (found ^ int.from_bytes(data[whole:], "little")) * _FACTOR & _WORD
    found = (found ^ found >> 13) * _FACTOR & _WORD
    return found ^ found >> 15
