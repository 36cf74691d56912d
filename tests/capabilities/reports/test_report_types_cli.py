"""The commands of report types, on the database, with the right exit codes; and the tables of the TOML file."""

import json
from pathlib import Path

import pytest

from kit.cli import environment, tickwright
from tickwright.domain.errors import Rejected
from tickwright.process.configfile import load_config

TOML = """
merge = "SELECT * FROM users JOIN withdrawals USING (user_id)"
format = "parquet"
[parameters]
since = { type = "date", default = 2026-01-01 }
[listeners.users]
source = "plt_user"
sql = "SELECT user_id FROM users WHERE created_at >= :since"
[listeners.withdrawals]
required = false
"""


@pytest.fixture
def env(database_url: str) -> dict[str, str]:
    """An environment in which commands use a fresh database directly."""
    return environment(DATABASE_URL=database_url)


@pytest.mark.storm
def test_a_report_type_is_put_shown_listed_and_deleted_by_commands(env: dict[str, str], tmp_path: Path) -> None:
    """Set from TOML, shown as the JSON that sets it again, listed, deleted."""
    file = tmp_path / "withdrawals.toml"
    file.write_text(TOML, encoding="utf-8")
    made = tickwright("report-types", "put", "withdrawals", "--file", str(file), env=env)
    assert (made.code, made.out) == (0, "withdrawals created: users, withdrawals to parquet\n"), made
    shown = tickwright("report-types", "show", "withdrawals", "--json", env=env).json
    assert shown["definition"]["parameters"] == {"since": {"type": "date", "required": False, "default": "2026-01-01"}}
    definition = json.dumps(shown["definition"])
    again = tickwright("report-types", "put", "withdrawals", "--file", "-", "--json", env=env, stdin=definition)
    assert (again.json["created"], again.json["report_type"]) == (False, shown)
    shown_text = tickwright("report-types", "show", "withdrawals", env=env).out
    assert "plt_user" in shown_text
    assert "function" in shown_text
    listed = tickwright("report-types", "list", "--json", env=env).json["items"]
    assert [(one["name"], one["listeners"]) for one in listed] == [("withdrawals", ["users", "withdrawals"])]
    assert tickwright("report-types", "delete", "withdrawals", env=env).out == "withdrawals is deleted\n"
    assert tickwright("report-types", "list", env=env).err == "no report types\n"
    missing = tickwright("report-types", "show", "withdrawals", "--json", env=env)
    assert (missing.code, missing.error["code"]) == (1, "report_type_not_found")


def test_a_wrong_file_is_refused_with_all_its_mistakes(env: dict[str, str], tmp_path: Path) -> None:
    """Exit code 2 for a file that cannot be read, 1 for a definition with mistakes, each of them named."""
    unread = tickwright("report-types", "put", "t", "--file", str(tmp_path / "none"), "--json", env=env)
    assert (unread.code, unread.error["code"]) == (2, "file_unreadable")
    for text in ("{", "merge = ", '{"a": 1} x'):
        wrong = tickwright("report-types", "put", "t", "--file", "-", "--json", env=env, stdin=text)
        assert (wrong.code, wrong.error["code"]) == (2, "wrong_argument"), text
    mistaken = tickwright("report-types", "put", "t", "--file", "-", "--json", env=env, stdin='format = "xml"')
    assert (mistaken.code, mistaken.error["code"], len(mistaken.error["problems"])) == (1, "invalid_report_type", 2)
    assert tickwright("report-types", "put", "t", env=env).code == 2


def test_the_configuration_of_a_process_defines_report_types(tmp_path: Path) -> None:
    """With the same keys, below ``[report_types.NAME]``."""
    config = tmp_path / "tickwright.toml"
    nested = TOML.replace("[", "[report_types.w.", 3)
    config.write_text("[report_types.w]" + nested, encoding="utf-8")
    table = load_config(config)["report_types"]["w"]
    assert list(table["listeners"]) == ["users", "withdrawals"]


def test_a_wrong_table_of_the_configuration_is_named(tmp_path: Path) -> None:
    """The error lists the mistakes of all tables; a configuration is never loaded in part."""
    config = tmp_path / "tickwright.toml"
    config.write_text('[report_types.w]\nchecks = 0\n[report_types."a b"]\nlisteners = ["x"]\n', encoding="utf-8")
    with pytest.raises(Rejected) as caught:
        load_config(config)
    problems = caught.value.details["problems"]
    assert problems[0] == "report_types.w.checks: a whole number from 1 to 1000"
    assert problems[1].startswith("report_types.w.listeners: missing")
    assert problems[2].startswith("report_types.a b: a name has")
    config.write_text("report_types = 3\n", encoding="utf-8")
    with pytest.raises(Rejected, match="write a table for each"):
        load_config(config)
