"""The commands of fan-out: entities and modules; on the database, with the right exit codes."""

import json
from pathlib import Path

import pytest

from kit.cli import Said, environment, tickwright


@pytest.fixture
def env(database_url: str) -> dict[str, str]:
    """An environment that names a fresh database."""
    return environment(DATABASE_URL=database_url)


def ok(*arguments: str, env: dict[str, str], stdin: str | None = None) -> Said:
    """Run a command that must succeed."""
    said = tickwright(*arguments, env=env, stdin=stdin)
    assert said.code == 0, said
    return said


def test_an_entitys_life_in_commands(env: dict[str, str], tmp_path: Path) -> None:
    """Options change one thing each; every action is in the audit trail under the name of the user."""
    document = tmp_path / "party.json"
    document.write_text('{"country": "NL", "token": "${env:HUB}"}')
    made = ok("entities", "put", "NL.ABC", "--modules", "locations, tariffs", "--party", f"@{document}", env=env)
    assert made.out == "NL.ABC created: polled for LOCATIONS,TARIFFS\n"
    changed = ok("entities", "put", "NL.ABC", "--modules", "CDRS", "--json", env=env).json
    assert (changed["created"], changed["entity"]["config_version"]) == (False, 2)
    shown = ok("entities", "show", "NL.ABC", "--json", env=env).json
    assert (shown["party"]["country"], shown["polling_enabled_modules"]) == ("NL", "CDRS")
    assert "CDRS" in ok("entities", "show", "NL.ABC", env=env).out
    assert ok("entities", "pause", "NL.ABC", env=env).out == "NL.ABC is paused\n"
    assert "entity_paused" in ok("entities", "explain", "NL.ABC", "cdrs", env=env).out
    paused = ok("entities", "list", "--paused", "--q", "NL.", "--module", "cdrs", "--json", env=env).json["items"]
    assert [entity["code"] for entity in paused] == ["NL.ABC"]
    assert ok("entities", "enable", "NL.ABC", "--json", env=env).json["is_polling_enabled"] is True
    assert ok("entities", "explain", "NL.ABC", "CDRS", "--json", env=env).json["status"] == "due"
    assert ok("entities", "delete", "NL.ABC", env=env).out == "NL.ABC is deleted\n"
    trail = ok("audit", "--json", env=env).json["items"]
    assert [entry["action"].partition(".")[2] for entry in trail] == ["delete", "enable", "pause", "put", "put"]
    assert all(entry["actor"].startswith("cli:") for entry in trail)


def test_an_empty_option_removes_an_entitys_partner(env: dict[str, str]) -> None:
    """Without the option it stays."""
    ok("partners", "put", "dhl", env=env)
    ok("entities", "put", "a", "--partner", "dhl", env=env)
    assert ok("entities", "put", "a", "--paused", "--json", env=env).json["entity"]["partner"] == "dhl"
    assert ok("entities", "put", "a", "--partner", "", "--json", env=env).json["entity"]["partner"] is None


def test_a_module_in_commands(env: dict[str, str]) -> None:
    """Options that are not given change nothing; a new module needs its interval."""
    assert ok("modules", "put", "CHARGING", "--every", "90s", env=env).out == "CHARGING created: every 90s\n"
    result = ok("modules", "put", "CHARGING", "--timeout", "5s", "--gated", env=env).out
    assert result == "CHARGING set: every 90s, where ENABLE_CHARGING_POLLING=true\n"
    assert ok("modules", "pause", "CHARGING", env=env).out == "CHARGING is paused\n"
    listed = ok("modules", "list", "--json", env=env).json["items"]
    assert [module["name"] for module in listed] == ["CDRS", "CHARGING", "LOCATIONS", "SESSIONS", "TARIFFS"]
    assert (listed[1]["timeout"], listed[1]["paused_at"] is None) == ("5s", False)
    assert ok("modules", "enable", "CHARGING", "--json", env=env).json["paused_at"] is None
    assert "\x1b" not in ok("modules", "list", env=env).out
    shown = ok("modules", "show", "CHARGING", env=env).out
    assert "entities stale" in shown.replace("_", " ")
    assert "window at" in shown


def test_a_file_is_imported_and_its_rejects_are_reported(env: dict[str, str], tmp_path: Path) -> None:
    """CSV by its suffix, NDJSON from standard input; 1 when a line was rejected; the report has every one of them."""
    table = tmp_path / "entities.CSV"
    table.write_text('code,party,polling_enabled_modules\na,"{""n"": 1}","CDRS,TARIFFS"\nb:c,,\nd,,NOSUCH\n')
    report = tmp_path / "rejects.ndjson"
    said = tickwright("entities", "import", str(table), "--rejects", str(report), "--json", env=env)
    assert (said.code, said.json["created"], said.json["rejected"]) == (1, 1, 2)
    codes = [json.loads(line)["code"] for line in report.read_text().splitlines()]
    assert codes == ["invalid_entity_code", "unknown_module"]
    result = ok("entities", "import", "-", env=env, stdin='{"code": "a"}\n')
    assert result.out == "0 new entities from 1 lines, 1 known already, 0 rejected\n"


@pytest.mark.parametrize(
    ("arguments", "code", "hint"),
    [
        (["entities", "show", "unknown"], 1, "entity_not_found"),
        (["entities", "show", "a/b"], 2, "wrong_argument"),
        (["entities", "put", "a:b"], 1, "invalid_entity_code"),
        (["entities", "put", "a", "--modules", "NOSUCH"], 1, "unknown_module"),
        (["entities", "put", "a", "--party", "{"], 2, "wrong_argument"),
        (["entities", "put", "a", "--party", "@/nowhere.json"], 2, "file_unreadable"),
        (["entities", "put", "a", "--party", '{"apiKey": "abc"}'], 1, "plain_secret"),
        (["entities", "import", "/nowhere.csv"], 2, "file_unreadable"),
        (["entities", "delete", "unknown"], 1, "entity_not_found"),
        (["entities", "explain", "unknown", "CDRS"], 1, "entity_not_found"),
        (["modules", "put", "NEW"], 2, "wrong_argument"),
        (["modules", "put", "CDRS", "--timeout", "30m"], 1, "invalid_module"),
        (["modules", "pause", "NOSUCH"], 1, "module_not_found"),
        (["modules", "show", "NOSUCH"], 1, "module_not_found"),
        (["modules", "pause", "A/B"], 2, "wrong_argument"),
    ],
)
def test_errors_end_with_their_exit_code(env: dict[str, str], arguments: list[str], code: int, hint: str) -> None:
    """2 for wrong use, 1 for a failure; the JSON error has the code."""
    said = tickwright(*arguments, "--json", env=env)
    assert (said.code, said.error["code"], said.out) == (code, hint, ""), said
