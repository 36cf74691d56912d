"""Explains why an entity is polled for a module now, or is not, as codes and text. Pure: the store loads the facts.

Reasons are in order: what prevents publishing, what prevents running, the windows. The first one is the summary.
"""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from tickwright.capabilities.fanout.consumer.task_run import timed_out_lately
from tickwright.capabilities.fanout.entities.views import EntityExplanation
from tickwright.domain.modules import parse_modules, window_at
from tickwright.domain.time_texts import instant_text, wait_text
from tickwright.partners.quiet import quiet_until
from tickwright.partners.settings import read_kept, unreadable
from tickwright.ports.fanout import TIMED_OUT
from tickwright.ports.views import Reason

ERROR_CHARS_MAX = 300
Facts = Mapping[str, Any]


def explain(facts: Facts, state: Facts) -> EntityExplanation:
    """Return the reasons for one entity and module, from the rows of the queries ``explain`` and ``module_states``."""
    shut, running = list(_not_polled(facts, state)), list(_running(state))
    if shut:
        status, reasons = "not_polled", [*shut, *running]
    else:
        ran = _has_run(state)
        failing = list(_failing(state))
        status = "running" if running else "ran" if ran else "failing" if failing else "due"
        around = [*_partner(facts), *_no_process(facts, state), *_gate(facts, state)]
        late = [*failing, *_slow(state), *around]
        reasons = [*running, *_window(state), *late] if ran else [*running, *late, *_window(state)]
    reasons.extend(_last_success(state))
    return EntityExplanation(facts["code"], state["name"], status, reasons[0].text, reasons)


def _not_polled(facts: Facts, state: Facts) -> Iterator[Reason]:
    """Yield what prevents every scheduler from publishing it."""
    code, name = facts["code"], state["name"]
    if not facts["is_polling_enabled"]:
        yield Reason("entity_paused", f"polling of {code} is paused: its is_polling_enabled is false")
    if not state["known"]:
        yield Reason("module_unknown", f"there is no module {name}; tickwright modules put {name} --every 15m")
    if name not in parse_modules(facts["polling_enabled_modules"]):
        listed = facts["polling_enabled_modules"] or "none"
        yield Reason("module_not_listed", f"{code} is not polled for {name}; its polling_enabled_modules: {listed}")
    if state["paused_at"] is not None:
        yield Reason("module_paused", f"the module {name} is paused since {instant_text(state['paused_at'])}")
    if facts["schedulers"] and _closed_gates(facts, state) == facts["schedulers"]:
        yield Reason("module_closed", f"no scheduler publishes it: {_gate_remedy(state)}")


def _closed_gates(facts: Facts, state: Facts) -> int:
    """Return how many schedulers do not publish the module; each has the gate in its own environment."""
    return int(facts["schedulers"] - facts["opening"] if state["is_gated"] else facts["closing"])


def _gate_remedy(state: Facts) -> str:
    variable = f"ENABLE_{state['name']}_POLLING"
    if state["is_gated"]:
        return f"the module is gated, so the environment of a scheduler has to say {variable}=true"
    return f"their environment says {variable}=false"


def _gate(facts: Facts, state: Facts) -> Iterator[Reason]:
    shut = _closed_gates(facts, state)
    if shut:
        of = f"{shut} of {facts['schedulers']} schedulers"
        yield Reason("module_closed_in_part", f"{of} do not publish it, the others do: {_gate_remedy(state)}")


def _running(state: Facts) -> Iterator[Reason]:
    if state["running_since"] is not None:
        since, window = instant_text(state["running_since"]), instant_text(state["running_window_at"])
        yield Reason("running", f"a run for the window of {window} is under way since {since}")


def _failing(state: Facts) -> Iterator[Reason]:
    if state["failures"]:
        times = "once" if state["failures"] == 1 else f"{state['failures']} times"
        at = "" if state["last_error_at"] is None else f" at {instant_text(state['last_error_at'])}"
        error = (state["last_error"] or "no reason given")[:ERROR_CHARS_MAX]
        yield Reason("failing", f"it failed {times} since its last success; the last error{at}: {error}")


def _slow(state: Facts) -> Iterator[Reason]:
    if state["last_error"] != TIMED_OUT:
        return
    share = "all slow entities together hold a part of the slots (TICKWRIGHT_FANOUT_SLOW_PERCENT)"
    if state["failures"]:
        yield Reason("slow", f"its last run timed out, so its next one waits for a slot of the slow ones: {share}")
    elif state["last_error_at"] is not None and timed_out_lately(
        (state["now"] - state["last_error_at"]).total_seconds(), state["interval_seconds"] or 0
    ):
        at = instant_text(state["last_error_at"])
        yield Reason("slow", f"a run timed out at {at}, so its next ones wait for a slot of the slow ones: {share}")


def _partner(facts: Facts) -> Iterator[Reason]:
    partner, now = facts["partner"], facts["now"]
    if partner is None:
        return
    if facts["partner_paused_at"] is not None:
        since = instant_text(facts["partner_paused_at"])
        yield Reason("partner_paused", f"the partner {partner} is paused since {since}; nothing is run")
    if facts["breaker"] == "open" and facts["open_until"] is not None and facts["open_until"] > now:
        error = f"; the last error: {facts['partner_error']}" if facts["partner_error"] else ""
        until = instant_text(facts["open_until"])
        yield Reason("breaker_open", f"calls to {partner} fail, and none is made until {until}{error}")
    elif facts["breaker"] == "half_open":
        yield Reason("breaker_half_open", f"calls to {partner} failed; single calls try whether it is back")
    if facts["blocked_until"] is not None and facts["blocked_until"] > now:
        until = instant_text(facts["blocked_until"])
        yield Reason("partner_asked_to_wait", f"{partner} asked for silence until {until}")
    settings, problem = read_kept(facts["settings"])
    if problem:
        yield Reason("settings_invalid", unreadable(partner, problem))
    quiet = quiet_until(now.timestamp(), settings.quiet)
    if quiet is not None:
        until = instant_text(datetime.fromtimestamp(quiet, UTC))
        yield Reason("partner_quiet", f"{partner} has quiet hours until {until}")


def _no_process(facts: Facts, state: Facts) -> Iterator[Reason]:
    if not facts["schedulers"]:
        text = "no live process has the role scheduler: no window is published"
        yield Reason("no_scheduler", text)
    if not facts["consumers"]:
        yield Reason("no_consumer", "no live process has the role fanout-consumer: no task is run")
    elif not facts["able"]:
        yield Reason("no_handler", f"no live fanout-consumer has a function for {state['name']}; see @app.module")


def _has_run(state: Facts) -> bool:
    last = state["last_window_at"]
    window = window_at(state["now"].timestamp(), state["interval_seconds"])
    return last is not None and bool(last.timestamp() >= window.start_s)


def _window(state: Facts) -> Iterator[Reason]:
    now: datetime = state["now"]
    window = window_at(now.timestamp(), state["interval_seconds"])
    begins, ends = (instant_text(datetime.fromtimestamp(at, UTC)) for at in (window.start_s, window.end_s))
    wait = wait_text(datetime.fromtimestamp(window.end_s, UTC) - now)
    if _has_run(state):
        yield Reason("window_ran", f"the window of {begins} ran; the next one begins at {ends}, in {wait}")
    else:
        yield Reason(
            "window_open", f"the window of {begins} has not run with success yet; it ends at {ends}, in {wait}"
        )


def _last_success(state: Facts) -> Iterator[Reason]:
    if state["last_success_at"] is not None:
        at = instant_text(state["last_success_at"])
        yield Reason("succeeded", f"its last run that succeeded began at {at}")
    elif state["known"]:
        yield Reason("never_succeeded", "no run of it has succeeded yet, as far as the database knows")
