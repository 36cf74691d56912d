"""``tickwright outbox``: messages that wait for the relay, and the relays of polls."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from tickwright.cli.kit.gateway import ask
from tickwright.cli.kit.output import Cursor, Json, Limit, show_answer, show_json, show_page, show_rows, write

app = typer.Typer(help="Messages that wait for the relay.", rich_markup_mode=None)
DESTINATIONS = ("destination", "state", "why", "waiting", "tried", "oldest_s", "attempts", "next_try_at", "error")


@app.callback(invoke_without_command=True)
def list_outbox(
    context: typer.Context,
    destination: Annotated[str | None, typer.Option(help="Only this destination.")] = None,
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


@app.command()
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


@app.command()
def reconcile(
    shard: Annotated[int, typer.Option(min=0, max=15, help="The number of the relay that is stopped.")] = 0,
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


@app.command()
def destinations(as_json: Json = False) -> None:
    """Show the waiting messages of each destination, stuck and oldest ones first."""
    show_page(ask("GET", "/outbox:destinations"), DESTINATIONS, as_json=as_json, empty="nothing waits")


@app.command()
def retry(destination: Annotated[str, typer.Argument(metavar="DESTINATION")], as_json: Json = False) -> None:
    """Retry a destination's waiting messages now, at most 1,000 per call."""
    done = ask("POST", "/outbox:retry", body={"destination": destination})
    show_answer(done, as_json=as_json, sentence=_retried)


def _retried(done: Any) -> str:
    return f"{done['retried']} messages are tried again" + ("; there are more: run it again" if done["more"] else "")


@app.command()
def discard(message: Annotated[int, typer.Argument(min=1, metavar="ID")], as_json: Json = False) -> None:
    """Dead-letter a waiting message. It can be requeued from the dead letters."""
    done = ask("POST", f"/outbox/{message}/discard")
    show_answer(done, as_json=as_json, sentence=lambda d: f"message {d['id']} to {d['destination']} is a dead letter")
