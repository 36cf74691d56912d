"""The doctor's look at campaigns and batches: who could work on what is scheduled or open."""

from tickwright.cli.doctor.findings import Finding
from tickwright.store.pool import Pool
from tickwright.store.queries import load

_SQL = load("tickwright.cli.sql", "doctor.sql")
NAMES_CHARS = 200


async def has_batches(pool: Pool) -> bool:
    """Return whether something of this kind is set up."""
    return bool(await pool.fetchval(_SQL["has_batches"]))


async def examine_batches(pool: Pool) -> list[Finding]:
    """Return what was found; empty where nothing is set up. Sources are asked beside those of reports."""
    if not await has_batches(pool):
        return []
    unserved = await pool.fetch(_SQL["unserved_batches"])
    if not unserved:
        return [Finding("batches", "ok", "a campaign-consumer has what every scheduled or open one needs")]
    return [
        Finding("batches", "warn", f"nobody alive has {row['served_by']}, for {row['batches'][:NAMES_CHARS]}", _REMEDY)
        for row in unserved
    ]


_REMEDY = "run campaign-consumer with the TOML file (TICKWRIGHT_CONFIG) or the program (TICKWRIGHT_APP) that has it"
