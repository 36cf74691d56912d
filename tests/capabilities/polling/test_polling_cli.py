"""The commands of polling: accounts, trackers, partners, slices; on the database, with the right exit codes."""

import json
from pathlib import Path

import asyncpg
import pytest

from kit.cli import Said, environment, tickwright


@pytest.fixture
def env(database_url: str) -> dict[str, str]:
    """An environment that goes straight to a fresh database with the partner ``dhl``."""
    env = environment(DATABASE_URL=database_url)
    ok("partners", "put", "dhl", "rate=50/s", "concurrency=20", env=env)
    return env


def ok(*arguments: str, env: dict[str, str], stdin: str | None = None) -> Said:
    """Run a command that must succeed."""
    said = tickwright(*arguments, env=env, stdin=stdin)
    assert said.code == 0, said
    return said


def test_a_trackers_life_in_commands(env: dict[str, str]) -> None:
    """Register twice, show, list, explain, end; every action is in the audit trail under the name of the user."""
    made = ok("trackers", "register", "acme", "dhl", "AWB 1", "--status", "Shipped", "--json", env=env).json
    number = str(made["tracker"]["id"])
    assert made["created"] is True
    again = ok("trackers", "register", "acme", "dhl", "AWB 1", env=env)
    assert again.out == f"tracker {number} (it was registered before)\n"
    assert ok("trackers", "show", number, "--json", env=env).json["status"] == "Shipped"
    listed = ok("trackers", "list", "--account", "acme", "--live", "--json", env=env).json["items"]
    assert [one["external_id"] for one in listed] == ["AWB 1"]
    assert "not_placed" in ok("trackers", "explain", number, env=env).out
    assert ok("trackers", "end", number, "--json", env=env).json["outcome"] == "ended"
    assert ok("trackers", "list", "--ended", "--json", env=env).json["items"][0]["state"] == "ended"
    trail = ok("audit", "--json", env=env).json["items"]
    assert [entry["action"] for entry in trail] == ["trackers.end", "trackers.register", "partners.put"]
    assert all(entry["actor"].startswith("cli:") for entry in trail)


def test_accounts_and_partners_keep_what_a_later_put_does_not_name(env: dict[str, str]) -> None:
    """Options change one thing each; a setting that is named without a value is removed."""
    ok("accounts", "put", "acme", "--interval", "30", env=env)
    changed = ok("accounts", "put", "acme", "--max-age", "7", "--json", env=env).json["account"]
    assert (changed["polling_interval_minutes"], changed["max_age_days"]) == (30, 7)
    assert ok("accounts", "show", "acme", "--json", env=env).json["trackers"] == 0
    capped = ok("accounts", "put", "acme", "--cap", "50", "--objective", "0.999", "--json", env=env).json["account"]
    assert (capped["polls_per_slice_max"], capped["freshness_objective"], capped["max_age_days"]) == (50, 0.999, 7)
    assert ok("accounts", "put", "acme", "--cap", "0", "--json", env=env).json["account"]["polls_per_slice_max"] is None
    assert ok("accounts", "pause", "acme", env=env).out == "acme is paused\n"
    assert ok("accounts", "enable", "acme", "--json", env=env).json["paused_at"] is None
    ok("partners", "put", "dhl", 'quiet=["22:00-06:00 Europe/Berlin"]', "rate=", env=env)
    settings = ok("partners", "show", "dhl", "--json", env=env).json["settings"]
    assert settings == {"concurrency": 20, "quiet": ["22:00-06:00 Europe/Berlin"]}
    assert ok("partners", "pause", "dhl", env=env).out == "dhl is paused\n"
    assert ok("partners", "enable", "dhl", "--json", env=env).json["paused_at"] is None
    assert ok("partners", "reset", "dhl", env=env).out == "dhl: its breaker is closed\n"


def test_top_shows_the_polls_where_there_are_trackers(env: dict[str, str]) -> None:
    """Without a tracker only jobs are shown; with one there is a line of polls, and their numbers in JSON."""
    assert "trackers" not in ok("top", "--once", env=env).out
    assert ok("top", "--once", "--json", env=env).json["polls"]["trackers"] == 0
    ok("trackers", "register", "acme", "dhl", "A1", env=env)
    assert ok("top", "--once", env=env).out.splitlines()[1].startswith("trackers ")
    assert ok("top", "--once", "--json", env=env).json["polls"]["unplaced"] == 1


def test_a_file_is_imported_and_its_rejects_are_reported(env: dict[str, str], tmp_path: Path) -> None:
    """CSV by its ending, NDJSON from standard input; code 1 when a line was rejected; the report has every reject."""
    table = tmp_path / "trackers.CSV"
    table.write_text("account_id,partner,external_id\nacme,dhl,C1\nacme,nobody,C2\nacme,dhl,\n")
    report = tmp_path / "rejects.ndjson"
    said = tickwright("trackers", "import", str(table), "--rejects", str(report), "--json", env=env)
    assert (said.code, said.json["created"], said.json["rejected"]) == (1, 1, 2)
    codes = [json.loads(line)["code"] for line in report.read_text().splitlines()]
    assert codes == ["unknown_partner", "invalid_external_id"]
    line = json.dumps({"account_id": "acme", "partner": "dhl", "external_id": "C1"}) + "\n"
    said = ok("trackers", "import", "-", env=env, stdin=line)
    assert said.out == "0 trackers from 1 lines, 1 known already, 0 rejected\n"


async def test_a_partner_whose_settings_cannot_be_read_is_shown_with_what_is_wrong(
    env: dict[str, str], database_url: str
) -> None:
    """Plain SQL wrote them; nothing calls the partner."""
    assert "settings invalid" not in ok("partners", "show", "dhl", env=env).out
    connection = await asyncpg.connect(database_url)
    await connection.execute("""UPDATE tickwright.partners SET settings = '{"rate": "fast"}'""")
    await connection.close()
    shown = ok("partners", "show", "dhl", env=env).out
    assert "settings invalid" in shown
    assert "settings.rate" in shown


@pytest.mark.parametrize(
    "arguments", [["accounts", "list"], ["trackers", "list"], ["partners", "list"], ["slices", "list"]]
)
def test_every_listing_has_json_and_a_table(env: dict[str, str], arguments: list[str]) -> None:
    """JSON on standard output and nothing else there; a table without an escape sequence in a pipe."""
    assert isinstance(ok(*arguments, "--json", env=env).json["items"], list)
    assert "\x1b" not in ok(*arguments, env=env).out


@pytest.mark.parametrize(
    ("arguments", "code", "hint"),
    [
        (["trackers", "show", "77"], 1, "tracker_not_found"),
        (["trackers", "show", "x"], 2, "wrong_use"),
        (["trackers", "register", "acme", "nobody", "A"], 1, "unknown_partner"),
        (["trackers", "import", "/nowhere.csv"], 2, "file_unreadable"),
        (["accounts", "show", "a/b"], 2, "wrong_argument"),
        (["accounts", "put", "acme", "--interval", "0"], 1, "invalid_value"),
        (["partners", "put", "dhl", "rate"], 2, "wrong_argument"),
        (["partners", "pause", "nobody"], 1, "partner_not_found"),
        (["slices", "list", "--minutes", "3"], 2, "wrong_use"),
        (["slices", "replay", "--since", "2030-01-01T00:00:00Z", "--until", "2030-01-01"], 1, "invalid_datetime"),
        (
            ["slices", "replay", "--since", "2030-01-02T00:00:00Z", "--until", "2030-01-01T00:00:00Z"],
            1,
            "invalid_range",
        ),
    ],
)
def test_mistakes_end_with_their_code(env: dict[str, str], arguments: list[str], code: int, hint: str) -> None:
    """2 for wrong use, 1 for what failed; the JSON error names it."""
    said = tickwright(*arguments, "--json", env=env)
    assert (said.code, said.error["code"], said.out) == (code, hint, ""), said


def test_a_replay_counts_first(env: dict[str, str]) -> None:
    """Without --yes nothing is done."""
    arguments = ["slices", "replay", "--since", "2026-01-01T00:00:00Z", "--until", "2026-01-02T00:00:00Z"]
    assert ok(*arguments, env=env).out == "0 trackers of 0 turns would be polled again; add --yes to do it\n"
    assert ok(*arguments, "--yes", "--json", env=env).json["dry_run"] is False
