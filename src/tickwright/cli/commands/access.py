"""``tickwright keys``, ``sessions`` and ``audit``: who may do what, and what operators did."""

from typing import Annotated, Any

import typer

from tickwright.cli.kit.gateway import ask, given
from tickwright.cli.kit.output import Cursor, Json, Limit, show_answer, show_page
from tickwright.ports.caller import SCOPES, WORK_SCOPES

keys = typer.Typer(help="Keys of the API.", no_args_is_help=True, rich_markup_mode=None)
sessions = typer.Typer(help="Signed-in browser sessions.", no_args_is_help=True, rich_markup_mode=None)


@keys.command("create")
def create_key(
    name: Annotated[str, typer.Argument(help="Its owner, as the audit trail shows it.")],
    role: Annotated[str | None, typer.Option(help="viewer, operator or admin; operator without --scope.")] = None,
    scopes: Annotated[
        list[str] | None,
        typer.Option(
            "--scope",
            help=f"Instead of a role, a scope that it opens: {', '.join([*SCOPES, *WORK_SCOPES])}. Repeatable.",
        ),
    ] = None,
    expires_in: Annotated[
        str | None, typer.Option(metavar="DURATION", help="How long it works; without end by default.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Create a key. The key is shown only once."""
    role = role if role or scopes else "operator"
    made = ask("POST", "/keys", body=given(name=name, role=role, scopes=scopes, expires_in=expires_in))
    show_answer(made, as_json=as_json, sentence=lambda m: m["key"])


@keys.command("list")
def list_keys(as_json: Json = False) -> None:
    """List keys, without the secrets."""
    columns = ("id", "name", "role", "scopes", "prefix", "created_at", "expires_at", "revoked_at")
    show_page(ask("GET", "/keys"), columns, as_json=as_json, empty="no keys")


@keys.command("revoke")
def revoke_key(key: Annotated[int, typer.Argument(min=1, metavar="ID")], as_json: Json = False) -> None:
    """Revoke a key at once."""
    show_answer(ask("POST", f"/keys/{key}/revoke"), as_json=as_json, sentence=lambda k: f"key {k['id']} is revoked")


@sessions.command("list")
def list_sessions(as_json: Json = False) -> None:
    """List signed-in browsers: those of your key, or all of them for an admin."""
    columns = ("id", "name", "role", "key_id", "client", "created_at", "seen_at", "expires_at")
    show_page(ask("GET", "/sessions"), columns, as_json=as_json, empty="no browser is signed in")


@sessions.command("revoke")
def revoke_session(session: Annotated[int, typer.Argument(min=1, metavar="ID")], as_json: Json = False) -> None:
    """Sign a browser out, everywhere within a second."""
    ask("DELETE", f"/sessions/{session}")
    show_answer({"id": session}, as_json=as_json, sentence=lambda one: f"session {one['id']} is ended")


def audit(
    action: Annotated[str | None, typer.Option(help="Only this action, such as jobs.cancel.")] = None,
    action_prefix: Annotated[str | None, typer.Option(help="Only actions that begin with this, such as jobs.")] = None,
    subject: Annotated[str | None, typer.Option(help="Only what was done to this, such as job:42.")] = None,
    actor: Annotated[
        str | None, typer.Option(help="Only what this actor did: the name of a key, or of a user here.")
    ] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
    as_json: Json = False,
) -> None:
    """List operator actions, newest first."""
    query: dict[str, Any] = {"action": action, "action_prefix": action_prefix, "subject": subject, "actor": actor}
    query |= {"cursor": cursor, "limit": limit}
    columns = ("id", "at", "actor", "action", "subject", "before", "after")
    show_page(ask("GET", "/audit", query=query), columns, as_json=as_json, empty="no entries")
