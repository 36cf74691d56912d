"""Control characters in texts of users and partners reach no terminal, whichever command shows the texts."""

import ast
import io
import json
from pathlib import Path

import psycopg
import pytest
from rich.table import Table
from rich.text import Text

from kit.cli import environment, tickwright
from tickwright.cli.kit import output
from tickwright.cli.program import run

HOSTILE = "ok\x1b]0;owned\x07\x1b[2J\x9b31m\r\u202edone\u200b\x7f"
ACTS = {character for character in HOSTILE if not character.isascii() or not character.isprintable()}
ROWS = """
INSERT INTO tickwright.scheduled_tasks (execute_at, task_type, payload, idempotency_key)
VALUES (now() + interval '1 hour', 't', to_jsonb(%(x)s::text), %(x)s);
INSERT INTO tickwright.scheduled_tasks_dead (id, execute_at, task_type, status, error_message, completed_at)
OVERRIDING SYSTEM VALUE VALUES (900, now(), 't', 'failed', %(x)s, now());
INSERT INTO tickwright.shipment_polling_tracker (id, account_id, partner, external_id, status)
VALUES (1, %(x)s, 'dhl', %(x)s, %(x)s);
INSERT INTO tickwright.trackers
       (id, created_at, tracking_until, ended_at, account_no, partner_no, status, external_id, events)
SELECT 2, now(), now(), now(), account_no, partner_no, %(x)s, 'e',
       jsonb_build_array(jsonb_build_object('at', now(), 'text', %(x)s::text))
  FROM tickwright.tracker_intake;
INSERT INTO tickwright.partner_states (partner_no, last_error, last_error_at) VALUES (1, %(x)s, now());
INSERT INTO tickwright.entities (code, party, polling_enabled_modules)
VALUES ('E', jsonb_build_object('a', %(x)s::text), 'LOCATIONS');
INSERT INTO tickwright.fanout_cursors (entity_code, task_type, failures, last_error, last_error_at)
VALUES ('E', 'LOCATIONS', 9, %(x)s, now());
INSERT INTO tickwright.outbox (destination, key, payload, error_message, attempts)
VALUES ('pg:' || %(x)s, %(x)s, '1', %(x)s, 1);
INSERT INTO tickwright.outbox_dead (id, destination, payload, headers, created_at, attempts, error_message)
VALUES (9, 'pg:t', '1', '{}', now(), 1, %(x)s);
INSERT INTO tickwright.workers (id, name, roles, version, lease_until) VALUES (7, %(x)s, '{worker}', %(x)s, now());
INSERT INTO tickwright.alerts (rule, subject, severity, summary, state)
VALUES ('r', %(x)s, 'critical', %(x)s, 'firing');
INSERT INTO tickwright.audit (actor, action, subject, after) VALUES (%(x)s, 'a', %(x)s, to_jsonb(%(x)s::text));
INSERT INTO tickwright.api_keys (name, role, prefix, hash) VALUES (%(x)s, 'viewer', 'p', 'h');
INSERT INTO tickwright.job_config (job_name, owner) VALUES (%(x)s, %(x)s);
INSERT INTO tickwright.reports
       (type, query_key, requester, status, plan, deadline_at, error, error_code, finished_at, department)
VALUES ('r', repeat('a', 64), %(x)s, 'failed', '{}', now(), %(x)s, 'c', now(), %(x)s);
"""
COMMANDS = (
    "jobs list", "jobs show 1", "jobs explain 900", "jobs list --status failed", "dead-letters list", "outbox",
    "trackers list", "trackers show 1", "trackers show 2", "trackers explain 2", "accounts list", "partners list",
    "partners show dhl", "entities show E", "entities explain E LOCATIONS",
    "workers list", "workers show 7", "leases", "outbox destinations", "alerts",
    "audit", "keys list", "reports list", "reports show 1", "top --once",
)  # fmt: skip


@pytest.fixture(scope="module")
def hostile(pg_server: object, template_database: str) -> dict[str, str]:
    """A database full of such texts."""
    from kit.servers import PostgresServer

    assert isinstance(pg_server, PostgresServer)
    url = pg_server.create_database("hostile", template=template_database)
    with psycopg.connect(url, cursor_factory=psycopg.ClientCursor) as connection:
        connection.execute(ROWS, {"x": HOSTILE})
    return environment(DATABASE_URL=url)


@pytest.mark.matrix
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_no_command_lets_a_text_act(
    hostile: dict[str, str], command: str, as_json: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """What acts is named for people and escaped in JSON, which still holds the text as it is."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in hostile.items():
            patch.setenv(name, value)
        for place in (
            "observe.logs",
            "process.logging",
        ):  # loggers keep their first stream, here a test's
            patch.setattr(f"tickwright.{place}.configure_logging", lambda **_: None)
        code = run([*command.split(), *(["--json"] if as_json else [])])
    said = capsys.readouterr()
    assert code == 0, said
    assert {character for character in said.out + said.err if character in ACTS} == set()
    if as_json:
        json.loads(said.out)
    elif not command.startswith(("top", "jobs explain", "entities explain", "accounts")):
        assert "[U+001B]" in said.out


def test_an_error_does_not_act_either(hostile: dict[str, str]) -> None:
    """Also one that repeats what was typed."""
    said = tickwright("jobs", "list", "--status", HOSTILE, env=hostile)
    assert said.code != 0
    assert {character for character in said.out + said.err if character in ACTS} == set()


def test_a_terminal_gets_colours_and_no_text_that_acts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables, styled text and plain text alike."""
    stream = io.StringIO()
    stream.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr("sys.stdout", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    table = Table()
    table.add_column(Text(HOSTILE, style="red"))
    table.add_row(HOSTILE)
    console = output.console()
    console.print(table, Text(HOSTILE, style="bold"), HOSTILE)
    said = stream.getvalue()
    assert "\x1b[" in said, "Rich's own colours are there"
    assert "\x1b]0" not in said
    assert "\x1b[2J" not in said
    assert {"\x9b", "\u202e", "\x7f", "\u200b"} & set(said) == set()


def test_a_line_of_a_value_is_no_field_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    """It is indented as its value is."""
    output.show_fields({"status": "x\nended at  now", "id": 1})
    assert capsys.readouterr().out == "status  x\n        ended at  now\nid      1\n"


def test_every_way_to_the_terminal_leads_through_one_module() -> None:
    """No module of the command line but ``output`` writes, echoes or prints by itself."""
    folder = Path(output.__file__).parent
    found = set()
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(func=ast.Attribute(attr="write", value=ast.Attribute(attr="stdout" | "stderr"))):
                    found.add(path.name)
                case (
                    ast.Call(func=ast.Attribute(attr="echo" | "secho"))
                    | ast.Call(func=ast.Name(id="print" | "Console"))
                ):
                    found.add(path.name)
    assert found == {"output.py"}
