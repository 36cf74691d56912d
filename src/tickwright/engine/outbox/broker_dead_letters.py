"""Looking at dead letters that a broker keeps, and putting them back under the audit trail."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TypeVar

from tickwright.ports.caller import Caller
from tickwright.ports.dead_letters import DeadMessage, DeadMessages, DeadMessagesRequeued
from tickwright.store.audit import update_audit, write_audit
from tickwright.store.pool import Pool

LOOK_AT_MAX = 1000
"""Messages among which those that somebody asks for are sought."""
YEAR_9999_S = 253_370_764_800

_V = TypeVar("_V")


async def oldest(
    messages: DeadMessages, show: Callable[[DeadMessage], _V], *, fits: Callable[[_V], bool] | None, limit: int
) -> tuple[list[_V], int]:
    """Return the oldest ones as ``show`` shows them, and how many there are in all; those that fit, among 1,000.

    Raises:
        Unavailable: The broker does not answer. Retry.
    """
    peeked = await messages.peek(limit if fits is None else LOOK_AT_MAX)
    shown = [show(one) for one in peeked.messages]
    fitting = shown if fits is None else [one for one in shown if fits(one)]
    return fitting[:limit], peeked.total


async def requeue(
    pool: Pool, messages: DeadMessages, kind: str, *, caller: Caller, ids: Sequence[str] | None, limit: int
) -> DeadMessagesRequeued:
    """Put them back, those of ``ids`` or all, the oldest first, at most ``limit``.

    The line of the audit trail is written before: nothing goes back that nobody has asked for. Ids that are no dead
    letters (any more) are left out of the answer.

    Raises:
        Unavailable: The broker does not answer, or takes nothing now. Retry; what went back before stays there.
    """
    asked = {"kind": kind, "ids": ids, "limit": limit}
    async with pool.acquire() as connection:
        line = await write_audit(connection, caller, "dead_letters.requeue", kind, before=asked)
    done = await messages.requeue(limit, message_ids=ids)
    async with pool.acquire() as connection:
        await update_audit(connection, line, {"ids": done})
    return DeadMessagesRequeued(len(done), done, len(done) == limit)


def died_at(dead: DeadMessage) -> datetime | None:
    """Return when it died; none where nobody said so, or said what no calendar has."""
    since = dead.died_at_s
    return datetime.fromtimestamp(since, UTC) if since is not None and 0 <= since < YEAR_9999_S else None
