"""``tickwright partners``: the partners that Tickwright polls, and their limits."""

import json
from functools import partial
from typing import Annotated, Any

import typer

from tickwright.cli.kit.gateway import Gateway, api_path, ask, with_gateway
from tickwright.cli.kit.output import Json, show_answer, show_fields, show_json, show_page
from tickwright.domain.errors import Rejected
from tickwright.partners.settings import read_kept

app = typer.Typer(
    help="Partners: APIs of other companies, and their limits.", no_args_is_help=True, rich_markup_mode=None
)
COLUMNS = ("name", "settings", "called_by", "paused_at", "breaker", "open_until", "blocked_until", "last_error")
Name = Annotated[str, typer.Argument(metavar="NAME", help="The partner.")]
path = partial(api_path, "partners", "NAME")


@app.command("list")
def list_(as_json: Json = False) -> None:
    """List every partner, and whether it can be called now."""
    show_page(ask("GET", "/partners"), COLUMNS, as_json=as_json, empty="no partners")


@app.command()
def show(name: Name, as_json: Json = False) -> None:
    """Show one partner."""
    found = ask("GET", path(name))
    if as_json:
        show_json(found)
        return
    _, problem = read_kept(json.dumps(found["settings"]))
    show_fields({**found, "settings_invalid": problem} if problem else found)


@app.command()
def figures(name: Name, as_json: Json = False) -> None:
    """Show how a partner is called now: quota, outcomes, breaker, quiet hours, and what waits for it."""
    found = ask("GET", f"{path(name)}/figures")
    show_json(found) if as_json else show_fields(found)


@app.command()
def put(
    name: Name,
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FIELD=VALUE]…", help="Such as rate=50/s concurrency=20; a list or an object as JSON."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Create a partner, or change the given settings. FIELD= without a value removes a setting."""
    changes = settings_of(settings or [])
    stored = with_gateway(lambda gateway: _put(gateway, name, changes))
    show_answer(
        stored,
        as_json=as_json,
        sentence=lambda s: f"{s['partner']['name']} {'created' if s['created'] else 'changed'}",
    )


def settings_of(words: list[str]) -> dict[str, Any]:
    """Parse ``FIELD=VALUE``; the value is JSON or a string. Raises ``Rejected`` (``wrong_argument``): permanent."""
    given: dict[str, Any] = {}
    for word in words:
        field, sign, text = word.partition("=")
        if not sign or not field:
            raise Rejected("wrong_argument", f"{word}: write FIELD=VALUE, such as rate=50/s")
        try:
            given[field] = json.loads(text) if text else None
        except ValueError:
            given[field] = text
    return given


async def _put(gateway: Gateway, name: str, changes: dict[str, Any]) -> Any:
    try:
        present = (await gateway.ask("GET", path(name)))["settings"]
    except Rejected as error:
        if error.code != "partner_not_found":
            raise
        present = {}
    settings = {field: value for field, value in {**present, **changes}.items() if value is not None}
    return await gateway.ask("PUT", path(name), body=settings)


@app.command()
def pause(name: Name, as_json: Json = False) -> None:
    """Stop calling the partner and selecting its trackers."""
    show_answer(ask("POST", f"{path(name)}/pause"), as_json=as_json, sentence=lambda p: f"{p['name']} is paused")


@app.command()
def enable(name: Name, as_json: Json = False) -> None:
    """Call the partner again."""
    show_answer(ask("POST", f"{path(name)}/enable"), as_json=as_json, sentence=lambda p: f"{p['name']} is called")


@app.command()
def reset(name: Name, as_json: Json = False) -> None:
    """Close the partner's breaker and end its requested silence. Use it when the partner works again."""
    done = ask("POST", f"{path(name)}/reset")
    show_answer(done, as_json=as_json, sentence=lambda p: f"{p['name']}: its breaker is {p['breaker']}")
