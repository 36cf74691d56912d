"""``tickwright batches``: batches of programs, and the commands that they share with campaigns."""

from typing import Annotated, Any

import typer

from tickwright.cli.commands.report_types import read_words
from tickwright.cli.kit.gateway import api_path, ask
from tickwright.cli.kit.output import (
    Cursor,
    Json,
    Limit,
    show_answer,
    show_explanation,
    show_fields,
    show_json,
    show_page,
)
from tickwright.domain.errors import Rejected

COLUMNS = ("name", "type", "status", "version", "next_slot_at", "open_executions", "last_execution_id", "last_status")
VERSIONS = ("version", "made_by", "made_at")
Name = Annotated[str, typer.Argument(metavar="NAME", help="Its name.")]
Type = Annotated[str | None, typer.Option("--type", help="Only MANUAL or only AUTOMATIC ones.")]
Status = Annotated[str | None, typer.Option(help="Only SCHEDULED or only IDLE ones.")]
Begins = Annotated[str | None, typer.Option("--name", metavar="BEGINNING", help="Only names that begin with this.")]
Number = Annotated[int | None, typer.Option("--version", min=1, help="Show this version whole.")]
Slot = Annotated[
    str | None, typer.Option(metavar="TIME", help="Explain the occurrence of this time; RFC 3339 with its offset.")
]


def add_commands(app: typer.Typer, plural: str) -> None:
    """Add the commands that every kind of batch has; ``plural`` is the name of the kind in paths."""
    _add_queries(app, plural)
    _add_actions(app, plural)


def _add_queries(app: typer.Typer, plural: str) -> None:
    @app.command("list")
    def list_(
        kind: Type = None,
        status: Status = None,
        begins: Begins = None,
        cursor: Cursor = None,
        limit: Limit = 50,
        as_json: Json = False,
    ) -> None:
        """List by name, with the next occurrence and the last execution of each."""
        query = {"type": kind, "status": status, "q": begins, "cursor": cursor, "limit": limit}
        show_page(ask("GET", f"/{plural}", query=query), COLUMNS, as_json=as_json, empty=f"no {plural}")

    @app.command()
    def show(name: Name, as_json: Json = False) -> None:
        """Show one, with its definition and its next five occurrences."""
        found = ask("GET", api_path(plural, "NAME", name))
        if as_json:
            show_json(found)
            return
        definition = found.pop("definition")
        show_fields({**found, **definition})

    @app.command()
    def versions(
        name: Name, version: Number = None, cursor: Cursor = None, limit: Limit = 50, as_json: Json = False
    ) -> None:
        """List the versions, newest first, or show one version as it was written."""
        if version is None:
            page = ask("GET", f"{api_path(plural, 'NAME', name)}/versions", query={"cursor": cursor, "limit": limit})
            show_page(page, VERSIONS, as_json=as_json, empty="no versions")
            return
        found = ask("GET", f"{api_path(plural, 'NAME', name)}/versions/{version}")
        show_json(found) if as_json else show_fields({**found, **found.pop("definition")})

    @app.command()
    def explain(name: Name, slot: Slot = None, as_json: Json = False) -> None:
        """Explain why it runs or does not, and when it runs next; with --slot, what happened at that occurrence."""
        answer = ask("GET", f"{api_path(plural, 'NAME', name)}/explain", query={"slot": slot})
        show_explanation(answer, as_json=as_json)


def _add_actions(app: typer.Typer, plural: str) -> None:
    def act(name: str, action: str, *, as_json: bool) -> None:
        show_answer(ask("POST", f"{api_path(plural, 'NAME', name)}/{action}"), as_json=as_json, sentence=_changed)

    @app.command()
    def activate(name: Name, as_json: Json = False) -> None:
        """Activate the schedule, from the next occurrence on."""
        act(name, "activate", as_json=as_json)

    @app.command()
    def deactivate(name: Name, as_json: Json = False) -> None:
        """Deactivate the schedule; open executions become DISABLED."""
        act(name, "deactivate", as_json=as_json)

    @app.command()
    def start(name: Name, as_json: Json = False) -> None:
        """Execute it now. If an execution is open, its overlap policy decides."""
        act(name, "start", as_json=as_json)

    @app.command()
    def stop(name: Name, as_json: Json = False) -> None:
        """Stop its open executions. They become STOPPED, and their unreleased actions are never released."""
        act(name, "stop", as_json=as_json)


def _changed(change: Any) -> str:
    when = f", next at {change['next_slot_at']}" if change["next_slot_at"] else ""
    touched = "".join(f"; execution {one['id']} is {one['status']}" for one in change["executions"])
    return f"{change['name']} {change['outcome']}: {change['status']}{when}{touched}"


app = typer.Typer(
    help="Batches of items that programs or remote workers work on.", no_args_is_help=True, rich_markup_mode=None
)
add_commands(app, "batches")
File = Annotated[str, typer.Argument(metavar="FILE|-", help="JSON or TOML; - is standard input.")]
Called = Annotated[str | None, typer.Option("--name", help="The batch's name; by default that in the file (name = …).")]


@app.command()
def put(file: File, name: Called = None, as_json: Json = False) -> None:
    """Create a batch for remote workers (target = "remote:POOL"), or replace its definition: a new version.

    With version = … in the file, the edit fails if that version is no longer the current one.
    """
    words = read_words(file)
    called = name or words.pop("name", None)
    if not isinstance(called, str):
        raise Rejected("wrong_argument", "which batch? write name = … into the file, or give --name")
    stored = ask("PUT", api_path("batches", "NAME", called), body=words)
    show_answer(stored, as_json=as_json, sentence=_stored)


@app.command()
def delete(name: Name, as_json: Json = False) -> None:
    """Delete a batch with its versions, executions and actions. Fails while an execution is open."""
    ask("DELETE", api_path("batches", "NAME", name))
    show_answer({"name": name, "deleted": True}, as_json=as_json, sentence=lambda d: f"{d['name']} is deleted")


def _stored(stored: Any) -> str:
    batch = stored["batch"]
    done = "created" if stored["created"] else "edited" if stored["changed"] else "unchanged"
    return f"{batch['name']} {done}: version {batch['version']}, {batch['type']}, {batch['status']}"
