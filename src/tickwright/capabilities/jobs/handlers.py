"""Python handlers: how a program registers them, and how a payload becomes their arguments.

A handler takes the job first and then typed arguments, which are read from the payload by name::

    @app.job("invoice.remind")
    async def remind(job: Job, invoice_id: int) -> None: ...

The payload is checked against the annotations before the handler starts. A payload that does not fit fails the job at
once with the code ``payload_invalid``, because it would not fit at the next attempt either. Fields that the handler
does not name are ignored, so that a payload may get new fields before its handlers do.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, get_type_hints

import msgspec

from tickwright.capabilities.jobs.model import Job, TaskType
from tickwright.domain.errors import Rejected
from tickwright.engine.registry import Registry
from tickwright.observe.logs import without_secrets

MESSAGE_CHARS_MAX = 1000

Function = Callable[..., Any]
Call = Callable[[Job], Any]


class PayloadInvalid(Exception):
    """The payload does not fit the handler's arguments; exceptions of the handler itself are never of this type."""


@dataclass(frozen=True, slots=True)
class Handler:
    """A registered function, the defaults of its type, and the call that decodes a payload into its arguments."""

    defaults: TaskType
    function: Function
    call: Call
    is_async: bool

    @property
    def name(self) -> str:
        """The name of the task type and of the handler."""
        return self.defaults.name


def make_handler(defaults: TaskType, function: Function) -> Handler:
    """Wrap ``function`` as the handler of ``defaults.name``.

    Raises:
        Rejected: ``invalid_handler``, the signature cannot be called with a job and a JSON object. Permanent.
    """
    return Handler(defaults, function, _call_of(function), inspect.iscoroutinefunction(function))


def _call_of(function: Function) -> Call:
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters:
        raise Rejected("invalid_handler", f"{function.__qualname__} must take the job as its first argument")
    named = parameters[1:]
    if not named:
        return function
    if any(p.kind in {p.VAR_POSITIONAL, p.POSITIONAL_ONLY, p.VAR_KEYWORD} for p in named):
        raise Rejected("invalid_handler", f"{function.__qualname__}: give each payload field a parameter of its own")
    hints = get_type_hints(function)
    fields = [
        (p.name, hints.get(p.name, Any)) if p.default is p.empty else (p.name, hints.get(p.name, Any), p.default)
        for p in named
    ]
    fields.sort(key=len)  # a struct needs its required fields first; the call passes them by name
    decode = msgspec.json.Decoder(msgspec.defstruct("Arguments", fields)).decode
    names = [p.name for p in named]
    get, only = attrgetter(*names), names[0] if len(names) == 1 else None

    def call(job: Job) -> Any:
        try:
            found = get(decode(job.row.payload))
        except (msgspec.ValidationError, msgspec.DecodeError) as error:
            raise PayloadInvalid(_shortened(str(error))) from error
        return function(job, **({only: found} if only else dict(zip(names, found, strict=True))))

    return call


def _shortened(message: str) -> str:
    """Return msgspec's message, which quotes a refused value whole and ends with its place, shortened."""
    if len(message) <= MESSAGE_CHARS_MAX:
        return message
    _, at, place = message[-MESSAGE_CHARS_MAX // 2 :].rpartition(" - at `")
    return f"{without_secrets(message)[: MESSAGE_CHARS_MAX // 2]}…{at}{place if at else ''}"


NAMES_MAX = 1000


class HandlerRegistry(Registry[Handler]):
    """The handlers of one program, by task type."""

    kind = "handler"

    def names(self) -> list[str] | None:
        """Return the names of the handlers for the session's facts, or ``None`` if there are more than 1,000."""
        return sorted(self._declared) if len(self._declared) <= NAMES_MAX else None
