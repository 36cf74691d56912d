"""The doctor names what campaigns and batches need and no live process has."""

from pathlib import Path
from typing import Any

import asyncpg

from kit.cli import environment, tickwright

CAMPAIGN = """
INSERT INTO tickwright.batches (name, kind, type, status, definition)
VALUES ('loans', 'campaign', 'AUTOMATIC', 'SCHEDULED', '{"audience": {"source": "crm"}}'),
       ('idle', 'campaign', 'MANUAL', 'IDLE', '{"audience": {"source": "other"}}')
"""
CONSUMER = """
INSERT INTO tickwright.workers (id, name, roles, version, lease_until, facts)
VALUES (1, 'c', '{campaign-consumer,scheduler}', '0', now() + interval '1 hour', '{"batches": ["source:other"]}')
"""


def findings(url: str, home: Path) -> dict[str, tuple[str, str]]:
    """Return the findings of the doctor, by check."""
    said: Any = tickwright("doctor", "--json", env=environment(DATABASE_URL=url, HOME=str(home))).json
    return {one["check"]: (one["verdict"], one["says"]) for one in said["findings"]}


async def test_the_doctor_names_what_a_scheduled_campaign_lacks(database_url: str, tmp_path: Path) -> None:
    """No finding without campaigns; then the role and the source; none for an idle one."""
    assert {"batches", "campaign-consumer"} & set(findings(database_url, tmp_path)) == set()
    db = await asyncpg.connect(database_url)
    await db.execute(CAMPAIGN)
    found = findings(database_url, tmp_path)
    assert found["batches"] == ("warn", "no live process has source:crm, for loans")
    assert found["campaign-consumer"][0] == "warn"
    await db.execute(CONSUMER)
    found = findings(database_url, tmp_path)
    assert (found["batches"][0], found["campaign-consumer"][0]) == ("warn", "ok")
    await db.execute("""UPDATE tickwright.workers SET facts = '{"batches": ["source:crm"]}'""")
    found = findings(database_url, tmp_path)
    assert (found["batches"][0], found["campaign-consumer"][0]) == ("ok", "ok")
    await db.close()
