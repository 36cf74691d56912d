"""``tickwright doctor``: checks whether this installation can keep its promises, and what to do if not.

Each check returns ``ok``, ``warn`` (it works with fewer guarantees) or ``fail``, and a remedy. The command fails if a
check fails.
"""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import asdict
from datetime import timedelta
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import asyncpg
from rich.markup import escape

from tickwright.capabilities.reports.overview import has_report_types
from tickwright.cli.kit.output import console, show_json
from tickwright.domain.errors import TickwrightError, Unavailable
from tickwright.plugin import Context, Registrations
from tickwright.plugin.findings import Finding
from tickwright.plugin.settings import Settings
from tickwright.plugin.settings import environment_secret as secret
from tickwright.ports.ids import local_unix_seconds, monotonic, random_token
from tickwright.ports.objects import ObjectStore
from tickwright.process.configfile import load_config
from tickwright.process.database import Database, open_database
from tickwright.process.installation import close_pool, offer_joined, revision
from tickwright.process.loading import load_settings_with_app
from tickwright.process.plugins import PLUGINS
from tickwright.process.settings import unknown_names
from tickwright.sources.named import Sources, read_source
from tickwright.store.app_roles import excess_rights
from tickwright.store.pool import Pool, open_pool
from tickwright.store.queries import head_revision, load
from tickwright.transports.objectstore.plugin import LazyObjects, ObjectStoreSettings, objects_url

_SQL = load("tickwright.cli.sql", "doctor.sql")
PROBE = b"tickwright doctor"
SOURCE_TIMEOUT = timedelta(seconds=10)


async def _stores(settings: Settings, pool: Pool, *, embedded: bool) -> list[Finding]:
    """Return the findings about the object store and the sources; empty without report types, sources and a setting."""
    terms = load_config(settings.config).get("sources", {})
    found: list[Finding] = []
    if terms or settings.part(ObjectStoreSettings).object_store is not None or await has_report_types(pool):
        found.append(await _objects(settings, embedded=embedded))
    read = {name: read_source(name, table, [], where=name) for name, table in terms.items()}
    sources = Sources({name: one for name, one in read.items() if one is not None}, secret)
    try:
        found += [finding async for finding in _sources(sources)]
    finally:
        await sources.aclose()
    return found


async def _objects(settings: Settings, *, embedded: bool) -> Finding:
    """Store a small object, read its size and delete it."""
    url = objects_url(settings)
    try:
        objects = LazyObjects(url, os.environ)
        try:
            await _try_out(objects)
        finally:
            await objects.aclose()
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
            async with sources.get(name).query(_SQL["ask_source"], {}, timeout=SOURCE_TIMEOUT) as rows:
                async for _ in rows:
                    pass
        except TickwrightError as error:
            yield Finding(check, "fail", error.message, remedy)
        else:
            yield Finding(check, "ok", "answers")


_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}
SKEW_S_MAX = 2.0
DISK_FREE_MIN = 0.1
OLD_TRANSACTION_S = 300.0
NEEDED_CONNECTIONS = 20
ROUND_TRIP_S, ROUND_TRIP_S_MAX = 0.05, 0.5
ROUND_TRIPS = 5
ROLES_SHOWN = 5


def run_doctor(*, as_json: bool) -> bool:
    """Print the findings; return whether no check failed."""
    findings = asyncio.run(_examine())
    good = all(finding.verdict != "fail" for finding in findings)
    if as_json:
        show_json({"healthy": good, "findings": [asdict(finding) for finding in findings]})
        return good
    for finding in findings:
        colour = _COLOURS[finding.verdict]
        console().print(f"[{colour}]{finding.verdict:<4}[/{colour}]  {finding.check:<18} {escape(finding.says)}")
        if finding.remedy:
            console().print(f"{'':<25}→ {escape(finding.remedy)}")
    return good


async def _examine() -> list[Finding]:
    try:
        settings = load_settings_with_app()
        load_config(settings.config)
    except TickwrightError as error:
        return [Finding("settings", "fail", error.message, "correct the environment or the TOML file")]
    findings = [*_names(), *_secrets(settings)]
    try:
        async with open_database(settings) as database:
            findings += await _database(settings, database)
    except TickwrightError as error:
        findings.append(Finding("database", "fail", error.message, "start it, or correct TICKWRIGHT_DATABASE_URL"))
    return findings


def _names() -> Iterator[Finding]:
    strange = unknown_names()
    if not strange:
        yield Finding("settings", "ok", "every TICKWRIGHT_ variable is known")
    for name, near in strange.items():
        remedy = f"did you mean {near}?" if near else "remove it"
        yield Finding("settings", "warn", f"{name} means nothing", remedy)


def _secrets(settings: Settings) -> Iterator[Finding]:
    for problem in settings.secrets.problems():
        yield Finding("secrets", "warn", problem, "name the hosts that it may be sent to, such as cpo.example")


async def _database(settings: Settings, database: Database) -> list[Finding]:
    found = [Finding("database", "ok", f"{database.shown} answers")]
    async with AsyncExitStack() as stack:
        pool = await open_pool(database.url, max_size=2, behind_pooler=database.behind_pooler)
        stack.push_async_callback(close_pool, pool)
        facts = await pool.fetchrow(_SQL["facts"])
        found.append(_latency(await _round_trip_s(pool)))
        found += [*_server(facts), *_durability(facts), _clock(facts["now_s"]), *_pressure(facts)]
        found += [_notifications(database, settings), await _schema(database)]
        has_schema = found[-1].verdict == "ok"
        await _plugins(settings, pool, stack, found, has_schema=has_schema)
        if has_schema:
            with _reported("stores", found):
                found += await _stores(settings, pool, embedded=database.embedded)
            found.append(_rights(await excess_rights(pool)))
            found += _table_locks(await pool.fetch(_SQL["roles_not_to_end"]))
        found += [_disk(settings.home_folder)] if database.embedded else []
    return found


async def _plugins(
    settings: Settings, pool: Pool, stack: AsyncExitStack, found: list[Finding], *, has_schema: bool
) -> None:
    """Add the findings of every plugin; one that fails is a finding that names it.

    Without the schema of this release a plugin may miss its tables, which the finding of the schema says already.
    """
    context = Context(settings, pool, Registrations(), partial(load_config, settings.config))
    stack.push_async_callback(context.ports.aclose)
    offer_joined(context)
    alive = {row["role"]: row["workers"] for row in await pool.fetch(_SQL["alive"])} if has_schema else {}
    provided = []
    for plugin in PLUGINS:
        with _reported(plugin.name, found):
            plugin.provide(context)
            provided.append(plugin)
    for plugin in provided:
        with _reported(plugin.name, found), suppress(*(() if has_schema else (asyncpg.SyntaxOrAccessError,))):
            found += await plugin.examine(context, alive)


@contextmanager
def _reported(name: str, found: list[Finding]) -> Iterator[None]:
    try:
        yield
    except TickwrightError as error:
        found.append(Finding(name, "fail", error.message, f"correct the settings of {name}"))
    except Exception as error:  # noqa: BLE001  a plugin can raise anything
        found.append(Finding(name, "fail", f"its examination fails: {error!r}"[:300], f"update or remove {name}"))


async def _round_trip_s(pool: asyncpg.Pool) -> float:
    """Return the shortest of a few round trips, so that other load on the database does not count."""
    took_s = []
    async with pool.acquire() as connection:
        for _ in range(ROUND_TRIPS):
            asked_s = monotonic()
            await connection.fetchval(_SQL["nothing"])
            took_s.append(monotonic() - asked_s)
    return min(took_s)


def _latency(round_trip_s: float) -> Finding:
    says = f"a round trip to the database takes {1000 * round_trip_s:.0f} ms"
    remedy = "run Tickwright near its database: the same zone, below 10 ms"
    if round_trip_s > ROUND_TRIP_S_MAX:
        return Finding(
            "latency", "fail", f"{says}: everything runs late, and leases are lost from two seconds on", remedy
        )
    if round_trip_s > ROUND_TRIP_S:
        return Finding("latency", "warn", f"{says}: jobs start later by a few of them, and fewer run at a time", remedy)
    return Finding("latency", "ok", says)


def _server(facts: Any) -> Iterator[Finding]:
    if facts["server_version"] < 150000:
        yield Finding("version", "fail", f"PostgreSQL {facts['server_version_text']}", "use PostgreSQL 15 or newer")
    else:
        yield Finding("version", "ok", f"PostgreSQL {facts['server_version_text']}")
    if facts["in_recovery"]:
        yield Finding("primary", "fail", "this server is a standby", "point TICKWRIGHT_DATABASE_URL at the primary")


def _durability(facts: Any) -> Iterator[Finding]:
    for name in ("fsync", "full_page_writes"):
        if facts[name] == "on":
            yield Finding(name, "ok", "on")
        else:
            yield Finding(name, "fail", "off: a power cut can lose or break everything", f"set {name} = on")
    commit = facts["synchronous_commit"]
    if commit == "off":
        remedy = "set synchronous_commit = on for Tickwright's user"
        yield Finding("synchronous_commit", "fail", "off: a crash loses the last acknowledged jobs", remedy)
    else:
        yield Finding("synchronous_commit", "ok", commit)
    if facts["sync_standbys"] and facts["synchronous_standby_names"] and commit not in {"local", "off"}:
        yield Finding("failover", "ok", f"{facts['sync_standbys']} synchronous standby: a failover loses nothing")
    else:
        says = "no synchronous standby: kill and restart lose nothing, a failover may lose the last commits"
        yield Finding("failover", "warn", says, "set synchronous_standby_names where failover is part of the promise")


def _clock(now_s: float) -> Finding:
    skew_s = abs(now_s - local_unix_seconds())
    if skew_s <= SKEW_S_MAX:
        return Finding("clock", "ok", "this machine and the database agree within 2 s")
    says = f"this machine's clock is {skew_s:.0f} s away from the database's, which decides when jobs run"
    return Finding("clock", "warn", says, "run a time service on both")


def _pressure(facts: Any) -> Iterator[Finding]:
    free = facts["max_connections"] - facts["connections"]
    if free < NEEDED_CONNECTIONS:
        says = f"{free} of {facts['max_connections']} are free"
        yield Finding("connections", "warn", says, "raise max_connections, or lower TICKWRIGHT_CONNECTIONS_MAX")
    else:
        yield Finding("connections", "ok", f"{free} of {facts['max_connections']} are free")
    if facts["oldest_transaction_s"] > OLD_TRANSACTION_S:
        says = f"a transaction is open for {facts['oldest_transaction_s']:.0f} s; VACUUM keeps dead rows because of it"
        yield Finding("transactions", "warn", says, "end it: SELECT * FROM pg_stat_activity ORDER BY xact_start")


def _notifications(database: Database, settings: Settings) -> Finding:
    late = "jobs are found by polling, up to 1.1 s late"
    if not settings.notifications:
        return Finding("notifications", "warn", f"they are off: {late}", "set TICKWRIGHT_NOTIFICATIONS=true")
    if database.direct_url is None:
        says = f"a pooler is in the way: {late}"
        return Finding("notifications", "warn", says, "set TICKWRIGHT_DIRECT_DATABASE_URL")
    return Finding("notifications", "ok", "LISTEN has a connection of its own")


async def _schema(database: Database) -> Finding:
    found, wanted = await revision(database), head_revision()
    if found == wanted:
        return Finding("schema", "ok", f"revision {found}")
    says = "there is none" if found is None else f"revision {found}, this release knows {wanted}"
    if found is not None and found > wanted:
        return Finding("schema", "warn", says, "a newer release has migrated; update this one")
    return Finding("schema", "fail", says, "run: tickwright migrate")


def _rights(excess: Sequence[Mapping[str, Any]]) -> Finding:
    if not excess:
        return Finding("roles", "ok", "no role has more rights in the schema than it needs")
    names = sorted({row["role"] for row in excess})
    says = f"rights beyond plain SQL: {', '.join(names[:ROLES_SHOWN])}" + (" …" if len(names) > ROLES_SHOWN else "")
    return Finding(
        "roles", "warn", says, "see: tickwright roles check; cut them: tickwright roles create app --name ROLE"
    )


def _table_locks(rows: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """Check whether Tickwright may end a session that blocks a table by requesting a lock that it has no right to."""
    if rows:
        names = ", ".join(row["role"] for row in rows[:ROLES_SHOWN]) + (" …" if len(rows) > ROLES_SHOWN else "")
        says = f"a session of {names} that holds up a table would be named and not ended"
        granted = f"GRANT {', '.join(row['quoted'] for row in rows)} TO {rows[0]['me']}"
        yield Finding("table locks", "warn", says, f"{granted}; see docs/security.md")


def _disk(home: Path) -> Finding:
    usage = shutil.disk_usage(home)
    share = usage.free / usage.total
    says = f"{usage.free / 2**30:.1f} GiB free at {home}"
    if share < DISK_FREE_MIN:
        return Finding("disk", "warn", says, "free some space: PostgreSQL stops when it has none")
    return Finding("disk", "ok", says)
