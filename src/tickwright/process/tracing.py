"""Recording of spans: with the program's own provider, or with one that sends them by OTLP over HTTP.

``TICKWRIGHT_TRACES`` switches it on. OpenTelemetry's own variables, which its SDK reads, set the receiver, the sampling
and the service name. An unavailable collector causes a warning now and then and delays nothing, not even the end of the
process.
"""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from opentelemetry import trace

from tickwright import __version__
from tickwright.domain.errors import Rejected
from tickwright.observe.traces import record_with
from tickwright.plugin.settings import Settings

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

SEND_REST_S = 3.0
SERVICE = "tickwright"


class _Opened:
    """How many parts of this process record spans, and the provider that was made for them."""

    users = 0
    ours: "TracerProvider | None" = None


@asynccontextmanager
async def open_traces(settings: Settings) -> AsyncIterator[None]:
    """Record spans during the block, if ``TICKWRIGHT_TRACES`` is set; blocks may be nested.

    Raises:
        Rejected: ``tracing_not_installed``. Permanent until the extra is installed.
    """
    if not settings.traces:
        yield
        return
    if not _Opened.users:
        _begin()
    _Opened.users += 1
    try:
        yield
    finally:
        _Opened.users -= 1
        if not _Opened.users:
            await _end()


def _begin() -> None:
    try:
        from opentelemetry.sdk.trace import TracerProvider
    except ImportError:
        raise Rejected(
            "tracing_not_installed", "TICKWRIGHT_TRACES needs more packages: pip install 'tickwright[tracing]'"
        ) from None
    provider = trace.get_tracer_provider()
    if not isinstance(provider, TracerProvider):
        provider = _Opened.ours = _make_provider()
    record_with(provider.get_tracer("tickwright", __version__))


def _make_provider() -> "TracerProvider":
    """Return a separate provider; a program that wants its own spans sets up its own."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    resource = Resource.create()
    if str(resource.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: SERVICE}))
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


async def _end() -> None:
    """Stop recording, and send pending spans; after three seconds drop them."""
    record_with(None)
    provider, _Opened.ours = _Opened.ours, None
    if provider is None:
        return
    loop, over = asyncio.get_running_loop(), asyncio.Event()

    def send_rest() -> None:
        provider.shutdown()
        try:
            loop.call_soon_threadsafe(over.set)
        except RuntimeError:  # the loop did not wait for it
            return

    threading.Thread(target=send_rest, name="tickwright-traces", daemon=True).start()
    try:
        async with asyncio.timeout(SEND_REST_S):
            await over.wait()
    except TimeoutError:
        return
