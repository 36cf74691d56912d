"""``tickwright doctor`` checks what reports need: the object store, the sources, and processes that serve parts."""

import os
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from kit.cli import environment, tickwright
from kit.postgres import as_reader

CONFIG = """
[sources.good]
url = "sqlite://{folder}/good.sqlite"
[sources.stopped]
url = "postgresql://reader@127.0.0.1:1/nothing"
[report_types.sales.listeners.users]
source = "good"
sql = "SELECT 1 AS id"
"""
TYPE = """
INSERT INTO tickwright.report_types (name, definition) VALUES ('sales', '{"merge": "SELECT 1", "listeners": [
  {"name": "users", "kind": "sql", "source": "good"}, {"name": "scores", "kind": "function"},
  {"name": "outside", "kind": "service"}]}')
"""
LISTENER = """
INSERT INTO tickwright.workers (id, name, roles, version, lease_until, facts)
VALUES (1, 'l', '{report-listener}', '0', now() + interval '1 hour', '{"serves": ["source:good"]}')
"""


@pytest.fixture
def env(database_url: str, tmp_path: Path) -> dict[str, str]:
    """The environment of a process with its own home and configuration."""
    (tmp_path / "good.sqlite").touch()
    config = tmp_path / "tickwright.toml"
    config.write_text(CONFIG.format(folder=tmp_path))
    return {"DATABASE_URL": database_url, "HOME": str(tmp_path), "CONFIG": str(config)}


def findings(**env: str) -> dict[str, list[tuple[str, str]]]:
    """Return the doctor's findings, by check."""
    report: Any = tickwright("doctor", "--json", env=environment(**env)).json
    assert all(one["remedy"] for one in report["findings"] if one["verdict"] != "ok")
    found: dict[str, list[tuple[str, str]]] = {}
    for one in report["findings"]:
        found.setdefault(one["check"], []).append((one["verdict"], one["says"]))
    return found


def test_without_reports_the_doctor_checks_nothing_of_reports(database_url: str, tmp_path: Path) -> None:
    """No folder is made, and no role is reported as missing."""
    found = findings(DATABASE_URL=database_url, HOME=str(tmp_path))
    assert {"object store", "report-listener", "report listeners"} & set(found) == set()
    assert not (tmp_path / "objects").exists()


def test_the_object_store_is_tried_out_and_a_local_folder_is_a_warning(env: dict[str, str], tmp_path: Path) -> None:
    """Other processes of a shared database may be on other machines; the test's object is removed."""
    [(verdict, says)] = findings(**env)["object store"]
    assert (verdict, "other machines" in says) == ("warn", True)
    assert list((tmp_path / "objects").glob("doctor/*")) == []
    blocked = tmp_path / "file"
    blocked.touch()
    [(verdict, says)] = findings(**env, OBJECT_STORE=blocked.as_uri())["object store"]
    assert (verdict, os.fspath(blocked) in says) == ("fail", True)
    unreachable = {"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    report: Any = tickwright(
        "doctor", "--json", env={**environment(**env, OBJECT_STORE="s3://bucket"), **unreachable}
    ).json
    [store] = [one for one in report["findings"] if one["check"] == "object store"]
    assert (store["verdict"], store["says"].startswith("s3://bucket: ")) == ("fail", True)


def test_each_source_is_queried(env: dict[str, str]) -> None:
    """A source that does not answer fails its own check only."""
    found = findings(**env)
    assert found["source good"] == [("ok", "answers")]
    [(verdict, _)] = found["source stopped"]
    assert verdict == "fail"


def test_a_role_that_is_too_powerful_for_a_source_is_named(env: dict[str, str]) -> None:
    """With the reason and the remedy."""
    config = Path(env["CONFIG"])
    url = env["DATABASE_URL"]
    config.write_text(
        f'{config.read_text()}\n[sources.root]\nurl = "{url}"\n[sources.plain]\nurl = "{as_reader(url)}"\n'
    )
    found = findings(**env)
    assert found["source plain"] == [("ok", "answers")]
    [(verdict, says)] = found["source root"]
    assert (verdict, "as the role postgres: it is a superuser" in says) == ("fail", True)
    assert "create role reader" in says


async def test_a_missing_role_and_unserved_parts_are_named(env: dict[str, str]) -> None:
    """The role, and what no process of it serves; services are external and are not checked."""
    connection = await asyncpg.connect(env["DATABASE_URL"])
    await connection.execute(TYPE)
    found = findings(**env)
    assert found["report-listener"] == [("warn", "none is alive: no report is made")]
    assert found["report listeners"] == [
        ("warn", "no live process serves function:scores, for sales"),
        ("warn", "no live process serves source:good, for sales"),
    ]
    await connection.execute(LISTENER)
    found = findings(**env)
    assert found["report-listener"] == [("ok", "1 alive")]
    assert found["report listeners"] == [("warn", "no live process serves function:scores, for sales")]
    await connection.execute(
        """UPDATE tickwright.workers SET facts = '{"serves": ["source:good", "function:scores"]}'"""
    )
    assert [verdict for verdict, _ in findings(**env)["report listeners"]] == ["ok"]
    await connection.close()
