"""``tickwright up``: everything in one process, an example to watch, and a clean end.

The first Ctrl-C stops taking work, lets running work finish, releases the rest, stops the receiver and the embedded
server, and exits with 0. The second one ends at once.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, redirect_stderr, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from rich.console import Group
from rich.live import Live
from rich.text import Text

from tickwright import __version__
from tickwright.api.auth import Authenticator
from tickwright.api.context import ApiLimits
from tickwright.app import Tickwright
from tickwright.capabilities.jobs.admin.service import JobService
from tickwright.capabilities.jobs.requests import TaskTypeRequest
from tickwright.capabilities.operations.listings import Operations
from tickwright.capabilities.operations.snapshots import Snapshots
from tickwright.cli.kit.output import console
from tickwright.cli.live.view import draw, lines
from tickwright.demo.databases import Loans, keep_requesting, open_databases
from tickwright.demo.hub import (
    draw_hub,
    find_hub,
    hub_environment,
    hub_line,
    open_consumers,
    pause_hub,
    read_hub,
    register_hub,
)
from tickwright.demo.work import CALLBACK_TYPE, add_handlers, keep_scheduling, register_trackers
from tickwright.domain.errors import Rejected, Unavailable
from tickwright.plugin.overview import OverviewParts
from tickwright.plugin.settings import Settings
from tickwright.ports.caller import Caller, Role
from tickwright.process.database import translated
from tickwright.process.installation import Installation
from tickwright.process.loading import load_app
from tickwright.process.logging import start_logging
from tickwright.process.node import Node, open_node, roles_of
from tickwright.process.signals import stop_on_signals

DRAIN_MAX = timedelta(seconds=5)
LINE_EVERY_S = 5.0
VIEW_EVERY_S = 0.5
KEY_FILE = "admin.key"
LOG_FILE = "tickwright.log"
_LEVELS = ("debug", "info", "warning", "error")
RECEIVER = "tickwright.demo.receiver"
_CALLER = Caller("up", Role.ADMIN)


def run_up(settings: Settings, *, example: bool) -> None:
    """Run until stopped. The example runs only if it cannot be confused with the user's own data."""
    import uvloop

    quick = settings.model_copy(update={"drain": min(settings.drain, DRAIN_MAX)})
    with_example = example and settings.database_url is None and settings.app is None
    _log_beside_the_view(quick)
    uvloop.run(_Up(quick, example=with_example).run())


def _log_beside_the_view(settings: Settings) -> None:
    """Keep the log out of a live view, in a file in the home. Without a terminal, warnings go to standard error."""
    if not sys.stdout.isatty():
        start_logging(settings.model_copy(update={"log_level": max(settings.log_level, "warning", key=_LEVELS.index)}))
        return
    settings.home_folder.mkdir(parents=True, exist_ok=True, mode=0o711)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    stream = os.fdopen(os.open(settings.home_folder / LOG_FILE, flags, 0o600), "a", buffering=1, encoding="utf-8")
    with redirect_stderr(stream):
        start_logging(settings)


@dataclass(slots=True)
class Receiver:
    """The receiver's process. Closing its standard input ends it."""

    process: asyncio.subprocess.Process
    port: int

    def use_secret(self, secret: str) -> None:
        """Send it the signing secret."""
        if self.process.stdin is not None:
            self.process.stdin.write(f"{secret}\n".encode())


@asynccontextmanager
async def open_receiver(environment: Mapping[str, str] | None = None) -> AsyncIterator[Receiver]:
    """Run the receiver in a process of its own, which ends when this process ends, however that ends."""
    pipe, env = asyncio.subprocess.PIPE, {**os.environ, **(environment or {})}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", RECEIVER, stdin=pipe, stdout=pipe, start_new_session=True, env=env
    )
    try:
        line = await process.stdout.readline() if process.stdout is not None else b""
        yield Receiver(process, int(line))
    finally:
        if process.stdin is not None:
            process.stdin.close()
        try:
            async with asyncio.timeout(3):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


class _Up:
    def __init__(self, settings: Settings, *, example: bool) -> None:
        self._settings = settings
        self._example = example
        self._node: Node | None = None
        self._work: asyncio.Task[None] | None = None
        self._out = console()
        self._hub = False
        self._loans = Loans()

    async def run(self) -> None:
        """Work until a signal. A signal during the start stops what has started."""
        with stop_on_signals(self._stop_requested):
            self._work = asyncio.create_task(self._whole())
            await asyncio.wait([self._work])
        if not self._work.cancelled():
            self._work.result()

    def _stop_requested(self) -> None:
        if self._node is not None:
            self._node.supervisor.request_stop()
        elif self._work is not None:
            self._work.cancel()

    async def _whole(self) -> None:
        self._print(f"Tickwright {__version__}: starting {self._what()} …")
        async with AsyncExitStack() as stack:
            settings, receiver, shared = self._settings, None, hub_environment()
            if self._example:
                receiver = await stack.enter_async_context(open_receiver(shared))
                settings = _allowing(settings, receiver.port)
            app = await stack.enter_async_context(self._app(settings))
            if self._example:
                opening = open_databases(settings, app.database.url, self._loans, self._print)
                settings = await stack.enter_async_context(opening)
            roles, registrations = roles_of(app.registrations), app.registrations
            opened = open_node(settings, roles, database=app.database, registrations=registrations, any_port=True)
            node = await stack.enter_async_context(opened)
            if receiver is not None:
                with translated():
                    await self._introduce(node.installation, receiver)
                await self._start_hub(stack, node.installation, receiver, shared)
            key = await admin_key(node.installation, settings.home_folder / KEY_FILE)
            await self._run(node, app, key)
        self._print("stopped")

    def _what(self) -> str:
        return "the embedded PostgreSQL" if self._settings.database_url is None else "everything"

    def _app(self, settings: Settings) -> Tickwright:
        if settings.app is not None:
            found = load_app(settings.app)
            if not isinstance(found, Tickwright):
                raise Rejected("not_an_app", f"TICKWRIGHT_APP: {settings.app} is not a Tickwright object")
            return found.using(settings)
        app = Tickwright().using(settings)
        if self._example:
            add_handlers(app)
            self._loans.add_handler(app)
        return app

    async def _introduce(self, installation: Installation, receiver: Receiver) -> None:
        target = f"http://127.0.0.1:{receiver.port}/callback"
        await installation.of(JobService).types.put(
            CALLBACK_TYPE, TaskTypeRequest(target=target, timeout="5s"), caller=_CALLER
        )
        made = await installation.of(JobService).types.rotate_secret(CALLBACK_TYPE, caller=_CALLER, overlap=timedelta())
        receiver.use_secret(made.secret)
        await register_trackers(installation.pool, receiver.port)

    async def _start_hub(
        self, stack: AsyncExitStack, installation: Installation, receiver: Receiver, shared: Mapping[str, str]
    ) -> None:
        self._hub, why = await find_hub(self._settings)
        self._print(f"  example   {why}")
        if not self._hub:
            with translated():
                await pause_hub(installation.pool)
            return
        log = stack.enter_context(self._children_log())
        await stack.enter_async_context(open_consumers(installation.database.url, shared, log))
        with translated():
            await register_hub(installation.pool, receiver.port)

    @contextmanager
    def _children_log(self) -> Iterator[int | None]:
        """Give a descriptor for a child's log: of our log file beside a live view, else ``None`` (standard error)."""
        if not self._out.is_terminal:
            yield None
            return
        with (self._settings.home_folder / LOG_FILE).open("ab") as log:
            yield log.fileno()

    def _print_addresses(self, node: Node, key: str) -> None:
        assert node.api is not None  # noqa: S101  every role runs here
        wanted = self._settings.api_bind
        moved = "" if node.api.port == wanted.port or not wanted.port else f"   (port {wanted.port} is in use)"
        self._print(f"  page      {node.api.url}{self._settings.path_prefix}/   (sign in with the key){moved}")
        self._print(f"  API       {node.api.url}{self._settings.path_prefix}/v1")
        self._print(f"  key       {self._shown(key)}")
        self._print(f"  health    http://{node.health_bind}/readyz")
        database = node.installation.database
        self._print(f"  database  {database.url if database.embedded else database.shown}")
        self._print(f"  home      {self._settings.home_folder}")
        if self._out.is_terminal:
            self._print(f"  log       {self._settings.home_folder / LOG_FILE}")
        self._print("Ctrl-C stops: the first one lets running jobs finish, the second one does not.")

    @property
    def _on_terminal(self) -> bool:
        return self._out.file.isatty()

    def _shown(self, key: str) -> str:
        """Return the key for a terminal, otherwise the file of the key: logs, journals and pipes keep their input."""
        return key if self._on_terminal else f"in the file {self._settings.home_folder / KEY_FILE}"

    async def _run(self, node: Node, app: Tickwright, key: str) -> None:
        helpers = [asyncio.create_task(self._show(node, key))]
        if self._example:
            helpers.append(asyncio.create_task(keep_scheduling(app)))
        if self._loans.is_open:
            helpers.append(asyncio.create_task(keep_requesting(app, node, self._print, show_link=self._on_terminal)))
            helpers.append(asyncio.create_task(self._loans.offer(node, self._print)))
        self._node = node
        try:
            await node.run(signals=False)
        finally:
            for helper in helpers:
                helper.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)

    async def _show(self, node: Node, key: str) -> None:
        await node.supervisor.started()
        self._print_addresses(node, key)
        await self._watch(node)

    async def _watch(self, node: Node) -> None:
        overview, parts = node.installation.of(Snapshots), node.installation.of(OverviewParts)
        if not self._out.is_terminal:
            while True:
                await asyncio.sleep(LINE_EVERY_S)
                with suppress(Unavailable):  # the next query can succeed
                    for line in lines(await overview.latest(), parts):
                        self._print(line)
                if self._hub:
                    self._print(hub_line(await read_hub(node.installation.pool)))
        with Live(console=self._out, auto_refresh=False) as live:
            while True:
                with suppress(Unavailable):
                    drawn = [draw(await overview.latest(), parts, f"\n{node.supervisor.phase}")]
                    if self._hub:
                        drawn += [Text(), draw_hub(await read_hub(node.installation.pool))]
                    live.update(Group(*drawn), refresh=True)
                await asyncio.sleep(VIEW_EVERY_S)

    def _print(self, text: str) -> None:
        self._out.print(text, markup=False, highlight=False)
        self._out.file.flush()


def _allowing(settings: Settings, port: int) -> Settings:
    targets = f"{settings.allow_targets},127.0.0.1:{port}" if settings.allow_targets else f"127.0.0.1:{port}"
    return settings.model_copy(update={"allow_targets": targets})


async def admin_key(installation: Installation, file: Path) -> str:
    """Return the key in ``file`` if it is valid; otherwise create one and store it there."""
    try:
        key = await asyncio.to_thread(_kept, file)
        with translated():
            await Authenticator(installation.pool, ApiLimits()).caller([(b"authorization", f"Bearer {key}".encode())])
    except (OSError, UnicodeDecodeError, Rejected):
        with translated():
            made = await installation.of(Operations).keys.create("up", Role.ADMIN, caller=_CALLER)
        key = made.key
        await asyncio.to_thread(_keep, file, key)
    return key


def _kept(file: Path) -> str:
    return file.read_text(encoding="ascii").strip()


def _keep(file: Path, key: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_suffix(".new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w") as stream:
        os.fchmod(descriptor, 0o600)
        stream.write(f"{key}\n")
    draft.replace(file)
