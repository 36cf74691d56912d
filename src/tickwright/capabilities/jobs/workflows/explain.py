"""Why a workflow is in its state, and what a waiting job waits for: decisions over what was read."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tickwright.capabilities.jobs.workflows.queries import SQL, fetch_indexed
from tickwright.domain.time_texts import instant_text, wait_text
from tickwright.ports.views import Reason
from tickwright.store.pool import Pool

NAMED_MAX, COUNTED_MAX = 10, 1_000
_DOES: Mapping[str, str] = {
    "waiting": "which waits for others itself",
    "pending": "which has not started",
    "processing": "which runs",
    "running": "a workflow that has not ended",
    "completed": "which completed",
    "failed": "which failed",
    "cancelled": "which was cancelled",
    "skipped": "which was skipped",
}
_ENDED = {"failed", "cancelled", "skipped"}
_NO_LONGER = {"completed", *_ENDED}


class Surroundings(NamedTuple):
    """A job in its workflow.

    Attributes:
        node: With the name of its workflow.
        predecessors: What it waits for: the first of them, those that failed first, with their number.
        waiting: How many jobs wait for it, counted up to 1,000.
    """

    node: Mapping[str, Any]
    predecessors: Sequence[Any]
    waiting: int


async def read_surroundings(pool: Pool, job_id: int) -> Surroundings | None:
    """Return what is around a job of a workflow; ``None`` once its workflow is forgotten."""
    node = await pool.fetchrow(SQL["surroundings"], job_id)
    if node is None:
        return None
    before = await fetch_indexed(pool, SQL["predecessors"], job_id, NAMED_MAX)
    return Surroundings(node, before, node["waiting"])


def reasons_to_wait(around: Surroundings) -> Iterator[Reason]:
    """Yield what a waiting job waits for, by name, id and state."""
    node, on_failed = around.node, around.node["on_failed"]
    held = [one for one in around.predecessors if not _is_done(one["status"], on_failed)]
    for one in held:
        what = f"it waits for {one['name']} (#{one['id']}), {_DOES[one['status']]}"
        if one["status"] in _ENDED:
            yield Reason("waits_for_failed", f"{what}: on_failed={on_failed}; retry {one['id']}, or cancel this job")
        else:
            yield Reason("waits_for", what)
    more = (around.predecessors[0]["not_completed"] if around.predecessors else 0) - len(around.predecessors)
    if more > 0:
        yield Reason("waits_for_more", f"it waits for {more:,} more jobs")
    if node["stalled"]:
        yield Reason("stalled", "what it waits for has ended, while another session had locked it; it is tried again")
    elif not held:
        yield Reason("released_soon", "what it waits for has ended; it is released with that transaction")


def place_in_workflow(around: Surroundings) -> Reason:
    """Return which job of which workflow it is, and how many jobs wait for it."""
    node, waiting = around.node, around.waiting
    text = f"it is {node['name']} of workflow {node['workflow_name']} (#{node['workflow_id']})"
    jobs = "1 job waits" if waiting == 1 else f"{waiting:,}{' or more' if waiting >= COUNTED_MAX else ''} jobs wait"
    return Reason("in_workflow", f"{text}; {jobs} for it" if waiting else text)


def _is_done(status: str, on_failed: str) -> bool:
    return status == "completed" or (on_failed in {"run", "only"} and status in _NO_LONGER)


def explain_workflow(
    row: Mapping[str, Any], states: Counter[str], live: Sequence[Any], blocking: Sequence[Any], failed: Sequence[Any]
) -> list[Reason]:
    """Return why a workflow is in its state: the obstacle first.

    Args:
        row: The workflow, with the database's clock.
        states: Its nodes by state.
        live: Its first jobs that run or are due.
        blocking: Ended nodes for which others wait until they are retried.
        failed: Failed jobs, with their errors.
    """
    reasons = list(_ended(row)) if row["ended_at"] is not None else list(_running(row, states, live, blocking))
    reasons += [Reason("failed_job", _failed_text(one)) for one in failed[:NAMED_MAX]]
    more = states["failed"] - len(failed[:NAMED_MAX])
    if failed and more > 0:
        reasons.append(Reason("more_failed_jobs", f"{more:,} more jobs of it failed"))
    return reasons


def _running(
    row: Mapping[str, Any], states: Counter[str], live: Sequence[Any], blocking: Sequence[Any]
) -> Iterator[Reason]:
    if row["cancelled_at"] is not None:
        yield Reason("cancelling", f"it was cancelled at {instant_text(row['cancelled_at'])}; jobs that run still end")
    for one in blocking[:NAMED_MAX]:
        waiting = "1 job waits" if one["waiting"] == 1 else f"{one['waiting']:,} jobs wait"
        text = f"{one['name']} (#{one['id']}) {one['status']}: {waiting} until it is retried; retry it, or cancel them"
        yield Reason("waits_for_retry", text)
    counts = ", ".join(f"{states[state]:,} {state}" for state in ("processing", "pending", "waiting") if states[state])
    if live:
        names = ", ".join(_live_text(one, row["now"]) for one in live[:3])
        yield Reason("in_progress", f"{counts}; now: {names}")
    elif counts:
        yield Reason("in_progress", counts)
    else:
        yield Reason("ends_now", "all its nodes have ended")
    if row["deadline_at"] is not None:
        left = row["deadline_at"] - row["now"]
        when = f"in {wait_text(left)}" if left.total_seconds() > 0 else "over; it is cancelled with the next round"
        yield Reason("deadline", f"its deadline is {when}, at {instant_text(row['deadline_at'])}")


def _live_text(one: Mapping[str, Any], now: Any) -> str:
    name = f"{one['name']} (#{one['id']})"
    if one["status"] == "processing":
        return f"{name} runs, attempt {one['attempts']} of {one['max_attempts']}"
    wait = one["due_at"] - now
    if wait.total_seconds() > 0:
        return f"{name} is due in {wait_text(wait)}"
    return f"{name} is due and not started"


def _ended(row: Mapping[str, Any]) -> Iterator[Reason]:
    at = instant_text(row["ended_at"])
    if row["reason"] == "deadline":
        yield Reason("deadline", f"its deadline was over: what had not ended was cancelled; it failed at {at}")
    elif row["state"] == "completed":
        yield Reason("completed", f"all its jobs ended, none failed or was cancelled; it completed at {at}")
    elif row["state"] == "failed":
        yield Reason("failed", f"it failed at {at}: {row['failed']:,} of its nodes failed; retry them, or the workflow")
    else:
        yield Reason("cancelled", f"it was cancelled at {at}")


def _failed_text(one: Mapping[str, Any]) -> str:
    error = f": {one['error']}" if one["error"] else ""
    return f"{one['name']} (#{one['id']}) failed{error}"
