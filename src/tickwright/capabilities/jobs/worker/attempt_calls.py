"""What the runner does around the call of one attempt."""

import asyncio
from contextvars import Context
from dataclasses import dataclass
from typing import Any

import structlog

from tickwright.capabilities.jobs.model import Job
from tickwright.capabilities.jobs.worker.type_state import TypeState
from tickwright.ports.ids import monotonic

TIMER_S = 0.001
SLOT_WAIT_S = 1.0
_log = structlog.get_logger("tickwright.jobs")


async def keep_distance(state: TypeState) -> bool:
    """Wait for a start of a rate-limited type; an attempt that misses its start takes the next one.

    Returns:
        ``False`` where the wait would be long, and once the type waits for an operator.
    """
    start_s = 0.0
    while not state.task_type.waits and (start_s := state.reserve_start(now := monotonic(), start_s)) > now + TIMER_S:
        if start_s - now > SLOT_WAIT_S:
            state.free_from_s = min(state.free_from_s, start_s)  # another attempt may have this start
            return False
        await asyncio.sleep(start_s - now)
    return not state.task_type.waits


def facts_of(job: Job) -> dict[str, str | int]:
    """Return the attributes of the span of an attempt."""
    return {"messaging.message.id": f"job_{job.id}", "tickwright.attempt": job.attempt, "tickwright.fence": job.fence}


def are_equal(here: Context, other: Context) -> bool:
    """Return whether two contexts are equal; not where a value cannot be compared."""
    try:
        return here == other
    except BaseException:  # noqa: BLE001  the comparison of two values of a user's
        _log.debug("jobs.context_incomparable")
        return False


@dataclass(frozen=True, slots=True)
class Raised:
    """What a synchronous handler raised; a value, because a future cannot hold a StopIteration."""

    error: BaseException


def call_here(job: Job, state: TypeState) -> Any:
    """Call a synchronous handler in its thread."""
    try:
        return state.call(job)
    except BaseException as error:  # noqa: BLE001  all that a handler raises is this attempt's result
        return Raised(error)
