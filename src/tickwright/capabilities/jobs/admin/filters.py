"""Which jobs somebody means, said once: by a listing, by its counts, and by an action on many."""

from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from tickwright.domain.errors import Rejected
from tickwright.domain.states import JobStatus
from tickwright.store.paging import LIMIT_DEFAULT

MANY_MAX = 1000
TEXT_CHARS_MAX = 200
LIVE = frozenset({JobStatus.PENDING, JobStatus.PROCESSING})
DONE = frozenset({JobStatus.COMPLETED, JobStatus.CANCELLED})


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs; what is left out says nothing.

    Attributes:
        execute_from: Inclusive.
        execute_to: Exclusive.
        statuses: Empty is all.
        text: A part of the key, the last error or the payload's JSON, in whatever case.
        worker: The session that holds the job now.
        in_payload: Whether the text is looked for in payloads, too: who may not see them may not guess them either.
        in_addresses: Whether it is looked for behind the hosts of addresses, too: the same.
    """

    ids: tuple[int, ...] | None = None
    task_type: str | None = None
    execute_from: datetime | None = None
    execute_to: datetime | None = None
    statuses: tuple[JobStatus, ...] = ()
    idempotency_key: str | None = None
    text: str | None = None
    worker: int | None = None
    in_payload: bool = True
    in_addresses: bool = True

    def check(self, limit: int) -> None:
        """Refuse a filter that says nothing, which would mean every job.

        Raises:
            Rejected: ``empty_filter``, ``invalid_limit``. Permanent.
        """
        if not self.shown():
            raise Rejected(
                "empty_filter", "say which jobs: ids, task_type, status, execute_from, execute_to, text or a key"
            )
        if not 1 <= limit <= MANY_MAX:
            raise Rejected("invalid_limit", f"limit: 1 to {MANY_MAX}", field="limit")

    def shown(self) -> dict[str, Any]:
        """Return what is set, for the audit trail."""
        values = {one.name: getattr(self, one.name) for one in fields(JobFilter) if not one.name.startswith("in_")}
        return {name: value for name, value in values.items() if value not in {None, ()}}

    def listing(self) -> tuple[Any, ...]:
        """Return every field, to which a cursor is bound."""
        return tuple(getattr(self, one.name) for one in fields(JobFilter))

    def wants(self, some: frozenset[JobStatus]) -> bool:
        """Whether a job in one of these states could match."""
        return not self.statuses or bool(some & set(self.statuses))

    def patterns(self) -> list[str | None] | None:
        """Return the text for ``ILIKE``, for what everybody sees and for payloads; each character is itself."""
        if self.text is None:
            return None
        plain = self.text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
        return [f"%{plain}%", f"%{plain}%" if self.in_payload else None]


@dataclass(frozen=True, slots=True)
class ListQuery(JobFilter):
    """What a listing of jobs is asked for.

    Attributes:
        cursor: From the page before.
        limit: 1 to 200.
    """

    cursor: str | None = None
    limit: int = LIMIT_DEFAULT

    @classmethod
    def of(cls, which: JobFilter, cursor: str | None, limit: int) -> "ListQuery":
        """Return the query of one page of what ``which`` names."""
        return cls(**{one.name: getattr(which, one.name) for one in fields(JobFilter)}, cursor=cursor, limit=limit)
