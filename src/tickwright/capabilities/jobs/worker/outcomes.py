"""What an attempt ended as, by what its handler raised or returned: an object of a user's, which may do anything."""

import traceback
from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec
import structlog

from tickwright.capabilities.jobs.handlers import PayloadInvalid
from tickwright.capabilities.jobs.model import Completed, Ending, Errored, Fail, Job, Retry, Snooze, Snoozed
from tickwright.domain.functions import error_text
from tickwright.domain.retries import WAIT_MAX

_log = structlog.get_logger("tickwright.jobs")


def outcome_of_raised(job: Job, error: BaseException) -> Ending:
    """Return what the attempt ended as whose handler raised ``error``; the class is the user's, and may do anything."""
    try:
        ending = outcome_of_error(error)
        is_known = isinstance(error, Exception)
    except BaseException as failure:  # noqa: BLE001  as above
        is_known, is_final = False, issubclass(type(error), Fail)
        ending = Errored("handler_error", f"{type(error).__name__}: {error_text(failure)}", final=is_final)
    if not is_known:
        _log.warning("jobs.handler_raised", job=job.id, task_type=job.type, error=type(error).__name__)
    return ending


def outcome_of_error(error: BaseException) -> Ending:
    """Return what this error of a handler ends an attempt as."""
    match error:
        case Snooze():
            return Snoozed(_checked(error.wait))
        case Fail():
            return Errored("handler_failed", str(error), final=True)
        case Retry():
            return Errored("handler_retry", str(error), retry_after=error.after and _checked(error.after))
        case PayloadInvalid():
            return Errored("payload_invalid", f"payload_invalid: {error}", final=True)
        case _:
            return Errored("handler_error", "".join(traceback.format_exception_only(error)).strip())


def _checked(wait: object) -> timedelta:
    if not isinstance(wait, timedelta):
        raise TypeError(f"a wait is a timedelta, not {type(wait).__name__}")
    if wait > WAIT_MAX:
        raise ValueError(f"a wait has {WAIT_MAX.days} days at the most")
    return max(wait, timedelta())


def outcome_of_result(job: Job, result: Any) -> Ending:
    """Return what the attempt ended as whose handler returned ``result``."""
    try:
        if isinstance(result, Snoozed):
            return Snoozed(_checked(result.wait))
        if isinstance(result, Errored) and result.retry_after is not None:
            return replace(result, retry_after=_checked(result.retry_after))
        if isinstance(result, (Completed, Errored)):
            return result
        return Completed(msgspec.json.encode(result).decode())
    except BaseException as error:  # noqa: BLE001  as above: to walk through the result may do anything
        _log.warning("jobs.result_invalid", job=job.id, task_type=job.type, error=type(error).__name__)
        why = f"result_invalid: the handler's result is not JSON: {error_text(error)}"
        return Errored("result_invalid", why, final=True)
