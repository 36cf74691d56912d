"""Processes and their preparation: ``up migrate run bench top doctor``, and a command per role."""

import asyncio
import gc
import importlib
import os
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any

import typer

from tickwright.cli.kit.output import Json
from tickwright.domain.errors import Rejected
from tickwright.process.plugins import ROLES, check_roles

LEAVE_WITHIN_S = 3.0
WORKER = "worker"
Queues = Annotated[
    str | None,
    typer.Option(metavar="NAME:SLOTS,…", help="Slots of a worker by queue; * for every queue (TICKWRIGHT_QUEUES)."),
]
Types = Annotated[
    str | None, typer.Option(metavar="TYPE,…", help="The only types of a worker, such as report.* (TICKWRIGHT_TYPES).")
]
Needs = Annotated[
    str | None, typer.Option(metavar="NAME,…", help="What its types may need, such as gpu (TICKWRIGHT_NEEDS).")
]
App = Annotated[str | None, typer.Option("--app", metavar="MODULE:APP", help="Your handlers (TICKWRIGHT_APP).")]


def add_to(app: typer.Typer) -> None:
    """Add the commands of this module to the command line."""
    for command in (up, migrate, run):
        app.command()(command)
    for role in ROLES:
        app.command(role, help=f"Run the role {role}.")(_role(role))
    app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(bench)
    app.command()(top)
    app.command()(doctor)


def up(
    example: Annotated[
        bool, typer.Option("--example/--no-example", help="Run the example: its jobs, a partner and a receiver.")
    ] = True,
    home: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of the database and all files (TICKWRIGHT_HOME).")
    ] = None,
    app: App = None,
) -> None:
    """Start everything in one process on the embedded PostgreSQL, and show what happens."""
    from tickwright.cli.live.up import run_up
    from tickwright.process.loading import load_settings_with_app

    run_up(load_settings_with_app(home=home, app=app), example=example)


def migrate(
    sql: Annotated[bool, typer.Option("--sql", help="Print the SQL instead of running it.")] = False,
    as_json: Json = False,
) -> None:
    """Migrate the database to this release's schema. Safe while Tickwright runs."""
    from tickwright.cli.kit.output import show_answer, write
    from tickwright.process.database import open_database
    from tickwright.process.settings import load_settings
    from tickwright.store.migrate import migrate as migrate_database
    from tickwright.store.migrate import migration_sql

    if sql:
        write(migration_sql())
        return

    async def work() -> str:
        async with open_database(load_settings()) as database:
            if database.direct_url is None:
                raise Rejected(
                    "direct_url_needed",
                    "TICKWRIGHT_DATABASE_URL goes through a pooler; set TICKWRIGHT_DIRECT_DATABASE_URL for migrations",
                )
            return await asyncio.to_thread(migrate_database, database.direct_url)

    show_answer({"revision": asyncio.run(work())}, as_json=as_json, sentence=lambda a: f"schema {a['revision']}")


def run(
    roles: Annotated[list[str], typer.Argument(metavar="ROLE…", help=" ".join(ROLES))],
    app: App = None,
    queues: Queues = None,
    types: Types = None,
    needs: Needs = None,
) -> None:
    """Run one or several roles in this process until SIGTERM or Ctrl-C."""
    _run(roles, app=app, queues=queues, types=types, needs=needs)


def _run(roles: list[str], **given: str | None) -> None:
    gc.set_threshold(50_000, 20, 50)  # less often than per batch; now, because much is loaded below
    import uvloop

    from tickwright.process.loading import load_settings_with_app, registered_by
    from tickwright.process.logging import start_logging
    from tickwright.process.node import run_node

    check_roles(roles)
    if WORKER not in roles and any(given.get(name) for name in ("queues", "types", "needs")):
        raise typer.BadParameter("--queues, --types and --needs limit the role worker; run it here, or leave them out")
    settings = load_settings_with_app(**given)
    start_logging(settings)
    registrations = registered_by(settings.app)
    gc.freeze()  # what is loaded stays, and is not searched for garbage
    uvloop.run(_to_the_end(run_node(settings, roles, registrations=registrations, signals=True)))


async def _to_the_end(node: Coroutine[Any, Any, None]) -> None:
    """Run a node, then exit even if a function ignores its cancellation."""
    import structlog

    await node
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    unresponsive = (await asyncio.wait(left, timeout=LEAVE_WITHIN_S))[1] if left else set()
    if unresponsive:
        structlog.get_logger("tickwright.run").warning("run.functions_ignore_cancel", tasks=len(unresponsive))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _role(role: str) -> Callable[..., None]:
    def command(app: App = None) -> None:
        _run([role], app=app)

    def worker(app: App = None, queues: Queues = None, types: Types = None, needs: Needs = None) -> None:
        _run([role], app=app, queues=queues, types=types, needs=needs)

    return worker if role == WORKER else command


def bench(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Such as jobs, lateness, pickup, recovery.")],
) -> None:
    """Run a benchmark on a server that it starts itself."""
    wanted = f"tickwright.bench.{name.replace('-', '_')}"
    try:
        measure = importlib.import_module(wanted).main
    except (ModuleNotFoundError, AttributeError) as error:
        if isinstance(error, ModuleNotFoundError) and error.name not in {wanted, "tickwright.bench"}:
            raise
        raise typer.BadParameter(f"there is no bench {name!r} in this installation") from None
    raise typer.Exit(measure(context.args) or 0)


def top(
    every: Annotated[float, typer.Option(min=0.2, max=60, help="Seconds between two refreshes.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Show it once and end.")] = False,
    as_json: Json = False,
) -> None:
    """Watch what is due, running, done and late."""
    from tickwright.cli.live.top import run_top
    from tickwright.process.settings import load_settings

    run_top(load_settings(), every_s=every, once=once or as_json, as_json=as_json)


def doctor(as_json: Json = False) -> None:
    """Check the database, its settings and its environment. Each finding has a remedy."""
    from tickwright.cli.doctor import run_doctor

    if not run_doctor(as_json=as_json):
        raise typer.Exit(1)
