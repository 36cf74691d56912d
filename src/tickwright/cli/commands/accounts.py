"""``tickwright accounts``: how often each account's trackers are polled."""

from functools import partial
from typing import Annotated, Any

import typer

from tickwright.cli.kit.gateway import api_path, ask, given, put_changes, with_gateway
from tickwright.cli.kit.output import Cursor, Json, Limit, show_answer, show_fields, show_json, show_page, show_rows

app = typer.Typer(help="Accounts: how often they are polled.", no_args_is_help=True, rich_markup_mode=None)
COLUMNS = (
    "account_id",
    "polling_interval_minutes",
    "placed_interval_minutes",
    "max_age_days",
    "lag_ratio",
    "paused_at",
)
Account = Annotated[str, typer.Argument(metavar="ACCOUNT", help="The account's id.")]
path = partial(api_path, "accounts", "ACCOUNT")
SETTABLE = ("polling_interval_minutes", "max_age_days", "polls_per_slice_max", "freshness_objective")


@app.command("list")
def list_(
    sort: Annotated[str, typer.Option(help="The order: id, or lag (the highest first).")] = "id",
    text: Annotated[str | None, typer.Option(help="Only accounts whose id contains this text, in any case.")] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
    as_json: Json = False,
) -> None:
    """List accounts by id, or with the highest lag first."""
    page = ask("GET", "/accounts", query={"sort": sort, "text": text, "cursor": cursor, "limit": limit})
    show_page(page, COLUMNS, as_json=as_json, empty="no accounts")


@app.command()
def show(account: Account, as_json: Json = False) -> None:
    """Show one account: its interval, its freshness and its approximate number of trackers."""
    found = ask("GET", path(account))
    show_json(found) if as_json else show_fields(found)


@app.command()
def put(
    account: Account,
    interval: Annotated[
        int | None, typer.Option(metavar="MINUTES", help="Minutes between two polls of a tracker; 120 by default.")
    ] = None,
    max_age: Annotated[
        int | None, typer.Option(metavar="DAYS", help="Days for which a tracker is polled; 60 by default.")
    ] = None,
    cap: Annotated[
        int | None, typer.Option(metavar="POLLS", help="The most polls in five minutes; 0 for no cap, as by default.")
    ] = None,
    objective: Annotated[
        float | None,
        typer.Option(metavar="SHARE", help="Share of polls to be made within 1.1 intervals; 0.99 by default."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Create an account, or change the given fields. Its trackers follow within minutes, without a restart."""
    changes = given(
        polling_interval_minutes=interval, max_age_days=max_age, polls_per_slice_max=cap, freshness_objective=objective
    )
    if cap == 0:
        changes["polls_per_slice_max"] = None
    show_answer(
        with_gateway(lambda gateway: put_changes(gateway, path(account), changes, keep=SETTABLE, need="")),
        as_json=as_json,
        sentence=_stored,
    )


@app.command()
def preview(
    account: Account,
    interval: Annotated[int | None, typer.Option(metavar="MINUTES", help="Minutes between two polls.")] = None,
    cap: Annotated[
        int | None, typer.Option(metavar="POLLS", help="The most polls in five minutes; 0 for no cap.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show how another interval or cap would change the load. Changes nothing."""
    body: dict[str, Any] = {} if interval is None else {"polling_interval_minutes": interval}
    if cap is not None:
        body["polls_per_slice_max"] = cap or None
    said = ask("POST", f"{path(account)}/preview", body=body)
    if as_json:
        show_json(said)
        return
    rows = [_load_row("this account", said["now"], said["then"])]
    rows += [_load_row("all accounts", said["all_now"], said["all_then"])]
    show_rows(rows, ("of", "polls_per_s", "then", "slice_peak", "peak_then", "deferred"))
    show_rows(said["partners"], ("partner", "trackers", "all_now", "all_then", "rate_per_s", "used_then", "over"))


def _load_row(of: str, now: Any, then: Any) -> dict[str, Any]:
    return {
        "of": of,
        "polls_per_s": round(now["polls_per_s"], 3),
        "then": round(then["polls_per_s"], 3),
        "slice_peak": now.get("slice_peak"),
        "peak_then": then.get("slice_peak"),
        "deferred": then.get("deferred_share"),
    }


def _stored(stored: Any) -> str:
    account, done = stored["account"], "created" if stored["created"] else "changed"
    return f"{account['account_id']} {done}: polled every {account['polling_interval_minutes']} minutes"


@app.command()
def pause(account: Account, as_json: Json = False) -> None:
    """Stop polling the account's trackers."""
    done = ask("POST", f"{path(account)}/pause")
    show_answer(done, as_json=as_json, sentence=lambda a: f"{a['account_id']} is paused")


@app.command()
def enable(account: Account, as_json: Json = False) -> None:
    """Poll the account's trackers again, each at its next scheduled poll."""
    done = ask("POST", f"{path(account)}/enable")
    show_answer(done, as_json=as_json, sentence=lambda a: f"{a['account_id']} is polled")
