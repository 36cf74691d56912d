"""Why an execution has not ended, and what happens to it next; see :mod:`.explain`."""

from collections.abc import Iterator
from datetime import timedelta

import msgspec

from tickwright.capabilities.batches.executions.completion import WAITING_MAX
from tickwright.capabilities.batches.executions.explain import nobody_executes
from tickwright.capabilities.batches.executions.facts import ExecutionFacts, Row
from tickwright.domain.time_texts import instant_text, wait_text
from tickwright.ports.views import Explanation, Reason

OPEN = frozenset({"NEW", "IN_PROGRESS"})
ERROR_CHARS_MAX = 300


def explain_execution(facts: ExecutionFacts) -> Explanation:
    """Return the chain of reasons for one execution."""
    row = facts.row
    if row["status"] in OPEN:
        reasons = [*_paused(row), *_before(facts), *_later(row), *_work(facts), *nobody_executes_it(facts)]
    else:
        reasons = [*_ended(row), *_paused(row), *_release(facts)]
    reasons += _held(facts)
    return Explanation(row["id"], row["status"], reasons[0].text, reasons)


def nobody_executes_it(facts: ExecutionFacts) -> Iterator[Reason]:
    """Say where no live process can execute it."""
    yield from nobody_executes(facts.lives.consumers, facts.lives.able, facts.row["served_by"])


def _paused(row: Row) -> Iterator[Reason]:
    if row["paused_at"] is not None:
        since = instant_text(row["paused_at"])
        yield Reason("paused", f"it is paused since {since}; tickwright executions resume {row['id']} lets it go on")


def _before(facts: ExecutionFacts) -> Iterator[Reason]:
    before = facts.before
    if before is not None and facts.row["status"] == "NEW":
        does = "is at work" if before["status"] == "IN_PROGRESS" else "is older and comes first"
        yield Reason(
            "waits_for_execution", f"execution {before['id']} of {facts.row['name']} {does}; one at a time works"
        )


def _later(row: Row) -> Iterator[Reason]:
    if row["due_at"] is not None and row["due_at"] > row["now"]:
        tried = f" after {row['tries']} failed attempts" if row["tries"] else ""
        error = f"; the last error: {row['error_message'][:ERROR_CHARS_MAX]}" if row["error_message"] else ""
        yield Reason("later", f"it is tried again in {wait_text(row['due_at'] - row['now'])}{tried}{error}")


def _work(facts: ExecutionFacts) -> Iterator[Reason]:
    row, now = facts.row, facts.row["now"]
    if row["status"] == "NEW":
        yield Reason(
            "due", f"it is taken by the next consumer that looks; it is NEW since {instant_text(row['created_at'])}"
        )
        return
    if row["planned_at"] is None:
        yield Reason("planned", "its members are counted and cut into chunks")
        return
    progress = (
        f"{row['chunks_done']} of {row['chunks']} chunks are done, {row['seen']} of {row['members']} members read"
    )
    yield Reason("at_work", progress)
    for one in facts.working:
        since = instant_text(one["since"])
        yield Reason("working", f"{one['worker']} works on {one['chunks']} of them, on the first since {since}")
    if row["next_chunk_at"] > now and facts.waiting is not None:
        yield Reason("rate", f"its rate lets the next chunk begin in {wait_text(row['next_chunk_at'] - now)}")
    yield from _waiting(facts)
    yield from _refused(row)


def _waiting(facts: ExecutionFacts) -> Iterator[Reason]:
    chunk, now = facts.waiting, facts.row["now"]
    if chunk is None:
        return
    which = f"chunk {chunk['number']}"
    if chunk["due_at"] > now:
        said = [str(one.get("problem", "")) for one in msgspec.json.decode(chunk["problems"] or "[]")]
        error = f"; the last error: {said[0][:ERROR_CHARS_MAX]}" if said else ""
        wait = wait_text(chunk["due_at"] - now)
        yield Reason("chunk_later", f"{which} failed {chunk['tries']} times and is tried again in {wait}{error}")
    if chunk["lost"]:
        yield Reason("chunk_lost", f"{which} was begun by {chunk['lost']} processes that went away")


def _ended(row: Row) -> Iterator[Reason]:
    at = instant_text(row["finished_at"] or row["created_at"])
    if row["status"] == "EXCEPTION_OCCURRED":
        yield Reason("failed", f"it failed at {at}: {row['error_message']} ({row['error_code']})")
        left = row["chunks"] - row["chunks_done"]
        what = f"with the {left} chunks that are not done" if row["chunks"] else "from the beginning"
        yield Reason(
            "can_be_retried", f"tickwright executions retry {row['id']} goes on {what}; nothing else is redone"
        )
    elif row["status"] == "FINISHED":
        text = f"it finished at {at}: {row['seen']} members read, {row['selected']} selected, {row['actions']} actions"
        yield Reason("finished", text)
    else:
        why = f", {row['ended_why']}" if row["ended_why"] else ""
        yield Reason(row["status"].lower(), f"it ended at {at}{why}; what was not released then stays unreleased")


def _release(facts: ExecutionFacts) -> Iterator[Reason]:
    row = facts.row
    left = row["actions"] - row["released"]
    yield from _refused(row)
    if row["status"] == "FINISHED" and row["chunks_released"] < row["chunks"]:
        wait = row["next_release_at"] - row["now"]
        paced = wait.total_seconds() > 0 and row["error_code"] != "not_released" and not facts.is_full
        pace = f"; its rate lets the next ones leave in {wait_text(wait)}" if paced else ""
        yield Reason("releasing", f"{left} of its {row['actions']} actions have not left yet{pace}")
    elif left > 0:
        refused = "; they are too large, and its problems name some of them" if row["status"] == "FINISHED" else ""
        yield Reason("not_released", f"{left} of its {row['actions']} actions were never released{refused}")
    elif row["actions"]:
        yield Reason("released", f"all of its {row['actions']} actions have left")


def _held(facts: ExecutionFacts) -> Iterator[Reason]:
    """Say what holds back actions that may leave."""
    if facts.row["is_releasing"] and not facts.lives.producers:
        yield Reason("no_checker", "no live process has the role scheduler: its actions do not leave")
    if facts.is_full:
        text = f"more than {WAITING_MAX:,} messages to its destination wait in the outbox, so its actions do not leave"
        yield Reason("destination_full", f"{text}; tickwright outbox destinations says why they wait")


def _refused(row: Row) -> Iterator[Reason]:
    """Say where PostgreSQL refuses what is to be released."""
    if row["error_code"] == "not_released" and row["status"] in {"IN_PROGRESS", "FINISHED"}:
        again = wait_text(max(row["next_release_at"] - row["now"], timedelta()))
        error = row["error_message"][:ERROR_CHARS_MAX]
        yield Reason("release_refused", f"its actions cannot leave: {error}; tried again in {again}")
