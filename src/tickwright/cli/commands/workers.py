"""``tickwright workers`` and ``leases``: sessions with what they hold, and leases of the control loops."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from tickwright.cli.kit.gateway import api_path, ask
from tickwright.cli.kit.output import Json, show_answer, show_fields, show_json, show_page, show_rows

workers = typer.Typer(help="Worker sessions.", no_args_is_help=True, rich_markup_mode=None)
HOLDS = ("kind", "id", "name", "number", "since_at", "fence", "count")
CALLS = ("id", "kind", "name", "pool", "worker", "worker_name", "began_at", "deadline_at", "progress")
leases = typer.Typer(help="Leases of the control loops.", rich_markup_mode=None)
LEASES = ("job_name", "held", "owner", "session", "version", "age_s", "lease_until", "guards")


@workers.command("list")
def list_workers(as_json: Json = False) -> None:
    """List worker sessions of the last day, newest first."""
    columns = ("id", "name", "roles", "runs", "version", "alive", "started_at", "seen_at", "drain_requested_at")
    found = ask("GET", "/workers")
    if not as_json:
        found["items"] = [{**worker, "runs": _scope_of(worker)} for worker in found["items"]]
    show_page(found, columns, as_json=as_json, empty="no workers")


def _scope_of(worker: Mapping[str, Any]) -> str:
    """Return what a worker runs, as its queues, types and needs say; nothing without such limits."""
    scope = (worker["facts"] or {}).get("scope") or {}
    slots = ",".join(f"{queue}:{number}" for queue, number in scope.get("slots", {}).items())
    names = [f"{part}={','.join(scope[part])}" for part in ("types", "needs") if part in scope]
    return " ".join([*([slots] if slots else []), *names])


@workers.command("show")
def show_worker(worker: Annotated[int, typer.Argument(min=1, metavar="ID")], as_json: Json = False) -> None:
    """Show one worker session and what it holds, at most 100 of each kind."""
    found = ask("GET", f"/workers/{worker}")
    if as_json:
        show_json(found)
        return
    holds = found.pop("holds")
    show_fields(found)
    show_rows(holds, HOLDS, empty="it holds nothing")


@workers.command()
def calls(as_json: Json = False) -> None:
    """List polls, tasks and chunks that consumers have handed over to remote workers, the oldest first."""
    found = ask("GET", "/remote-calls")
    show_json(found) if as_json else show_rows(found["items"], CALLS, empty="no calls")


@workers.command()
def drain(worker: Annotated[int, typer.Argument(min=1, metavar="ID")], as_json: Json = False) -> None:
    """Ask a worker to finish its running work and stop."""
    answer = ask("POST", f"/workers/{worker}/drain")
    show_answer(answer, as_json=as_json, sentence=lambda a: f"worker {a['id']} was asked to stop")


@leases.callback(invoke_without_command=True)
def list_leases(context: typer.Context, as_json: Json = False) -> None:
    """List the leases of the control loops: the holder of each, since when, and what it guards."""
    if context.invoked_subcommand is None:
        show_page(ask("GET", "/leases"), LEASES, as_json=as_json, empty="no leases")


@leases.command()
def release(name: Annotated[str, typer.Argument(metavar="NAME")], as_json: Json = False) -> None:
    """Take a lease from its holder. The next process that requests it acquires it."""
    done = ask("POST", f"{api_path('leases', 'NAME', name)}/release")
    show_answer(done, as_json=as_json, sentence=lambda d: f"{d['job_name']} was taken from {d['owner']}")
