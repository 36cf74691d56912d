"""``tickwright reports``: request reports, list them, download their files."""

import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from tickwright.cli.kit.files import download as download_file
from tickwright.cli.kit.gateway import Gateway, ask, given, named_values, with_gateway
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

app = typer.Typer(help="Request, show and download reports.", no_args_is_help=True, rich_markup_mode=None)
COLUMNS = ("id", "type", "status", "requester", "department", "parts_done", "parts_expected", "rows", "created_at",
           "finished_at")  # fmt: skip
PARTS = ("listener", "stage", "kind", "required", "state", "rows", "attempts", "error")
OVER = frozenset({"finished", "failed", "cancelled"})
POLL_S = 0.5
ReportId = Annotated[int, typer.Argument(min=1, max=2**63 - 1, metavar="ID", help="The report's id.")]
Output = Annotated[
    str | None, typer.Option("--output", "-o", metavar="FILE", help="A file or a folder; by default the file's name.")
]


@app.command()
def request(
    kind: Annotated[str, typer.Argument(metavar="TYPE", help="A report type.")],
    condition: Annotated[
        list[str] | None,
        typer.Option(
            "--condition", "-c", metavar="NAME=TEXT|NAME:=JSON", help="A condition of the report. Repeatable."
        ),
    ] = None,
    conditions: Annotated[
        str | None, typer.Option(metavar="FILE|-", help="Conditions as a JSON object; --condition replaces its own.")
    ] = None,
    form: Annotated[str | None, typer.Option("--format", help="csv or parquet; the report type's by default.")] = None,
    requester: Annotated[str | None, typer.Option(help="The requester; you by default.")] = None,
    department: Annotated[str | None, typer.Option(help="The requester's department.")] = None,
    notify: Annotated[
        str | None, typer.Option(metavar="RECEIVER", help="The receiver of alerts that is notified of the end.")
    ] = None,
    max_age: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Take a finished equal report that is not older than this.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it is over; exit code 1 if it has no file.")] = False,
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE", help="Wait and fetch the file: a file or a folder.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Request a report. If the requester has an equal one in progress, that one is returned."""
    body = given(
        type=kind,
        conditions={**read_conditions(conditions), **named_values("--condition", condition or ())},
        format=form,
        requester=requester,
        department=department,
        notify=notify,
        max_age=max_age,
    )
    done = with_gateway(lambda gateway: _request(gateway, body, wait=wait or output is not None, output=output))
    show_answer(done, as_json=as_json, sentence=_request_sentence)
    if done["status"] in {"failed", "cancelled"}:
        raise typer.Exit(1)


async def _request(gateway: Gateway, body: Mapping[str, Any], *, wait: bool, output: str | None) -> dict[str, Any]:
    done: dict[str, Any] = await gateway.ask("POST", "/reports", body=body)
    while wait and done["status"] not in OVER:
        await asyncio.sleep(POLL_S)
        done |= await gateway.ask("GET", f"/reports/{done['id']}")
    if output is not None and done["status"] == "finished":
        done["download"] = await download_file(gateway, done["id"], output)
    return done


def _request_sentence(done: Mapping[str, Any]) -> str:
    known = "" if done["created"] else " (an equal one was asked for before)"
    why = f": {done['error']}" if done["error"] else ""
    fetched = f"\n{_fetched(done['download'])}" if "download" in done else ""
    return f"report {done['id']} is {done['status']}{known}{why}{fetched}"


def _fetched(done: Mapping[str, Any]) -> str:
    return f"{done['file']}: {done['rows']} rows, {done['bytes']} bytes"


@app.command("list")
def list_(
    requester: Annotated[str | None, typer.Option(help="Only of this requester.")] = None,
    department: Annotated[str | None, typer.Option(help="Only of this department.")] = None,
    kind: Annotated[str | None, typer.Option("--type", help="Only of this report type.")] = None,
    status: Annotated[list[str] | None, typer.Option(help="Only with this status. Repeatable.")] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
    as_json: Json = False,
) -> None:
    """List reports, newest first."""
    query = {"requester": requester, "department": department, "type": kind, "status": status}
    page = ask("GET", "/reports", query={**query, "cursor": cursor, "limit": limit})
    show_page(page, COLUMNS, as_json=as_json, empty="no reports")


@app.command()
def show(report_id: ReportId, as_json: Json = False) -> None:
    """Show one report and the state of each part."""
    found = ask("GET", f"/reports/{report_id}")
    if as_json:
        show_json(found)
        return
    parts = found.pop("parts")
    show_fields(found)
    show_rows(parts, PARTS)


@app.command()
def explain(report_id: ReportId, as_json: Json = False) -> None:
    """Explain why a report is not finished: what it waits for, since when, and what happens next."""
    answer = ask("GET", f"/reports/{report_id}/explain")
    show_explanation(answer, as_json=as_json)


@app.command()
def cancel(report_id: ReportId, as_json: Json = False) -> None:
    """End a report without a file."""
    done = ask("POST", f"/reports/{report_id}/cancel")
    show_answer(done, as_json=as_json, sentence=lambda a: f"report {a['id']} is {a['status']}")


@app.command()
def download(report_id: ReportId, output: Output = None, as_json: Json = False) -> None:
    """Download a report's file. It gets its name only after it is checked."""
    done = with_gateway(lambda gateway: download_file(gateway, report_id, output))
    show_answer(done, as_json=as_json, sentence=_fetched)


def read_conditions(file: str | None) -> dict[str, Any]:
    """Return the JSON object of a file; ``-`` is standard input, ``None`` means no conditions.

    Raises:
        Rejected: ``file_unreadable``, ``wrong_argument``: it is not a JSON object. Permanent.
    """
    if file is None:
        return {}
    try:
        found = json.loads(sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes())
    except OSError as error:
        raise Rejected("file_unreadable", f"{file} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise Rejected("wrong_argument", f"--conditions: not JSON: {error}") from None
    if not isinstance(found, dict):
        raise Rejected("wrong_argument", "--conditions: write a JSON object")
    return found
