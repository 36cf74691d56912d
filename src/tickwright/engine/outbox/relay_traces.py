"""Spans for outgoing messages of the outbox, each in the trace in which its row was written.

A message whose row names no trace gets no span: most of these are internal and of no interest.
"""

from collections.abc import Sequence
from dataclasses import replace

from opentelemetry.trace import Span

from tickwright.domain.traceparent import NAME, read_traceparent
from tickwright.observe import traces
from tickwright.ports.broker import Accepted, Broker, Message, Outcome


async def publish_traced(broker: Broker, messages: Sequence[Message]) -> list[Outcome]:
    """Publish; if this process records traces, with a span for each message that belongs to one."""
    if not traces.recording():
        return await broker.publish_many(messages)
    spans = [_begin(message) for message in messages]
    try:
        outcomes = await broker.publish_many([_led_by(span, one) for span, one in zip(spans, messages, strict=True)])
        for span, outcome in zip(spans, outcomes, strict=True):
            if not isinstance(outcome, Accepted):
                traces.fail(span, outcome.code)
        return outcomes
    finally:
        for span in spans:
            span.end()


def _begin(message: Message) -> Span:
    parent = read_traceparent(message.headers.get(NAME))
    if parent is None:
        return traces.NO_SPAN
    return traces.start("send", traces.shown(message.destination), parent, {"messaging.message.id": message.id})


def _led_by(span: Span, message: Message) -> Message:
    """Return ``message`` with a ``traceparent`` that names ``span`` as the sender."""
    here = traces.traceparent_of_span(span)
    return message if here is None else replace(message, headers={**message.headers, NAME: here})
