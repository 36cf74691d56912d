"""``tickwright batches``: batches of programs, and the commands that they share with campaigns."""

from typing import Annotated, Any
from urllib.parse import quote

import typer

from tickwright.cli.kit.gateway import ask
from tickwright.cli.kit.output import Cursor, Json, Limit, show_answer, show_fields, show_json, show_page
from tickwright.domain.errors import Rejected

COLUMNS = ("name", "type", "status", "version", "next_slot_at", "open_executions", "last_execution_id", "last_status")
VERSIONS = ("version", "made_by", "made_at")
Name = Annotated[str, typer.Argument(metavar="NAME", help="What it is called.")]
Type = Annotated[str | None, typer.Option("--type", help="MANUAL or AUTOMATIC.")]
Status = Annotated[str | None, typer.Option(help="SCHEDULED or IDLE.")]
Begins = Annotated[str | None, typer.Option("--name", metavar="BEGINNING", help="What the name begins with.")]
Number = Annotated[int | None, typer.Option("--version", min=1, help="Show this one whole.")]
Slot = Annotated[str | None, typer.Option(metavar="TIME", help="Of this occurrence: RFC 3339 with its offset.")]


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
        found = ask("GET", path(plural, name))
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
            page = ask("GET", f"{path(plural, name)}/versions", query={"cursor": cursor, "limit": limit})
            show_page(page, VERSIONS, as_json=as_json, empty="no versions")
            return
        found = ask("GET", f"{path(plural, name)}/versions/{version}")
        show_json(found) if as_json else show_fields({**found, **found.pop("definition")})

    @app.command()
    def explain(name: Name, slot: Slot = None, as_json: Json = False) -> None:
        """Explain why it runs or does not, and when it runs next; with --slot, what happened at that occurrence."""
        answer = ask("GET", f"{path(plural, name)}/explain", query={"slot": slot})
        show_answer(answer, as_json=as_json, sentence=explained)


def _add_actions(app: typer.Typer, plural: str) -> None:
    def act(name: str, action: str, *, as_json: bool) -> None:
        show_answer(ask("POST", f"{path(plural, name)}/{action}"), as_json=as_json, sentence=_changed)

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


def explained(answer: Any) -> str:
    """Return an explanation as lines of text."""
    reasons = "".join(f"\n  {reason['text']} ({reason['code']})" for reason in answer["reasons"])
    return f"{answer['status']}: {answer['summary']}{reasons}"


def _changed(change: Any) -> str:
    when = f", next at {change['next_slot_at']}" if change["next_slot_at"] else ""
    touched = "".join(f"; execution {one['id']} is {one['status']}" for one in change["executions"])
    return f"{change['name']} {change['outcome']}: {change['status']}{when}{touched}"


def path(plural: str, name: str) -> str:
    """Return the API path of a batch or campaign. Raises ``Rejected`` (``wrong_argument``): permanent."""
    if not name or "/" in name:
        raise Rejected("wrong_argument", "NAME: 1 to 100 letters, digits, '_', '.' or '-', a letter or digit first")
    return f"/{plural}/{quote(name, safe='')}"


app = typer.Typer(help="Batches of items that programs define.", no_args_is_help=True, rich_markup_mode=None)
add_commands(app, "batches")
