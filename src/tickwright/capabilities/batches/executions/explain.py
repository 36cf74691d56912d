"""Why does a batch not run, or an execution not end? The chain of reasons, from what is known of it.

A pure function of what the database knows: every obstacle is named, and what happens next and when; the first reason is
the summary. Executions are told in :mod:`.explain_execution`.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta

from tickwright.capabilities.batches.definitions.store import first_from, recurrence_of
from tickwright.capabilities.batches.executions.facts import BatchFacts, Row
from tickwright.capabilities.batches.views import BatchExplanation
from tickwright.domain.errors import Rejected
from tickwright.domain.time_texts import instant_text, wait_text
from tickwright.ports.views import Reason

LATE = timedelta(seconds=5)
"""A producer that is this late for an occurrence is told of."""
_TICK = timedelta(microseconds=1)


def explain_batch(facts: BatchFacts) -> BatchExplanation:
    """Return the chain of reasons for one batch, that of one occurrence first where it is asked for."""
    row = facts.row
    reasons = [*_slot(facts), *_next(facts), *_open(facts), *_nobody(facts), *_skips(facts), *_last(facts)]
    return BatchExplanation(
        name=row["name"],
        status=row["status"],
        next_slot_at=row["next_slot_at"],
        summary=reasons[0].text,
        reasons=reasons,
    )


def _slot(facts: BatchFacts) -> Iterator[Reason]:
    at, found = facts.slot_at, facts.slot
    if at is None or found is None:
        return
    shown = instant_text(at)
    if found["id"] is not None:
        why = f", {found['ended_why']}" if found["ended_why"] else ""
        yield Reason(
            "slot_has_execution", f"for {shown} there is execution {found['id']}: it is {found['status']}{why}"
        )
    elif found["reason"] is not None:
        yield Reason(f"slot_skipped_{found['reason']}", f"{shown} was skipped: {_skip(facts.row, found)}")
    else:
        yield _unnoted(facts, at, shown)


def _unnoted(facts: BatchFacts, at: datetime, shown: str) -> Reason:
    """Say why nothing is written about an occurrence."""
    row = facts.row
    if not _occurs(row, at):
        return Reason("slot_is_none", f"{shown} is no occurrence of its schedule as it is now")
    if at > row["now"]:
        does = "is still to come" if row["status"] == "SCHEDULED" else "is to come, but nothing runs while it is IDLE"
        return Reason("slot_to_come", f"{shown} {does}")
    if row["next_slot_at"] is not None and row["next_slot_at"] <= at:
        return Reason("slot_not_produced", f"{shown} is over, and the producer has not dealt with it yet")
    why = "it was not SCHEDULED then, or had another schedule"
    return Reason("slot_not_scheduled", f"for {shown} nothing was due: {why}; GET its versions and the audit trail")


def _occurs(row: Row, at: datetime) -> bool:
    try:
        return row["type"] == "AUTOMATIC" and first_from(recurrence_of(row), at) == at
    except Rejected:
        return False


def _next(facts: BatchFacts) -> Iterator[Reason]:
    row, now = facts.row, facts.row["now"]
    at: datetime | None = row["next_slot_at"]
    if row["type"] == "MANUAL":
        yield Reason("manual", "it is MANUAL: it runs when somebody starts it")
    elif row["status"] == "IDLE":
        yield Reason("not_activated", "it is IDLE: activate it, and it runs by its schedule; or start it once")
    elif at is None:
        yield Reason("no_occurrence", "its schedule has no occurrence left")
    elif at > now:
        yield Reason("next_slot", f"its next occurrence is at {instant_text(at)}, in {wait_text(at - now)}")
    elif at > now - LATE:
        yield Reason("slot_due", f"its occurrence of {instant_text(at)} is due now")
    else:
        yield Reason("producer_late", f"its occurrence of {instant_text(at)} is due, and no producer has dealt with it")


def _open(facts: BatchFacts) -> Iterator[Reason]:
    for one in facts.open:
        which = f"execution {one['id']} for {instant_text(one['slot_at'])}"
        if one["paused_at"] is not None:
            yield Reason("execution_paused", f"{which} is paused since {instant_text(one['paused_at'])}")
        elif one["status"] == "NEW":
            yield Reason("execution_waits", f"{which} is NEW; explain it to see what it waits for")
        elif one["planned_at"] is None:
            yield Reason("execution_planned", f"{which} is being cut into chunks")
        else:
            yield Reason(
                "execution_at_work", f"{which} is at work, {one['chunks_done']} of {one['chunks']} chunks done"
            )
    if facts.open and facts.row["type"] == "AUTOMATIC":
        does = {
            "skip": "an occurrence that finds it open is skipped",
            "queue": "further occurrences wait for it",
            "replace": "the next occurrence stops it",
        }
        yield Reason("overlap", f"{does[facts.row['overlap']]} (overlap = {facts.row['overlap']})")


def _nobody(facts: BatchFacts) -> Iterator[Reason]:
    if facts.row["status"] == "SCHEDULED" and not facts.lives.producers:
        yield Reason("no_producer", "no live process has the role scheduler: nobody makes executions of occurrences")
    yield from nobody_executes(facts.lives.consumers, facts.lives.able, facts.row["served_by"])


def nobody_executes(consumers: int, able: int, served_by: str) -> Iterator[Reason]:
    """Say where no live process can execute."""
    if not consumers:
        yield Reason("no_consumer", "no live process has the role campaign-consumer: nobody executes")
    elif not able:
        yield Reason("nobody_serves", f"no live process with the role campaign-consumer has {_served(served_by)}")


def _served(served_by: str) -> str:
    kind, _, name = served_by.partition(":")
    if kind == "source":
        return f"the source {name}; write [sources.{name}] into its TOML file"
    if kind == "program":
        return f"the program that declares {name}"
    return "an object store; set TICKWRIGHT_OBJECT_STORE"


def _skips(facts: BatchFacts) -> Iterator[Reason]:
    for one in facts.skips:
        shown = instant_text(one["slot_at"])
        more = f" and {one['slots'] - 1} up to {instant_text(one['until_at'])}" if one["slots"] > 1 else ""
        yield Reason(f"skipped_{one['reason']}", f"{shown}{more} got no execution: {_skip(facts.row, one)}")


def _skip(row: Row, skip: Row) -> str:
    at = instant_text(skip["noted_at"])
    if skip["reason"] == "overlap":
        return f"another execution was open at {at} (overlap = {row['overlap']})"
    return f"it was found at {at}, later than misfire_grace allows (misfire = {row['misfire']})"


def _last(facts: BatchFacts) -> Iterator[Reason]:
    last = facts.last
    if last is None:
        if not facts.open:
            yield Reason("never_executed", "it has not been executed yet")
        return
    at = "" if last["finished_at"] is None else f" at {instant_text(last['finished_at'])}"
    which = f"execution {last['id']} for {instant_text(last['slot_at'])}"
    if last["status"] == "EXCEPTION_OCCURRED":
        retry = f"tickwright executions retry {last['id']} goes on where it failed"
        yield Reason("last_failed", f"{which} failed{at}: {last['error_message']} ({last['error_code']}); {retry}")
    else:
        why = f", {last['ended_why']}" if last["ended_why"] else ""
        yield Reason("last_ended", f"{which} ended as {last['status']}{at}{why}")
