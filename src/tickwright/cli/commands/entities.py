"""``tickwright entities``: the entities that fan-out polls, their modules and the results."""

import json
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from tickwright.cli.kit.files import Upload, import_file
from tickwright.cli.kit.gateway import api_path, ask, given, put_changes, with_gateway
from tickwright.cli.kit.output import (
    Cursor,
    Json,
    Limit,
    show_answer,
    show_explanation,
    show_fields,
    show_json,
    show_page,
    show_rows,
)
from tickwright.domain.errors import Rejected

app = typer.Typer(help="Entities that fan-out polls, with their modules.", no_args_is_help=True, rich_markup_mode=None)
COLUMNS = ("code", "is_polling_enabled", "polling_enabled_modules", "partner", "config_version", "updated_at")
MODULES = ("name", "every", "last_success_at", "running_since", "failures", "last_error", "next_window_at")
SETTABLE = ("party", "is_polling_enabled", "polling_enabled_modules", "partner")
CSV, NDJSON = "text/csv", "application/x-ndjson"
Code = Annotated[str, typer.Argument(metavar="CODE", help="The entity's code.")]
path = partial(api_path, "entities", "CODE")


@app.command("list")
def list_(
    module: Annotated[str | None, typer.Option(help="Only entities that are polled for this module.")] = None,
    enabled: Annotated[bool | None, typer.Option("--enabled/--paused", help="Only these; both by default.")] = None,
    q: Annotated[str | None, typer.Option("--q", metavar="TEXT", help="Only codes that begin with this.")] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
    as_json: Json = False,
) -> None:
    """List entities by code."""
    flag = None if enabled is None else str(enabled).lower()
    query = {"module": module, "enabled": flag, "q": q, "cursor": cursor, "limit": limit}
    show_page(ask("GET", "/entities", query=query), COLUMNS, as_json=as_json, empty="no entities")


@app.command()
def show(code: Code, as_json: Json = False) -> None:
    """Show one entity: its party, and the last success, the failures and the windows of each module."""
    found = ask("GET", path(code))
    if as_json:
        show_json(found)
        return
    modules = found.pop("modules")
    show_fields(found)
    show_rows(modules, MODULES, empty="polled for no module")


@app.command()
def put(
    code: Code,
    modules: Annotated[
        str | None, typer.Option(metavar="NAMES", help="The modules that it is polled for, such as LOCATIONS,TARIFFS.")
    ] = None,
    party: Annotated[
        str | None, typer.Option(metavar="JSON|@FILE", help="Its party document, whole; secrets as ${env:NAME}.")
    ] = None,
    partner: Annotated[str | None, typer.Option(help="The partner whose limits its calls keep; '' for none.")] = None,
    enabled: Annotated[bool | None, typer.Option("--enabled/--paused", help="Whether it is polled.")] = None,
    as_json: Json = False,
) -> None:
    """Create an entity, or change the given fields. Schedulers use the change at once."""
    changes = given(
        polling_enabled_modules=modules,
        party=None if party is None else document_of(party),
        partner=partner,
        is_polling_enabled=enabled,
    )
    if partner == "":
        changes["partner"] = None
    show_answer(
        with_gateway(lambda gateway: put_changes(gateway, path(code), changes, keep=SETTABLE, need="")),
        as_json=as_json,
        sentence=_stored,
    )


def document_of(text: str) -> Any:
    """Parse JSON, or that of ``@FILE``. Raises ``Rejected`` (``file_unreadable``, ``wrong_argument``): permanent."""
    if text.startswith("@"):
        try:
            text = Path(text[1:]).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise Rejected("file_unreadable", f"{text[1:]} cannot be read: {error}") from error
    try:
        return json.loads(text)
    except ValueError as error:
        raise Rejected("wrong_argument", f"--party: not JSON: {error}") from None


def _stored(stored: Any) -> str:
    entity, done = stored["entity"], "created" if stored["created"] else "set"
    polled = entity["polling_enabled_modules"] if entity["is_polling_enabled"] else ""
    return f"{entity['code']} {done}: polled for {polled or 'nothing'}"


@app.command("import")
def import_(
    file: Annotated[str, typer.Argument(metavar="FILE|-", help="NDJSON or CSV, one entity per line; - is stdin.")],
    as_csv: Annotated[bool | None, typer.Option("--csv/--ndjson", help="By the file's ending, .csv or not.")] = None,
    rejects: Annotated[str | None, typer.Option(metavar="FILE", help="Write the rejected lines' report there.")] = None,
    as_json: Json = False,
) -> None:
    """Create or replace the entities of a file. Importing it again changes nothing."""
    csv = file.lower().endswith(".csv") if as_csv is None else as_csv
    upload = Upload("/v1/entities:bulk", "new entities", content_type=CSV if csv else NDJSON)
    if import_file(file, upload, rejects=rejects, as_json=as_json):
        raise typer.Exit(1)


@app.command()
def delete(code: Code, as_json: Json = False) -> None:
    """Stop polling an entity and delete it. The times of its last successful runs are kept."""
    ask("DELETE", path(code))
    show_answer({"code": code, "deleted": True}, as_json=as_json, sentence=lambda d: f"{d['code']} is deleted")


@app.command()
def pause(code: Code, as_json: Json = False) -> None:
    """Stop polling an entity."""
    show_answer(ask("POST", f"{path(code)}/pause"), as_json=as_json, sentence=lambda e: f"{e['code']} is paused")


@app.command()
def enable(code: Code, as_json: Json = False) -> None:
    """Poll an entity again, from the current window on."""
    show_answer(ask("POST", f"{path(code)}/enable"), as_json=as_json, sentence=lambda e: f"{e['code']} is polled")


@app.command()
def explain(
    code: Code,
    module: Annotated[str, typer.Argument(metavar="MODULE", help="The module, such as LOCATIONS.")],
    as_json: Json = False,
) -> None:
    """Explain why an entity is polled for a module now, or why not."""
    answer = ask("GET", f"{path(code)}/explain", query={"module": module})
    show_explanation(answer, as_json=as_json)
