"""What the topic's position and the database's numbers say together, and what an operator may decide. Pure."""

from tickwright.capabilities.polling.relay.store import Numbers
from tickwright.domain.errors import Rejected

ADVICE = "tickwright outbox reconcile says what can be done; nothing is sent until then"
POSITION_MAX = 2**52
"""The largest number that is adopted from the topic."""


def check_position(shard: int, numbers: Numbers, position: int | None) -> None:
    """Refuse to go on where the two sides cannot both be right: whichever we believed, polls could be lost or doubled.

    Args:
        shard: Of the relay, for the message.
        numbers: What the database says.
        position: The last batch that is on the topic, as the topic says; ``None`` where it says nothing.

    Raises:
        Rejected: ``relay_position_missing`` (batches were sent, and the topic knows of none: it was made anew),
            ``relay_position_behind`` (the topic has lost batches), ``relay_position_ahead`` (the database has lost
            them, or is another one's). Permanent until an operator decides.
    """
    sent, given = numbers.published_no, numbers.batch_no
    if position is None and sent > 0:
        text = f"{sent} batches of shard {shard} were sent, and the position topic knows of none; {ADVICE}"
        raise Rejected("relay_position_missing", text, shard=shard, published_no=sent)
    if position is not None and position < sent:
        text = f"shard {shard} has sent batch {sent}, and the topic ends with {position}; {ADVICE}"
        raise Rejected("relay_position_behind", text, shard=shard, published_no=sent, position=position)
    if position is not None and position > given:
        text = (
            f"the topic has batch {position} of shard {shard}, and the database gave no number above {given}; {ADVICE}"
        )
        raise Rejected("relay_position_ahead", text, shard=shard, batch_no=given, position=position)


def choose_position(numbers: Numbers, position: int | None, wanted: int | None) -> int:
    """Return the batch number that both sides shall agree on: up to it all is published, above it nothing is.

    Args:
        numbers: What the database says.
        position: What the topic says. A number that no relay reaches says nothing: counting on from there would end
            where positions cannot be read any more.
        wanted: What the operator says; without it the last number that one of the two sides is sure of, so that a
            batch that may or may not be on the topic is sent again, under the ids that it had.

    Raises:
        Rejected: ``position_out_of_range``. Permanent.
    """
    said = position if position is not None and position <= POSITION_MAX else 0
    low = max(numbers.published_no, said)
    high = max(numbers.batch_no, said)
    chosen = low if wanted is None else wanted
    if not low <= chosen <= high:
        only = f"{low}" if low == high else f"{low} to {high}"
        raise Rejected("position_out_of_range", f"the position can be {only}", lowest=low, highest=high)
    return chosen
