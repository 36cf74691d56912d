"""Commands for operators: dead letters, outbox, workers, keys, sessions, audit."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from tickwright.cli.kit.gateway import ask
from tickwright.cli.kit.output import Cursor, Json, Limit, say, show_answer, show_json, show_page, show_rows, write
from tickwright.domain.errors import Rejected
from tickwright.ports.caller import SCOPES
from tickwright.process.plugins import PLUGINS

dead_letters = typer.Typer(help="Work and messages that failed for good.", no_args_is_help=True, rich_markup_mode=None)
workers = typer.Typer(help="Worker sessions.", no_args_is_help=True, rich_markup_mode=None)
outbox = typer.Typer(help="Messages that wait for the relay.", rich_markup_mode=None)
keys = typer.Typer(help="Keys of the API.", no_args_is_help=True, rich_markup_mode=None)
sessions = typer.Typer(help="Signed-in browser sessions.", no_args_is_help=True, rich_markup_mode=None)
SHOWN_MAX = 10
IN_RABBITMQ = {kind: columns for plugin in PLUGINS for kind, columns in plugin.broker_dead_letters.items()}
"""Kinds whose dead letters are in RabbitMQ: their own columns, the filter for their subject first."""
KINDS = f"job, {', '.join(['outbox', *IN_RABBITMQ])}"
Kind = Annotated[str | None, typer.Option(help=f"One of: {KINDS}.")]


def add_to(app: typer.Typer) -> None:
    """Add the commands of this module to the command line."""
    app.add_typer(dead_letters, name="dead-letters")
    app.add_typer(workers, name="workers")
    app.add_typer(keys, name="keys")
    app.add_typer(sessions, name="sessions")
    app.add_typer(outbox, name="outbox")
    app.command()(audit)


@dead_letters.command("list")
def list_dead_letters(
    kind: Kind = None,
    subject: Annotated[str | None, typer.Option(help="A task type, a destination or a listener.")] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
    as_json: Json = False,
) -> None:
    """List dead letters, newest first. Kinds that stay in RabbitMQ are listed oldest first."""
    if kind is not None and kind in IN_RABBITMQ:
        _list_in_rabbitmq(kind, subject, limit, as_json=as_json)
        return
    page = ask("GET", "/dead-letters", query={"kind": kind, "subject": subject, "cursor": cursor, "limit": limit})
    columns = ("kind", "id", "subject", "attempts", "died_at", "error_message")
    show_page(page, columns, as_json=as_json, empty="no dead letters")


def _list_in_rabbitmq(kind: str, subject: str | None, limit: int, *, as_json: bool) -> None:
    own = IN_RABBITMQ[kind]
    page = ask("GET", f"/dead-letters/{kind}", query={own[0]: subject, "limit": limit})
    if as_json:
        show_json(page)
        return
    show_rows(page["items"], ("id", *own, "died_at", "reason", "error_message"), empty="no dead letters")
    if page["count"] > len(page["items"]):
        say(f"{len(page['items'])} of {page['count']}")


@dead_letters.command()
def requeue(
    ids: Annotated[list[str] | None, typer.Argument(metavar="[ID]…", help="Which ones.")] = None,
    kind: Annotated[str, typer.Option(help=f"One of: {KINDS}.")] = "job",
    subject: Annotated[str | None, typer.Option(help="All of a task type or a destination.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All of a kind that stays in RabbitMQ.")] = False,
    cursor: Annotated[str | None, typer.Option(help="From the call before: what died again since is left.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say how many, and put none back.")] = False,
    as_json: Json = False,
) -> None:
    """Requeue dead letters, oldest first, at most 1,000 per call. Exit code 1 if an id is not a dead letter."""
    known: Sequence[Any]
    if kind in IN_RABBITMQ:
        if dry_run or cursor is not None:
            raise typer.BadParameter(f"the kind {kind} has no --dry-run and no --cursor; list says how many there are")
        body, known = _rabbitmq_body(kind, ids, subject, everything=everything), ids or []
        path = f"/dead-letters/{kind}/requeue"
    elif everything or (not ids and subject is None):
        raise typer.BadParameter("give the ids, or --subject")
    else:
        known = [_number(one) for one in ids or ()]
        body = {"kind": kind, "ids": known or None, "subject": subject, "cursor": cursor, "dry_run": dry_run or None}
        path = "/dead-letters/requeue"
    done = ask("POST", path, body={name: value for name, value in body.items() if value is not None})
    show_answer(done, as_json=as_json, sentence=_requeued)
    if dry_run:
        return
    key_reused, unfit = done.get("key_reused", []), done.get("unfit", [])
    if missing := sorted(set(known) - set(done["ids"]) - {*key_reused, *unfit}):
        listed = ", ".join(map(str, missing[:SHOWN_MAX])) + (" …" if len(missing) > SHOWN_MAX else "")
        raise Rejected("no_dead_letter", f"no dead letter of the kind {kind}, so not requeued: {listed}", ids=missing)
    if stay := sorted(set(known) & set(key_reused)):
        raise Rejected("key_reused", f"{_stay(stay)}: {', '.join(map(str, stay[:SHOWN_MAX]))}", ids=stay)
    if stay := sorted(set(known) & set(unfit)):
        raise Rejected("job_unfit", f"{_misfit(stay)}: {', '.join(map(str, stay[:SHOWN_MAX]))}", ids=stay)


def _requeued(done: Any) -> str:
    if done.get("dry_run"):
        return f"{'over ' if done['more'] else ''}{done['requeued']} dead letters, none put back"
    onward = f": --cursor {done['next']}" if done.get("next") else ""
    stay = f"; {_stay(done['key_reused'])}" if done.get("key_reused") else ""
    stay += f"; {_misfit(done['unfit'])}" if done.get("unfit") else ""
    return f"{done['requeued']} requeued{f' (there are more{onward})' if done['more'] else ''}{stay}"


def _stay(key_reused: Sequence[int]) -> str:
    return f"{len(key_reused)} not requeued: other jobs have their idempotency keys by now"


def _misfit(unfit: Sequence[int]) -> str:
    return f"{len(unfit)} not requeued: they break a rule that is younger than they are"


def _rabbitmq_body(kind: str, ids: list[str] | None, subject: str | None, *, everything: bool) -> dict[str, Any]:
    if subject is not None or bool(ids) is everything:
        raise typer.BadParameter(f"of the kind {kind}, give either the ids or --all")
    return {"all": True} if everything else {"ids": ids}


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text[:20]) < 2**63):
        raise typer.BadParameter(f"{text[:40]!r} is no id", param_hint="'[ID]…'")
    return int(text)


@outbox.callback(invoke_without_command=True)
def list_outbox(
    context: typer.Context,
    destination: Annotated[str | None, typer.Option(help="One destination only.")] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
    as_json: Json = False,
) -> None:
    """List messages that wait for the relay, newest first."""
    if context.invoked_subcommand is not None:
        return
    page = ask("GET", "/outbox", query={"destination": destination, "cursor": cursor, "limit": limit})
    columns = ("id", "destination", "key", "created_at", "attempts", "next_at", "error_message")
    show_page(page, columns, as_json=as_json, empty="the outbox is empty")


@outbox.command()
def polls(as_json: Json = False) -> None:
    """Show the relays of polls: waiting, frozen and published polls, and the positions of the consumers in Kafka."""
    page, partitions = ask("GET", "/outbox/polls"), ask("GET", "/outbox/polls/partitions")["items"]
    if as_json:
        show_json({**page, "partitions": partitions})
        return
    columns = ("shard", "transport", "waiting", "released", "oldest_release_at", "frozen", "batch_no", "published_no",
               "published_at", "position", "problem")  # fmt: skip
    show_page(page, columns, as_json=False, empty="no relay of polls has run yet")
    for relay in page["items"]:
        if relay["problem"]:
            since = f", since {relay['stands_since']}" if relay["stands_since"] else ""
            write(f"shard {relay['shard']} is stopped{since}: {relay['problem']}: {relay['says']}\n")
    if partitions:
        show_rows(
            partitions, ("topic", "partition", "end_offset", "position", "lag", "unfinished_since", "reader", "seen_at")
        )


@outbox.command()
def reconcile(
    shard: Annotated[int, typer.Option(min=0, max=15, help="Of the relay that is stopped.")] = 0,
    position: Annotated[
        int | None, typer.Option(min=0, help="All batches up to this one are published, none above is.")
    ] = None,
    apply: Annotated[bool, typer.Option("--apply", help="Do it; without this only say what would be done.")] = False,
    as_json: Json = False,
) -> None:
    """Make the topic and the database agree after a relay of polls has stopped. You decide which batch was the last."""
    body = {"shard": shard, "position": position, "apply": apply}
    show_answer(ask("POST", "/outbox/polls/reconcile", body=body), as_json=as_json, sentence=_reconciled)


def _reconciled(done: Mapping[str, Any]) -> str:
    topic = "nothing" if done["position"] is None else f"batch {done['position']}"
    verb = "agreed" if done["applied"] else "would agree"
    sent = f"{done['sent_again']} are sent (again, if they were) under the ids that they had"
    lines = [
        f"shard {done['shard']}: {done['problem']}",
        f"the database has published batch {done['published_no']} of {done['batch_no']}, the topic knows of {topic}",
        f"{verb} on batch {done['adopted']}: {done['counted']} polls are taken as published, {sent}",
    ]
    return "\n".join(lines if done["applied"] else [*lines, "nothing was changed; --apply does it"])


@workers.command("list")
def list_workers(as_json: Json = False) -> None:
    """List worker sessions of the last day, newest first."""
    columns = ("id", "name", "roles", "version", "alive", "started_at", "seen_at", "drain_requested_at")
    show_page(ask("GET", "/workers"), columns, as_json=as_json, empty="no workers")


@workers.command()
def drain(worker: Annotated[int, typer.Argument(min=1, metavar="ID")], as_json: Json = False) -> None:
    """Ask a worker to finish its running work and stop."""
    answer = ask("POST", f"/workers/{worker}/drain")
    show_answer(answer, as_json=as_json, sentence=lambda a: f"worker {a['id']} was asked to stop")


@keys.command("create")
def create_key(
    name: Annotated[str, typer.Argument(help="Whose it is; shown in the audit trail.")],
    role: Annotated[str | None, typer.Option(help="viewer, operator or admin; operator without --scope.")] = None,
    scopes: Annotated[
        list[str] | None,
        typer.Option("--scope", help=f"Instead of a role, all that it opens: {', '.join(SCOPES)}. Repeatable."),
    ] = None,
    expires_in: Annotated[str | None, typer.Option(metavar="DURATION", help="Never by default.")] = None,
    as_json: Json = False,
) -> None:
    """Create a key. The key is shown only once."""
    role = role if role or scopes else "operator"
    body = {"name": name, "role": role, "scopes": scopes, "expires_in": expires_in}
    made = ask("POST", "/keys", body={key: value for key, value in body.items() if value is not None})
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
    action: Annotated[str | None, typer.Option(help="Such as jobs.cancel.")] = None,
    action_prefix: Annotated[str | None, typer.Option(help="What it begins with, such as jobs.")] = None,
    subject: Annotated[str | None, typer.Option(help="Such as job:42.")] = None,
    actor: Annotated[str | None, typer.Option(help="Who did it: the name of a key, or of a user here.")] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
    as_json: Json = False,
) -> None:
    """List operator actions, newest first."""
    query: dict[str, Any] = {"action": action, "action_prefix": action_prefix, "subject": subject, "actor": actor}
    query |= {"cursor": cursor, "limit": limit}
    columns = ("id", "at", "actor", "action", "subject", "before", "after")
    show_page(ask("GET", "/audit", query=query), columns, as_json=as_json, empty="no entries")
