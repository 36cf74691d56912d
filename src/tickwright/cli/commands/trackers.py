"""``tickwright trackers``: register, import, list, end, explain."""

from typing import Annotated

import typer

from tickwright.cli.kit.files import Upload, import_file
from tickwright.cli.kit.gateway import ask, given
from tickwright.cli.kit.output import (
    Cursor,
    Json,
    Limit,
    TrackerId,
    show_answer,
    show_explanation,
    show_fields,
    show_json,
    show_page,
)

app = typer.Typer(help="Trackers: objects that are polled at an interval.", no_args_is_help=True, rich_markup_mode=None)
COLUMNS = ("id", "account_id", "partner", "external_id", "state", "status", "last_polled_at", "next_poll_at")
CSV, NDJSON = "text/csv", "application/x-ndjson"


@app.command()
def register(
    account: Annotated[
        str, typer.Argument(metavar="ACCOUNT", help="The account; a new one gets the default interval.")
    ],
    partner: Annotated[str, typer.Argument(metavar="PARTNER", help="The partner to poll; set up with partners put.")],
    external_id: Annotated[str, typer.Argument(metavar="EXTERNAL_ID", help="What the partner calls it.")],
    status: Annotated[str | None, typer.Option(help='Its status as far as known; "registered" by default.')] = None,
    until: Annotated[
        str | None, typer.Option(metavar="TIME", help="Poll it until this time; RFC 3339 with its offset.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Register one tracker. The same (PARTNER, EXTERNAL_ID) is always the same tracker."""
    body = given(account_id=account, partner=partner, external_id=external_id, status=status, tracking_until=until)
    made = ask("POST", "/trackers", body=body)
    show_answer(
        made,
        as_json=as_json,
        sentence=lambda m: f"tracker {m['tracker']['id']}" + ("" if m["created"] else " (it was registered before)"),
    )


@app.command("import")
def import_(
    file: Annotated[str, typer.Argument(metavar="FILE|-", help="NDJSON or CSV, one tracker per line; - is stdin.")],
    as_csv: Annotated[bool | None, typer.Option("--csv/--ndjson", help="By the file's ending, .csv or not.")] = None,
    rejects: Annotated[str | None, typer.Option(metavar="FILE", help="Write the rejected lines' report there.")] = None,
    as_json: Json = False,
) -> None:
    """Register the trackers of a file of any size. Importing it again registers no tracker twice."""
    csv = file.lower().endswith(".csv") if as_csv is None else as_csv
    upload = Upload("/v1/trackers:bulk", "trackers", content_type=CSV if csv else NDJSON)
    if import_file(file, upload, rejects=rejects, as_json=as_json):
        raise typer.Exit(1)


@app.command("list")
def list_(
    account: Annotated[str | None, typer.Option(help="Only of this account.")] = None,
    partner: Annotated[str | None, typer.Option(help="Only of this partner.")] = None,
    status: Annotated[str | None, typer.Option(help="Only with this status, as the partner writes it.")] = None,
    ended: Annotated[bool | None, typer.Option("--ended/--live", help="Only these; both by default.")] = None,
    state: Annotated[str | None, typer.Option(help="Only waiting, placed or ended ones.")] = None,
    external_id: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only external ids that begin with this, in their order.")
    ] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
    as_json: Json = False,
) -> None:
    """List trackers, newest first; with --external-id, in the order of external ids."""
    query = {
        "state": state,
        "external_id": external_id,
        "account_id": account,
        "partner": partner,
        "status": status,
        "ended": None if ended is None else str(ended).lower(),
        "cursor": cursor,
        "limit": limit,
    }
    show_page(ask("GET", "/trackers", query=query), COLUMNS, as_json=as_json, empty="no trackers")


@app.command()
def show(tracker: TrackerId, as_json: Json = False) -> None:
    """Show one tracker, with the last ten events from polls."""
    found = ask("GET", f"/trackers/{tracker}")
    if as_json:
        show_json(found)
        return
    events = [f"{event['at']} {event['text']}" for event in found.pop("events", [])]
    show_fields(found | {f"event {n}": event for n, event in enumerate(events, 1)})


@app.command()
def end(tracker: TrackerId, as_json: Json = False) -> None:
    """Stop polling a tracker. This cannot be undone."""
    done = ask("POST", f"/trackers/{tracker}/end")
    show_answer(done, as_json=as_json, sentence=lambda d: f"tracker {d['id']} ended at {d['ended_at']}")


@app.command()
def explain(tracker: TrackerId, as_json: Json = False) -> None:
    """Explain a tracker's state: its next poll, what delays it, where its poll is, its last answer."""
    answer = ask("GET", f"/trackers/{tracker}/explain")
    show_explanation(answer, as_json=as_json)
