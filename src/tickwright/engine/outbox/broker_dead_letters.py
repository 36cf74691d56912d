"""Dead letters in a broker: operators list and requeue them; the audit trail records it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

from tickwright.ports.caller import Caller
from tickwright.ports.task_queue import BODY_CHARS_MAX, REQUEUE_MAX, DeadMessage, DeadMessages, DeadMessagesRequeued
from tickwright.store.audit import update_audit, write_audit
from tickwright.store.pool import Pool

SEARCHED_MAX = 1000
"""A filtered listing searches this many of the oldest messages."""
YEAR_9999_S = 253_370_764_800

V = TypeVar("V")
P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class DeadLetterKind(Generic[V, P]):
    """What distinguishes the dead letters of one capability.

    Attributes:
        name: In REST paths and in the audit trail.
        filter: The attribute of a view by which a listing is filtered.
        view: Returns a message's view for operators; see :func:`common_fields`.
        page: Builds the page from some views and the number of all dead letters.
    """

    name: str
    filter: str
    view: Callable[[DeadMessage], V]
    page: Callable[[list[V], int], P]


class BrokerDeadLetters(Generic[V, P]):
    """The dead letters of one kind. ``messages`` is ``None`` without a broker: then there are none."""

    def __init__(self, pool: Pool, messages: DeadMessages | None, kind: DeadLetterKind[V, P]) -> None:
        self._pool, self._messages, self._kind = pool, messages, kind

    async def list(self, wanted: str | None = None, *, limit: int = 50) -> P:
        """Return the oldest ones. With ``wanted``, only those that match, among the oldest 1,000.

        Raises:
            Unavailable: The broker does not answer. Retry.
        """
        if self._messages is None:
            return self._kind.page([], 0)
        peeked = await self._messages.peek(limit if wanted is None else SEARCHED_MAX)
        views = [self._kind.view(one) for one in peeked.messages]
        if wanted is not None:
            views = [one for one in views if getattr(one, self._kind.filter) == wanted]
        return self._kind.page(views[:limit], peeked.total)

    async def requeue(
        self, *, caller: Caller, ids: Sequence[str] | None, limit: int = REQUEUE_MAX
    ) -> DeadMessagesRequeued:
        """Put those of ``ids``, or all, back into their queue, oldest first, at most ``limit``.

        The audit row is written first: nothing is requeued without it. The answer omits ids that are no dead letters.

        Raises:
            Unavailable: The broker does not answer, or accepts nothing now. Retry; what was requeued before stays so.
        """
        if self._messages is None:
            return DeadMessagesRequeued(0, [], more=False)
        kind = self._kind.name
        request = {"kind": kind, "ids": ids, "limit": limit}
        async with self._pool.acquire() as connection:
            row = await write_audit(connection, caller, "dead_letters.requeue", kind, before=request)
        done = await self._messages.requeue(limit, message_ids=ids)
        async with self._pool.acquire() as connection:
            await update_audit(connection, row, {"ids": done})
        return DeadMessagesRequeued(len(done), done, len(done) == limit)


def common_fields(dead: DeadMessage) -> dict[str, Any]:
    """Return the fields that every kind shows: id, reason, error message, time of death and the escaped body."""
    return {
        "id": dead.message_id,
        "reason": dead.reason,
        "error_message": dead.text,
        "died_at": _died_at(dead.died_at_s),
        "body": dead.body.decode("utf-8", "backslashreplace")[:BODY_CHARS_MAX],
    }


def _died_at(seconds: float | None) -> datetime | None:
    """Return when it died; ``None`` where the broker gives no time, or one outside the calendar."""
    return datetime.fromtimestamp(seconds, UTC) if seconds is not None and 0 <= seconds < YEAR_9999_S else None
