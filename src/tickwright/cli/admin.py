"""Looking after an installation: dead letters, outbox, workers, leases, alerts, keys, audit."""

from typing import Annotated

import typer

from tickwright.cli.gateway import ask
from tickwright.cli.options import Cursor, Json, Limit
from tickwright.cli.output import show_answer, show_page
from tickwright.domain.errors import Rejected

dead_letters = typer.Typer(help="What was given up.", no_args_is_help=True, rich_markup_mode=None)
workers = typer.Typer(help="Worker sessions.", no_args_is_help=True, rich_markup_mode=None)
keys = typer.Typer(help="Keys of the API.", no_args_is_help=True, rich_markup_mode=None)
SHOWN_MAX = 10
Kind = Annotated[str | None, typer.Option(help="job or outbox.")]


def add_to(app: typer.Typer) -> None:
    """Put the commands of this module into the tree."""
    app.add_typer(dead_letters, name="dead-letters")
    app.add_typer(workers, name="workers")
    app.add_typer(keys, name="keys")
    for command in (outbox, leases, alerts, audit):
        app.command()(command)


@dead_letters.command("list")
def list_dead_letters(
    kind: Kind = None,
    subject: Annotated[str | None, typer.Option(help="A task type or a destination.")] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
    as_json: Json = False,
) -> None:
    """List dead letters, the youngest first."""
    page = ask("GET", "/dead-letters", query={"kind": kind, "subject": subject, "cursor": cursor, "limit": limit})
    columns = ("kind", "id", "subject", "attempts", "died_at", "error_message")
    show_page(page, columns, as_json=as_json, empty="no dead letters")


@dead_letters.command()
def requeue(
    ids: Annotated[list[int] | None, typer.Argument(min=1, metavar="[ID]…", help="Which ones.")] = None,
    kind: Annotated[str, typer.Option(help="job or outbox.")] = "job",
    subject: Annotated[str | None, typer.Option(help="All of a task type or a destination.")] = None,
    as_json: Json = False,
) -> None:
    """Put dead letters back to work, the oldest first, at most 1,000 a call; 1 where an id is none (any more)."""
    if not ids and subject is None:
        raise typer.BadParameter("give the ids, or --subject")
    body = {"kind": kind, "ids": ids or None, "subject": subject}
    done = ask("POST", "/dead-letters/requeue", body={name: value for name, value in body.items() if value is not None})
    more = " (there are more)" if done["more"] else ""
    show_answer(done, as_json=as_json, sentence=lambda d: f"{d['requeued']} requeued{more}")
    if missing := sorted(set(ids or ()) - set(done["ids"])):
        listed = ", ".join(map(str, missing[:SHOWN_MAX])) + (" …" if len(missing) > SHOWN_MAX else "")
        raise Rejected("no_dead_letter", f"no dead letter of the kind {kind}, so not requeued: {listed}", ids=missing)


def outbox(
    destination: Annotated[str | None, typer.Option(help="One destination only.")] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
    as_json: Json = False,
) -> None:
    """List messages that wait for the relay, newest first."""
    page = ask("GET", "/outbox", query={"destination": destination, "cursor": cursor, "limit": limit})
    columns = ("id", "destination", "key", "created_at", "attempts", "next_at", "error_message")
    show_page(page, columns, as_json=as_json, empty="the outbox is empty")


@workers.command("list")
def list_workers(as_json: Json = False) -> None:
    """List worker sessions of the last day, newest first."""
    columns = ("id", "name", "roles", "version", "alive", "started_at", "seen_at", "drain_requested_at")
    show_page(ask("GET", "/workers"), columns, as_json=as_json, empty="no workers")


@workers.command()
def drain(worker: Annotated[int, typer.Argument(min=1, metavar="ID")], as_json: Json = False) -> None:
    """Ask a worker to finish what it runs and stop."""
    answer = ask("POST", f"/workers/{worker}/drain")
    show_answer(answer, as_json=as_json, sentence=lambda a: f"worker {a['id']} was asked to stop")


def leases(as_json: Json = False) -> None:
    """List the leases of the control loops."""
    columns = ("job_name", "owner", "version", "lease_until", "running", "last_started_at", "last_completed_at")
    show_page(ask("GET", "/leases"), columns, as_json=as_json, empty="no leases")


def alerts(
    state: Annotated[str | None, typer.Option(help="firing or resolved.")] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
    as_json: Json = False,
) -> None:
    """List alerts, newest first."""
    page = ask("GET", "/alerts", query={"state": state, "cursor": cursor, "limit": limit})
    columns = ("id", "state", "severity", "rule", "subject", "summary", "fired_at", "resolved_at")
    show_page(page, columns, as_json=as_json, empty="no alerts")


@keys.command("create")
def create_key(
    name: Annotated[str, typer.Argument(help="Whose it is; shown in the audit trail.")],
    role: Annotated[str, typer.Option(help="viewer, operator or admin.")] = "operator",
    expires_in: Annotated[str | None, typer.Option(metavar="DURATION", help="Never by default.")] = None,
    as_json: Json = False,
) -> None:
    """Make a key; it is shown this once."""
    body = {"name": name, "role": role, "expires_in": expires_in}
    made = ask("POST", "/keys", body={key: value for key, value in body.items() if value is not None})
    show_answer(made, as_json=as_json, sentence=lambda m: m["key"])


@keys.command("list")
def list_keys(as_json: Json = False) -> None:
    """List keys, without what opens anything."""
    columns = ("id", "name", "role", "prefix", "created_at", "expires_at", "revoked_at")
    show_page(ask("GET", "/keys"), columns, as_json=as_json, empty="no keys")


@keys.command("revoke")
def revoke_key(key: Annotated[int, typer.Argument(min=1, metavar="ID")], as_json: Json = False) -> None:
    """Refuse a key from now on."""
    show_answer(ask("POST", f"/keys/{key}/revoke"), as_json=as_json, sentence=lambda k: f"key {k['id']} is revoked")


def audit(
    action: Annotated[str | None, typer.Option(help="Such as jobs.cancel.")] = None,
    subject: Annotated[str | None, typer.Option(help="Such as job:42.")] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
    as_json: Json = False,
) -> None:
    """List operator actions, newest first."""
    query = {"action": action, "subject": subject, "cursor": cursor, "limit": limit}
    columns = ("id", "at", "actor", "action", "subject", "before", "after")
    show_page(ask("GET", "/audit", query=query), columns, as_json=as_json, empty="nobody did anything")
