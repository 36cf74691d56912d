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
from datetime import timedelta
from typing import Any

from tickwright.capabilities.jobs.arguments import Arguments
from tickwright.capabilities.jobs.model import Job, TaskType
from tickwright.capabilities.jobs.unique import Unique
from tickwright.capabilities.jobs.worker.chunks import ChunkArguments, ChunkCall
from tickwright.engine.registry import Registry
from tickwright.plugin.lifespan import Around, Lifespan

Function = Callable[..., Any]
Call = Callable[[Job], Any]


@dataclass(frozen=True, slots=True)
class Handler:
    """A registered function and the defaults of its type.

    Attributes:
        call: Decodes a payload into the function's arguments, fills in its resources and calls it.
        lifespan: Of its program: resources and middleware.
    """

    defaults: TaskType
    function: Function
    arguments: Arguments | ChunkArguments
    call: Call
    is_async: bool
    lifespan: Lifespan

    @property
    def name(self) -> str:
        """The name of the task type and of the handler."""
        return self.defaults.name

    def check_unique(self, rule: Unique) -> None:
        """Refuse a rule with names that are no arguments of the handler. Raises ``Rejected`` (``invalid_unique``)."""
        if isinstance(self.arguments, Arguments):
            rule.check_names(self.arguments.names)

    @property
    def around(self) -> Around | None:
        """What runs around each attempt; ``None`` without middleware."""
        return self.lifespan.around


def make_handler(defaults: TaskType, function: Function, lifespan: Lifespan | None = None) -> Handler:
    """Wrap ``function`` as the handler of ``defaults.name``.

    Raises:
        Rejected: ``invalid_handler``, the signature cannot be called with a job and a JSON object. ``invalid_unique``,
            the rule of its type names an argument that it does not have. Permanent.
    """
    arguments = Arguments(function)
    lifespan = lifespan or Lifespan()
    call = _call_of(lifespan.filled(function), arguments)
    handler = Handler(defaults, function, arguments, call, inspect.iscoroutinefunction(function), lifespan)
    if defaults.unique is not None:
        handler.check_unique(defaults.unique)
    return handler


def make_chunk_handler(
    defaults: TaskType, function: Function, lifespan: Lifespan, *, size: int, within: timedelta
) -> Handler:
    """Wrap ``function`` as the handler of chunks of ``defaults.name``. Errors as :func:`make_handler`."""
    arguments = ChunkArguments(function)
    call = ChunkCall(lifespan.filled(function), arguments, size=size, within=within)
    return Handler(defaults, function, arguments, call, True, lifespan)


def _call_of(function: Function, arguments: Arguments) -> Call:
    if not arguments.names:
        return function
    read = arguments.read

    def call(job: Job) -> Any:
        return function(job, **read(job.row.payload))

    return call


NAMES_MAX = 1000


class HandlerRegistry(Registry[Handler]):
    """The handlers of one program, by task type."""

    kind = "handler"

    def names(self) -> list[str] | None:
        """Return the names of the handlers for the session's facts, or ``None`` if there are more than 1,000."""
        return sorted(self._declared) if len(self._declared) <= NAMES_MAX else None
