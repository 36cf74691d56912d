"""The life of a program's process: lifespans, resources of its functions, middleware, and the open app."""

import asyncio
import contextlib
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import asyncpg
import pytest

from kit.cli import environment
from kit.processes import kill_group, spawn
from kit.waiting import eventually_async
from tickwright import Answer, EntityTask, Fail, Job, JobFailed, Poll, Rejected, ReportRequest, Tickwright, resource
from tickwright.plugin import lifespan as lifespans
from tickwright.plugin.lifespan import Lifespan


class Client:
    """A resource."""

    def __init__(self, name: str) -> None:
        self.name = name


class Pool:
    """Another one."""


@contextlib.asynccontextmanager
async def running(app: Tickwright, *roles: str) -> AsyncIterator[None]:
    """The app is open, with these roles in it; an error of theirs is raised at the end."""
    async with app:
        node = asyncio.create_task(app.run_worker(roles=roles))
        try:
            yield
        finally:
            node.cancel()
            await asyncio.gather(node, return_exceptions=True)


async def test_lifespans_open_before_the_first_attempt_and_close_after_the_last(database_url: str) -> None:
    """In their order, and in reverse; a running handler still has its resource when the process stops."""
    app, seen = Tickwright(database_url, metrics_bind="127.0.0.1:0", drain="10ms"), list[str]()
    started = asyncio.Event()

    @app.lifespan
    async def first(program: Tickwright) -> AsyncIterator[dict[str, Any]]:
        assert program is app
        seen.append("first opens")
        yield {"http": Client("first")}
        seen.append("first closes")

    @app.lifespan
    @contextlib.asynccontextmanager
    async def second() -> AsyncIterator[None]:
        seen.append("second opens")
        yield
        seen.append("second closes")

    @app.job("use", timeout="60s")
    async def use(_job: Job, http: Client = resource()) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            seen.append(f"used {http.name}")

    async with running(app, "worker"):
        await use.schedule()
        await asyncio.wait_for(started.wait(), 60)
    assert seen == ["first opens", "second opens", "used first", "second closes", "first closes"]


async def test_a_process_without_functions_opens_nothing(database_url: str) -> None:
    """A relay or a scheduler of the same program needs no client of its handlers."""
    app, opened = Tickwright(database_url, metrics_bind="127.0.0.1:0"), list[str]()

    @app.lifespan
    async def resources() -> AsyncIterator[None]:
        opened.append("opened")
        yield

    async with running(app, "relay", "scheduler"):

        async def alive() -> bool:
            return any(one.alive for one in await app.operations.workers())

        await eventually_async(alive, what="the process works")
    assert opened == []


def given(**values: Any) -> Lifespan:
    """A lifespan that yields these values."""
    lifespan = Lifespan()

    @contextlib.asynccontextmanager
    async def opener(_: Any) -> AsyncIterator[dict[str, Any]]:
        yield values

    lifespan.add(opener)
    return lifespan


async def test_a_resource_is_found_by_its_name_or_by_its_type() -> None:
    """The name of the marker counts first, then the parameter's, then the only value of the type."""
    lifespan = given(http=Client("http"), main=Pool(), other=Client("other"))

    def function(
        main: object = resource(), pool: Pool = resource(), http: Client = resource("other"), extra: int = 1
    ) -> tuple[object, Pool, Client, int]:
        return main, pool, http, extra

    filled = lifespan.filled(function)
    async with lifespan.opened(None):
        main, pool, http, extra = filled()
        assert main is pool
        assert (http.name, extra) == ("other", 1)
        assert filled(http=Client("mine"))[2].name == "mine", "what the caller passes counts"


async def test_a_missing_or_ambiguous_resource_ends_the_start_with_all_mistakes() -> None:
    """Not the first attempt."""
    lifespan = given(one=Client("1"), two=Client("2"))

    def function(client: Client = resource(), pool: Pool = resource(), _db: object = resource("db")) -> None:
        """Take resources that are not there."""

    lifespan.filled(function)
    with pytest.raises(Rejected) as refused:
        async with lifespan.opened(None):
            pass
    assert refused.value.code == "resource_missing"
    lines = refused.value.message.splitlines()
    assert [line.split(": ", 1)[1] for line in lines] == [
        "client: one, two have its type; write resource(NAME)",
        "pool: no lifespan yields 'pool'; there are: one, two",
        "_db: no lifespan yields 'db'; there are: one, two",
    ]


async def test_an_injected_resource_says_what_to_do_where_it_is_missing() -> None:
    """A handler that a test calls without its resource."""
    client = resource()
    with pytest.raises(AttributeError, match="pass it where you call the function"):
        _ = client.get


@pytest.mark.parametrize("wrong", [[1], "http", 7])
async def test_a_lifespan_yields_names(wrong: Any) -> None:
    """Anything but a mapping is refused; so are two lifespans with one name."""
    app = Tickwright()

    @app.lifespan
    async def resources() -> AsyncIterator[Any]:
        yield wrong

    with pytest.raises(Rejected) as refused:
        async with app.registrations.lifespan.opened(None):
            pass
    assert refused.value.code == "invalid_resources"


async def test_two_lifespans_do_not_yield_one_name() -> None:
    """Neither would know which one its functions get."""
    app = Tickwright()

    async def resources() -> AsyncIterator[Any]:
        yield {"http": 1}

    app.lifespan(resources)
    app.lifespan(resources)
    with pytest.raises(Rejected, match="two lifespans yield 'http'"):
        async with app.registrations.lifespan.opened(None):
            pass


def test_what_is_no_lifespan_and_no_middleware_is_refused() -> None:
    """Where it is declared."""
    app = Tickwright()
    with pytest.raises(Rejected, match="takes the app, or nothing"):
        app.lifespan(lambda one, two: None)
    with pytest.raises(Rejected, match="write an 'async def'"):
        app.middleware(cast("Any", lambda work, run: run()))

    async def without_the_rest(_work: Any) -> None: ...

    def not_async() -> Iterator[None]:
        yield

    async def without_yield() -> dict[str, Any]:
        return {}

    with pytest.raises(Rejected, match="the work and the rest of the attempt"):
        app.middleware(cast("Any", without_the_rest))
    for wrong in (not_async, without_yield):
        with pytest.raises(Rejected, match="an 'async def' that yields") as refused:
            app.lifespan(cast("Any", wrong))
        assert refused.value.code == "invalid_lifespan"


async def test_an_error_of_a_lifespan_ends_the_process(database_url: str) -> None:
    """It is raised as it is."""
    app = Tickwright(database_url, metrics_bind="127.0.0.1:0")

    @app.job("use")
    async def use(_job: Job) -> None: ...

    def fail() -> None:
        raise ConnectionError("the bank does not answer")

    @app.lifespan
    async def resources() -> AsyncIterator[None]:
        fail()
        yield

    async with app:
        with pytest.raises(ConnectionError, match="the bank"):
            await app.run_worker(roles=["worker"])


async def test_the_log_names_a_lifespan_that_does_not_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that does not start says what it waits for, and says so again."""
    monkeypatch.setattr(lifespans, "SLOW_S", 0.01)
    app, notes = Tickwright(), asyncio.Queue[dict[str, Any]]()
    log = SimpleNamespace(warning=lambda name, **fact: notes.put_nowait({name: fact}))
    monkeypatch.setattr("structlog.get_logger", lambda _name: log)

    @app.lifespan
    async def bank() -> AsyncIterator[None]:
        for _ in range(2):
            [(name, facts)] = (await notes.get()).items()
            assert (name, facts["lifespan"].rpartition(".")[2]) == ("lifespan.not_open_yet", "bank")
        yield

    async with app.registrations.lifespan.opened(None):
        pass


async def test_middleware_runs_around_every_attempt_and_sees_its_outcome(database_url: str) -> None:
    """Of asynchronous handlers and of threads; the first one is the outermost, and may change the result."""
    app, seen = Tickwright(database_url, metrics_bind="127.0.0.1:0"), list[str]()

    @app.middleware
    async def outer(work: Job, run: Callable[[], Awaitable[Any]]) -> Any:
        seen.append(f"{work.type} begins")
        try:
            return await run()
        except Fail as error:
            seen.append(f"{work.type} fails: {error}")
            raise
        finally:
            seen.append(f"{work.type} ends")

    @app.middleware
    async def inner(work: Job, run: Callable[[], Awaitable[Any]]) -> Any:
        result = await run()
        return None if result is None else [result, work.attempt]

    @app.job("good")
    async def good(_job: Job) -> int:
        return 1

    @app.job("bad")
    async def bad(_job: Job) -> None:
        raise Fail("no")

    @app.job("thread")
    def thread(_job: Job, name: str = "t") -> str:
        return f"{name} {threading.current_thread() is threading.main_thread()}"

    @app.job("bad.thread")
    def bad_thread(_job: Job) -> None:
        raise Fail("not here")

    async with running(app, "worker"):
        assert await app.result((await good.schedule()).id, timeout="60s") == [1, 1]
        assert await app.result((await thread.schedule()).id, timeout="60s") == ["t False", 1]
        for failing in (bad, bad_thread):
            handle = await app.schedule(failing.name)
            with pytest.raises(JobFailed):
                await handle.result(timeout="60s")
    assert seen == [
        "good begins", "good ends", "thread begins", "thread ends", "bad begins", "bad fails: no", "bad ends",
        "bad.thread begins", "bad.thread fails: not here", "bad.thread ends",
    ]  # fmt: skip


async def test_middleware_and_a_thread_that_cannot_be_stopped(database_url: str) -> None:
    """The attempt ends as timed out at once; the middleware sees a cancellation when the thread has ended."""
    app, seen = Tickwright(database_url, metrics_bind="127.0.0.1:0"), list[str]()
    go = threading.Event()

    @app.middleware
    async def around(_work: Job, run: Callable[[], Awaitable[Any]]) -> Any:
        try:
            return await run()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    @app.job("stuck", timeout="50ms", max_attempts=1)
    def stuck(_job: Job) -> None:
        go.wait(60)

    async with running(app, "worker"):
        handle = await stuck.schedule()
        with pytest.raises(JobFailed, match="timeout"):
            await handle.result(timeout="60s")
        assert seen == []
        go.set()

        async def told() -> bool:
            return seen == ["cancelled"]

        await eventually_async(told, what="the middleware ends")


async def test_functions_of_every_capability_get_resources_and_middleware() -> None:
    """Partner, module, listener, batch and plan: what the registry has is filled in, and enclosed."""
    app, seen = Tickwright(), list[str]()

    @app.middleware
    async def around(work: Any, run: Callable[[], Awaitable[Any]]) -> Any:
        seen.append(str(work))
        return await run()

    @app.lifespan
    async def resources() -> AsyncIterator[dict[str, Any]]:
        yield {"http": Client("shared")}

    @app.partner("dhl")
    async def dhl(_poll: Poll, http: Client = resource()) -> Answer:
        return Answer(http.name)

    @app.module("LOCATIONS")
    async def locations(_task: EntityTask, http: Client = resource()) -> None:
        seen.append(http.name)

    @app.listener("rows")
    async def rows(_request: ReportRequest, http: Client = resource()) -> AsyncIterator[dict[str, str]]:
        yield {"name": http.name}

    async def cut(_run: Any, http: Client = resource()) -> AsyncIterator[str]:
        yield http.name

    @app.batch("reconcile", plan=cut)
    async def reconcile(_chunk: Any, http: Client = resource()) -> None:
        seen.append(http.name)

    kinds = {type(one).__name__: one for one in app.registrations._registries.values()}
    async with app.registrations.lifespan.opened(None):
        assert (await kinds["CourierRegistry"].get("dhl").courier("poll")).status == "shared"
        await kinds["ModuleRegistry"].get("LOCATIONS").function("task")
        listener = kinds["ListenerRegistry"].get("rows")
        assert [row async for row in listener.function("request")] == [{"name": "shared"}]
        assert listener.lifespan is app.registrations.lifespan
        batch = kinds["BatchRegistry"].get("reconcile")
        assert [value async for value in batch.plan("run")] == ["shared"]
        await batch.function("chunk")
    assert seen == ["poll", "task", "shared", "chunk", "shared"]


PROGRAM = """
from collections.abc import AsyncIterator

from tickwright import Job, Tickwright, resource

app = Tickwright()


@app.lifespan
async def resources() -> AsyncIterator[dict[str, object]]:
    print("opens", flush=True)
    yield {"words": ["one", "two"]}
    print("closes", flush=True)


@app.job("first")
async def first(job: Job, words: list[str] = resource()) -> None:
    async with app.pool.acquire() as connection, connection.transaction():
        handle = await second.options(connection=connection).schedule(words[1])
    print(await handle.result("60s"), flush=True)


@app.job("second")
async def second(job: Job, word: str) -> str:
    return f"second {word}"
"""


async def test_a_handler_under_run_schedules_as_the_program_does(database_url: str, tmp_path: Path) -> None:
    """The app of ``tickwright run``, found in the current folder, is open while its handlers run; then it closes."""
    (tmp_path / "mine.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "tickwright", "run", "worker", "--app", "mine:app"]
    log = tmp_path / "log"
    child = spawn(command, log, environment(DATABASE_URL=database_url, METRICS_BIND="127.0.0.1:0"), cwd=tmp_path)
    try:
        async with Tickwright(database_url) as app:

            async def registered() -> bool:
                assert child.poll() is None, log.read_text()
                return any(one.alive for one in await app.operations.workers())

            await eventually_async(registered, 60, what="the worker is there")
            await app.schedule("first")

            async def handled() -> bool:
                return "second two" in log.read_text()

            await eventually_async(handled, 60, what=f"the second job has a result: {log}")
        child.terminate()
        await asyncio.to_thread(child.wait)
    finally:
        await asyncio.to_thread(kill_group, child)
    said = [line for line in log.read_text().splitlines() if line in {"opens", "second two", "closes"}]
    assert said == ["opens", "second two", "closes"]
    assert child.returncode == 0
    assert await _count(database_url) == 2


async def _count(url: str) -> int:
    connection = await asyncpg.connect(url)
    try:
        return int(await connection.fetchval("SELECT count(*) FROM tickwright.scheduled_tasks"))
    finally:
        await connection.close()
