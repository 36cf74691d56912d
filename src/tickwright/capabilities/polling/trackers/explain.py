"""Why a tracker is where it is, in words and codes. Pure: the store loads the facts, this module decides.

The chain goes from what ends it over what holds it up to its last poll; the first reason is the summary.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from tickwright.capabilities.polling.relay.messages import poll_key
from tickwright.capabilities.polling.relay.store import find_batches, group_at
from tickwright.capabilities.polling.trackers.events import is_terminal
from tickwright.domain.time_texts import instant_text, wait_text
from tickwright.partners.quiet import quiet_until
from tickwright.partners.settings import read_kept, unreadable
from tickwright.ports.views import Explanation, Reason
from tickwright.store.pool import Pool

# Where a poll stands that went to Kafka, and how far its consumers are. No row is kept per poll, so this is reckoned.
#
# The slice ledger knows the batches of a slot's turn, a batch its releases and where it begins and ends in each
# partition, and a tracker's partition follows from its id. So what is said is a range of offsets; whether one poll
# between the group's position and what its reader has read waits or is in flight only the reader knows: it is said so.

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TopicPosition:
    """Where the poll of a turn stands.

    Attributes:
        first_no: Of the batches that it may have gone with, to ``last_no``; mostly they are one.
        published_at: When the last of them was marked; ``None`` where they are forgotten, as all below then is.
        partition: Of the tracker; ``None`` where the batch was proved by the position alone.
        first_offset: Where these batches begin in the partition, to ``last_offset``; ``None`` where that is not known.
        group: How far the consumers are: ``position read_to seen_at reader_name``.
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
    """Return where the poll of a tracker's last turn stands; ``None`` where it did not go to Kafka or is done.

    Args:
        pool: To ask.
        facts: The row of the query ``explain``.
    """
    if facts["done_at"] is not None or facts["turn_selected"] is None:
        return None
    found = await find_batches(
        pool, facts["slot_id"], facts["prev_due_at"], facts["partner_no"], release_at=facts["turn_at"]
    )
    if not found:
        return None
    stands = locate(found, facts["id"])
    if stands.partition is None:
        return stands
    return TopicPosition(
        stands.first_no,
        stands.last_no,
        stands.published_at,
        stands.topic,
        stands.partition,
        stands.first_offset,
        stands.last_offset,
        await group_at(pool, stands.topic, stands.partition),
    )


def locate(found: Sequence[Row], tracker_id: int) -> TopicPosition:
    """Return what the rows of ``find_batches`` say of one tracker. Pure."""
    if found[0]["batch_no"] is None:
        return TopicPosition(found[0]["first_batch_no"], found[0]["last_batch_no"])
    batches = [row for row in found if row["fits"]] or found  # none fits: a catch-up released it, at another second
    first_no, last_no = batches[0]["batch_no"], batches[-1]["batch_no"]
    published_at, topic = batches[-1]["published_at"], batches[-1]["topic"]
    counts = {row["partition_count"] for row in batches}
    if len(counts) != 1 or not min(counts):
        return TopicPosition(first_no, last_no, published_at, topic)
    partition = partition_of(poll_key(tracker_id), counts.pop())
    edges = [
        edge
        for row in batches
        for number, *edge in zip(row["partitions"], row["first_offsets"], row["last_offsets"], strict=True)
        if number == partition
    ]
    if not edges:
        return TopicPosition(first_no, last_no, published_at, topic, partition)
    first, last = min(edge[0] for edge in edges), max(edge[1] for edge in edges)
    return TopicPosition(first_no, last_no, published_at, topic, partition, first, last)


def in_kafka(stands: TopicPosition, turn: str) -> Iterator[Reason]:
    """Say where the poll stands, and then what the group has done of it."""
    one = stands.first_no == stands.last_no
    batch = f"batch {stands.first_no}" if one else f"one of the batches {stands.first_no} to {stands.last_no}"
    if stands.published_at is None:
        yield Reason("published", f"selected for {turn}, published in {batch}; where these stand is no longer known")
        return
    text = f"selected for {turn}, published at {instant_text(stands.published_at)} in {batch}, to "
    if stands.partition is None:
        yield Reason("published", f"{text}{stands.topic}; nobody was told where, since only the position proved it")
        return
    text += f"partition {stands.partition} of {stands.topic}"
    if stands.first_offset is None or stands.last_offset is None:
        yield Reason("published", f"{text}, at an offset that is not known")
        return
    at = f"at offset {stands.first_offset}"
    if stands.first_offset != stands.last_offset:
        at = f"between the offsets {stands.first_offset} and {stands.last_offset}"
    yield Reason("published", f"{text}, {at}")
    yield _group(stands.group, stands.partition, stands.first_offset, stands.last_offset)


def _group(group: Row | None, partition: int, first: int, last: int) -> Reason:
    if group is None or group["position"] is None:
        return Reason("not_read", f"no consumer has read partition {partition} yet")
    position, read_to = group["position"], group["read_to"]
    seen = instant_text(group["seen_at"])
    where = f"the group stands at {position}"
    if position > last:
        text = (
            "its poll was carried out, or dropped: its next turn was due, its tracker had ended, its partner is unknown"
        )
        return Reason("passed", f"{where}, behind it, since {seen} or before: {text}")
    if group["reader_name"] is None:
        return Reason("not_read", f"nobody reads partition {partition} now; {where} since {seen}")
    reader = group["reader_name"]
    if read_to <= first:
        return Reason(
            "in_partition", f"waits in partition {partition}: {where}, and {reader} reads at {read_to}, as of {seen}"
        )
    text = (
        "waits there for its call, or is called, or is done and not yet passed"
        if read_to > last
        else "may have reached it"
    )
    return Reason(
        "in_flight",
        f"in flight on {reader}, which has read partition {partition} to {read_to}: {text}; {where}, as of {seen}",
    )


BUDGET_SHOWN = timedelta(seconds=2)
"""Consumers take their calls a moment ahead; what is given away for longer is a wait."""

Facts = Mapping[str, Any]


def explain(facts: Facts, stands: TopicPosition | None = None) -> Explanation:
    """Return the chain of reasons for one tracker.

    Args:
        facts: The row of the query ``explain``; ``now`` is the database's clock.
        stands: Where the poll of its last turn stands in Kafka, if it went there.
    """
    if facts["ended_at"] is not None:
        reasons = [_ended(facts)]
    elif facts["waiting"]:
        reasons = [*_paused(facts), _waiting(facts), *_no_registrar(facts), *_not_callable(facts)]
    else:
        reasons = [
            *_on_the_way(facts, stands),
            *_paused(facts),
            *_partner(facts),
            *_nobody_calls(facts),
            *_held_back(facts),
            *_turn(facts),
        ]
    if facts["answered_at"] is not None:
        reasons.append(Reason("answered", f"its last answer came at {instant_text(facts['answered_at'])}"))
    if facts["status_at"] is not None:
        text = f"its status {facts['status']} came to be at {instant_text(facts['status_at'])}"
        reasons.append(Reason("status_known", text))
    return Explanation(facts["id"], facts["status"], reasons[0].text, reasons)


def _ended(facts: Facts) -> Reason:
    at, status, partner = instant_text(facts["ended_at"]), facts["status"], facts["partner"]
    terminal_now, by = is_terminal(status, facts["terminal"]), facts["ended_by"]
    if by == "request":
        return Reason("ended_by_request", f"it ended at {at}, because somebody ended it")
    if by == "terminal" and not terminal_now:
        text = f"{status} was terminal when it came; {partner}'s settings do not list it now"
        return Reason("ended_terminal", f"it ended at {at}: {text}")
    if by == "terminal" or (by is None and terminal_now):
        return Reason("ended_terminal", f"it ended at {at}: {status} is a terminal status of {partner}")
    if by == "aged" or facts["ended_at"] >= facts["tracking_until"]:
        return Reason("ended_aged", f"it ended at {at}: it was tracked until {instant_text(facts['tracking_until'])}")
    text = f"somebody ended it, or {status} was a terminal status of {partner} then; which of the two was not kept"
    return Reason("ended_unknown", f"it ended at {at}: {text}")


def _waiting(facts: Facts) -> Reason:
    since = instant_text(facts["created_at"])
    return Reason("not_placed", f"registered at {since}, and the registrar has not given it its place yet")


def _no_registrar(facts: Facts) -> Iterator[Reason]:
    if facts["registrar_lives"] is not True:
        yield Reason("no_registrar", "no process runs the registrar: nobody gives trackers their places")


def _paused(facts: Facts) -> Iterator[Reason]:
    for kind, name in (("account", facts["account_id"]), ("partner", facts["partner"])):
        since = facts[f"{kind}_paused_at"]
        if since is not None:
            yield Reason(
                f"{kind}_paused", f"the {kind} {name} is paused since {instant_text(since)}; no turn selects it"
            )


def _on_the_way(facts: Facts, stands: TopicPosition | None) -> Iterator[Reason]:
    """Tell of the poll of its last turn, as far as that has come."""
    if facts["done_at"] is not None or facts["turn_selected"] is None:
        return
    turn = instant_text(facts["turn_at"])
    if facts["batch_no"] is not None:
        yield Reason("in_batch", f"selected for {turn}, frozen in batch {facts['batch_no']}, which is being published")
    elif facts["release_at"] is not None:
        until = instant_text(facts["release_at"])
        late = facts["release_at"] < facts["now"]
        text = f"since {until}: the relay is behind" if late else f"until {until}"
        yield Reason("in_outbox", f"selected for {turn}, waits in the outbox {text}")
    elif facts["owner"] is not None:
        worker = facts["worker_name"] or f"session {facts['owner']}"
        yield Reason("in_flight", f"selected for {turn}, in flight on {worker} since {instant_text(facts['taken_at'])}")
    elif facts["queue_seq"] is not None:
        yield Reason("in_queue", f"selected for {turn}, published, waits in the queue until a consumer takes it")
    elif _was_selected(facts):
        yield from _deferred(facts, turn)
        yield from _published(facts, turn, stands)


def _deferred(facts: Facts, turn: str) -> Iterator[Reason]:
    """Say that the turn left trackers out; which ones is written nowhere, so it may be this one."""
    if facts["polls_per_slice_max"] is not None and facts["turn_deferred"]:
        yield Reason(
            "deferred",
            f"its account has at most {facts['polls_per_slice_max']} polls in five minutes: the turn of {turn} left "
            f"out {facts['turn_deferred']} trackers of {facts['partner']}, perhaps this one; they take turns",
        )


def _published(facts: Facts, turn: str, stands: TopicPosition | None) -> Iterator[Reason]:
    if stands is not None:
        yield from in_kafka(stands, turn)
    else:
        published = facts["published_at"]
        when = f" at or before {instant_text(published)}" if published is not None else ""
        yield Reason("published", f"selected for {turn}, published{when}; no answer is written yet")


def _was_selected(facts: Facts) -> bool:
    """Say whether its slot's last turn meant this tracker, as far as its row tells."""
    turn_at = facts["turn_at"]
    skipped = facts["skip_until"] is not None and facts["skip_until"] > turn_at
    later = facts["answered_at"] is not None and facts["answered_at"] >= turn_at
    paused = facts["account_paused_at"] is not None or facts["partner_paused_at"] is not None
    return bool(facts["created_at"] < facts["prev_due_at"] and not skipped and not later and not paused)


def _partner(facts: Facts) -> Iterator[Reason]:
    partner, now = facts["partner"], facts["now"]
    if facts["breaker"] == "open" and facts["open_until"] is not None and facts["open_until"] > now:
        error = f"; the last error: {facts['last_error']}" if facts["last_error"] else ""
        until = instant_text(facts["open_until"])
        yield Reason("breaker_open", f"calls to {partner} fail, and nobody calls until {until}{error}")
    elif facts["breaker"] == "half_open":
        yield Reason("breaker_half_open", f"calls to {partner} failed; single calls try whether it is back")
    if facts["blocked_until"] is not None and facts["blocked_until"] > now:
        yield Reason(
            "partner_asked_to_wait", f"{partner} asked for silence until {instant_text(facts['blocked_until'])}"
        )


def _nobody_calls(facts: Facts) -> Iterator[Reason]:
    """Tell of what keeps everybody from calling the partner now: its settings, hours or budget, no consumer."""
    partner, now = facts["partner"], facts["now"]
    settings, problem = read_kept(facts["settings"])
    if problem:
        yield Reason("settings_invalid", unreadable(partner, problem))
    quiet_s = quiet_until(now.timestamp(), settings.quiet)
    if quiet_s is not None:
        until = instant_text(datetime.fromtimestamp(quiet_s, UTC))
        yield Reason("partner_quiet", f"{partner} has quiet hours until {until}")
    if facts["next_free_at"] is not None and facts["next_free_at"] > now + BUDGET_SHOWN:
        free = instant_text(facts["next_free_at"])
        yield Reason("budget_taken", f"what {partner} allows is given away until {free}")
    if not facts["consumers"]:
        yield Reason("no_consumer", "no live process has the role poll-consumer: nobody asks partners")
    yield from _not_callable(facts)


def _not_callable(facts: Facts) -> Iterator[Reason]:
    """Tell of a partner, perhaps mistyped, that no live consumer knows how to ask; without any, that says it all."""
    if facts["consumers"] and facts["called_by"] is None:
        yield Reason(
            "partner_not_callable",
            f"nobody can call {facts['partner']}: its settings have no http, and no live poll-consumer has a function "
            "for it",
        )


def _held_back(facts: Facts) -> Iterator[Reason]:
    now, skip = facts["now"], facts["skip_until"]
    if skip is not None and skip > now:
        yield Reason("skipped", f"somebody else brought news, so no turn selects it before {instant_text(skip)}")
    if facts["missed_due_at"] is not None:
        missed = instant_text(facts["missed_due_at"])
        yield Reason("turn_missed", f"nobody selected its turn of {missed}; the catch-up does, or its next turn")
    if facts["placed_interval_minutes"] != facts["polling_interval_minutes"]:
        minutes = facts["polling_interval_minutes"]
        yield Reason("moves", f"its account is polled every {minutes} minutes now; the corrector moves it there")
    if facts["selector_lives"] is not True:
        yield Reason("no_selector", "no process runs the selector: nobody selects turns")


def _turn(facts: Facts) -> Iterator[Reason]:
    turn: datetime | None = facts["next_poll_at"]
    if turn is None:
        if facts["account_paused_at"] is None and facts["partner_paused_at"] is None:
            until = instant_text(facts["tracking_until"])
            yield Reason("last_turn_over", f"it is tracked until {until}, before its next turn; then it ends")
        return
    place = f"slot {facts['slot_id']}, second {facts['second']}, every {facts['interval_minutes']} minutes"
    wait = wait_text(turn - facts["now"]) if turn > facts["now"] else "now"
    yield Reason("in_slot", f"its next turn is at {instant_text(turn)}, in {wait} ({place})")


# Kafka's clients hash a key with murmur2 and take the rest by the number of partitions; our producer is configured to
# do the same, so the partition of a poll follows without asking Kafka. A test compares it with the real producer.

_SEED = 0x9747B28C
_FACTOR = 0x5BD1E995
_WORD = 0xFFFFFFFF


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition of a key.

    Args:
        key: Of the record; not empty.
        partitions: Of the topic, when the record was produced. At least 1.
    """
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
