"""``tickwright report-types``: the reports that can be requested, the listeners of their parts, and the merge."""

import json
import sys
import tomllib
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from tickwright.cli.kit.gateway import api_path, ask
from tickwright.cli.kit.output import Cursor, Json, Limit, show_answer, show_fields, show_json, show_page, show_rows
from tickwright.domain.errors import Rejected

app = typer.Typer(help="Report types: listeners, stages, merging.", no_args_is_help=True, rich_markup_mode=None)
COLUMNS = ("name", "listeners", "stages", "format", "set_by", "updated_at")
LISTENERS = ("listener", "stage", "kind", "source", "required", "attempts", "timeout")
FILE_BYTES_MAX = 1_048_576
Name = Annotated[str, typer.Argument(metavar="NAME", help="The report type.")]
path = partial(api_path, "report-types", "NAME")


@app.command("list")
def list_(cursor: Cursor = None, limit: Limit = 50, as_json: Json = False) -> None:
    """List report types by name."""
    page = ask("GET", "/report-types", query={"cursor": cursor, "limit": limit})
    show_page(page, COLUMNS, as_json=as_json, empty="no report types")


@app.command()
def show(name: Name, as_json: Json = False) -> None:
    """Show one report type: its limits, its SQL and its listeners."""
    found = ask("GET", path(name))
    if as_json:
        show_json(found)
        return
    definition = found.pop("definition")
    listeners = definition.pop("listeners")
    show_fields({**found, **definition, "listeners": len(listeners)})
    show_rows([_listener(name, words) for name, words in listeners.items()], LISTENERS)


@app.command()
def put(
    name: Name,
    file: Annotated[str, typer.Option("--file", metavar="FILE|-", help="JSON or TOML; - is standard input.")],
    as_json: Json = False,
) -> None:
    """Create a report type, or replace it, from a file with the fields of [report_types.NAME]."""
    stored = ask("PUT", path(name), body=read_words(file))
    show_answer(stored, as_json=as_json, sentence=_stored)


@app.command()
def delete(name: Name, as_json: Json = False) -> None:
    """Delete a report type. Requested reports continue with the plan that they were created with."""
    ask("DELETE", path(name))
    show_answer({"deleted": name}, as_json=as_json, sentence=lambda answer: f"{answer['deleted']} is deleted")


def read_words(file: str) -> Any:
    """Parse a file: JSON if it begins with a brace, otherwise TOML.

    Raises:
        Rejected: ``file_unreadable``, ``wrong_argument`` (neither JSON nor TOML, or above 1 MiB). Permanent.
    """
    text = _text_of(file)
    try:
        return json.loads(text) if text.lstrip("\ufeff \t\r\n").startswith("{") else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise Rejected("wrong_argument", f"{file} is neither JSON nor TOML: {error}") from error


def _text_of(file: str) -> str:
    try:
        if file == "-":
            data = sys.stdin.buffer.read(FILE_BYTES_MAX + 1)
        else:
            with Path(file).open("rb") as opened:
                data = opened.read(FILE_BYTES_MAX + 1)
        if len(data) > FILE_BYTES_MAX:
            raise Rejected("wrong_argument", f"{file}: a definition has at most 1 MiB")
        return data.decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise Rejected("file_unreadable", f"{file} cannot be read: {reason}") from error


def _listener(name: str, words: dict[str, Any]) -> dict[str, Any]:
    kind = "service" if words.get("service") else "sql" if "sql" in words else "function"
    return {"listener": name, "kind": kind, **words}


def _stored(stored: Any) -> str:
    kind, done = stored["report_type"], "created" if stored["created"] else "set"
    return f"{kind['name']} {done}: {', '.join(kind['listeners'])} to {kind['format']}"
