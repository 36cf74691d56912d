"""Explain with codes why a report is not finished or how it ended, and build the timeline of its parts. Pure.

The first reason, which is the summary, is the report's end or what it waits for. The obstacles follow, then what
happens next and when.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from tickwright.capabilities.reports.plan import Plan
from tickwright.capabilities.reports.requests.views import PartView
from tickwright.domain.time_texts import instant_text, wait_text
from tickwright.ports.views import Explanation, Reason, view

ERROR_CHARS_MAX = 300
OVER = frozenset({"finished", "failed", "cancelled"})
Facts = Mapping[str, Any]


def explain(facts: Facts, parts: Sequence[Facts]) -> Explanation:
    """Return the reasons for one report's state, from the rows of ``explain_report`` and ``explain_parts``.

    ``now`` is the database's clock.
    """
    if facts["status"] in OVER:
        reasons = [*_ended(facts), *_failed_parts(parts)]
    else:
        plan = msgspec.json.decode(facts["plan"], type=Plan)
        waited = [part for part in parts if part["stage"] == facts["stage"] and part["state"] in {"due", "running"}]
        reasons = [*_step(facts, waited), *_waits(facts, waited), *_failed_parts(parts)]
        if not facts["listeners"]:
            text = "no live process has the role report-listener, which fetches parts and merges them"
            reasons.append(Reason("no_listener", text))
        if facts["restarts"]:
            times = "once" if facts["restarts"] == 1 else f"{facts['restarts']} times"
            reasons.append(Reason("restarted", f"stored parts were lost, and all were fetched again {times}"))
        if plan.stages > 1:
            reasons.append(Reason("stage", f"stage {facts['stage']} of {plan.stages} is under way"))
        reasons += _next(facts, plan, waited)
    return Explanation(facts["id"], facts["status"], reasons[0].text, reasons)


def _ended(facts: Facts) -> Iterator[Reason]:
    at = instant_text(facts["finished_at"])
    took = wait_text(facts["finished_at"] - facts["created_at"])
    if facts["status"] == "cancelled":
        yield Reason("cancelled", f"it was cancelled at {at}")
    elif facts["status"] == "failed":
        yield Reason(facts["error_code"] or "failed", f"it failed at {at}: {facts['error']}")
    else:
        yield Reason("finished", f"it was finished at {at}, {took} after its request")
        yield from _file(facts)


def _file(facts: Facts) -> Iterator[Reason]:
    missing = msgspec.json.decode(facts["missing"] or "[]")
    if missing:
        yield Reason("partial", f"its file is without the optional {', '.join(missing)}")
    until = facts["file_expires_at"]
    if not facts["has_file"] or until is None or until <= facts["now"]:
        yield Reason("file_expired", "its file is not kept any more")
    else:
        yield Reason("file_kept", f"its file is kept until {instant_text(until)}")


def _step(facts: Facts, waited: Sequence[Facts]) -> Iterator[Reason]:
    if facts["waits_for_slot"]:
        yield Reason("place_waited_for", "its parts are done; it waits for a process with a free merge slot")
    elif facts["status"] == "merging":
        tried = f", the {facts['tries']}. try" if facts["tries"] > 1 else ""
        yield Reason("merging", f"its parts are done and are being merged{tried}")
    elif not waited:
        state = "is under way" if facts["held"] else "is due; the next free process claims it"
        yield Reason("step_due", f"it waits for nothing more; its next step {state}")


def _waits(facts: Facts, waited: Sequence[Facts]) -> Iterator[Reason]:
    for part in waited:
        optional = "" if part["required"] else " (optional)"
        if part["state"] == "running":
            since = instant_text(part["began_at"])
            by = "" if part["worker"] is None else f" by {part['worker']}"
            yield Reason(
                "part_running",
                f"{part['listener']}{optional} is being fetched{by} since {since}, {part['rows']} rows so far",
            )
        else:
            yield from _due(facts, part, optional)


def _due(facts: Facts, part: Facts, optional: str) -> Iterator[Reason]:
    name, now = part["listener"] + optional, facts["now"]
    tried = _tried(part)
    if part["kind"] == "service":
        since = instant_text(min(part["due_at"], now))
        path = f"PUT /v1/reports/{facts['id']}/parts/{part['listener']}?epoch={facts['epoch']}"
        yield Reason(
            "service_waited_for", f"{name} is a service and has not delivered since {since}; it does so by {path}"
        )
    elif not part["able"]:
        yield Reason("nobody_serves", f"{name} waits{tried}: no live process has {_served(part)}")
    elif part["due_at"] > now:
        wait = wait_text(part["due_at"] - now)
        yield Reason("part_later", f"{name} is fetched in {wait} at the latest{tried}")
    else:
        since = instant_text(part["due_at"])
        yield Reason("part_due", f"{name} is due since {since}{tried}; {part['able']} live processes can fetch it")


def _tried(part: Facts) -> str:
    if not part["attempts"]:
        return ""
    times = "once" if part["attempts"] == 1 else f"{part['attempts']} times"
    error = f"; the last error: {part['error'][:ERROR_CHARS_MAX]}" if part["error"] else ""
    return f", was tried {times}{error}"


def _served(part: Facts) -> str:
    kind, _, name = part["served_by"].partition(":")
    if kind == "source":
        return f"the source {name}; write [sources.{name}] into the TOML file of one with the role report-listener"
    return f'a function for it; see @app.listener("{name}")'


def _failed_parts(parts: Sequence[Facts]) -> Iterator[Reason]:
    for part in parts:
        if part["state"] == "failed":
            optional = "" if part["required"] else " (optional)"
            error = (part["error"] or "no reason given")[:ERROR_CHARS_MAX]
            yield Reason("part_failed", f"{part['listener']}{optional} failed for good: {error}")


def _next(facts: Facts, plan: Plan, waited: Sequence[Facts]) -> Iterator[Reason]:
    now: datetime = facts["now"]
    if waited and facts["check_at"] is not None:
        last = facts["checks"] + 1 >= plan.checks
        does = "it gives up on what is missing" if last else "what is missing is announced again"
        left = f"check {facts['checks'] + 1} of {plan.checks}"
        yield Reason("next_check", f"{does} {_when(facts['check_at'], now)} ({left})")
    yield Reason("deadline", f"it fails where it is not finished {_when(facts['deadline_at'], now)}")


def _when(at: datetime, now: datetime) -> str:
    if at - now <= timedelta():
        return "now"
    return f"at {instant_text(at)}, in {wait_text(at - now)}"


# ---------------------------------------------------------------------- timeline

OPEN = frozenset({"due", "running"})
Row = Mapping[str, Any]


def timeline(parts: Sequence[Row]) -> list[PartView]:
    """Return the rows of ``get_parts`` as views; ``now`` is the database's clock."""
    last: dict[int, datetime] = {}
    for part in parts:
        end = _end(part)
        if end is not None:
            last[part["stage"]] = max(end, last.get(part["stage"], end))
    marked: set[int] = set()
    views = []
    for part in parts:
        stage, end = part["stage"], _end(part)
        slowest = end is not None and end == last[stage] and stage not in marked
        if slowest:
            marked.add(stage)
        began_at, now = part["began_at"], part["now"]
        waited_s = _between(part["asked_at"], began_at or (now if part["state"] in OPEN else None))
        took_s = _between(began_at, now if part["state"] == "running" else part["done_at"])
        views.append(view(PartView, part, waited_s=waited_s, took_s=took_s, slowest=slowest))
    return views


def _end(part: Row) -> datetime | None:
    """Return until when a part keeps its stage open; ``None`` for one that waits or was dropped."""
    end: datetime | None = part["now"] if part["state"] in OPEN else part["done_at"]
    return end


def _between(begin: datetime | None, end: datetime | None) -> float | None:
    return None if begin is None or end is None else max(0.0, (end - begin).total_seconds())
