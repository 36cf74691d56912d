"""Report types of decorators and of the TOML file become rows: which one takes precedence, and what is refused."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tickwright import Rejected, ReportRequest, Row, Tickwright
from tickwright.capabilities.reports.plugin import declare_reports
from tickwright.capabilities.reports.report_types import ReportTypes
from tickwright.ports.caller import Caller, Role
from tickwright.process.configfile import load_config
from tickwright.store.paging import Cursors
from tickwright.store.pool import Pool

ADMIN = Caller("test", Role.ADMIN)


@pytest.fixture
def types(pool: Pool) -> ReportTypes:
    """The report types of a fresh database."""
    return ReportTypes(pool, Cursors(pool))


async def users(request: ReportRequest) -> AsyncIterator[Row]:
    """Yield one row."""
    yield {"id": request.report_id}


def program(url: str | None = None, sql: str = "SELECT id FROM users") -> Tickwright:
    """Return a program with a report of one listener; the report is declared first."""
    app = Tickwright(url)
    app.report("by-user", listeners=["users"], parameters={"country": "text"}, keep="1d")(lambda: sql)
    app.listener("users", source="plt_user", timeout="1m")(users)
    return app


async def declare(types: ReportTypes, app: Tickwright, from_file: Any = None) -> None:
    """Set the report types of a program and of a file."""
    await declare_reports(types, app.registrations, from_file or {})


async def actors(pool: Pool) -> list[str]:
    """Return the actors that changed report types, oldest first."""
    rows = await pool.fetch("SELECT actor FROM tickwright.audit WHERE action = 'report_types.put' ORDER BY id")
    return [row[0] for row in rows]


async def test_a_programs_report_type_exists_when_its_app_is_open(
    database_url: str, pool: Pool, types: ReportTypes
) -> None:
    """With the program's settings of its listeners; a second start changes nothing."""
    for _ in range(2):
        async with program(database_url):
            found = await types.get("by-user")
            assert (found.set_by, found.definition["keep"]) == ("app", "1d")
            assert found.definition["listeners"]["users"] == {
                "source": "plt_user", "stage": 1, "required": True, "attempts": 3, "timeout": "1m",
            }  # fmt: skip
    assert await actors(pool) == ["python"]


async def test_a_program_changes_nothing_that_was_set_by_hand(pool: Pool, types: ReportTypes, tmp_path: Path) -> None:
    """It replaces neither a definition of the file nor an operator's; the file replaces a program's."""
    config = tmp_path / "tickwright.toml"
    config.write_text('[report_types.by-user]\nlisteners = ["users"]\nbom = true\n', encoding="utf-8")
    await declare(types, program())
    for _ in range(2):
        await declare(types, program(), load_config(config)["report_types"])
    found = await types.get("by-user")
    assert (found.set_by, found.definition["bom"]) == ("operator", True)
    assert "source" not in found.definition["listeners"]["users"]
    assert await actors(pool) == ["python", "config"]


async def test_sql_that_duckdb_refuses_is_an_error_when_the_app_opens(database_url: str, pool: Pool) -> None:
    """With line and column; nothing is set."""
    with pytest.raises(Rejected, match=r"merge: .*line 1, column 1") as caught:
        async with program(database_url, "SELEC id FROM users"):
            pass
    assert caught.value.code == "invalid_report_type"
    assert await pool.fetchval("SELECT count(*) FROM tickwright.report_types") == 0
