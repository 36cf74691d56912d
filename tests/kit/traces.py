"""Traces for tests: spans kept in memory, and a collector that receives them by OTLP over HTTP."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1 import trace_pb2
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Tracer

from tickwright.observe import traces

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TRACE_ID = CALLER[3:35]


@dataclass(frozen=True)
class Kept:
    """One span as a collector keeps it; ids in hexadecimal, ``parent`` empty for the first of a trace."""

    name: str
    kind: str
    trace: str
    id: str
    parent: str
    begun_ns: int
    ended_ns: int
    failed: bool
    facts: Mapping[str, Any]
    flags: int
    service: str = ""

    @property
    def traceparent(self) -> str:
        """The header that refers to it."""
        return f"00-{self.trace}-{self.id}-{self.flags:02x}"


class Memory:
    """The spans of this process, from :func:`recorded`."""

    def __init__(self, exporter: InMemorySpanExporter, tracer: Tracer) -> None:
        self._exporter, self.tracer = exporter, tracer

    @property
    def spans(self) -> list[Kept]:
        """Return the ended spans, in the order of their ends."""
        return [_kept(span) for span in self._exporter.get_finished_spans()]

    def named(self, name: str) -> list[Kept]:
        """Return the spans with this name."""
        return [span for span in self.spans if span.name == name]

    def one(self, name: str) -> Kept:
        """Return the only span with this name."""
        [span] = self.named(name)
        return span


@contextmanager
def recorded() -> Iterator[Memory]:
    """Record in memory for the length of the block."""
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("test")
    traces.record_with(tracer)
    try:
        yield Memory(exporter, tracer)
    finally:
        traces.record_with(None)
        provider.shutdown()


def _kept(span: ReadableSpan) -> Kept:
    here = span.get_span_context()
    assert here is not None
    return Kept(
        span.name,
        span.kind.name,
        f"{here.trace_id:032x}",
        f"{here.span_id:016x}",
        f"{span.parent.span_id:016x}" if span.parent is not None else "",
        span.start_time or 0,
        span.end_time or 0,
        span.status.status_code.name == "ERROR",
        dict(span.attributes or {}),
        here.trace_flags,
    )


class Collector:
    """Receives spans at ``url`` + ``/v1/traces``; ``spans`` are decoded, ``raw`` are the requests."""

    def __init__(self) -> None:
        self.spans: list[Kept] = []
        self.raw = b""
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_post("/v1/traces", self._take)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    def of(self, trace_id: str) -> list[Kept]:
        """Return the spans of one trace, in the order of their starts."""
        return sorted((span for span in self.spans if span.trace == trace_id), key=lambda span: span.begun_ns)

    async def _take(self, request: web.Request) -> web.Response:
        self.raw += await request.read()
        sent = ExportTraceServiceRequest.FromString(await request.read())
        for resource in sent.resource_spans:
            service = {fact.key: fact.value.string_value for fact in resource.resource.attributes}["service.name"]
            for scope in resource.scope_spans:
                self.spans += [_taken(span, service) for span in scope.spans]
        return web.Response(body=b"", content_type="application/x-protobuf")


def _taken(span: trace_pb2.Span, service: str) -> Kept:
    return Kept(
        span.name,
        trace_pb2.Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        span.status.code == trace_pb2.Status.STATUS_CODE_ERROR,
        {fact.key: getattr(fact.value, str(fact.value.WhichOneof("value"))) for fact in span.attributes},
        span.flags & 0xFF,
        service,
    )


def drawn(spans: Iterable[Kept]) -> str:
    """Return one trace as a tree of lines: start and duration of each span in ms, name, service, attributes."""
    known = sorted(spans, key=lambda span: span.begun_ns)
    ids = {span.id for span in known}
    lines: list[str] = []

    def draw(span: Kept, depth: int) -> None:
        took_ms, at_ms = (span.ended_ns - span.begun_ns) / 1e6, (span.begun_ns - known[0].begun_ns) / 1e6
        left = f"{'  ' * depth}{span.name}"
        which = span.facts.get("messaging.message.id", "")
        lines.append(f"{at_ms:8.1f} {took_ms:7.1f}  {left:<52} {span.kind:<9} {span.service:<11} {which}".rstrip())
        for child in known:
            if child.parent == span.id:
                draw(child, depth + 1)

    for span in known:
        if span.parent not in ids:
            draw(span, 0)
    return "\n".join(lines)
