"""What remote workers do for a program, declared in Python and in the TOML file."""

from pathlib import Path
from typing import Any

import pytest

from kit.remote import RemoteSite, remote_site
from tickwright import Tickwright
from tickwright.domain.errors import Rejected
from tickwright.engine.remote.declared import RemoteRegistry

STORED = """
SELECT (SELECT target FROM tickwright.task_types WHERE name = 'invoice.remind') AS type,
       (SELECT settings ->> 'target' FROM tickwright.partners WHERE name = 'acme') AS partner,
       (SELECT target FROM tickwright.modules WHERE name = 'SITES') AS module,
       (SELECT definition ->> 'target' || ' ' || status FROM tickwright.batches) AS batch"""
CONFIG = """
[task_types."invoice.remind"]
target = "remote:file"
[partners.acme]
target = "remote:file"
rate = "5/s"
[modules.SITES]
target = "remote:file"
[batches."ledger.export"]
target = "remote:file"
cron = "0 3 * * *"
"""


def program() -> Tickwright:
    """Return a program that declares one of each for a pool."""
    app = Tickwright()
    pool = app.remote("billing")
    pool.job("invoice.remind", timeout="30s", max_attempts=5)
    pool.partner("acme", rate="50/s", concurrency=20)
    pool.module("SITES", every="15m")
    pool.batch("ledger.export", cron="0 3 * * *", timeout="1h")
    return app


async def stored(site: RemoteSite) -> dict[str, Any]:
    """Return the targets as they are stored."""
    return dict(await site.pool.fetchrow(STORED))


async def test_a_program_declares_what_remote_workers_do(database_url: str, tmp_path: Path) -> None:
    """Its processes store it, with a schedule that runs; an operator's settings override it."""
    async with remote_site(database_url, tmp_path, program=program()) as site:
        target = "remote:billing"
        assert await stored(site) == {
            "type": target, "partner": target, "module": target, "batch": f"{target} SCHEDULED"
        }  # fmt: skip
        assert (
            await site.pool.fetchval("SELECT max_attempts FROM tickwright.task_types WHERE name = 'invoice.remind'")
            == 5
        )
        await site.type("invoice.remind", target="remote:other")
    async with remote_site(database_url, tmp_path, program=program()) as site:
        assert (await stored(site))["type"] == "remote:other"


async def test_a_file_declares_what_remote_workers_do(database_url: str, tmp_path: Path) -> None:
    """Its tables override a program's declarations."""
    async with remote_site(database_url, tmp_path, config=CONFIG, program=program()) as site:
        target = "remote:file"
        assert await stored(site) == {
            "type": target, "partner": target, "module": target, "batch": f"{target} SCHEDULED"
        }  # fmt: skip


def test_a_wrong_declaration_is_refused_with_every_mistake() -> None:
    """Each kind has its own code, and a name is declared once."""
    app = Tickwright()
    pool = app.remote("billing")
    for declare, code in (
        (lambda: app.remote("a b"), "invalid_target"),
        (lambda: pool.job("x", timeout="1 year"), "invalid_task_type"),
        (lambda: pool.partner("x", rate="fast", timeout="x"), "invalid_partner"),
        (lambda: pool.module("lower"), "invalid_module"),
        (lambda: pool.batch("x", timeout="10h"), "invalid_batch"),
        (lambda: pool.batch("x y"), "invalid_name"),
    ):
        with pytest.raises(Rejected) as raised:
            declare()
        assert raised.value.code == code, raised.value
    pool.module("SITES")
    with pytest.raises(Rejected, match="SITES"):
        pool.module("SITES")
    assert [one.called for one in app.registrations.of(RemoteRegistry).all()] == ["SITES"]


async def test_a_wrong_table_stops_the_start(database_url: str, tmp_path: Path) -> None:
    """The error names each mistake by its place."""
    wrong = '[batches.nightly]\ncron = "0 3 * * *"\ntimeout = "1d"\n'
    with pytest.raises(Rejected, match=r"(?s)batches\.nightly.*target.*timeout"):
        async with remote_site(database_url, tmp_path, config=wrong):
            pass
