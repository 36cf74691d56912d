"""The doctor's look at reports: where files go, the sources that are configured here, and who brings what.

Nothing is looked at where there is no report type, no source and no object store that somebody named.
"""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

from tickwright.cli.doctor.findings import Finding
from tickwright.domain.errors import TickwrightError, Unavailable
from tickwright.ports.ids import random_token
from tickwright.ports.objects import ObjectStore
from tickwright.process.configfile import load_config
from tickwright.process.objects import objects_url, open_objects
from tickwright.process.settings import Settings, secret
from tickwright.sources.named import Sources
from tickwright.store.pool import Pool
from tickwright.store.queries import load

_SQL = load("tickwright.cli.sql", "doctor.sql")
PROBE = b"tickwright doctor"
SOURCE_TIMEOUT = timedelta(seconds=10)


async def has_report_types(pool: Pool) -> bool:
    """Return whether a report can be asked for."""
    return bool(await pool.fetchval(_SQL["has_report_types"]))


async def examine_reports(settings: Settings, pool: Pool, *, embedded: bool) -> list[Finding]:
    """Return what was found; empty where nothing of reports is set up."""
    terms = load_config(settings.config).sources
    types = await has_report_types(pool)
    found: list[Finding] = []
    if types or terms or settings.object_store is not None:
        found.append(await _objects(settings, embedded=embedded))
    sources = Sources(terms, secret)
    try:
        found += [finding async for finding in _sources(sources)]
    finally:
        await sources.aclose()
    if types:
        found += await _listeners(pool)
    return found


async def _objects(settings: Settings, *, embedded: bool) -> Finding:
    """Put a small object, read its size back, and remove it."""
    url = objects_url(settings)
    try:
        async with open_objects(settings) as objects:
            await _try_out(objects)
    except TickwrightError as error:
        return Finding("object store", "fail", f"{url}: {error.message}", "see TICKWRIGHT_OBJECT_STORE and its rights")
    if url.startswith("file:") and not embedded:
        says = f"{url} takes files; processes on other machines see them only if they share that folder"
        return Finding("object store", "warn", says, "set TICKWRIGHT_OBJECT_STORE to a bucket, or share the folder")
    return Finding("object store", "ok", f"{url} takes files and gives them back")


async def _try_out(objects: ObjectStore) -> None:
    key = f"doctor/{random_token(8)}"
    with TemporaryDirectory() as folder:
        path = Path(folder, "probe")
        await asyncio.to_thread(path.write_bytes, PROBE)
        try:
            await objects.put_file(key, path)
            there = await objects.size(key)
        finally:
            await objects.delete([key])
    if there != len(PROBE):
        raise Unavailable("object_store_unavailable", f"{there} of {len(PROBE)} bytes are there")


async def _sources(sources: Sources) -> AsyncIterator[Finding]:
    for name in sources.names():
        check, remedy = f"source {name}", f"start it, or correct [sources.{name}]"
        try:
            async with sources.get(name).query(_SQL["ask_source"].rstrip(";\n"), {}, timeout=SOURCE_TIMEOUT) as rows:
                async for _ in rows:
                    pass
        except TickwrightError as error:
            yield Finding(check, "fail", error.message, remedy)
        else:
            yield Finding(check, "ok", "answers")


async def _listeners(pool: Pool) -> list[Finding]:
    """Name what report types expect and no process that lives brings."""
    unserved = await pool.fetch(_SQL["unserved"])
    if not unserved:
        return [Finding("report listeners", "ok", "every listener of every report type is served")]
    remedy = "run report-listener with the program (TICKWRIGHT_APP) or the TOML file (TICKWRIGHT_CONFIG) that has it"
    return [
        Finding("report listeners", "warn", f"nobody alive serves {row['served_by']}, for {row['types']}", remedy)
        for row in unserved
    ]
