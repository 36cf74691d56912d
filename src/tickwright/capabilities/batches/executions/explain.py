"""Reasons why a batch does not run or an execution does not end, from the rows in the database.

The evidence is read in one snapshot; the reasons are a pure function of it. Every obstacle is named, with what happens
next and when; the first reason is the summary.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import msgspec

from tickwright.capabilities.batches.definitions.schema import first_from, recurrence_of
from tickwright.capabilities.batches.executions.checker import WAITING_MAX, is_full
from tickwright.capabilities.batches.views import BatchExplanation
from tickwright.domain.errors import Rejected
from tickwright.domain.time_texts import instant_text, wait_text
from tickwright.ports.views import Explanation, Reason, view
from tickwright.store.pool import Connection
from tickwright.store.queries import load

SQL = load("tickwright.capabilities.batches.sql", "explain.sql")
PRODUCER_ROLE, CONSUMER_ROLE = "scheduler", "campaign-consumer"
LATE = timedelta(seconds=5)
"""From this delay on a producer is reported as late."""
ERROR_CHARS_MAX = 300
Row = Mapping[str, Any]


class LiveProcesses(NamedTuple):
    """How many live processes produce executions, work on executions, and can work on this one."""

    producers: int
    consumers: int
    able: int


class BatchEvidence(NamedTuple):
    """The row of ``get_batch``, whose ``now`` is the database's clock; ``slot`` is the execution or skip at a time."""

    row: Row
    open: Sequence[Row]
    last: Row | None
    skips: Sequence[Row]
    live: LiveProcesses
    slot_at: datetime | None
    slot: Row | None


class ExecutionEvidence(NamedTuple):
    """The row of ``get_execution``, and what decides beside it.

    Attributes:
        waiting: The first chunk that waits.
        before: The execution of the same batch that has to end first.
        is_full: So many messages to its destination wait that no actions are added to them.
    """

    row: Row
    waiting: Row | None
    working: Sequence[Row]
    before: Row | None
    live: LiveProcesses
    is_full: bool


async def batch_evidence(connection: Connection, row: Any, slot_at: datetime | None) -> BatchEvidence:
    """Read the evidence about the batch of ``row``."""
    batch_id = row["id"]
    slot = None if slot_at is None else await connection.fetchrow(SQL["explain_slot"], batch_id, slot_at)
    return BatchEvidence(
        row,
        await connection.fetch(SQL["explain_open"], batch_id),
        await connection.fetchrow(SQL["explain_last"], batch_id),
        await connection.fetch(SQL["explain_skips"], batch_id),
        await _live(connection, row["served_by"]),
        slot_at,
        slot,
    )


async def execution_evidence(connection: Connection, row: Any) -> ExecutionEvidence:
    """Read the evidence about the execution of ``row``."""
    execution_id = row["id"]
    return ExecutionEvidence(
        row,
        await connection.fetchrow(SQL["explain_waiting"], execution_id),
        await connection.fetch(SQL["explain_working"], execution_id),
        await connection.fetchrow(SQL["explain_before"], execution_id),
        await _live(connection, row["served_by"]),
        row["is_releasing"] and await is_full(connection, row["target"]),
    )


async def _live(connection: Connection, served_by: str) -> LiveProcesses:
    return LiveProcesses(*await connection.fetchrow(SQL["explain_lives"], PRODUCER_ROLE, CONSUMER_ROLE, served_by))


def explain_batch(evidence: BatchEvidence) -> BatchExplanation:
    """Return the chain of reasons for one batch; with a slot that of the occurrence first."""
    row = evidence.row
    reasons = [
        *_slot(evidence),
        *_next(evidence),
        *_open(evidence),
        *_no_process(evidence),
        *_skips(evidence),
        *_last(evidence),
    ]
    return view(BatchExplanation, row, summary=reasons[0].text, reasons=reasons)


def _slot(evidence: BatchEvidence) -> Iterator[Reason]:
    at, found = evidence.slot_at, evidence.slot
    if at is None or found is None:
        return
    shown = instant_text(at)
    if found["id"] is not None:
        text = f"for {shown} there is execution {found['id']}: it is {found['status']}{_why(found)}"
        yield Reason("slot_has_execution", text)
    elif found["reason"] is not None:
        yield Reason(f"slot_skipped_{found['reason']}", f"{shown} was skipped: {_skip(evidence.row, found)}")
    else:
        yield _without_record(evidence.row, at, shown)


def _why(row: Row) -> str:
    return f", {row['ended_why']}" if row["ended_why"] else ""


def _without_record(row: Row, at: datetime, shown: str) -> Reason:
    """Return why nothing is written about an occurrence."""
    if not _occurs(row, at):
        return Reason("slot_is_none", f"{shown} is no occurrence of its schedule as it is now")
    if at > row["now"]:
        does = "is still to come" if row["status"] == "SCHEDULED" else "is to come, but nothing runs while it is IDLE"
        return Reason("slot_to_come", f"{shown} {does}")
    if row["next_slot_at"] is not None and row["next_slot_at"] <= at:
        return Reason("slot_not_produced", f"{shown} is over, and no producer has processed it yet")
    why = "it was not SCHEDULED then, or had another schedule"
    return Reason("slot_not_scheduled", f"for {shown} nothing was due: {why}; GET its versions and the audit trail")


def _occurs(row: Row, at: datetime) -> bool:
    try:
        return row["type"] == "AUTOMATIC" and first_from(recurrence_of(row), at) == at
    except Rejected:
        return False


def _next(evidence: BatchEvidence) -> Iterator[Reason]:
    row, now = evidence.row, evidence.row["now"]
    at: datetime | None = row["next_slot_at"]
    if row["type"] == "MANUAL":
        yield Reason("manual", "it is MANUAL: it runs when it is started")
    elif row["status"] == "IDLE":
        yield Reason("not_activated", "it is IDLE: activate it, and it runs by its schedule; or start it once")
    elif at is None:
        yield Reason("no_occurrence", "its schedule has no occurrence left")
    elif at > now:
        yield Reason("next_slot", f"its next occurrence is at {instant_text(at)}, in {wait_text(at - now)}")
    elif at > now - LATE:
        yield Reason("slot_due", f"its occurrence of {instant_text(at)} is due now")
    else:
        yield Reason("producer_late", f"its occurrence of {instant_text(at)} is due, and no producer has processed it")


def _open(evidence: BatchEvidence) -> Iterator[Reason]:
    for execution in evidence.open:
        which = f"execution {execution['id']} for {instant_text(execution['slot_at'])}"
        if execution["paused_at"] is not None:
            yield Reason("execution_paused", f"{which} is paused since {instant_text(execution['paused_at'])}")
        elif execution["status"] == "NEW":
            yield Reason("execution_waits", f"{which} is NEW; explain it to see what it waits for")
        elif execution["planned_at"] is None:
            yield Reason("execution_planned", f"{which} is being cut into chunks")
        else:
            done = f"{execution['chunks_done']} of {execution['chunks']} chunks done"
            yield Reason("execution_at_work", f"{which} is at work, {done}")
    if evidence.open and evidence.row["type"] == "AUTOMATIC":
        does = {
            "skip": "an occurrence that finds it open is skipped",
            "queue": "further occurrences wait for it",
            "replace": "the next occurrence stops it",
        }
        yield Reason("overlap", f"{does[evidence.row['overlap']]} (overlap = {evidence.row['overlap']})")


def _no_process(evidence: BatchEvidence) -> Iterator[Reason]:
    if evidence.row["status"] == "SCHEDULED" and not evidence.live.producers:
        yield Reason("no_producer", "no live process has the role scheduler, so occurrences get no executions")
    yield from _no_consumer(evidence.live, evidence.row["served_by"])


def _no_consumer(live: LiveProcesses, served_by: str) -> Iterator[Reason]:
    """Yield a reason where no live process can work on executions."""
    if not live.consumers:
        yield Reason("no_consumer", "no live process has the role campaign-consumer, so nothing is executed")
    elif not live.able:
        yield Reason("nobody_serves", f"no live process with the role campaign-consumer has {_served(served_by)}")


def _served(served_by: str) -> str:
    kind, _, name = served_by.partition(":")
    if kind == "source":
        return f"the source {name}; write [sources.{name}] into its TOML file"
    if kind == "program":
        return f"the program that declares {name}"
    return "an object store; set TICKWRIGHT_OBJECT_STORE"


def _skips(evidence: BatchEvidence) -> Iterator[Reason]:
    for skip in evidence.skips:
        shown = instant_text(skip["slot_at"])
        more = f" and {skip['slots'] - 1} up to {instant_text(skip['until_at'])}" if skip["slots"] > 1 else ""
        yield Reason(f"skipped_{skip['reason']}", f"{shown}{more} got no execution: {_skip(evidence.row, skip)}")


def _skip(row: Row, skip: Row) -> str:
    at = instant_text(skip["noted_at"])
    if skip["reason"] == "overlap":
        return f"another execution was open at {at} (overlap = {row['overlap']})"
    return f"it was found at {at}, later than misfire_grace allows (misfire = {row['misfire']})"


def _last(evidence: BatchEvidence) -> Iterator[Reason]:
    last = evidence.last
    if last is None:
        if not evidence.open:
            yield Reason("never_executed", "it has not been executed yet")
        return
    at = "" if last["finished_at"] is None else f" at {instant_text(last['finished_at'])}"
    which = f"execution {last['id']} for {instant_text(last['slot_at'])}"
    if last["status"] == "EXCEPTION_OCCURRED":
        retry = f"tickwright executions retry {last['id']} goes on where it failed"
        yield Reason("last_failed", f"{which} failed{at}: {last['error_message']} ({last['error_code']}); {retry}")
    else:
        yield Reason("last_ended", f"{which} ended as {last['status']}{at}{_why(last)}")


def explain_execution(evidence: ExecutionEvidence) -> Explanation:
    """Return the chain of reasons for one execution."""
    row = evidence.row
    if row["status"] in {"NEW", "IN_PROGRESS"}:
        no_consumer = _no_consumer(evidence.live, row["served_by"])
        reasons = [*_paused(row), *_before(evidence), *_later(row), *_work(evidence), *no_consumer]
    else:
        reasons = [*_ended(row), *_paused(row), *_release(evidence)]
    reasons += _blocked(evidence)
    return Explanation(row["id"], row["status"], reasons[0].text, reasons)


def _paused(row: Row) -> Iterator[Reason]:
    if row["paused_at"] is not None:
        since = instant_text(row["paused_at"])
        yield Reason("paused", f"it is paused since {since}; tickwright executions resume {row['id']} lets it go on")


def _before(evidence: ExecutionEvidence) -> Iterator[Reason]:
    before = evidence.before
    if before is not None and evidence.row["status"] == "NEW":
        does = "is at work" if before["status"] == "IN_PROGRESS" else "is older and comes first"
        text = f"execution {before['id']} of {evidence.row['name']} {does}; one at a time works"
        yield Reason("waits_for_execution", text)


def _later(row: Row) -> Iterator[Reason]:
    if row["due_at"] is not None and row["due_at"] > row["now"]:
        tried = f" after {row['tries']} failed attempts" if row["tries"] else ""
        error = f"; the last error: {row['error_message'][:ERROR_CHARS_MAX]}" if row["error_message"] else ""
        yield Reason("later", f"it is tried again in {wait_text(row['due_at'] - row['now'])}{tried}{error}")


def _work(evidence: ExecutionEvidence) -> Iterator[Reason]:
    row, now = evidence.row, evidence.row["now"]
    if row["status"] == "NEW":
        yield Reason("due", f"the next free consumer claims it; it is NEW since {instant_text(row['created_at'])}")
        return
    if row["planned_at"] is None:
        yield Reason("planned", "its members are counted and cut into chunks")
        return
    done = f"{row['chunks_done']} of {row['chunks']} chunks are done"
    yield Reason("at_work", f"{done}, {row['seen']} of {row['members']} members read")
    for process in evidence.working:
        since = instant_text(process["since"])
        yield Reason("working", f"{process['worker']} works on {process['chunks']} of them, on the first since {since}")
    if row["next_chunk_at"] > now and evidence.waiting is not None:
        yield Reason("rate", f"its rate lets the next chunk begin in {wait_text(row['next_chunk_at'] - now)}")
    yield from _waiting(evidence)
    yield from _refused(row)


def _waiting(evidence: ExecutionEvidence) -> Iterator[Reason]:
    chunk, now = evidence.waiting, evidence.row["now"]
    if chunk is None:
        return
    which = f"chunk {chunk['number']}"
    if chunk["due_at"] > now:
        problems = [str(problem.get("problem", "")) for problem in msgspec.json.decode(chunk["problems"] or "[]")]
        error = f"; the last error: {problems[0][:ERROR_CHARS_MAX]}" if problems else ""
        wait = wait_text(chunk["due_at"] - now)
        yield Reason("chunk_later", f"{which} failed {chunk['tries']} times and is tried again in {wait}{error}")
    if chunk["lost"]:
        yield Reason("chunk_lost", f"{which} was begun by {chunk['lost']} processes that were lost")


def _ended(row: Row) -> Iterator[Reason]:
    at = instant_text(row["finished_at"] or row["created_at"])
    if row["status"] == "EXCEPTION_OCCURRED":
        yield Reason("failed", f"it failed at {at}: {row['error_message']} ({row['error_code']})")
        left = row["chunks"] - row["chunks_done"]
        what = f"with the {left} chunks that are not done" if row["chunks"] else "from the beginning"
        text = f"tickwright executions retry {row['id']} goes on {what}; nothing else is redone"
        yield Reason("can_be_retried", text)
    elif row["status"] == "FINISHED":
        text = f"it finished at {at}: {row['seen']} members read, {row['selected']} selected, {row['actions']} actions"
        yield Reason("finished", text)
    else:
        text = f"it ended at {at}{_why(row)}; what was not released then stays unreleased"
        yield Reason(row["status"].lower(), text)


def _release(evidence: ExecutionEvidence) -> Iterator[Reason]:
    row = evidence.row
    left = row["actions"] - row["released"]
    yield from _refused(row)
    if row["status"] == "FINISHED" and row["chunks_released"] < row["chunks"]:
        wait = row["next_release_at"] - row["now"]
        paced = wait.total_seconds() > 0 and row["error_code"] != "not_released" and not evidence.is_full
        pace = f"; its rate lets the next ones leave in {wait_text(wait)}" if paced else ""
        yield Reason("releasing", f"{left} of its {row['actions']} actions have not left yet{pace}")
    elif left > 0:
        refused = "; they are too large, and its problems name some of them" if row["status"] == "FINISHED" else ""
        yield Reason("not_released", f"{left} of its {row['actions']} actions were never released{refused}")
    elif row["actions"]:
        yield Reason("released", f"all of its {row['actions']} actions have left")


def _blocked(evidence: ExecutionEvidence) -> Iterator[Reason]:
    """Yield what delays actions that may leave."""
    if evidence.row["is_releasing"] and not evidence.live.producers:
        yield Reason("no_checker", "no live process has the role scheduler: its actions do not leave")
    if evidence.is_full:
        text = f"more than {WAITING_MAX:,} messages to its destination wait in the outbox, so its actions do not leave"
        yield Reason("destination_full", f"{text}; tickwright outbox destinations says why they wait")


def _refused(row: Row) -> Iterator[Reason]:
    """Yield a reason where PostgreSQL refuses what is to be released."""
    if row["error_code"] == "not_released" and row["status"] in {"IN_PROGRESS", "FINISHED"}:
        again = wait_text(max(row["next_release_at"] - row["now"], timedelta()))
        error = row["error_message"][:ERROR_CHARS_MAX]
        yield Reason("release_refused", f"its actions cannot leave: {error}; tried again in {again}")
