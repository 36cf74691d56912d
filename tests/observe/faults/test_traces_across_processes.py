"""One trace over all processes that take part, as a real collector gets it; and a collector that does not answer."""

import asyncio
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from subprocess import run

import aiohttp
import pytest
from aiohttp import web
from opentelemetry import context, trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from kit.cli import environment, tickwright
from kit.forks import Child
from kit.ports import free_port
from kit.processes import kill_group, spawn
from kit.traces import Collector, Kept, drawn
from kit.waiting import eventually_async
from tickwright import Tickwright
from tickwright.capabilities.jobs.requests import TaskTypeRequest
from tickwright.ports.caller import Caller, Role

PAGE = Path(__file__).parents[3] / "docs/tracing.md"
PROGRAM = Path(__file__).parents[2] / "kit/trace_program.py"
ADMIN = Caller("test", Role.ADMIN)
SPANS = 9


@contextmanager
def tracer_of(service: str, url: str) -> Iterator[tuple[TracerProvider, Tracer]]:
    """An external service, with spans of its own."""
    provider = TracerProvider(resource=Resource({"service.name": service}), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{url}/v1/traces")))
    try:
        yield provider, provider.get_tracer("test")
    finally:
        provider.shutdown()


@asynccontextmanager
async def receiver(tracer: Tracer) -> AsyncIterator[str]:
    """A service that takes callbacks and messages, each in a span below the sender's."""

    async def take(request: web.Request) -> web.Response:
        above = TraceContextTextMapPropagator().extract(dict(request.headers))
        with tracer.start_as_current_span(f"POST {request.path}", above, SpanKind.SERVER):
            return web.Response()

    app = web.Application()
    app.router.add_post("/callback", take)
    app.router.add_post("/hook", take)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def place(url: str, key: str, tracer: Tracer) -> None:
    """Ask for a job inside a span of the caller's, as its HTTP client's instrumentation does."""
    carrier: dict[str, str] = {"authorization": f"Bearer {key}"}
    with tracer.start_as_current_span("checkout", kind=SpanKind.CLIENT) as span:
        TraceContextTextMapPropagator().inject(carrier, trace.set_span_in_context(span, context.Context()))
        body = {"task_type": "order.placed", "payload": {"order": 42}}
        async with (
            aiohttp.ClientSession() as client,
            client.post(f"{url}/v1/jobs", json=body, headers=carrier) as answer,
        ):
            assert answer.status == 201, await answer.text()


async def ready(at: str) -> None:
    """Wait until every loop of a process has ticked."""
    async with aiohttp.ClientSession() as client:

        async def is_ready() -> bool:
            try:
                async with client.get(f"http://{at}/readyz") as answer:
                    return answer.status == 200
            except aiohttp.ClientConnectionError:
                return False

        await eventually_async(is_ready, 30, what=f"{at} is ready")


def nested(spans: list[Kept]) -> list[tuple[str, str]]:
    """Return every span with its parent, by name, without ports."""
    names = {span.id: re.sub(r":\d+", "", span.name) for span in spans}
    return sorted((names.get(span.parent, ""), names[span.id]) for span in spans)


def normal(text: str) -> str:
    """Return a drawn trace without what differs from run to run."""
    return "\n".join(re.sub(r" +", " ", re.sub(r"[\d.]+", "#", line)).strip() for line in text.strip().splitlines())


async def test_one_trace_goes_from_the_caller_to_the_receivers(database_url: str, tmp_path: Path) -> None:
    """Caller, API, worker, callback's receiver, outbox, relay, message's receiver: three processes, one trace.

    What the page of tracing shows is this trace.
    """
    children: list[Child] = []
    api = f"127.0.0.1:{free_port()}"
    async with Collector() as collector:
        with (
            tracer_of("shop-web", collector.url) as (web_provider, web_tracer),
            tracer_of("billing", collector.url) as (billing_provider, billing_tracer),
        ):
            async with receiver(billing_tracer) as at:
                async with Tickwright(database_url, allow_targets="127.0.0.1") as app:
                    target = TaskTypeRequest(target=f"{at}/callback")
                    await app.service.types.put("order.callback", target, caller=ADMIN)
                    key = (await app.operations.keys.create("shop", Role.OPERATOR, caller=ADMIN)).key
                env = {
                    **environment(DATABASE_URL=database_url, TRACES="true", API_BIND=api, ALLOW_TARGETS="127.0.0.1"),
                    "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
                    "OTEL_BSP_SCHEDULE_DELAY": "200",
                    "TICKWRIGHT_TEST_HOOK": f"{at}/hook",
                }
                try:
                    for words, more in (
                        ([str(PROGRAM)], {"OTEL_SERVICE_NAME": "shop-worker"}),
                        (["-m", "tickwright", "run", "api", "relay"], {}),
                    ):
                        probes = f"127.0.0.1:{free_port()}"
                        own = {"TICKWRIGHT_METRICS_BIND": probes, **more}
                        children.append(spawn([sys.executable, *words], tmp_path / "log", {**env, **own}))
                        await ready(probes)
                    await place(f"http://{api}", key, web_tracer)

                    async def whole() -> list[Kept]:
                        for provider in (web_provider, billing_provider):
                            await asyncio.to_thread(provider.force_flush)
                        roots = [span for span in collector.spans if span.name == "checkout"]
                        found = collector.of(roots[0].trace) if roots else []
                        return found if len(found) >= SPANS else []

                    spans = await eventually_async(whole, 30, what=f"a whole trace; {(tmp_path / 'log').read_text()}")
                    for child in children:
                        child.send_signal(signal.SIGTERM)
                    assert [await asyncio.to_thread(child.wait, 40) for child in children] == [0, 0]
                finally:
                    for child in children:
                        kill_group(child)
    hook = "http://127.0.0.1"
    assert nested(spans) == sorted(
        [
            ("", "checkout"),
            ("checkout", "send order.placed"),
            ("send order.placed", "process order.placed"),
            ("process order.placed", "send order.callback"),
            ("send order.callback", "process order.callback"),
            ("process order.callback", "POST /callback"),
            ("process order.placed", f"create {hook}"),
            (f"create {hook}", f"send {hook}"),
            (f"send {hook}", "POST /hook"),
        ]
    )
    services = {re.sub(r":\d+", "", span.name): span.service for span in spans}
    assert services["send order.placed"] == services[f"send {hook}"] == "tickwright"
    assert services["process order.placed"] == "shop-worker"
    shown = re.search(r"```text\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert shown is not None
    assert normal(shown[1]) == normal(drawn(spans)), drawn(spans)


@pytest.mark.matrix
@pytest.mark.parametrize("listening", [True, False])
def test_a_collector_that_does_not_answer_holds_up_no_end(database_url: str, tmp_path: Path, listening: bool) -> None:
    """Silent or unreachable: spans that were not sent by then are dropped."""
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        if listening:
            deaf.listen()
        env = {
            **environment(DATABASE_URL=database_url, TRACES="true", METRICS_BIND=f"127.0.0.1:{free_port()}"),
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{deaf.getsockname()[1]}",
            "OTEL_EXPORTER_OTLP_TIMEOUT": "600",
            "TICKWRIGHT_TEST_HOOK": "pg:hooks",
        }
        child = spawn([sys.executable, str(PROGRAM)], tmp_path / "log", env)
        try:
            asyncio.run(_one_order(database_url))
            child.send_signal(signal.SIGTERM)
            assert child.wait(timeout=40) == 0
        finally:
            kill_group(child)


async def _one_order(url: str) -> None:
    async with Tickwright(url) as app:
        await app.service.types.put("order.callback", TaskTypeRequest(target="python:none"), caller=ADMIN)

        async def placed() -> object:
            return await app.pool.fetchval("SELECT 1 FROM tickwright.task_types WHERE name = 'order.placed'")

        await eventually_async(placed, 30, what="the program has declared its type")
        made = await app.schedule("order.placed", {"order": 1})

        async def done() -> bool:
            return (await app.get(made.id)).status == "completed"

        await eventually_async(done, 30, what="the order is done")


def test_without_the_extra_traces_are_refused_and_everything_else_works(database_url: str) -> None:
    """One line that says what to install; a process without tracing does not need it."""
    words = (
        "import sys; sys.modules.update({'opentelemetry.sdk': None, 'opentelemetry.sdk.trace': None}); "
        "sys.argv = ['tickwright', 'task-types', 'list']; from tickwright.cli import main; main()"
    )
    wanted = environment(DATABASE_URL=database_url, TRACES="true")
    refused = run([sys.executable, "-c", words], env=wanted, capture_output=True, text=True, check=False, timeout=60)
    assert (refused.returncode, "pip install 'tickwright[tracing]'" in refused.stderr) == (1, True), refused.stderr
    assert "Traceback" not in refused.stderr
    plain = environment(DATABASE_URL=database_url)
    fine = run([sys.executable, "-c", words], env=plain, capture_output=True, text=True, check=False, timeout=60)
    assert fine.returncode == 0, fine.stderr
    assert tickwright("task-types", "list", env=wanted).code == 0
