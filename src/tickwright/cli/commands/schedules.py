"""``tickwright schedules``: periodic jobs."""

from functools import partial
from typing import Annotated, Any

import typer

from tickwright.cli.commands.jobs import payload_of
from tickwright.cli.kit.gateway import Gateway, api_path, ask, given, with_gateway
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

app = typer.Typer(help="Periodic jobs.", no_args_is_help=True, rich_markup_mode=None)
COLUMNS = ("name", "task_type", "text", "time_zone", "state", "next_at", "last_slot_at", "last_job_id", "set_by")
OCCURRENCES = ("at", "local", "clock_change")
Name = Annotated[str, typer.Argument(metavar="NAME", help="The schedule.")]
Slot = Annotated[
    str | None, typer.Option(metavar="TIME", help="Explain the occurrence of this time; RFC 3339 with its offset.")
]
Cron = Annotated[str | None, typer.Option(metavar="FIELDS", help='Such as "0 3 * * *" or @daily. This or --every.')]
Every = Annotated[str | None, typer.Option(metavar="DURATION", help='Such as "15m". This or --cron.')]
Zone = Annotated[str | None, typer.Option("--time-zone", help="Such as Europe/Kyiv; UTC by default.")]
FirstAt = Annotated[
    str | None, typer.Option(metavar="TIME", help="No occurrence is before it; --every counts from it.")
]
Spread = Annotated[str | None, typer.Option(metavar="DURATION", help="A window in which its jobs have a fixed place.")]
Count = Annotated[int, typer.Option(min=1, max=100, help="How many.")]
path = partial(api_path, "schedules", "NAME")


@app.command("list")
def list_(
    begins: Annotated[str, typer.Option("--name", metavar="BEGINNING", help="Only names that begin with this.")] = "",
    task_type: Annotated[str | None, typer.Option("--type", help="Only of this task type.")] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
    as_json: Json = False,
) -> None:
    """List schedules by name, with the next occurrence and the last job of each."""
    query = {"q": begins, "task_type": task_type, "cursor": cursor, "limit": limit}
    show_page(ask("GET", "/schedules", query=query), COLUMNS, as_json=as_json, empty="no schedules")


@app.command()
def show(name: Name, as_json: Json = False) -> None:
    """Show one, with its next ten occurrences and the newest occurrences without a job."""
    found = ask("GET", path(name))
    show_json(found) if as_json else show_fields(found)


@app.command()
def put(
    name: Name,
    task_type: Annotated[str | None, typer.Option("--type", help="The task type of its jobs.")] = None,
    payload: Annotated[str | None, typer.Option(help="The payload of each job, as JSON.")] = None,
    cron: Cron = None,
    every: Every = None,
    time_zone: Zone = None,
    first_at: FirstAt = None,
    spread: Spread = None,
    overlap: Annotated[
        str | None, typer.Option(help="A job of it has not ended: allow both, skip the new one, replace the earlier.")
    ] = None,
    misfire: Annotated[str | None, typer.Option(help="Occurrences found too late: one, all or none.")] = None,
    misfire_max: Annotated[int | None, typer.Option(help="Most of them with all.")] = None,
    misfire_grace: Annotated[str | None, typer.Option(metavar="DURATION", help="Later than this is too late.")] = None,
    priority: Annotated[int | None, typer.Option(help="-100 to 100, higher first.")] = None,
    max_attempts: Annotated[int | None, typer.Option(help="Of each job; that of the type by default.")] = None,
    timeout: Annotated[str | None, typer.Option(metavar="DURATION", help="Of one attempt.")] = None,
    expires_after: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Cancel a job that has not started by then.")
    ] = None,
    version: Annotated[int | None, typer.Option(min=1, help="Refuse it unless this is the newest version.")] = None,
    as_json: Json = False,
) -> None:
    """Create a schedule, or change the given fields of an existing one."""
    changes = given(
        task_type=task_type,
        payload=None if payload is None else payload_of(payload),
        cron=cron,
        every=every,
        time_zone=time_zone,
        first_at=first_at,
        spread=spread,
        overlap=overlap,
        misfire=misfire,
        misfire_max=misfire_max,
        misfire_grace=misfire_grace,
        priority=priority,
        max_attempts=max_attempts,
        timeout=timeout,
        expires_after=expires_after,
        version=version,
    )
    stored = with_gateway(lambda gateway: _put(gateway, name, changes))
    show_answer(stored, as_json=as_json, sentence=_stored)


async def _put(gateway: Gateway, name: str, changes: dict[str, Any]) -> Any:
    """Change a schedule; create it where there is none and nothing says which version is edited."""
    try:
        return await gateway.ask("PATCH", path(name), body=changes)
    except Rejected as error:
        if error.code != "schedule_not_found" or "version" in changes:
            raise
        if "task_type" not in changes:
            raise Rejected("wrong_argument", f"{name} is new: give its --type") from None
    return await gateway.ask("PUT", path(name), body=changes)


def _stored(stored: Any) -> str:
    schedule = stored["schedule"]
    text = f"{schedule['name']} {'created' if stored['created'] else 'changed'}: {schedule['text']}"
    return f"{text}, {schedule['time_zone']}; next at {schedule['next_at'] or 'no time'}"


@app.command()
def pause(name: Name, as_json: Json = False) -> None:
    """Make no more jobs of it."""
    show_answer(ask("POST", path(name) + "/pause"), as_json=as_json, sentence=lambda s: f"{s['name']} is paused")


@app.command()
def enable(name: Name, as_json: Json = False) -> None:
    """Make jobs of it again, from now on; what it missed is not caught up."""
    answer = ask("POST", path(name) + "/enable")
    show_answer(answer, as_json=as_json, sentence=lambda s: f"{s['name']} runs next at {s['next_at'] or 'no time'}")


@app.command("run-now")
def run_now(name: Name, as_json: Json = False) -> None:
    """Make one job now, beside its occurrences."""
    show_answer(ask("POST", path(name) + "/run-now"), as_json=as_json, sentence=lambda made: f"job {made['id']}")


@app.command()
def delete(name: Name, as_json: Json = False) -> None:
    """Delete a schedule; jobs that it made stay. One that a program declares comes back when that starts."""
    ask("DELETE", path(name))
    show_json({"deleted": name}) if as_json else show_answer(name, as_json=False, sentence=lambda n: f"{n} deleted")


@app.command()
def preview(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="The schedule; or give the times.")] = None,
    cron: Cron = None,
    every: Every = None,
    time_zone: Zone = None,
    first_at: FirstAt = None,
    spread: Spread = None,
    count: Count = 10,
    as_json: Json = False,
) -> None:
    """Show the next occurrences of a schedule, or of times that are not saved."""
    times = given(cron=cron, every=every, time_zone=time_zone, first_at=first_at, spread=spread)
    if name is not None and not times:
        found = ask("GET", path(name) + "/preview", query={"count": count})
    elif times:
        body = {"task_type": "preview", **times}
        found = ask("POST", "/schedules:preview", query={"name": name or "preview", "count": count}, body=body)
    else:
        raise Rejected("wrong_argument", "give a NAME, or --cron or --every")
    show_json(found) if as_json else show_rows(found["occurrences"], OCCURRENCES, empty="no occurrence")


@app.command()
def explain(name: Name, slot: Slot = None, as_json: Json = False) -> None:
    """Explain why it makes jobs or does not; with --slot, what happened at that occurrence."""
    show_explanation(ask("GET", path(name) + "/explain", query={"slot": slot}), as_json=as_json)
