"""The commands of campaigns and executions, on the database and through an API, with the right exit codes."""

import asyncio
import json
from pathlib import Path
from typing import Any

import psycopg
import pytest

from kit.api import ADMIN
from kit.campaigns import CLIENTS, LOAN, SIX_HOURS, CampaignApi
from kit.cli import Said, environment, tickwright
from kit.postgres import as_reader
from tickwright.ports.caller import Role

TOML = """
name = "loans"
type = "AUTOMATIC"
date_time_execution = 2026-01-05T09:00:00
time_zone = "Europe/Kyiv"
restartable = true
restartable_unit = 6
restartable_unit_type = "HOURS"
product_codes = ["LOAN"]
expression = 'client.age > 25 && client.income > 3000 && client.country == "UK"'
[audience]
source = "crm"
table = "public.clients"
key = "id"
fields = { age = "int", income = "double", country = "string" }
[action]
target = "pg:applications"
"""


@pytest.fixture
def env(database_url: str, tmp_path: Path) -> dict[str, str]:
    """An environment that names a fresh database, whose one source is that database."""
    with psycopg.connect(database_url) as connection:
        connection.execute(CLIENTS.encode())
    config = tmp_path / "tickwright.toml"
    config.write_text(f'[sources.crm]\nurl = "{as_reader(database_url)}"\n', encoding="utf-8")
    return environment(DATABASE_URL=database_url, CONFIG=str(config), HOME_FOLDER=str(tmp_path / "home"))


def test_a_campaigns_life_in_commands(env: dict[str, str], tmp_path: Path) -> None:
    """Put from TOML, tried, activated, started, shown, stopped, edited from its own JSON, deleted."""
    file = tmp_path / "loans.toml"
    file.write_text(TOML, encoding="utf-8")

    def run(*arguments: str, stdin: str | None = None) -> Said:
        return tickwright(*arguments, env=env, stdin=stdin)

    made = run("campaigns", "put", str(file))
    assert (made.code, made.out) == (0, "loans created: version 1, AUTOMATIC, IDLE\n"), made
    dry = run("campaigns", "dry-run", "loans", "--json").json
    assert (dry["selected"], [one["client_id"] for one in dry["examples"]]) == (1, ["1"])
    other = run("campaigns", "dry-run", "loans", "--expression", "client.age == 50")
    assert (other.code, "selected  1" in other.out, "DE" in other.out) == (0, True, True), other
    assert run("campaigns", "activate", "loans").out.startswith("loans activated: SCHEDULED, next at ")
    started = run("campaigns", "start", "loans", "--json").json["executions"][0]["id"]
    refused = run("campaigns", "start", "loans", "--json")
    assert (refused.code, refused.error["code"]) == (1, "execution_open")
    assert run("executions", "list", "--campaign", "loans", "--json").json["items"][0]["id"] == started
    assert "slot at" in run("executions", "show", str(started)).out
    assert run("executions", "pause", str(started)).out == f"execution {started} of loans paused: NEW, paused\n"
    assert run("executions", "explain", str(started)).out.startswith("NEW: it is paused since ")
    assert run("executions", "resume", str(started), "--json").json["outcome"] == "resumed"
    assert run("executions", "actions", str(started)).err == "no actions\n"
    assert run("campaigns", "explain", "loans").out.startswith("SCHEDULED: its next occurrence is at ")
    stopped = run("campaigns", "stop", "loans")
    assert stopped.out.endswith(f"; execution {started} is STOPPED\n")
    assert run("executions", "retry", str(started), "--json").error["code"] == "not_failed"
    shown = run("campaigns", "show", "loans", "--json").json
    arguments = {**shown["definition"], "rate": "100/s", "version": shown["version"]}
    edited = run("campaigns", "put", "-", "--name", "loans", stdin=json.dumps(arguments))
    assert edited.out == "loans edited: version 2, AUTOMATIC, SCHEDULED\n"
    assert run("campaigns", "put", "-", "--name", "loans", "--json", stdin=json.dumps(arguments)).error["code"] == (
        "version_conflict"
    )
    assert [one["version"] for one in run("campaigns", "versions", "loans", "--json").json["items"]] == [2, 1]
    assert run("campaigns", "versions", "loans", "--version", "1", "--json").json["definition"]["rate"] is None
    assert run("campaigns", "list", "--status", "SCHEDULED", "--json").json["items"][0]["name"] == "loans"
    assert run("campaigns", "deactivate", "loans").out == "loans deactivated: IDLE\n"
    assert run("campaigns", "delete", "loans").out == "loans is deleted\n"
    assert run("batches", "list").err == "no batches\n"


def test_a_wrong_expression_is_shown_with_its_place(env: dict[str, str]) -> None:
    """A caret below the text; 1 for a definition with errors, 2 for one that cannot be read."""
    wrong = json.dumps({"name": "loans", **LOAN, "expression": "client.age > 25 &&\nclient.agee < 60"})
    refused = tickwright("campaigns", "put", "-", env=env, stdin=wrong)
    assert refused.code == 1
    assert "client.agee < 60\n  ^" in refused.err
    assert "(unknown_field)" in refused.err
    checked = tickwright("campaigns", "check", "-", env=env, stdin=wrong)
    assert (checked.code, "expression: " in checked.out, "\n  ^" in checked.err) == (1, True, True), checked
    checked = tickwright("campaigns", "check", "-", "--json", env=env, stdin=wrong)
    assert (checked.code, checked.json["valid"], checked.json["problems"][0]["line"], checked.err) == (1, False, 2, "")
    good = tickwright("campaigns", "check", "-", env=env, stdin=json.dumps({"name": "loans", **SIX_HOURS}))
    assert (good.code, good.out) == (0, "it is valid\n")
    for text in ("{", "[1]", "type = "):
        assert tickwright("campaigns", "put", "-", env=env, stdin=text).code == 2, text
    nameless = tickwright("campaigns", "put", "-", "--json", env=env, stdin=json.dumps(dict(LOAN)))
    assert (nameless.code, nameless.error["code"]) == (2, "wrong_argument")


@pytest.fixture
async def remote(campaigns: CampaignApi) -> dict[str, str]:
    """An environment that goes through a running API with an operator's key."""
    made = await campaigns.api.operations.keys.create("shell", Role.OPERATOR, caller=ADMIN)
    return environment(API_URL=f"http://127.0.0.1:{campaigns.api.port}", API_KEY=made.key)


async def test_the_same_commands_go_through_an_api(campaigns: CampaignApi, remote: dict[str, str]) -> None:
    """With the role of the key: an operator starts and tries, and edits nothing."""

    async def run(*arguments: str, stdin: str | None = None) -> Any:
        return await asyncio.to_thread(tickwright, *arguments, "--json", env=remote, stdin=stdin)

    await campaigns.create("loans")
    assert (await run("campaigns", "dry-run", "loans")).json["members"] == 5
    assert (await run("campaigns", "start", "loans")).json["outcome"] == "started"
    refused = await run("campaigns", "put", "-", stdin=json.dumps({"name": "loans", **LOAN}))
    assert (refused.code, refused.error["code"]) == (1, "forbidden")
    assert (await campaigns.trail())[-1] == ("shell", "campaigns.start", "campaign:loans")
