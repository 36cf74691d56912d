"""``tickwright campaigns``: the audience, the action per client, and the schedule."""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

import typer

from tickwright.cli.commands.batches.batches import Name, add_commands
from tickwright.cli.commands.report_types import read_words
from tickwright.cli.kit.gateway import api_path, ask, given
from tickwright.cli.kit.output import Json, show_answer, show_fields, show_json, show_rows, write
from tickwright.domain.errors import Rejected

app = typer.Typer(
    help="Campaigns: an audience, an expression, an action, a schedule.", no_args_is_help=True, rich_markup_mode=None
)
File = Annotated[str, typer.Argument(metavar="FILE|-", help="JSON or TOML; - is standard input.")]
Called = Annotated[
    str | None, typer.Option("--name", help="The campaign's name; by default that in the file (name = …).")
]
CLIENTS = ("client_id", "client")
path = partial(api_path, "campaigns", "NAME")


@app.command()
def put(file: File, name: Called = None, as_json: Json = False) -> None:
    """Create a campaign, or replace its definition: a new version.

    With version = … in the file, the edit fails if that version is no longer the current one.
    """
    words = _words(file)
    called = _name(name or words.pop("name", None))
    try:
        stored = ask("PUT", path(called), body=words)
    except Rejected as error:
        _point(words, [error.details], as_json=as_json)
        raise
    show_answer(stored, as_json=as_json, sentence=_stored)


@app.command()
def check(file: File, as_json: Json = False) -> None:
    """Report every mistake in a definition without saving it. Exit code 1 if there are mistakes."""
    words = _words(file)
    found = ask("POST", "/campaigns:check", body=words)
    show_answer(found, as_json=as_json, sentence=_checked)
    _point(words, found["problems"], as_json=as_json)
    if not found["valid"]:
        raise typer.Exit(1)


@app.command("dry-run")
def dry_run(
    name: Name,
    expression: Annotated[str | None, typer.Option(help="Try this expression instead; it is not saved.")] = None,
    audience: Annotated[
        str | None,
        typer.Option(metavar="FILE|-", help="Try the audience of this file, JSON or TOML, instead; it is not saved."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Count the clients that it would select now, and show ten of them. Releases nothing."""
    words = given(expression=expression, audience=None if audience is None else read_words(audience))
    try:
        found = ask("POST", f"{path(name)}/dry-run", body=words)
    except Rejected as error:
        _point(words, [error.details], as_json=as_json)
        raise
    if as_json:
        show_json(found)
        return
    examples, problems = found.pop("examples"), found.pop("problems")
    show_fields(found)
    show_rows(examples, CLIENTS, empty="no client is selected")
    if problems:
        show_rows(problems, ("client_id", "problem"))


@app.command()
def delete(name: Name, as_json: Json = False) -> None:
    """Delete a campaign with its versions, executions and actions."""
    ask("DELETE", path(name))
    show_answer({"deleted": name}, as_json=as_json, sentence=lambda answer: f"{answer['deleted']} is deleted")


add_commands(app, "campaigns")


def _words(file: str) -> dict[str, Any]:
    words = read_words(file)
    if not isinstance(words, dict):
        raise Rejected("wrong_argument", f"{file}: write an object with the fields of a campaign")
    return words


def _name(name: Any) -> str:
    if not isinstance(name, str):
        raise Rejected("wrong_argument", "which campaign? write name = … into the file, or give --name")
    return name


def _stored(stored: Any) -> str:
    campaign = stored["campaign"]
    done = "created" if stored["created"] else "edited" if stored["changed"] else "unchanged"
    return f"{campaign['name']} {done}: version {campaign['version']}, {campaign['type']}, {campaign['status']}"


def _checked(found: Any) -> str:
    if found["valid"]:
        return "it is valid"
    return "\n".join(f"{one['field']}: {one['message']} ({one['code']})" for one in found["problems"])


def _point(words: Mapping[str, Any], problems: Any, *, as_json: bool) -> None:
    """Show the position of the first mistake in the expression, below its line."""
    text = words.get("expression")
    placed = [one for one in problems if one.get("line") is not None]
    if as_json or not placed or not isinstance(text, str):
        return
    from tickwright.capabilities.batches.expressions import explain_problem

    place = {"line": placed[0]["line"], "column": placed[0]["column"]}
    write(explain_problem(text, place).partition("\n")[2] + "\n", stderr=True)
