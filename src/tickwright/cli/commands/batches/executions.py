"""``tickwright executions``: the progress and results of campaigns and batches, and actions on executions."""

from typing import Annotated, Any

import typer

from tickwright.cli.kit.gateway import ask
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

app = typer.Typer(help="Executions of campaigns and batches.", no_args_is_help=True, rich_markup_mode=None)
COLUMNS = ("id", "name", "slot_at", "status", "chunks_done", "chunks", "seen", "members", "actions", "released",
           "error_message")  # fmt: skip
ACTIONS = ("client_id", "released", "chunk", "client")
PROBLEMS = ("chunk", "client_id", "problem")
ExecutionId = Annotated[int, typer.Argument(min=1, max=2**63 - 1, metavar="ID", help="The execution's id.")]


@app.command("list")
def list_(
    campaign: Annotated[str | None, typer.Option(metavar="NAME", help="Only of this campaign.")] = None,
    batch: Annotated[str | None, typer.Option(metavar="NAME", help="Only of this batch of a program.")] = None,
    status: Annotated[list[str] | None, typer.Option(help="Only with this status. Repeatable.")] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
    as_json: Json = False,
) -> None:
    """List executions, newest first."""
    query = {"campaign": campaign, "batch": batch, "status": status, "cursor": cursor, "limit": limit}
    show_page(ask("GET", "/executions", query=query), COLUMNS, as_json=as_json, empty="no executions")


@app.command()
def show(execution_id: ExecutionId, as_json: Json = False) -> None:
    """Show one execution: its progress and rate, its error, and the clients that it could not evaluate."""
    found = ask("GET", f"/executions/{execution_id}")
    if as_json:
        show_json(found)
        return
    problems = found.pop("problems")
    show_fields(found)
    if problems:
        show_rows(problems, PROBLEMS)


@app.command()
def actions(
    execution_id: ExecutionId,
    client_id: Annotated[str | None, typer.Option("--client", metavar="ID", help="Only of this client.")] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
    as_json: Json = False,
) -> None:
    """List the actions of an execution by client, and whether each is released."""
    query = {"client_id": client_id, "cursor": cursor, "limit": limit}
    page = ask("GET", f"/executions/{execution_id}/actions", query=query)
    show_page(page, ACTIONS, as_json=as_json, empty="no actions")


@app.command()
def explain(execution_id: ExecutionId, as_json: Json = False) -> None:
    """Explain why an execution has not ended and what happens next, or how it ended."""
    show_explanation(ask("GET", f"/executions/{execution_id}/explain"), as_json=as_json)


@app.command()
def pause(execution_id: ExecutionId, as_json: Json = False) -> None:
    """Start no more chunks and release none. Running chunks finish."""
    _act(execution_id, "pause", as_json=as_json)


@app.command()
def resume(execution_id: ExecutionId, as_json: Json = False) -> None:
    """Continue a paused execution."""
    _act(execution_id, "resume", as_json=as_json)


@app.command()
def stop(execution_id: ExecutionId, as_json: Json = False) -> None:
    """Stop an execution. It becomes STOPPED, and its unreleased actions are never released."""
    _act(execution_id, "stop", as_json=as_json)


@app.command()
def retry(execution_id: ExecutionId, as_json: Json = False) -> None:
    """Continue a failed execution with its unfinished chunks."""
    _act(execution_id, "retry", as_json=as_json)


def _act(execution_id: int, action: str, *, as_json: bool) -> None:
    def sentence(done: Any) -> str:
        paused = ", paused" if done["paused"] else ""
        return f"execution {done['id']} of {done['name']} {done['outcome']}: {done['status']}{paused}"

    show_answer(ask("POST", f"/executions/{execution_id}/{action}"), as_json=as_json, sentence=sentence)
