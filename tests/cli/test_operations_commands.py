"""The commands of operations: on the database, each with its effect and the right exit code."""

import asyncio
from typing import Any

import asyncpg
import pytest

from kit.cli import Said, environment, tickwright

FILL = """
INSERT INTO tickwright.outbox (destination, payload, attempts, next_at) VALUES ('pg:slow', '{}', 2, now() + interval '1 hour');
INSERT INTO tickwright.alerts (rule, subject, severity, summary, state) VALUES ('r', 's', 'info', 'x', 'firing');
INSERT INTO tickwright.job_config (job_name, running, owner, lease_until, version, last_started_at)
VALUES ('selector', true, 'host:7:x', now() + interval '1 hour', 3, now());
INSERT INTO tickwright.workers (id, name, roles, version, lease_until) VALUES (7, 'host:7', '{worker}', '0', now() + interval '1 hour');
SELECT tickwright.account_number('acme');
"""  # noqa: E501


async def run_sql(url: str, sql: str) -> list[Any]:
    """Run statements by hand."""
    connection = await asyncpg.connect(url)
    try:
        return list(await connection.fetch(sql)) if sql.startswith("SELECT") else [await connection.execute(sql)]
    finally:
        await connection.close()


@pytest.fixture
def env(database_url: str) -> dict[str, str]:
    """An environment that goes straight to a database with a message, an alert, a lease and a worker."""
    asyncio.run(run_sql(database_url, FILL))
    return environment(DATABASE_URL=database_url)


def ok(*words: str, env: dict[str, str]) -> Said:
    """Run a command that must succeed."""
    said = tickwright(*words, env=env)
    assert said.code == 0, said
    return said


def test_what_waits_is_shown_tried_again_and_given_up(env: dict[str, str], database_url: str) -> None:
    """Per destination, then its messages; a message that is given up is a dead letter."""
    [shown] = ok("outbox", "destinations", "--json", env=env).json["items"]
    assert (shown["destination"], shown["state"], shown["why"]) == ("pg:slow", "stuck", "no_relay")
    assert ok("outbox", "retry", "pg:slow", env=env).out == "1 messages are tried again\n"
    assert ok("outbox", "discard", "1", env=env).out == "message 1 to pg:slow is a dead letter\n"
    assert tickwright("outbox", "discard", "1", env=env).code == 1
    assert [tuple(row) for row in asyncio.run(run_sql(database_url, "SELECT id FROM tickwright.outbox_dead"))] == [(1,)]


def test_a_lease_is_shown_with_its_holder_and_taken_away(env: dict[str, str]) -> None:
    """The worker shows it, too, until then."""
    [lease] = [one for one in ok("leases", "--json", env=env).json["items"] if one["job_name"] == "selector"]
    assert (lease["session"], lease["held"]) == (7, True)
    assert "selector" in ok("workers", "show", "7", env=env).out
    assert ok("leases", "release", "selector", env=env).out == "selector was taken from host:7:x\n"
    assert ok("workers", "show", "7", "--json", env=env).json["holds"] == []
    assert tickwright("leases", "release", "selector", env=env).code == 1


def test_an_acknowledged_alert_names_the_user_and_the_note(env: dict[str, str]) -> None:
    """Under the name of the user of the command."""
    done = ok("alerts", "acknowledge", "1", "--note", "on it", "--json", env=env).json
    assert done["acknowledged_by"].startswith("cli:")
    assert done["acknowledged_note"] == "on it"


def test_polling_and_fan_out_are_shown_in_commands(env: dict[str, str]) -> None:
    """Lists with a filter, a preview, a heat map, a partner's figures, windows: as tables and as JSON."""
    ok("partners", "put", "dhl", "rate=5/s", env=env)
    assert "acme" in ok("accounts", "list", "--sort", "lag", "--text", "ACM", env=env).out
    assert ok("accounts", "preview", "acme", "--interval", "5", "--json", env=env).json["then"]["polls_per_s"] == 0
    assert "all accounts" in ok("accounts", "preview", "acme", "--cap", "0", env=env).out
    assert ok("trackers", "list", "--external-id", "A", "--state", "placed", "--json", env=env).json["items"] == []
    assert ok("slices", "heat", "--step", "15", "--json", env=env).json["step_minutes"] == 15
    assert "called" in ok("partners", "figures", "dhl", env=env).out
    assert "idle" in ok("modules", "windows", "--module", "CDRS", env=env).out
