"""``tickwright jobs``: schedule jobs, list them, act on them."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, fields
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, get_type_hints

import typer

from tickwright.capabilities.jobs.states import JobStatus
from tickwright.cli.kit.files import Upload, import_file
from tickwright.cli.kit.gateway import ask, given, json_of, named_values
from tickwright.cli.kit.output import (
    At,
    Cursor,
    In,
    JobId,
    JobIds,
    Json,
    Limit,
    Since,
    Until,
    say,
    show_answer,
    show_explanation,
    show_fields,
    show_json,
    show_page,
)

# The options that select jobs. Listing, cancelling, retrying and rescheduling share them.

Status = Annotated[list[JobStatus] | None, typer.Option(help="Only with this status. Repeatable.")]
OfType = Annotated[str | None, typer.Option("--type", help="Only of this task type.")]
KeyOf = Annotated[str | None, typer.Option("--key", help="Only the job with this idempotency key.")]
Text = Annotated[str | None, typer.Option(help="Only with this text in the key, the last error or the payload.")]
WithGroup = Annotated[str | None, typer.Option("--group", help="Only of this group.")]
WithTag = Annotated[list[str] | None, typer.Option("--tag", help="Only with this tag. Repeatable: with all of them.")]
WithMetadata = Annotated[
    list[str] | None,
    typer.Option("--metadata", metavar="KEY=VALUE", help="Only with this value in the metadata. Repeatable."),
]
Command = Callable[..., None]


@dataclass(frozen=True, slots=True)
class Which:
    """The selected jobs; every field is an option."""

    ids: JobIds = None
    status: Status = None
    task_type: OfType = None
    since: Since = None
    until: Until = None
    key: KeyOf = None
    text: Text = None
    tag: WithTag = None
    group: WithGroup = None
    metadata: WithMetadata = None

    def named(self) -> dict[str, Any]:
        """Return the given options under their names in the API."""
        given = {
            "ids": self.ids,
            "status": [str(one) for one in self.status or ()],
            "task_type": self.task_type,
            "execute_from": self.since,
            "execute_to": self.until,
            "idempotency_key": self.key,
            "text": self.text,
            "tag": self.tag,
            "group": self.group,
            "metadata": self.metadata,
        }
        return {name: value for name, value in given.items() if value}


def takes_which(*, without: Collection[str] = ()) -> Callable[[Command], Command]:
    """Replace a command's parameter ``which`` by these options; ``without`` names the omitted ones."""
    hints = get_type_hints(Which, include_extras=True)
    names = [field.name for field in fields(Which) if field.name not in without]
    options = [Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=hints[name]) for name in names]

    def with_options(command: Command) -> Command:
        own = [
            one.replace(kind=Parameter.KEYWORD_ONLY) for one in signature(command, eval_str=True).parameters.values()
        ]
        place = [one.name for one in own].index("which")

        @wraps(command)
        def run(**given: Any) -> None:
            command(which=Which(**{name: given.pop(name) for name in names}), **given)

        run.__signature__ = Signature([*own[:place], *options, *own[place + 1 :]])  # type: ignore[attr-defined]
        return run

    return with_options


app = typer.Typer(help="One-shot jobs.", no_args_is_help=True, rich_markup_mode=None)
One = Annotated[int | None, typer.Argument(min=1, max=2**63 - 1, metavar="ID", help="The job's id.")]
Tags = Annotated[list[str] | None, typer.Option("--tag", help="A label to find it by. Repeatable.")]
Metadata = Annotated[
    list[str] | None,
    typer.Option("--metadata", metavar="NAME=TEXT|NAME:=JSON", help="A value to find it by. Repeatable."),
]
FromStart = Annotated[
    bool, typer.Option("--from-start", help="Run its steps again; without it, the steps that are done stay done.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say how many, and change none.")]
COLUMNS = ("id", "task_type", "status", "due_at", "attempts", "max_attempts", "error_message")


def payload_of(text: str) -> Any:
    """Return the JSON payload of an argument. Raises ``Rejected`` (``wrong_argument``): permanent."""
    return json_of("PAYLOAD", text)


@app.command()
def schedule(
    task_type: Annotated[str, typer.Argument(metavar="TYPE", help="A registered task type.")],
    payload: Annotated[str, typer.Argument(help="The payload, as JSON.")] = "{}",
    at: At = None,
    delay: In = None,
    key: Annotated[str | None, typer.Option(help="Idempotency key: the same one schedules nothing twice.")] = None,
    priority: Annotated[int, typer.Option(help="-100 to 100; higher ones are first.")] = 0,
    max_attempts: Annotated[int | None, typer.Option(help="Attempts, 1 to 1000; the task type's by default.")] = None,
    timeout: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Limit of one attempt; the task type's by default.")
    ] = None,
    expires_at: Annotated[
        str | None, typer.Option(metavar="TIME", help="Cancel the job when it has not started by then.")
    ] = None,
    tag: Tags = None,
    group: Annotated[str | None, typer.Option(help="Its group, such as a customer; see the type's limits.")] = None,
    metadata: Metadata = None,
    unique: Annotated[
        str | None,
        typer.Option(
            metavar="JSON",
            help='What makes it unique: {"by": ["customer_id"], "period": "15m"}, or false; by default as its type.',
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Schedule one job. Without --at or --in it is due at once."""
    body = given(
        task_type=task_type,
        payload=payload_of(payload),
        execute_at=at,
        delay=delay,
        idempotency_key=key,
        priority=priority,
        max_attempts=max_attempts,
        timeout=timeout,
        expires_at=expires_at,
        tags=tag,
        group=group,
        metadata=named_values("--metadata", metadata) if metadata else None,
        unique=None if unique is None else json_of("--unique", unique),
    )
    made = ask("POST", "/jobs", body=body)
    show_answer(made, as_json=as_json, sentence=_scheduled)


def _scheduled(made: Any) -> str:
    if made["created"]:
        return f"job {made['id']}"
    if made["replaced"]:
        return f"job {made['id']} existed (replaced: {', '.join(made['replaced'])})"
    if made["status"]:
        return f"job {made['id']} existed ({made['status']}) and is kept"
    return f"job {made['id']} (its key had made it)"


@app.command("import")
def import_(
    file: Annotated[str, typer.Argument(metavar="FILE|-", help="NDJSON, one job per line; - is standard input.")],
    key: Annotated[str | None, typer.Option(help="Makes it safe to send the same file again.")] = None,
    rejects: Annotated[str | None, typer.Option(metavar="FILE", help="Write the rejected lines' report there.")] = None,
    as_json: Json = False,
) -> None:
    """Schedule the jobs of a file of any size. Invalid lines are reported and do not affect others."""
    rejected = import_file(file, Upload("/v1/jobs:bulk", "jobs", key), rejects=rejects, as_json=as_json)
    if rejected:
        raise typer.Exit(1)


@app.command("list")
@takes_which(without={"ids"})
def list_(
    *,
    which: Which,
    worker: Annotated[int | None, typer.Option(min=1, help="Only jobs that this worker session holds now.")] = None,
    workflow: Annotated[int | None, typer.Option(min=1, help="Only jobs of this workflow.")] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
    as_json: Json = False,
) -> None:
    """List jobs, newest first."""
    query = {**which.named(), "worker": worker, "workflow": workflow, "cursor": cursor, "limit": limit}
    show_page(ask("GET", "/jobs", query=query), COLUMNS, as_json=as_json, empty="no jobs")


@app.command()
def show(
    job_id: JobId,
    wait: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Wait until it has ended, at most this long; up to 60s.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show one job."""
    job = ask("GET", f"/jobs/{job_id}", query={"wait": wait})
    show_json(job) if as_json else show_fields(job)


@app.command()
def explain(job_id: JobId, as_json: Json = False) -> None:
    """Explain the status of a job."""
    answer = ask("GET", f"/jobs/{job_id}/explain")
    show_explanation(answer, as_json=as_json)


@app.command()
def edit(
    job_id: JobId,
    payload: Annotated[str | None, typer.Argument(help="A new payload, as JSON.")] = None,
    priority: Annotated[int | None, typer.Option(help="-100 to 100; higher ones are first.")] = None,
    tag: Tags = None,
    no_tags: Annotated[bool, typer.Option("--no-tags", help="Remove all tags.")] = False,
    metadata: Metadata = None,
    no_metadata: Annotated[bool, typer.Option("--no-metadata", help="Remove the metadata.")] = False,
    if_version: Annotated[
        int | None, typer.Option(min=1, metavar="VERSION", help="Change nothing if the job has another version by now.")
    ] = None,
    from_start: FromStart = False,
    as_json: Json = False,
) -> None:
    """Change a pending job. Tags and metadata replace those that it has."""
    if (tag and no_tags) or (metadata and no_metadata):
        raise typer.BadParameter("give --tag or --no-tags, and --metadata or --no-metadata")
    body = given(
        version=if_version,
        payload=None if payload is None else payload_of(payload),
        priority=priority,
        tags=[] if no_tags else tag or None,
        metadata=named_values("--metadata", metadata) if metadata else None,
        from_start=from_start or None,
    )
    if payload is not None and body.get("payload") is None:
        body["payload"] = None
    if no_metadata:
        body["metadata"] = None
    done = ask("PATCH", f"/jobs/{job_id}", body=body)
    show_answer(done, as_json=as_json, sentence=lambda d: f"job {d['id']} is edited: version {d['version']}")


@app.command()
@takes_which()
def cancel(
    job_id: One = None,
    *,
    which: Which,
    dry_run: DryRun = False,
    yes: Annotated[bool, typer.Option("--yes", help="Cancel more than one.")] = False,
    as_json: Json = False,
) -> None:
    """Cancel one job, or with --yes all jobs that the options select."""
    if _is_one(job_id, which.named()):
        _act(job_id, "cancel", as_json=as_json)
        return
    if not yes and not dry_run:
        raise typer.BadParameter("this may cancel many jobs; check with --dry-run, then add --yes")
    _act_on_all("cancel", which.named(), dry_run=dry_run, as_json=as_json)


@app.command()
@takes_which(without={"status"})
def retry(
    job_id: One = None,
    *,
    which: Which,
    from_start: FromStart = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Retry failed jobs now, with all their attempts."""
    if _is_one(job_id, which.named()):
        _act(job_id, "retry?from_start=true" if from_start else "retry", as_json=as_json)
        return
    body = {**which.named(), **given(from_start=from_start or None)}
    _act_on_all("retry", body, dry_run=dry_run, as_json=as_json)


@app.command()
@takes_which(without={"status"})
def reschedule(
    job_id: One = None,
    at: At = None,
    delay: In = None,
    shift: Annotated[
        str | None, typer.Option(metavar="DURATION", help='Later than each is due, such as "1h"; "-1h" is earlier.')
    ] = None,
    *,
    which: Which,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Change the time of a pending job, or of all that the options select."""
    to = given(execute_at=at, delay=delay, shift=shift)
    if _is_one(job_id, which.named()):
        if len(to) != 1 or shift is not None:
            raise typer.BadParameter("give --at or --in, one of them")
        _act(job_id, "reschedule", body=to, as_json=as_json)
        return
    if len(to) != 1:
        raise typer.BadParameter("give --at, --in or --shift, one of them")
    _act_on_all("reschedule", {**which.named(), **to}, dry_run=dry_run, as_json=as_json)


@app.command("run-now")
@takes_which(without={"status"})
def run_now(job_id: One = None, *, which: Which, dry_run: DryRun = False, as_json: Json = False) -> None:
    """Make a pending job due now, or all that the options select."""
    if _is_one(job_id, which.named()):
        _act(job_id, "run-now", as_json=as_json)
        return
    _act_on_all("run-now", which.named(), dry_run=dry_run, as_json=as_json)


def _is_one(job_id: int | None, which: dict[str, Any]) -> bool:
    """Return whether one job is meant. Refuse an id together with options, and neither."""
    if (job_id is None) == (not which):
        raise typer.BadParameter("give either an ID, or options that select jobs; see --help")
    return job_id is not None


def _act_on_all(action: str, which: dict[str, Any], *, dry_run: bool, as_json: bool) -> None:
    if dry_run:
        told = ask("POST", f"/jobs:{action}", body={**which, "dry_run": True})
        would = {
            "jobs": told.get("requeued", 0) + told.get("changed", 0) + told.get("requested", 0),
            "more": told["more"],
        }
        show_answer(
            would, as_json=as_json, sentence=lambda a: f"{'over ' if a['more'] else ''}{a['jobs']} jobs, none touched"
        )
        return
    total = stay = held = unfit = 0
    cursor: dict[str, str] = {}
    while True:
        answer = ask("POST", f"/jobs:{action}", body={**which, **cursor})
        total += len(answer["ids"])
        stay += len(answer.get("key_reused", []))
        held += len(answer.get("unique_held", []))
        unfit += len(answer.get("unfit", []))
        if not answer["more"]:
            break
        cursor = {"cursor": answer["next"]}
        say(f"{total} so far")
    left = {"key_reused": stay, "unique_held": held, "unfit": unfit}
    told = {"jobs": total, **{name: count for name, count in left.items() if count}}
    why = f"; {stay} not retried: other jobs have their idempotency keys by now" if stay else ""
    why += f"; {held} not retried: other jobs hold their unique arguments" if held else ""
    why += f"; {unfit} not retried: they break a rule that is younger than they are" if unfit else ""
    show_answer(told, as_json=as_json, sentence=lambda a: f"{a['jobs']} jobs{why}")


def _act(job_id: int | None, action: str, *, as_json: bool, body: Any = None) -> None:
    def sentence(done: Any) -> str:
        when = f", due at {done['execute_at']}" if done.get("execute_at") else ""
        return f"job {done['id']} is {done['status']}: {done['outcome']}{when}"

    show_answer(ask("POST", f"/jobs/{job_id}/{action}", body=body), as_json=as_json, sentence=sentence)
