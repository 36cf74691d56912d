"""``tickwright dead-letters``: what failed for good, listed and requeued."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from tickwright.cli.kit.gateway import ask, given
from tickwright.cli.kit.output import Cursor, Json, Limit, say, show_answer, show_json, show_page, show_rows
from tickwright.domain.errors import Rejected
from tickwright.process.plugins import PLUGINS

app = typer.Typer(help="Work and messages that failed for good.", no_args_is_help=True, rich_markup_mode=None)
SHOWN_MAX = 10
IN_RABBITMQ = {kind: columns for plugin in PLUGINS for kind, columns in plugin.broker_dead_letters.items()}
"""Kinds whose dead letters are in RabbitMQ: their own columns, the filter for their subject first."""
KINDS = f"job, {', '.join(['outbox', *IN_RABBITMQ])}"
Kind = Annotated[str | None, typer.Option(help=f"One of: {KINDS}.")]


@app.command("list")
def list_dead_letters(
    kind: Kind = None,
    subject: Annotated[str | None, typer.Option(help="Only of this task type, destination or listener.")] = None,
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


@app.command()
def requeue(
    ids: Annotated[list[str] | None, typer.Argument(metavar="[ID]…", help="Ids of dead letters.")] = None,
    kind: Annotated[str, typer.Option(help=f"One of: {KINDS}.")] = "job",
    subject: Annotated[str | None, typer.Option(help="All of a task type or a destination.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All of a kind that stays in RabbitMQ.")] = False,
    cursor: Annotated[
        str | None,
        typer.Option(help="Continue behind a call: the cursor that it ends with. What died again since then is left."),
    ] = None,
    from_start: Annotated[
        bool,
        typer.Option("--from-start", help="Run the steps of jobs again; without it, those that are done stay done."),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say how many, and requeue none.")] = False,
    as_json: Json = False,
) -> None:
    """Requeue dead letters, oldest first, at most 1,000 per call. Exit code 1 if an id is not a dead letter."""
    known: Sequence[Any]
    if kind in IN_RABBITMQ:
        if dry_run or from_start or cursor is not None:
            without = "--dry-run, no --cursor and no --from-start"
            raise typer.BadParameter(f"the kind {kind} has no {without}; list says how many there are")
        body, known = _rabbitmq_body(kind, ids, subject, everything=everything), ids or []
        path = f"/dead-letters/{kind}/requeue"
    elif everything:
        raise typer.BadParameter(f"--all is only for {', '.join(IN_RABBITMQ)}; give the ids, or --subject")
    elif not ids and subject is None:
        raise typer.BadParameter("give the ids, or --subject")
    else:
        known = [_number(one) for one in ids or ()]
        body = given(kind=kind, ids=known or None, subject=subject, cursor=cursor, dry_run=dry_run or None)
        body |= given(from_start=from_start or None)
        path = "/dead-letters/requeue"
    done = ask("POST", path, body=body)
    show_answer(done, as_json=as_json, sentence=_requeued)
    if dry_run:
        return
    key_reused, held, unfit = (done.get(name, []) for name in ("key_reused", "unique_held", "unfit"))
    if missing := sorted(set(known) - set(done["ids"]) - {*key_reused, *held, *unfit}):
        listed = ", ".join(map(str, missing[:SHOWN_MAX])) + (" …" if len(missing) > SHOWN_MAX else "")
        raise Rejected("no_dead_letter", f"no dead letter of the kind {kind}, so not requeued: {listed}", ids=missing)
    if stay := sorted(set(known) & set(key_reused)):
        raise Rejected("key_reused", f"{_stay(stay)}: {', '.join(map(str, stay[:SHOWN_MAX]))}", ids=stay)
    if stay := sorted(set(known) & set(held)):
        raise Rejected("unique_held", f"{_held(stay)}: {', '.join(map(str, stay[:SHOWN_MAX]))}", ids=stay)
    if stay := sorted(set(known) & set(unfit)):
        raise Rejected("job_unfit", f"{_misfit(stay)}: {', '.join(map(str, stay[:SHOWN_MAX]))}", ids=stay)


def _requeued(done: Any) -> str:
    if done.get("dry_run"):
        return f"{'over ' if done['more'] else ''}{done['requeued']} dead letters, none put back"
    onward = f": --cursor {done['next']}" if done.get("next") else ""
    stay = f"; {_stay(done['key_reused'])}" if done.get("key_reused") else ""
    stay += f"; {_held(done['unique_held'])}" if done.get("unique_held") else ""
    stay += f"; {_misfit(done['unfit'])}" if done.get("unfit") else ""
    return f"{done['requeued']} requeued{f' (there are more{onward})' if done['more'] else ''}{stay}"


def _stay(key_reused: Sequence[int]) -> str:
    return f"{len(key_reused)} not requeued: other jobs have their idempotency keys by now"


def _held(unique_held: Sequence[int]) -> str:
    return f"{len(unique_held)} not requeued: other jobs hold their unique arguments"


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
