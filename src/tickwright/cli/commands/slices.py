"""``tickwright slices``: the ledger of polls by minute, and polling again what is missing."""

from typing import Annotated, Any

import typer

from tickwright.cli.kit.gateway import ask, given
from tickwright.cli.kit.output import Cursor, Json, Limit, Since, Until, show_answer, show_json, show_page, show_rows

app = typer.Typer(help="The slice ledger: the outcome of each minute.", no_args_is_help=True, rich_markup_mode=None)
COUNTS = ("expected", "selected", "skipped", "deferred", "published", "polled", "late", "superseded", "coalesced")
COLUMNS = ("due_at", "partner", *COUNTS)
Partner = Annotated[str | None, typer.Option(help="Only this partner.")]
_LEFT_OUT = {
    "unread_trackers": "their polls may be in Kafka, in batches that the consumers have not passed. "
    "Ask again when the lag in tickwright outbox polls is 0; with --topic-lost if the topic has lost them",
    "unknown_trackers": "it is unknown whether one of their batches is in Kafka. "
    "If the lag in tickwright outbox polls is 0, they were read or are lost: ask again with --topic-lost",
}


@app.command("list")
def list_(
    minutes: Annotated[int, typer.Option(min=1, max=5, help="Length of a slice in minutes, 1 or 5.")] = 1,
    since: Since = None,
    until: Until = None,
    partner: Partner = None,
    by_partner: Annotated[bool, typer.Option("--by-partner", help="A row per partner besides the total.")] = False,
    cursor: Cursor = None,
    limit: Limit = 50,
    as_json: Json = False,
) -> None:
    """List slices, newest first. Use --until beyond now to show future slices."""
    if minutes not in {1, 5}:
        raise typer.BadParameter("--minutes: 1 or 5")
    query = {"minutes": minutes, "from": since, "to": until, "partner": partner, "cursor": cursor, "limit": limit}
    page = ask("GET", "/slices", query=query)
    if not as_json:
        page = {**page, "items": [row for item in page["items"] for row in _rows(item, by_partner=by_partner)]}
    show_page(page, COLUMNS, as_json=as_json, empty="no poll was selected")


def _rows(item: Any, *, by_partner: bool) -> list[dict[str, Any]]:
    rows = [{"due_at": item["due_at"], "partner": "all", **item["total"]}]
    if by_partner:
        rows += [{"due_at": "", "partner": name, **counts} for name, counts in item["partners"].items()]
    return rows


@app.command()
def heat(
    since: Since = None,
    until: Until = None,
    step: Annotated[int, typer.Option(help="Minutes of a cell: 1, 5, 15 or 60.")] = 60,
    partner: Partner = None,
    as_json: Json = False,
) -> None:
    """Show the counts of each cell of a range, by default the last day, and how even its load was (flatness 1)."""
    said = ask("GET", "/slices:heat", query={"from": since, "to": until, "step": step, "partner": partner})
    if as_json:
        show_json(said)
        return
    columns = ("from_at", "expected", "selected", "published", "polled", "late", "unanswered", "flatness", "last_turns")
    show_rows(said["cells"], columns, empty="no poll was selected")


@app.command()
def replay(
    since: Annotated[str, typer.Option(metavar="TIME", help="From this time on; RFC 3339 with its offset.")],
    until: Annotated[str, typer.Option(metavar="TIME", help="Before this time; RFC 3339 with its offset.")],
    partner: Partner = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without it only count.")] = False,
    topic_lost: Annotated[
        bool,
        typer.Option(
            "--topic-lost",
            help="Also replay unread records of Kafka; if they still exist, they come twice.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Poll again the last scheduled polls in a range that are missing, and no others. Without --yes only count them."""
    body = given(**{"from": since}, to=until, partner=partner, dry_run=not yes, topic_lost=topic_lost)
    done = ask("POST", "/slices/replay", body=body)
    show_answer(done, as_json=as_json, sentence=_replay_sentence)


def _replay_sentence(done: Any) -> str:
    doing = "would be polled again; add --yes to do it" if done["dry_run"] else "are polled again"
    left = f"; {done['superseded_turns']} turns have a later one" if done["superseded_turns"] else ""
    until = f" until {done['released_until']}" if done["released_until"] else ""
    said = f"{done['trackers']} trackers of {done['turns']} turns {doing}{until}{left}"
    for name, why in _LEFT_OUT.items():
        said += f"\n{done[name]} trackers are left out: {why}" if done[name] else ""
    return said
