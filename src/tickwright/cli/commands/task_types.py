"""``tickwright task-types`` and ``tickwright queues``: targets, limits, pauses and secrets of task types."""

from functools import partial
from typing import Annotated, Any

import msgspec
import typer

from tickwright.cli.kit.gateway import api_path, ask, given, json_of, put_changes, with_gateway
from tickwright.cli.kit.output import Cursor, Json, Limit, show_answer, show_json, show_page
from tickwright.domain.errors import Rejected
from tickwright.domain.targets import FORMS_SHOWN

app = typer.Typer(help="Task types: targets, limits, retry policy.", no_args_is_help=True, rich_markup_mode=None)
COLUMNS = ("name", "queue", "target", "timeout", "max_attempts", "concurrency", "rate_per_s", "paused_at", "gone_at")
GROUP_COLUMNS = ("group", "waiting", "running", "next_at", "free_at", "stopped_by")
Name = Annotated[str, typer.Argument(metavar="NAME", help="The task type.")]
Queue = Annotated[str | None, typer.Option(help="The queue of its jobs; default by default.")]
Needs = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help='What its workers must have, such as gpu. Repeatable; "" for nothing.'),
]
GroupLimit = Annotated[
    int | None, typer.Option(help="Most attempts of one group at a time, in all workers; no limit by default.")
]
GroupRate = Annotated[str | None, typer.Option(help='Most starts of one group, such as "10/m"; no limit by default.')]
GroupOrder = Annotated[
    str | None, typer.Option(help="Jobs of a group run one after another; a failed one: stop, skip or continue.")
]
UniqueRule = Annotated[
    str | None,
    typer.Option(metavar="JSON", help='What makes its jobs unique: {"by": ["customer_id"], "period": "15m"}.'),
]
Encrypted = Annotated[
    bool | None, typer.Option("--encrypted", help="Store payloads and results encrypted. It cannot be undone.")
]
Deliver = Annotated[str | None, typer.Option(help="What the target of an encrypted type gets: plain or cipher.")]
path = partial(api_path, "task-types", "NAME")
SETTABLE = (
    "target", "timeout", "max_attempts", "retry_base", "retry_factor", "retry_cap", "final_statuses", "concurrency",
    "rate_per_s", "keep_history", "queue", "needs", "group_limit", "group_rate_per_s",
    "group_order", "unique", "encrypted", "deliver",
)  # fmt: skip


@app.command("list")
def list_(as_json: Json = False) -> None:
    """List every task type."""
    show_page(ask("GET", "/task-types"), COLUMNS, as_json=as_json, empty="no task types")


@app.command()
def put(
    name: Name,
    target: Annotated[str | None, typer.Option(help=FORMS_SHOWN)] = None,
    timeout: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Limit of one attempt; 30s by default.")
    ] = None,
    max_attempts: Annotated[int | None, typer.Option(help="Attempts of a job, 1 to 1000; 3 by default.")] = None,
    retry_base: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Longest first wait; 1s by default.")
    ] = None,
    retry_factor: Annotated[
        float | None, typer.Option(help="How much longer each further wait is; 2 by default.")
    ] = None,
    retry_cap: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Longest wait of all; 1h by default.")
    ] = None,
    final_status: Annotated[
        list[int] | None, typer.Option(help="An HTTP status that ends the job at once. Repeatable.")
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(help="Most attempts at a time, in all workers; no limit by default.")
    ] = None,
    rate: Annotated[
        str | None, typer.Option(help='Most starts in all workers, such as "50/s"; no limit by default.')
    ] = None,
    keep_history: Annotated[
        bool | None,
        typer.Option("--keep-history/--forget", help="Whether completed jobs are kept; they are by default."),
    ] = None,
    queue: Queue = None,
    needs: Needs = None,
    group_limit: GroupLimit = None,
    group_rate: GroupRate = None,
    group_order: GroupOrder = None,
    unique: UniqueRule = None,
    not_unique: Annotated[bool, typer.Option("--not-unique", help="Its jobs are not unique any more.")] = False,
    encrypted: Encrypted = None,
    deliver: Deliver = None,
    as_json: Json = False,
) -> None:
    """Create a task type, or change the given fields of an existing one."""
    retry = {"base": retry_base, "factor": retry_factor, "cap": retry_cap}
    settings = given(
        timeout=timeout,
        max_attempts=max_attempts,
        retry=given(**retry) or None,
        final_statuses=final_status,
        concurrency=concurrency,
        rate=rate,
        keep_history=keep_history,
        queue=queue,
        needs=None if needs is None else [need for need in needs if need],
        group_limit=group_limit,
        group_rate=group_rate,
        group_order=group_order,
        unique=None if unique is None else json_of("--unique", unique),
        encrypted=encrypted,
        deliver=deliver,
    )
    changes = changes_of(name, target, settings, retry)
    if not_unique:
        changes["unique"] = None
    stored = with_gateway(lambda gateway: put_changes(gateway, path(name), changes, keep=SETTABLE, need="target"))
    show_answer(stored, as_json=as_json, sentence=_stored)


def changes_of(name: str, target: str | None, settings: dict[str, Any], retry: dict[str, Any]) -> dict[str, Any]:
    """Return given options as checked fields. Raises ``Rejected`` (``wrong_argument``, all mistakes): permanent."""
    from tickwright.capabilities.jobs.task_types import read_task_type, request_of

    problems: list[str] = []
    implied = {"encrypted": True} if "deliver" in settings else {}  # the API knows whether an existing type is
    table = {"target": target or "python:unchanged", **implied, **settings}
    kind = read_task_type(name, table, problems, where=name)
    if problems:
        raise Rejected("wrong_argument", "\n".join(problems), problems=problems)
    whole = msgspec.structs.asdict(request_of(kind))
    wanted = {f"{key}_per_s" if key in {"rate", "group_rate"} else key for key in settings if key != "retry"}
    wanted |= {f"retry_{part}" for part in given(**retry)}
    changes = {key: msgspec.to_builtins(whole[key]) for key in wanted}
    return changes if target is None else {**changes, "target": target}


def _stored(stored: Any) -> str:
    kind = stored["task_type"]
    text = f"{kind['name']} {'created' if stored['created'] else 'changed'}: {kind['target']}"
    if stored.get("secret"):
        text += f"\nsigning secret, shown this once: {stored['secret']}"
    return text


@app.command()
def pause(name: Name, as_json: Json = False) -> None:
    """Make a type's jobs wait. Running jobs continue."""
    show_answer(ask("POST", path(name) + "/pause"), as_json=as_json, sentence=lambda t: f"{t['name']} waits")


@app.command()
def enable(name: Name, as_json: Json = False) -> None:
    """Let a type's jobs run again, after a pause or after its endpoint was gone."""
    show_answer(ask("POST", path(name) + "/enable"), as_json=as_json, sentence=lambda t: f"{t['name']} runs")


@app.command("rotate-secret")
def rotate_secret(
    name: Name,
    overlap: Annotated[
        str, typer.Option(metavar="DURATION", help="How long the old secrets stay in use beside the new one.")
    ] = "24h",
    as_json: Json = False,
) -> None:
    """Create a new signing secret. It is shown only once."""
    answer = ask("POST", path(name) + "/rotate-secret", body={"overlap": overlap})
    show_answer(answer, as_json=as_json, sentence=lambda a: a["secret"])


@app.command()
def groups(
    name: Name,
    stopped: Annotated[bool, typer.Option("--stopped", help="Only those that stopped behind a failed job.")] = False,
    cursor: Cursor = None,
    limit: Limit = 50,
    as_json: Json = False,
) -> None:
    """List the groups of a type's jobs."""
    query = {"stopped": "true" if stopped else None, "cursor": cursor, "limit": limit}
    page = ask("GET", path(name) + "/groups", query=query)
    show_page(page, GROUP_COLUMNS, as_json=as_json, empty="no groups")


@app.command("release-group")
def release_group(
    name: Name, group: Annotated[str, typer.Argument(metavar="GROUP", help="The group.")], as_json: Json = False
) -> None:
    """Let a group go on that has stopped behind a failed job. The job stays a dead letter."""
    released = ask("POST", path(name) + "/release-group", body={"group": group})
    show_answer(released, as_json=as_json, sentence=lambda r: f"{r['group']} goes on behind job {r['passed']}")


@app.command()
def delete(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", help="Confirm it: the jobs of this type wait from then on.")] = False,
    as_json: Json = False,
) -> None:
    """Delete a task type. Its jobs wait like those of an unknown type."""
    if not yes:
        raise typer.BadParameter(f"its jobs would wait until a program registers {name} again; add --yes")
    ask("DELETE", path(name))
    show_json({"deleted": name}) if as_json else show_answer(name, as_json=False, sentence=lambda n: f"{n} deleted")


queues = typer.Typer(
    help="Queues: task types that workers reserve slots for.", no_args_is_help=True, rich_markup_mode=None
)
QUEUE_COLUMNS = ("name", "types", "due", "running", "workers", "paused_at")
QueueName = Annotated[str, typer.Argument(metavar="NAME", help="The queue.")]
queue_path = partial(api_path, "queues", "NAME")


@queues.command("list")
def list_queues(as_json: Json = False) -> None:
    """List every queue of a task type, its jobs and the workers that serve it."""
    show_page(ask("GET", "/queues"), QUEUE_COLUMNS, as_json=as_json, empty="no queues")


@queues.command("pause")
def pause_queue(name: QueueName, as_json: Json = False) -> None:
    """Make the jobs of a queue wait. Running jobs continue."""
    show_answer(ask("POST", queue_path(name) + "/pause"), as_json=as_json, sentence=lambda q: f"{q['name']} waits")


@queues.command("enable")
def enable_queue(name: QueueName, as_json: Json = False) -> None:
    """Let the jobs of a queue run again."""
    show_answer(ask("POST", queue_path(name) + "/enable"), as_json=as_json, sentence=lambda q: f"{q['name']} runs")
