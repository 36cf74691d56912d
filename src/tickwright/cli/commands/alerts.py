"""``tickwright alerts``: alerts and their receivers."""

from functools import partial
from typing import Annotated, Any

import typer

from tickwright.cli.kit.gateway import api_path, ask, given, put_changes, with_gateway
from tickwright.cli.kit.output import Cursor, Json, Limit, show_answer, show_json, show_page

app = typer.Typer(help="Alerts and their receivers.", rich_markup_mode=None)
receivers = typer.Typer(help="Receivers of alerts, by signed webhook.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(receivers, name="receivers")
COLUMNS = ("name", "url", "severity_min", "rules", "signing_secrets", "updated_at")
SETTABLE = ("url", "severity_min", "rules")
Name = Annotated[str, typer.Argument(metavar="NAME", help="The receiver.")]
path = partial(api_path, "alerts/receivers", "NAME")


@app.callback(invoke_without_command=True)
def list_alerts(
    context: typer.Context,
    state: Annotated[str | None, typer.Option(help="Only firing or only resolved ones.")] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
    as_json: Json = False,
) -> None:
    """List alerts, newest first."""
    if context.invoked_subcommand is not None:
        return
    page = ask("GET", "/alerts", query={"state": state, "cursor": cursor, "limit": limit})
    columns = ("id", "state", "severity", "rule", "subject", "summary", "fired_at", "resolved_at")
    show_page(page, columns, as_json=as_json, empty="no alerts")


@app.command()
def acknowledge(
    alert: Annotated[int, typer.Argument(min=1, metavar="ID")],
    note: Annotated[str | None, typer.Option(help="A note, shown with the alert.")] = None,
    as_json: Json = False,
) -> None:
    """Acknowledge a firing alert. If it fires again, it is a new alert."""
    done = ask("POST", f"/alerts/{alert}/acknowledge", body={"note": note})
    show_answer(done, as_json=as_json, sentence=lambda d: f"alert {d['id']} is {d['acknowledged_by']}'s")


@receivers.command("list")
def list_receivers(as_json: Json = False) -> None:
    """List the receivers of alerts."""
    show_page(ask("GET", "/alerts/receivers"), COLUMNS, as_json=as_json, empty="no receivers")


@receivers.command()
def put(
    name: Name,
    url: Annotated[str | None, typer.Option(help="https://… that alerts are posted to.")] = None,
    severity: Annotated[
        str | None, typer.Option(help="The lowest severity that is sent: info, warning or critical.")
    ] = None,
    rule: Annotated[list[str] | None, typer.Option(help="Only alerts of this rule. Repeatable.")] = None,
    every_rule: Annotated[bool, typer.Option("--every-rule", help="Every rule again.")] = False,
    as_json: Json = False,
) -> None:
    """Create a receiver, or change the given fields of an existing one."""
    if rule and every_rule:
        raise typer.BadParameter("give --rule or --every-rule")
    changes = given(url=url, severity_min=severity, rules=rule or None)
    if every_rule:
        changes["rules"] = None
    show_answer(
        with_gateway(lambda gateway: put_changes(gateway, path(name), changes, keep=SETTABLE, need="url")),
        as_json=as_json,
        sentence=_stored,
    )


def _stored(stored: Any) -> str:
    receiver = stored["receiver"]
    text = f"{receiver['name']} {'created' if stored['created'] else 'changed'}: {receiver['url']}"
    if stored.get("secret"):
        text += f"\nsigning secret, shown this once: {stored['secret']}"
    return text


@receivers.command("rotate-secret")
def rotate_secret(
    name: Name,
    overlap: Annotated[
        str, typer.Option(metavar="DURATION", help="How long the old secrets stay in use beside the new one.")
    ] = "24h",
    as_json: Json = False,
) -> None:
    """Create a new signing secret. It is shown only once."""
    answer = ask("POST", f"{path(name)}/rotate-secret", body={"overlap": overlap})
    show_answer(answer, as_json=as_json, sentence=lambda a: a["secret"])


@receivers.command()
def delete(name: Name, as_json: Json = False) -> None:
    """Delete a receiver and its waiting messages."""
    ask("DELETE", path(name))
    show_json({"deleted": name}) if as_json else show_answer(name, as_json=False, sentence=lambda n: f"{n} deleted")
