"""Operator actions on workers, leases, the outbox and alerts; each writes one line of the audit trail."""

from collections import Counter
from datetime import timedelta
from typing import Any

from tickwright.capabilities.operations.views import (
    AlertView,
    DestinationView,
    DiscardedMessage,
    Holding,
    LeaseView,
    ReleasedLease,
    RetriedOutbox,
    WorkerDetail,
)
from tickwright.domain.errors import Rejected
from tickwright.domain.masking import masked_address
from tickwright.engine.leases import SQL as LEASES
from tickwright.engine.leases import LeasePurposes
from tickwright.engine.outbox.relay import LEASE as RELAY
from tickwright.engine.outbox.table import SQL as OUTBOX
from tickwright.engine.retention import Retention, RetentionRule
from tickwright.ports.caller import Caller
from tickwright.ports.session import Holdings
from tickwright.ports.views import view
from tickwright.store.audit import write_audit
from tickwright.store.pool import Pool
from tickwright.store.queries import load

SQL = load("tickwright.capabilities.operations.sql", "holdings.sql")
HOLDINGS = (SQL["held"],)
SHOWN_MAX = 100
"""How many holdings of each kind are shown."""
LANES_MAX = 1_000
COUNT_MAX = 10_000
ROWS_SEARCHED_MAX = 50_000
"""Rows of the outbox that one answer reads, for any number of destinations."""
RETRY_MAX = 1_000
OLD_S = 120.0
SUBJECT_CHARS_MAX = 300
_STATES = ("stuck", "waiting", "flowing")


class OperatorActions:
    """The operators' actions; uses only the database. One per API."""

    def __init__(self, pool: Pool, purposes: LeasePurposes, holdings: Holdings) -> None:
        self._pool, self._purposes, self._holdings = pool, purposes, holdings

    async def worker(self, worker: int) -> WorkerDetail:
        """Return one session of the last day, and what it holds.

        Raises:
            Rejected: ``worker_not_found`` (404). Permanent.
        """
        async with self._pool.acquire() as connection, connection.transaction(readonly=True):
            row = await connection.fetchrow(SQL["worker"], worker)
            if row is None:
                raise Rejected("worker_not_found", f"there is no worker session {worker}", status=404)
            found = [held for sql in self._holdings for held in await connection.fetch(sql, worker, SHOWN_MAX + 1)]
        counts = Counter(one["kind"] for one in found)
        holds, shown = [], Counter[str]()
        for one in found:
            shown[one["kind"]] += 1
            if shown[one["kind"]] <= SHOWN_MAX:
                holds.append(view(Holding, one))
        more = sorted(kind for kind, count in counts.items() if count > SHOWN_MAX)
        return view(WorkerDetail, row, holds=holds, more=more)

    async def leases(self) -> list[LeaseView]:
        """Return every lease of a control loop, and its holder."""
        rows = await self._pool.fetch(SQL["leases"])
        return [view(LeaseView, row, guards=self._purposes.of(row["job_name"])) for row in rows]

    async def release(self, job_name: str, *, caller: Caller) -> ReleasedLease:
        """Take a lease away from its holder; the next process that requests it acquires it.

        The fence rises, so that later writes of the old holder change nothing. Waits for the holder's transaction.

        Raises:
            Rejected: ``lease_not_found`` (404); ``lease_free`` (409), it has no holder. Permanent.
            Contended: Its holder's transaction takes too long. Retry.
        """
        async with self._pool.acquire() as connection, connection.transaction():
            row = await connection.fetchrow(LEASES["break_lease"], job_name)
            if row is None:
                if await connection.fetchval(SQL["lease_known"], job_name):
                    raise Rejected("lease_free", f"lease {job_name[:50]!r} has no holder", status=409)
                raise Rejected("lease_not_found", f"there is no lease {job_name[:50]!r}", status=404)
            before, after = {"owner": row["owner"], "version": row["old_version"]}, {"version": row["version"]}
            await write_audit(connection, caller, "leases.release", f"lease:{job_name}", before=before, after=after)
        return ReleasedLease(job_name, row["owner"], row["version"])

    async def destinations(self) -> list[DestinationView]:
        """Return the waiting messages per destination, for at most 1,000 of them, the stuck and the oldest first."""
        async with self._pool.acquire() as connection:
            walked = await connection.fetchrow(OUTBOX["lanes"], LANES_MAX, RELAY)
            cap = max(1, min(COUNT_MAX, ROWS_SEARCHED_MAX // max(1, len(walked["lanes"]))))
            rows = await connection.fetch(OUTBOX["lane_standings"], walked["lanes"], cap)
        found = [_destination(row, cap, relayed=walked["relayed"]) for row in rows]
        return sorted(found, key=lambda one: (_STATES.index(one.state), -one.oldest_s, one.destination))

    async def retry(self, destination: str, *, caller: Caller) -> RetriedOutbox:
        """Make a destination's waiting retries due now; the relay may still pause it for up to 30 s."""
        async with self._pool.acquire() as connection, connection.transaction():
            ids = await connection.fetch(OUTBOX["retry_now"], destination, RETRY_MAX)
            if ids:
                subject = f"outbox:{masked_address(destination)}"[:SUBJECT_CHARS_MAX]
                await write_audit(connection, caller, "outbox.retry", subject, after={"retried": len(ids)})
        return RetriedOutbox(destination, len(ids), len(ids) == RETRY_MAX)

    async def discard(self, message: int, *, caller: Caller) -> DiscardedMessage:
        """Dead-letter a waiting message, which can be requeued; a message that is being sent is still sent.

        Raises:
            Rejected: ``message_not_found`` (404): it was sent, or is a dead letter already. Permanent.
        """
        async with self._pool.acquire() as connection, connection.transaction():
            row = await connection.fetchrow(OUTBOX["discard"], message, f"discarded by {caller.name}")
            if row is None:
                raise Rejected("message_not_found", f"no message {message} waits in the outbox", status=404)
            done = view(DiscardedMessage, row)
            await write_audit(connection, caller, "outbox.discard", f"outbox:{message}", before=done)
        return done

    async def acknowledge(self, alert: int, note: str | None, *, caller: Caller) -> AlertView:
        """Note that the caller handles a firing alert; the last such caller is shown.

        Raises:
            Rejected: ``alert_not_found`` (404); ``alert_resolved`` (409), it is over. Permanent.
        """
        async with self._pool.acquire() as connection, connection.transaction():
            row = await connection.fetchrow(SQL["acknowledge"], alert, caller.name, note)
            if row is None:
                if await connection.fetchval(SQL["alert_state"], alert) is None:
                    raise Rejected("alert_not_found", f"there is no alert {alert}", status=404)
                raise Rejected("alert_resolved", f"alert {alert} is resolved", status=409)
            acknowledged = {"rule": row["rule"], "subject": row["subject"], "note": note}
            await write_audit(connection, caller, "alerts.acknowledge", f"alert:{alert}", after=acknowledged)
        return view(AlertView, row)


def _destination(row: Any, cap: int, *, relayed: bool) -> DestinationView:
    error: str = row["error"] or ""
    why = _why(row, error, relayed=relayed)
    waits_on: Any = "waiting" if row["tried"] else "flowing"
    stuck = why is not None and why != "failing"
    return DestinationView(
        destination=row["destination"],
        waiting=min(row["new"] + row["tried"], cap),
        tried=row["tried"],
        capped_at=cap,
        oldest_s=max(0.0, row["oldest_s"]),
        attempts=row["attempts"],
        next_try_at=row["next_at"],
        state="stuck" if stuck else waits_on,
        why=why,
        error=error or None,
    )


def _why(row: Any, error: str, *, relayed: bool) -> Any:
    """Return the first reason that keeps messages from leaving."""
    if not relayed:
        return "no_relay"
    if error.startswith("unknown_scheme"):
        return "unknown_scheme"
    if row["oldest_s"] > OLD_S:
        return "too_old"
    return "failing" if row["tried"] else None


def operations_retention() -> Retention:
    """Return the retention that deletes resolved alerts after a month, and ended sessions at once."""
    rules = [RetentionRule("delete_alerts", timedelta(days=30)), RetentionRule("delete_sessions", timedelta())]
    return Retention(load("tickwright.capabilities.operations.sql", "upkeep.sql"), rules)
