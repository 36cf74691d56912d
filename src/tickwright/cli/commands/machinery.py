"""``tickwright workers show``, ``leases``, ``outbox destinations|retry|discard``, ``alerts acknowledge``."""

from typing import Annotated, Any
from urllib.parse import quote

import typer

from tickwright.cli.commands.admin import outbox, workers
from tickwright.cli.commands.alerts import app as alerts
from tickwright.cli.kit.gateway import ask
from tickwright.cli.kit.output import Json, show_answer, show_fields, show_json, show_page, show_rows
from tickwright.domain.errors import Rejected

leases = typer.Typer(help="Leases of the control loops.", rich_markup_mode=None)
HOLDS = ("kind", "id", "name", "number", "since_at", "fence", "count")
LEASES = ("job_name", "held", "owner", "session", "version", "age_s", "lease_until", "guards")
DESTINATIONS = ("destination", "state", "why", "waiting", "tried", "oldest_s", "attempts", "next_try_at", "error")


def add_to(app: typer.Typer) -> None:
    """Add the commands of this module to the command line; those of workers, the outbox and alerts add themselves."""
    app.add_typer(leases, name="leases")


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


@leases.callback(invoke_without_command=True)
def list_leases(context: typer.Context, as_json: Json = False) -> None:
    """List the leases of the control loops: the holder of each, since when, and what it guards."""
    if context.invoked_subcommand is None:
        show_page(ask("GET", "/leases"), LEASES, as_json=as_json, empty="no leases")


@leases.command()
def release(name: Annotated[str, typer.Argument(metavar="NAME")], as_json: Json = False) -> None:
    """Take a lease from its holder. The next process that requests it acquires it."""
    if not name or "/" in name:
        raise Rejected("wrong_argument", "NAME: of a lease, as tickwright leases shows it")
    done = ask("POST", f"/leases/{quote(name, safe='')}/release")
    show_answer(done, as_json=as_json, sentence=lambda d: f"{d['job_name']} was taken from {d['owner']}")


@outbox.command()
def destinations(as_json: Json = False) -> None:
    """Show the waiting messages of each destination, stuck and oldest ones first."""
    show_page(ask("GET", "/outbox:destinations"), DESTINATIONS, as_json=as_json, empty="nothing waits")


@outbox.command()
def retry(destination: Annotated[str, typer.Argument(metavar="DESTINATION")], as_json: Json = False) -> None:
    """Retry a destination's waiting messages now, at most 1,000 per call."""
    done = ask("POST", "/outbox:retry", body={"destination": destination})
    show_answer(done, as_json=as_json, sentence=_retried)


def _retried(done: Any) -> str:
    return f"{done['retried']} messages are tried again" + ("; there are more" if done["more"] else "")


@outbox.command()
def discard(message: Annotated[int, typer.Argument(min=1, metavar="ID")], as_json: Json = False) -> None:
    """Dead-letter a waiting message. It can be requeued from the dead letters."""
    done = ask("POST", f"/outbox/{message}/discard")
    show_answer(done, as_json=as_json, sentence=lambda d: f"message {d['id']} to {d['destination']} is a dead letter")


@alerts.command()
def acknowledge(
    alert: Annotated[int, typer.Argument(min=1, metavar="ID")],
    note: Annotated[str | None, typer.Option(help="What you say of it.")] = None,
    as_json: Json = False,
) -> None:
    """Acknowledge a firing alert. If it fires again, it is a new alert."""
    done = ask("POST", f"/alerts/{alert}/acknowledge", body={"note": note})
    show_answer(done, as_json=as_json, sentence=lambda d: f"alert {d['id']} is {d['acknowledged_by']}'s")
