"""``tickwright modules``: what entities are polled for, and how often."""

from functools import partial
from typing import Annotated, Any

import typer

from tickwright.cli.kit.gateway import api_path, ask, given, put_changes, with_gateway
from tickwright.cli.kit.output import Json, show_answer, show_fields, show_json, show_page, show_rows

app = typer.Typer(
    help="Modules: what entities are polled for, and how often.", no_args_is_help=True, rich_markup_mode=None
)
COLUMNS = ("name", "every", "timeout", "gated", "target", "set_by", "paused_at", "updated_at")
WINDOWS = ("window_at", "succeeded", "failed", "superseded", "expired")
SETTABLE = ("every", "timeout", "gated", "target")
Name = Annotated[str, typer.Argument(metavar="NAME", help="The module, such as LOCATIONS.")]
path = partial(api_path, "modules", "NAME")


@app.command("list")
def list_(as_json: Json = False) -> None:
    """List every module by name."""
    show_page(ask("GET", "/modules"), COLUMNS, as_json=as_json, empty="no modules")


@app.command()
def show(name: Name, as_json: Json = False) -> None:
    """Show one module: its number of polled entities, and the results of its last windows."""
    module = ask("GET", path(name))
    if as_json:
        show_json(module)
        return
    windows = module.pop("windows")
    show_fields(module)
    show_rows(windows, WINDOWS)


@app.command()
def windows(
    module: Annotated[str | None, typer.Option(help="Only this module.")] = None,
    hours: Annotated[int, typer.Option(min=1, max=168, help="How many hours, back from now.")] = 1,
    as_json: Json = False,
) -> None:
    """Show the results of each window of the last hours, newest first."""
    said = ask("GET", "/fanout/windows", query={"module": module, "hours": hours})
    if as_json:
        show_json(said)
        return
    rows = [
        {"module": one["name"], "expected": one["expected"], **window}
        for one in said["modules"]
        for window in one["windows"]
    ]
    show_rows(rows, ("module", "window_at", "state", "expected", "published", *WINDOWS[1:]), empty="no windows")


@app.command()
def put(
    name: Name,
    every: Annotated[str | None, typer.Option(metavar="DURATION", help='Length of a window, such as "15m".')] = None,
    timeout: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Limit of one run, at most 25m; 60s by default.")
    ] = None,
    gated: Annotated[
        bool | None,
        typer.Option("--gated/--open", help="Polled only where ENABLE_<NAME>_POLLING=true; by default everywhere."),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(metavar="remote:POOL", help="Remote workers of this pool run it; empty for a program's function."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Create a module, or change the given fields. Schedulers use the change at once."""
    changes = given(every=every, timeout=timeout, gated=gated, target=target)
    show_answer(
        with_gateway(lambda gateway: put_changes(gateway, path(name), changes, keep=SETTABLE, need="every")),
        as_json=as_json,
        sentence=_stored,
    )


def _stored(stored: Any) -> str:
    module, done = stored["module"], "created" if stored["created"] else "set"
    gate = f", where ENABLE_{module['name']}_POLLING=true" if module["gated"] else ""
    return f"{module['name']} {done}: every {module['every']}{gate}"


@app.command()
def pause(name: Name, as_json: Json = False) -> None:
    """Stop polling entities for the module."""
    show_answer(ask("POST", f"{path(name)}/pause"), as_json=as_json, sentence=lambda m: f"{m['name']} is paused")


@app.command()
def enable(name: Name, as_json: Json = False) -> None:
    """Poll entities for the module again, from the current window on."""
    show_answer(ask("POST", f"{path(name)}/enable"), as_json=as_json, sentence=lambda m: f"{m['name']} is polled")
