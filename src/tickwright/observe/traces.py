"""Traces: connect a caller, its job, its outbox messages and their receiver.

There are two parts. *Propagation*: the ``traceparent`` of a caller is passed to its job, callback and messages, even if
no process records. *Recording*: spans are made in a process that called ``record_with``; otherwise each function here
only reads one variable. Names follow OpenTelemetry for messaging: a producer has ``create`` and ``send``, a consumer
``process``.

A span never contains parts of a payload, a result or an error's text, because it goes to another system.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, SpanKind, StatusCode, TraceFlags, Tracer

from tickwright.domain.errors import TickwrightError, safe_text
from tickwright.domain.traceparent import read_traceparent

Operation = Literal["create", "send", "process"]
Fact = str | int | bool
NO_SPAN = trace.INVALID_SPAN
SYSTEM = "tickwright"
_DESTINATION_CHARS_MAX = 200


class _Recorder:
    """The tracer of this process, which all parts share."""

    tracer: Tracer | None = None


_recorder = _Recorder()


def record_with(tracer: Tracer | None) -> None:
    """Make spans with ``tracer`` from now on; none with ``None``."""
    _recorder.tracer = tracer


def recording() -> bool:
    """Return whether this process makes spans."""
    return _recorder.tracer is not None


def current() -> str | None:
    """Return the ``traceparent`` of the running code, of our span or of the program's own."""
    here = trace.get_current_span()
    return None if here is NO_SPAN else traceparent_of_span(here)


def traceparent_of_span(span: Span) -> str | None:
    """Return the ``traceparent`` for ``span``; ``None`` if it belongs to no trace."""
    here = span.get_span_context()
    return f"00-{here.trace_id:032x}-{here.span_id:016x}-{here.trace_flags:02x}" if here.is_valid else None


def leave() -> None:
    """Detach this task from any trace, for a loop that works for many callers."""
    contexts.attach(Context())


@contextmanager
def continued(traceparent: str | None) -> Iterator[None]:
    """Run the block as a part of the caller's trace; change nothing if ``traceparent`` is missing or malformed."""
    parent = read_traceparent(traceparent)
    if parent is None:
        yield
        return
    token = contexts.attach(_context_of(parent))
    try:
        yield
    finally:
        contexts.detach(token)


def start(operation: Operation, destination: str, parent: str | None, facts: Mapping[str, Fact]) -> Span:
    """Return a span in the trace of ``parent``, or in a new trace; the caller ends it.

    It does not become the current span, so several messages that are sent together can each have one.
    """
    return _start(operation, destination, _context_of(parent), facts)


@contextmanager
def working(operation: Operation, destination: str, facts: Mapping[str, Fact] | None = None) -> Iterator[Span]:
    """Run the block in a span of the current trace; without recording, only run it."""
    if _recorder.tracer is None:
        yield NO_SPAN
        return
    with _inside(_start(operation, destination, None, facts or {})) as span:
        yield span


@contextmanager
def attempting(destination: str, parent: str | None, facts: Mapping[str, Fact]) -> Iterator[Span]:
    """Run the block as one attempt of a request with ``parent``, in its trace or in a new one.

    Without recording the block still belongs to the trace of ``parent``, so its own requests do too.
    """
    if _recorder.tracer is None:
        with continued(parent):
            yield NO_SPAN
        return
    with _inside(start("process", destination, parent, facts)) as span:
        yield span


def fail(span: Span, code: str) -> None:
    """Mark a span as failed with a stable code."""
    span.set_status(StatusCode.ERROR)
    span.set_attribute("error.type", code)


def span_destination(destination: str) -> str:
    """Return a destination for a span: of a URL only scheme and host, which hides secrets and bounds the names."""
    scheme, separator, rest = destination.partition("://")
    if not separator:
        return destination[:_DESTINATION_CHARS_MAX]
    host = rest.partition("/")[0].partition("?")[0].rpartition("@")[2]
    return f"{scheme}://{host}"[:_DESTINATION_CHARS_MAX]


@contextmanager
def _inside(span: Span) -> Iterator[Span]:
    token = contexts.attach(trace.set_span_in_context(span))
    try:
        yield span
    except BaseException as error:
        fail(span, _code_of(error))
        raise
    finally:
        contexts.detach(token)
        span.end()


def _code_of(error: BaseException) -> str:
    kind = type(error).__qualname__
    return safe_text(lambda: f"{error.code}", kind) if isinstance(error, TickwrightError) else kind


def _start(operation: Operation, destination: str, context: Context | None, facts: Mapping[str, Fact]) -> Span:
    tracer = _recorder.tracer
    if tracer is None:
        return NO_SPAN
    kind = SpanKind.CONSUMER if operation == "process" else SpanKind.PRODUCER
    named = {
        "messaging.system": SYSTEM,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": destination,
    }
    return tracer.start_span(f"{operation} {destination}", context, kind, {**named, **facts})


def _context_of(traceparent: str | None) -> Context:
    parent = read_traceparent(traceparent)
    if parent is None:
        return Context()
    _, trace_id, span_id, flags = parent.split("-")
    caller = SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=TraceFlags(int(flags, 16)))
    return trace.set_span_in_context(NonRecordingSpan(caller), Context())
