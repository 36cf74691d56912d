"""Modules by decorator and by the TOML file: which setting wins, and every error at once."""

from pathlib import Path
from typing import Any

import pytest

from tickwright import EntityTask, Rejected, Tickwright
from tickwright.capabilities.fanout.entities.modules import Modules
from tickwright.capabilities.fanout.entities.schemas import ModuleRequest
from tickwright.capabilities.fanout.handlers import DeclaredModule, ModuleRegistry
from tickwright.capabilities.fanout.plugin import declare_modules
from tickwright.plugin import Registrations
from tickwright.ports.caller import Caller, Role
from tickwright.process.configfile import load_config
from tickwright.store.pool import Pool, open_pool

ADMIN = Caller("test", Role.ADMIN)


@pytest.fixture
async def pool(database_url: str) -> Any:
    """A pool on a fresh database."""
    pool = await open_pool(database_url, max_size=2)
    yield pool
    await pool.close()


async def _poll(task: EntityTask) -> None:
    """Poll nothing."""


def program(**modules: dict[str, Any]) -> ModuleRegistry:
    """Return the modules that a program declares."""
    registry = ModuleRegistry()
    for name, settings in modules.items():
        registry.add(DeclaredModule(name, settings, _poll))
    return registry


async def settings_of(pool: Pool, name: str) -> tuple[str, str, bool, str]:
    """Return a module's row."""
    found = await Modules(pool).get(name)
    return found.every, found.timeout, found.gated, found.set_by


async def changes(pool: Pool) -> list[str]:
    """Return the actors that changed modules, oldest first."""
    rows = await pool.fetch("SELECT actor FROM tickwright.audit WHERE action = 'modules.put' ORDER BY id")
    return [row[0] for row in rows]


async def test_a_programs_module_exists_when_its_app_is_open(database_url: str, pool: Pool) -> None:
    """By decorator; the function stays what it was and is found by the module's name."""
    app = Tickwright(database_url)
    assert app.module("CHARGING", every="90s", timeout="5s", gated=True)(_poll) is _poll
    async with app:
        assert await settings_of(pool, "CHARGING") == ("90s", "5s", True, "app")
        assert app.registrations.of(ModuleRegistry).all()[0].function.__wrapped__ is _poll  # type: ignore[attr-defined]
    assert await changes(pool) == ["python"]


async def test_a_program_replaces_settings_of_the_product_or_of_a_program(pool: Pool) -> None:
    """Only those it declares; without ``every`` a new window has 15 minutes; a second start changes nothing."""
    for _ in range(2):
        await declare_modules(pool, Registrations(program(SESSIONS={"timeout": "5s"}, NEW={})), {})
    assert await settings_of(pool, "SESSIONS") == ("5m", "5s", True, "app")
    assert await settings_of(pool, "NEW") == ("15m", "1m", False, "app")
    await declare_modules(pool, Registrations(program(SESSIONS={"every": "1m", "gated": False})), {})
    assert await settings_of(pool, "SESSIONS") == ("1m", "5s", False, "app")
    assert await changes(pool) == ["python"] * 3


async def test_a_program_changes_no_setting_that_was_made_by_hand(pool: Pool) -> None:
    """Settings by an operator, by SQL or by a file win over the program's."""
    modules = Modules(pool)
    await modules.put("TARIFFS", ModuleRequest(every="2h"), caller=ADMIN)
    await pool.execute("INSERT INTO tickwright.modules (name, interval_seconds) VALUES ('BYSQL', 30)")
    await declare_modules(pool, Registrations(program()), {"CDRS": {"every": "3m"}})
    ours = {"every": "1s"}
    await declare_modules(pool, Registrations(program(TARIFFS=ours, BYSQL=ours, CDRS=ours, LOCATIONS=ours)), {})
    assert await settings_of(pool, "TARIFFS") == ("2h", "1m", False, "operator")
    assert await settings_of(pool, "BYSQL") == ("30s", "1m", False, "sql")
    assert await settings_of(pool, "CDRS") == ("3m", "1m", False, "operator")
    assert await settings_of(pool, "LOCATIONS") == ("1s", "1m", False, "app")
    assert await changes(pool) == ["test", "config", "python"]


async def test_the_file_always_wins(pool: Pool, tmp_path: Path) -> None:
    """Over every earlier setting of the module; the gate of SESSIONS is opened without its interval."""
    config = tmp_path / "tickwright.toml"
    config.write_text('[modules.SESSIONS]\ngated = false\n[modules.CHARGING]\nevery = "10s"\n', encoding="utf-8")
    await Modules(pool).put("CHARGING", ModuleRequest(every="1h", timeout="2s"), caller=ADMIN)
    for _ in range(2):
        await declare_modules(pool, Registrations(program(CHARGING={"every": "1s"})), load_config(config)["modules"])
    assert await settings_of(pool, "SESSIONS") == ("5m", "1m", False, "operator")
    assert await settings_of(pool, "CHARGING") == ("10s", "2s", False, "operator")
    assert await changes(pool) == ["test", "config", "config"]


def test_a_wrong_declaration_is_refused_with_every_error() -> None:
    """At import time, before anything runs."""
    app = Tickwright()
    with pytest.raises(Rejected) as caught:
        app.module("sessions", every="soon", timeout="30m")(_poll)
    assert caught.value.code == "invalid_module"
    assert len(caught.value.details["problems"]) == 3
    assert "30 minutes" in caught.value.message
    app.module("SESSIONS")(_poll)
    with pytest.raises(Rejected, match="two functions") as caught:
        app.module("SESSIONS")(_poll)
    assert caught.value.code == "duplicate_module"


def test_a_wrong_file_is_refused_with_every_error(tmp_path: Path) -> None:
    """Names, keys and values, each with its remedy; none of the file is applied."""
    config = tmp_path / "tickwright.toml"
    config.write_text(
        '[modules.sessions]\nevery = "5m"\n[modules.CDRS]\nevery = 15\ntimout = "1m"\ngated = "no"\n', encoding="utf-8"
    )
    with pytest.raises(Rejected) as caught:
        load_config(config)
    assert caught.value.code == "invalid_config"
    named = caught.value.details["problems"]
    assert [line.partition(":")[0] for line in named] == [
        "modules.sessions", "modules.CDRS.every", "modules.CDRS.timout", "modules.CDRS.gated",
    ]  # fmt: skip
    assert "did you mean timeout?" in named[2]
    config.write_text("modules = 3\n", encoding="utf-8")
    with pytest.raises(Rejected, match=r"\[modules.NAME\]"):
        load_config(config)
