"""Schedules for operators and programs: definitions with versions, control, run now, preview, explain.

A definition that an operator or a file has set counts: what a program declares replaces only what a program declared.
Every change locks the schedule's row, as the producer does, and has a line in the audit trail.
"""

from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

import msgspec
from msgspec import UNSET

from tickwright.capabilities.jobs.schedules.definition import (
    Definition,
    ScheduleChange,
    ScheduleRequest,
    check_name,
    definition_of,
    fields_of,
    recurrence_of,
)
from tickwright.capabilities.jobs.schedules.explain import explain_schedule, explain_slot
from tickwright.capabilities.jobs.schedules.producer import KEY_WAIT, slot_key
from tickwright.capabilities.jobs.schedules.producer import SQL as PRODUCER
from tickwright.capabilities.jobs.schedules.views import (
    Preview,
    ScheduleDetail,
    ScheduleExplanation,
    ScheduleView,
    SkipView,
    StartedJob,
    StoredSchedule,
    occurrences,
    schedule_detail,
    schedule_view,
    times_text,
)
from tickwright.capabilities.jobs.sealing import seal_payload
from tickwright.capabilities.jobs.type_catalog import TypeCatalog
from tickwright.domain.calendars.occurrences import spread_offset
from tickwright.domain.envelopes import Purpose, read_envelope
from tickwright.domain.errors import Contended, Rejected, TickwrightError
from tickwright.domain.signatures import digest_of
from tickwright.domain.time_texts import format_duration, parse_instant
from tickwright.engine.payload_keys import NO_KEYS, PayloadKeys
from tickwright.ports.caller import Caller
from tickwright.ports.views import Page, raw, view
from tickwright.store.audit import AuditedRows
from tickwright.store.paging import LIMIT_DEFAULT, Cursors, checked_limit, fetch_page
from tickwright.store.pool import Connection, Pool
from tickwright.store.queries import filled, load

SQL = filled(load("tickwright.capabilities.jobs.schedules.sql", "schedules.sql"), "shown")
NAME_AFTER_ALL = "~"
"""Sorts behind every valid name."""
PREVIEW_DEFAULT, PREVIEW_MAX = 10, 100
SKIPS_SHOWN = 10
_MS = timedelta(milliseconds=1)


class Schedules(AuditedRows[ScheduleView]):
    """The rows of ``tickwright.schedules``, for operators.

    Raises:
        Rejected: ``schedule_not_found`` (404) from every method with a name, except ``put``. Permanent.
    """

    def __init__(self, pool: Pool, types: TypeCatalog, keys: PayloadKeys = NO_KEYS) -> None:
        super().__init__(
            pool, "schedule", schedule_view, lock=SQL["lock"], read=SQL["get"], switches=SQL, audits_equal=False
        )
        self._cursors, self._types, self._keys = Cursors(pool), types, keys

    async def page(
        self, *, begins: str = "", task_type: str | None = None, cursor: str | None = None, limit: int = LIMIT_DEFAULT
    ) -> Page[ScheduleView]:
        """Return one page of schedules, by their names.

        Raises:
            Rejected: ``invalid_limit``, ``invalid_cursor``. Permanent.
        """
        limit = checked_limit(limit)
        listing = ("schedules", begins, task_type)
        after = "" if cursor is None else await self._cursors.read(cursor, str, *listing)
        rows = await fetch_page(self._pool, SQL["list"], after, begins, begins + NAME_AFTER_ALL, task_type, limit + 1)
        items = [schedule_view(row) for row in rows[:limit]]
        more = await self._cursors.make(items[-1].name, *listing) if len(rows) > limit else None
        return Page(items, more)

    async def detail(self, name: str) -> ScheduleDetail:
        """Return one schedule with its payload, its next ten occurrences and its newest skips."""
        async with self._pool.acquire() as connection, connection.transaction(readonly=True):
            row = await self.row(name, connection)
            payload = await connection.fetchval(SQL["payload"], name)
            skips = await connection.fetch(SQL["skips"], name, SKIPS_SHOWN)
            status = await connection.fetchval(SQL["status_of"], row["last_job_id"])
        return schedule_detail(
            row,
            payload=raw(payload),
            last_job_status=status,
            next_occurrences=[] if row["paused_at"] is not None else _next_of(row, PREVIEW_DEFAULT),
            skips=[view(SkipView, skip) for skip in skips],
        )

    async def put(self, name: str, request: ScheduleRequest, *, caller: Caller) -> StoredSchedule:
        """Create a schedule or replace its definition. The same definition again changes nothing.

        Raises:
            Rejected: ``invalid_name``, ``invalid_schedule`` with every mistake, or the code of the only one;
                ``unknown_task_type``. Permanent.
            Contended: ``version_conflict``. Retry after reading it again.
        """
        definition = definition_of(fields_of(request))
        await self._types.get(definition.task_type)
        return await self.store(name, definition, caller=caller, expected=_version(request))

    async def change(self, name: str, change: ScheduleChange, *, caller: Caller) -> StoredSchedule:
        """Change only the given fields, so that two operators do not undo each other's edits; errors as :meth:`put`."""
        async with self.changing("change", name, caller) as changing:
            _check_version(changing.before, _version(change))
            present = await self._definition(changing.connection, name)
            definition = definition_of(_merged(present, fields_of(change)))
            await self._types.get(definition.task_type)
            if definition.task_type != present.task_type and change.payload is UNSET:
                await self._check_movable(changing.connection, name)
            if definition != present or changing.before.set_by != "operator":
                await self._write(changing.connection, "edit", name, "operator", definition)
        return StoredSchedule(changing.after, created=False)

    async def store(
        self,
        name: str,
        definition: Definition,
        *,
        caller: Caller,
        expected: int | None = None,
        set_by: str = "operator",
    ) -> StoredSchedule:
        """Store a checked definition; what a program sets (``app``) does not replace what an operator has set."""
        check_name(name)
        async with self.changing("put", name, caller, creates=expected is None) as changing:
            connection, before = changing.connection, changing.before
            if before is None:
                if await self._write(connection, "create", name, set_by, definition) is not None:
                    created = True
                else:
                    raise Contended("version_conflict", f"{name} was created just now; read it", version=1)
            else:
                created = False
                _check_version(before, expected)
                is_changed = before.set_by != set_by or not self._same(
                    await self._definition(connection, name), definition
                )
                if is_changed and not (set_by == "app" and before.set_by != "app"):
                    await self._write(connection, "edit", name, set_by, definition)
        return StoredSchedule(changing.after, created)

    async def _write(
        self, connection: Connection, query: str, name: str, set_by: str, definition: Definition
    ) -> str | None:
        """Write a definition, with its payload in an envelope where its type is encrypted."""
        if await connection.fetchval(SQL["is_encrypted"], definition.task_type):
            payload = seal_payload(definition.task_type, definition.payload, self._keys)
            definition = msgspec.structs.replace(definition, payload=payload)
        written: str | None = await connection.fetchval(SQL[query], name, set_by, *definition.columns())
        return written

    def _same(self, present: Definition, definition: Definition) -> bool:
        """Return whether two definitions are equal; a process without keys does not compare an envelope."""
        if not self._keys and read_envelope(present.payload) is not None:
            definition = msgspec.structs.replace(definition, payload=present.payload)
        return present == definition

    async def _check_movable(self, connection: Connection, name: str) -> None:
        """Refuse to give an encrypted payload to jobs of another type."""
        if read_envelope(await connection.fetchval(SQL["payload"], name)) is not None:
            text = f"payload: {name} has an encrypted one, which is bound to its type; give a payload for the new type"
            raise Rejected("payload_required", text, field="payload")

    async def delete(self, name: str, *, caller: Caller) -> None:
        """Delete a schedule; jobs that it made stay. One that a program declares comes back when that starts."""
        async with self.changing("delete", name, caller) as change:
            await change.connection.execute(SQL["delete"], name)

    async def run_now(self, name: str, *, caller: Caller, key: str | None = None) -> StartedJob:
        """Make a job now, beside the occurrences; also of a paused schedule. The same ``key`` gives the same job.

        Raises:
            Rejected: ``schedule_busy`` (409): ``overlap`` is ``skip`` and a job of it has not ended. Permanent until
                it has.
        """
        async with self.changing("run_now", name, caller) as change:
            row = await self.row(name, change.connection)
            mark = row["now"].isoformat() if key is None else digest_of(key).hex()[:32]
            run_key = f"schedule:{name}:run:{mark}"
            found = await change.connection.fetchrow(SQL["job_of"], run_key)
            if found is not None:
                return StartedJob(found["id"], created=False)
            await self._clear(change.connection, row)
            values = [name], [row["now"]], [run_key], KEY_WAIT
            made = await change.connection.fetchrow(PRODUCER["put_jobs"], *values)
            if made is None:
                raise Contended("key_in_flight", "another request with this key is under way; try again")
            change.audited = None, {"job": made["id"]}
        return StartedJob(made["id"], created=True)

    async def _clear(self, connection: Connection, row: Any) -> None:
        """Apply the overlap policy to a job that is made by hand."""
        name, overlap = row["name"], row["overlap"]
        if overlap == "allow":
            return
        opened = [found["id"] for found in await connection.fetch(PRODUCER["lock_open_jobs"], [name])]
        if overlap == "replace":
            await connection.execute(PRODUCER["cancel_jobs"], opened)
        elif opened:
            text = f"job {opened[0]} of {name} has not ended, and its overlap policy is skip; cancel that job first"
            raise Rejected("schedule_busy", text, status=409, job=opened[0])

    async def preview(self, name: str, count: int = PREVIEW_DEFAULT) -> Preview:
        """Return the next occurrences of a schedule, paused or not."""
        row = await self.row(name)
        offset = spread_offset(name, row["spread"])
        text = times_text(row["cron"], row["every"])
        return Preview(text, row["time_zone"], format_duration(offset), _next_of(row, count))

    async def preview_unsaved(self, request: ScheduleRequest, name: str, count: int = PREVIEW_DEFAULT) -> Preview:
        """Return the next occurrences that a definition would have under ``name``; errors as :meth:`put`."""
        definition = definition_of(fields_of(request))
        offset, now = definition.offset(name), await self._pool.fetchval(SQL["now"])
        found = occurrences(definition.recurrence(), offset, now, count)
        text = times_text(definition.cron, definition.every)
        return Preview(text, definition.time_zone, format_duration(offset), found)

    async def explain(self, name: str, slot: str | None = None) -> ScheduleExplanation:
        """Return why a schedule makes jobs or does not; with ``slot`` what became of that occurrence.

        Raises:
            Rejected: What :func:`parse_instant` says of ``slot``. Permanent.
        """
        slot_at = None if slot is None else parse_instant(slot, field="slot")
        async with self._pool.acquire() as connection, connection.transaction(readonly=True):
            row = await self.row(name, connection)
            if slot_at is not None:
                job = await connection.fetchrow(SQL["job_of"], slot_key(name, slot_at))
                return explain_slot(row, slot_at, job, await connection.fetchrow(SQL["skip_of"], name, slot_at))
            facts = await connection.fetchrow(SQL["surroundings"], name)
            skips = await connection.fetch(SQL["skips"], name, SKIPS_SHOWN)
        return explain_schedule(row, facts, skips)

    async def _definition(self, connection: Connection, name: str) -> Definition:
        """Return the definition of a locked schedule."""
        row = await self.row(name, connection)
        fields = {field: row[field] for field in Definition.__struct_fields__ if field in row}
        timeout = None if row["timeout_ms"] is None else row["timeout_ms"] * _MS
        stored = await connection.fetchval(SQL["payload"], name)
        with suppress(TickwrightError):  # without its key the envelope stays
            stored = self._keys.open(stored, Purpose.PAYLOAD, row["task_type"])
        payload = msgspec.json.decode(stored)
        return Definition(**fields, timeout=timeout, payload=msgspec.json.encode(payload).decode())


def _next_of(row: Any, count: int) -> list[Any]:
    try:
        recurrence = recurrence_of(row)
    except Rejected:
        return []
    return occurrences(recurrence, spread_offset(row["name"], row["spread"]), row["now"], count)


def _merged(present: Definition, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a definition with changes; a new cron replaces ``every``, and the other way round."""
    fields = msgspec.structs.asdict(present)
    fields["payload"] = msgspec.json.decode(present.payload)
    for one, other in (("cron", "every"), ("every", "cron")):
        if changes.get(one) is not None and other not in changes:
            fields[other] = None
    return {**fields, **changes}


def _version(request: ScheduleRequest) -> int | None:
    return None if request.version is UNSET else request.version


def _check_version(before: ScheduleView, expected: int | None) -> None:
    if expected is not None and before.version != expected:
        text = f"{before.name} is at version {before.version}, not {expected}; read it again"
        raise Contended("version_conflict", text, version=before.version)
