"""Why a job is where it is, in words and codes. Pure: the store loads the facts, this module decides.

The chain goes from what the user asked for to what stands in the way last; the first reason that alone
keeps the job from running is the summary.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from tickwright.capabilities.jobs.model import furthest_start_s
from tickwright.domain.time_texts import RATE_PER_S_MIN, instant_text, wait_text
from tickwright.ports.views import Explanation, Reason

WAITING_SHOWN_MAX = 10_000


def explain(facts: Mapping[str, Any]) -> Explanation:
    """Return the chain of reasons for one job.

    Args:
        facts: The row of the query ``explain``; ``now`` is the database's clock.
    """
    match facts["status"]:
        case "pending":
            reasons = list(_pending(facts)) or [Reason("due", "it is due, and a worker takes it with its next claim")]
        case "processing":
            reasons = list(_held(facts))
        case _:
            reasons = list(_finished(facts))
    summary = reasons[0].text
    if facts["idempotency_key"] is not None:
        reasons.append(Reason("has_key", "its idempotency key makes repeated requests answer with this job"))
    return Explanation(facts["id"], facts["status"], summary, reasons)


def _pending(facts: Mapping[str, Any]) -> Iterator[Reason]:
    now, due_at = facts["now"], facts["due_at"]
    if due_at > now:
        wait = wait_text(due_at - now)
        if facts["retry_at"] is not None:
            yield Reason(
                "waits_for_retry",
                f"attempt {facts['attempts']} of {facts['max_attempts']} did not end it; the next one is in {wait}",
            )
        else:
            yield Reason("not_due", f"not due yet: in {wait}")
    yield from _type_reasons(facts)
    if facts["expires_at"] is not None and facts["expires_at"] <= max(now, due_at):
        yield Reason("expires", "it expires before it can start; it will end as cancelled")
    if not facts["workers"]:
        yield Reason("no_worker", "no live worker: nobody claims jobs")
    elif facts["type_known"] and not facts["able_workers"]:
        yield _no_handler(facts["target"])
    if due_at <= now:
        yield from _queue_reasons(facts)


def _no_handler(target: str) -> Reason:
    scheme, _, name = target.partition(":")
    if scheme == "python":
        text = f"no live worker has the handler {name}: start one with the application that registers it"
    else:
        text = f"no live worker delivers to {scheme}: set the broker in the workers' settings"
    return Reason("no_handler", text)


def _type_reasons(facts: Mapping[str, Any]) -> Iterator[Reason]:
    name = facts["task_type"]
    if not facts["type_known"]:
        yield Reason(
            "type_unknown",
            f"task type {name} is not registered; the job waits since {instant_text(facts['created_at'])} until it is",
        )
    if facts["paused_at"] is not None:
        yield Reason("type_paused", f"task type {name} is paused since {instant_text(facts['paused_at'])}")
    if facts["gone_at"] is not None:
        yield Reason(
            "type_gone",
            f"the endpoint of {name} said 410 Gone at {instant_text(facts['gone_at'])}; enable the type to go on",
        )


def _queue_reasons(facts: Mapping[str, Any]) -> Iterator[Reason]:
    limit, running, ahead = facts["concurrency"], facts["running"], facts["waiting_before"]
    saturated = limit is not None and running >= limit
    if saturated:
        yield Reason(
            "concurrency_saturated",
            f"{running} of {limit} jobs of this type are held now; {facts['granted']} places are granted to workers",
        )
    if facts["able_workers"] and facts["full_workers"] == facts["able_workers"]:
        yield Reason("workers_full", _full_text(facts))
    elif limit is not None and not saturated and not facts["has_place"]:
        yield Reason(
            "no_place_granted",
            f"{running} of {limit} jobs of this type are held now, and no worker that has room may take another yet",
        )
    if facts["rate_per_s"] is not None and facts["next_free_at"] is not None:
        wait = facts["next_free_at"] - facts["now"]
        if 0 < wait.total_seconds() <= furthest_start_s(max(facts["rate_per_s"], RATE_PER_S_MIN)):
            text = f"the rate of {facts['rate_per_s']:g}/s is given away for the next {wait_text(wait)}"
            yield Reason("rate_limited", text)
    if ahead:
        more = " or more" if ahead >= WAITING_SHOWN_MAX else ""
        yield Reason("queued_behind", f"{ahead}{more} due jobs of its type and priority are before it")


def _full_text(facts: Mapping[str, Any]) -> str:
    able, what = facts["able_workers"], "slot"
    taken, places = facts["able_running"], facts["able_slots"]
    if facts["threadless_workers"] == able:
        what, taken, places = "thread", facts["able_threads_busy"], facts["able_threads"]
    text = f"the live workers that can run it ({able}) have no free {what} for it: {taken} of {places} run jobs"
    return text if taken == places else f"{text}; one type may take three quarters of the {what}s that others leave"


def _held(facts: Mapping[str, Any]) -> Iterator[Reason]:
    if facts["cancel_requested_at"] is not None:
        yield Reason(
            "cancel_requested", f"its worker was asked to stop it at {instant_text(facts['cancel_requested_at'])}"
        )
    holder, until = facts["worker_name"], facts["worker_lease_until"]
    who = f"worker {holder}" if holder else "its worker" if facts["owner"] is None else f"session {facts['owner']}"
    if holder is None or facts["worker_lost_at"] is not None or until < facts["now"]:
        yield Reason("lease_expired", f"{who} lost its lease; another one takes the job back")
        return
    began = facts["started_at"]
    since = "not begun yet" if began is None else f"since {instant_text(began)}"
    yield Reason(
        "held",
        f"held by worker {holder} (session {facts['owner']}) {since}, attempt "
        f"{facts['attempts']} of {facts['max_attempts']}, lease until {instant_text(until)}",
    )


def _finished(facts: Mapping[str, Any]) -> Iterator[Reason]:
    at = instant_text(facts["completed_at"])
    match facts["status"]:
        case "completed":
            yield Reason("completed", f"it was done at {at}, in attempt {facts['attempts']}")
        case "failed":
            yield Reason(
                "dead_letter",
                f"it failed at {at} after {facts['attempts']} of {facts['max_attempts']} attempts and can be retried; "
                f"the last error: {facts['error_message'] or 'none was told'}",
            )
        case _:
            why = f": {facts['error_message']}" if facts["error_message"] else ""
            yield Reason("cancelled", f"it was cancelled at {at}{why}")
