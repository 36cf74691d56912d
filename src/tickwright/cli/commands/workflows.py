"""``tickwright workflows``: add workflows, list them, see where they are, cancel and retry them."""

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from tickwright.cli.kit.gateway import ask, given
from tickwright.cli.kit.output import (
    Cursor,
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
    show_rows,
)
from tickwright.domain.errors import Rejected

app = typer.Typer(help="Workflows: jobs that wait for jobs.", no_args_is_help=True, rich_markup_mode=None)
COLUMNS = ("id", "name", "state", "nodes", "open", "failed", "cancelled", "created_at", "ended_at")
NODES = ("id", "name", "task_type", "status", "on_failed")
GROUPS = ("level", "kind", "name", "nodes", "states")


class WorkflowState(StrEnum):
    """The states of a workflow."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


WorkflowId = Annotated[int, typer.Argument(min=1, max=2**63 - 1, metavar="ID", help="The workflow's id.")]
FromJob = Annotated[
    int | None,
    typer.Option("--from", min=1, max=2**63 - 1, metavar="JOB", help="Only this job and all that come after it."),
]


@app.command()
def add(
    file: Annotated[str, typer.Argument(metavar="FILE|-", help="The definition as JSON; - is standard input.")],
    key: Annotated[str | None, typer.Option(help="Idempotency key: the same one adds nothing twice.")] = None,
    as_json: Json = False,
) -> None:
    """Add a workflow; all of it or nothing."""
    definition = _definition(file)
    made = ask("POST", "/workflows", body=definition if key is None else {**definition, "key": key})
    show_answer(
        made,
        as_json=as_json,
        sentence=lambda m: f"workflow {m['id']}" + ("" if m["created"] else " (its key had made it)"),
    )


def _definition(file: str) -> dict[str, Any]:
    """Return the definition in a file. Raises ``Rejected`` (``wrong_argument``, ``workflow_too_large``): permanent."""
    from tickwright.capabilities.jobs.workflows.definition import DEFINITION_BYTES_MAX

    try:
        with sys.stdin.buffer if file == "-" else Path(file).open("rb") as source:
            text = source.read(DEFINITION_BYTES_MAX + 1)
    except OSError as error:
        raise Rejected("wrong_argument", f"cannot read {file}: {error.strerror}") from None
    if len(text) > DEFINITION_BYTES_MAX:
        raise Rejected("workflow_too_large", f"{file}: a definition has at most {DEFINITION_BYTES_MAX} bytes")
    try:
        found = json.loads(text)
    except ValueError as error:
        raise Rejected("wrong_argument", f"{file} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise Rejected("wrong_argument", f"{file}: write an object with a name and an array of jobs")
    return found


@app.command("list")
def list_(
    state: Annotated[list[WorkflowState] | None, typer.Option(help="Only in this state. Repeatable.")] = None,
    text: Annotated[str | None, typer.Option(help="Only with this text in the name or the key.")] = None,
    since: Since = None,
    until: Until = None,
    cursor: Cursor = None,
    limit: Limit = 50,
    as_json: Json = False,
) -> None:
    """List workflows, newest first; --since and --until are about when they were added."""
    query = given(
        state=[str(one) for one in state or ()] or None,
        text=text,
        created_from=since,
        created_to=until,
        cursor=cursor,
        limit=limit,
    )
    show_page(ask("GET", "/workflows", query=query), COLUMNS, as_json=as_json, empty="no workflows")


@app.command()
def show(
    workflow_id: WorkflowId,
    wait: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Wait until it has ended, at most this long; up to 60s.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show one workflow, and where it is: its jobs in groups of one type that wait for the same."""
    found = ask("GET", f"/workflows/{workflow_id}", query={"wait": wait})
    graph = ask("GET", f"/workflows/{workflow_id}/graph")
    if as_json:
        show_json({**found, "graph": graph})
        return
    show_fields({name: value for name, value in found.items() if name != "states"})
    say(_counted(found["states"]))
    rows = [{**group, "level": _levels(group), "states": _counted(group["states"])} for group in graph["groups"]]
    show_rows(sorted(rows, key=lambda row: int(str(row["level"]).split("-", maxsplit=1)[0])), GROUPS)


def _levels(group: dict[str, Any]) -> str:
    first, last = group["level"], group["last_level"]
    return str(first) if first == last else f"{first}-{last}"


def _counted(states: dict[str, int]) -> str:
    order = ("failed", "cancelled", "processing", "pending", "waiting", "skipped", "completed")
    return ", ".join(f"{states[state]:,} {state}" for state in order if states.get(state))


@app.command()
def nodes(
    workflow_id: WorkflowId,
    status: Annotated[list[str] | None, typer.Option(help="Only with this status, such as failed. Repeatable.")] = None,
    begins: Annotated[str, typer.Option("--name", metavar="BEGINNING", help="Only names that begin with this.")] = "",
    cursor: Cursor = None,
    limit: Limit = 50,
    as_json: Json = False,
) -> None:
    """List the jobs of a workflow and the workflows inside of it, in the order of the definition."""
    query = given(status=status, q=begins, cursor=cursor, limit=limit)
    answer = ask("GET", f"/workflows/{workflow_id}/nodes", query=query)
    show_page(answer, NODES, as_json=as_json, empty="no jobs")


@app.command()
def explain(workflow_id: WorkflowId, as_json: Json = False) -> None:
    """Explain why a workflow is in its state, and name the jobs that it waits for."""
    show_explanation(ask("GET", f"/workflows/{workflow_id}/explain"), as_json=as_json)


@app.command()
def cancel(workflow_id: WorkflowId, from_job: FromJob = None, as_json: Json = False) -> None:
    """Cancel a workflow, or with --from a job and all that come after it."""
    _act(workflow_id, "cancel", from_job, as_json=as_json)


@app.command()
def retry(workflow_id: WorkflowId, from_job: FromJob = None, as_json: Json = False) -> None:
    """Run again what failed, was cancelled or skipped; completed jobs stay as they are."""
    _act(workflow_id, "retry", from_job, as_json=as_json)


def _act(workflow_id: int, action: str, from_job: int | None, *, as_json: bool) -> None:
    done = ask("POST", f"/workflows/{workflow_id}/{action}", body=given(job_id=from_job) or None)
    show_answer(
        done,
        as_json=as_json,
        sentence=lambda d: f"workflow {d['id']} is {d['state']}: {d['jobs']} jobs {d['outcome']}",
    )
