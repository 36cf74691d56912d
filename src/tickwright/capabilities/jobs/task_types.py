"""Task types as rows: reading, registering and changing them."""

import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import msgspec
from msgspec import UNSET

from tickwright.capabilities.jobs.admin.views import SecretView, StoredTaskType, TaskTypeView, task_type_view
from tickwright.capabilities.jobs.model import TaskType
from tickwright.capabilities.jobs.requests import TaskTypeChange, TaskTypeRequest
from tickwright.domain.errors import Rejected
from tickwright.domain.retries import RetryPolicy
from tickwright.domain.signatures import OVERLAP_DEFAULT, SECRET_BYTES, check_overlap, secret_of
from tickwright.domain.targets import WebTarget, parse_target
from tickwright.domain.time_texts import RATE_PER_S_MIN, format_duration, parse_duration
from tickwright.ports.caller import Caller
from tickwright.ports.ids import random_bytes
from tickwright.store.audit import write_audit
from tickwright.store.pool import Connection, Pool
from tickwright.store.queries import load

_SQL = load("tickwright.capabilities.jobs.sql", "task_types.sql")


async def load_types(connection: Connection) -> list[TaskType]:
    """Return every task type with the secrets that are still in use."""
    return [type_of(row) for row in await connection.fetch(_SQL["list_types"])]


def type_of(row: Mapping[str, Any]) -> TaskType:
    """Return a row of ``task_types`` as a :class:`TaskType`."""
    return TaskType(
        name=row["name"],
        target=row["target"],
        timeout=timedelta(milliseconds=row["timeout_ms"]),
        max_attempts=row["max_attempts"],
        retry=RetryPolicy(
            timedelta(milliseconds=row["retry_base_ms"]),
            row["retry_factor"],
            timedelta(milliseconds=row["retry_cap_ms"]),
        ),
        final_statuses=frozenset(row["final_statuses"]),
        concurrency=row["concurrency"],
        rate_per_s=_rate_of(row["rate_per_s"]),
        keep_history=row["keep_history"],
        paused=row["paused_at"] is not None,
        gone=row["gone_at"] is not None,
        secrets=tuple(row["secrets"]),
        version=row["version"],
    )


def _rate_of(rate_per_s: float | None) -> float | None:
    """Return the rate of a row, raised to the bound: SQL or an earlier release may have written a lower one."""
    return None if rate_per_s is None else max(rate_per_s, RATE_PER_S_MIN)


async def register_handler(connection: Connection, kind: TaskType) -> None:
    """Register a handler's type, unless an operator has set it up differently."""
    await connection.execute(
        _SQL["register_handler"], kind.name, kind.target, _whole_ms(kind.timeout), kind.max_attempts,
        _whole_ms(kind.retry.base), kind.retry.factor, _whole_ms(kind.retry.cap), kind.concurrency, kind.rate_per_s,
        kind.keep_history,
    )  # fmt: skip


async def mark_gone(pool: Pool, name: str) -> None:
    """Mark a type as gone, because its endpoint answered 410: its jobs wait."""
    await pool.execute(_SQL["mark_gone"], name)


def _whole_ms(duration: timedelta) -> int:
    return round(duration.total_seconds() * 1000)


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,49}")
_DAY = timedelta(days=1)


class TaskTypes:
    """The rows of ``tickwright.task_types`` and their secrets, for operators."""

    def __init__(self, pool: Pool, allow_target: Callable[[str], None]) -> None:
        self._pool = pool
        self._allow_target = allow_target

    async def list(self) -> list[TaskTypeView]:
        """Return every type by name."""
        return [task_type_view(row) for row in await self._pool.fetch(_SQL["list"], None)]

    async def get(self, name: str) -> TaskTypeView:
        """Return one type.

        Raises:
            Rejected: ``task_type_not_found`` (404). Permanent.
        """
        async with self._pool.acquire() as connection:
            return await self._view(connection, name)

    async def put(self, name: str, settings: TaskTypeRequest, *, caller: Caller) -> StoredTaskType:
        """Create or replace a type. A type whose target is signed gets its first secret here.

        Raises:
            Rejected: ``invalid_task_type``, ``invalid_target``, ``invalid_duration``, ``invalid_timeout``,
                ``invalid_retry``, or what the broker refuses about the target (``ssrf_blocked``). Permanent.
        """
        self._check(name, settings)
        async with self._pool.acquire() as connection, connection.transaction():
            before = await self._find(connection, name)
            after, secret = await self._store(connection, name, settings)
            await write_audit(connection, caller, "task_types.put", _subject(name), before=before, after=after)
        return StoredTaskType(after, before is None, secret)

    async def change(self, name: str, change: TaskTypeChange, *, caller: Caller) -> StoredTaskType:
        """Change only the given fields of a type, so that two operators do not undo each other's edits.

        Raises:
            Rejected: ``task_type_not_found`` (404); ``version_conflict`` (409) with the present ``version``: read it
                again; and what :meth:`put` refuses. Permanent.
        """
        async with self._pool.acquire() as connection, connection.transaction():
            before = await self._locked(connection, name)
            if change.version is not UNSET and change.version != before.version:
                message = f"{name} was changed since version {change.version}; it has version {before.version} now"
                raise Rejected("version_conflict", message, status=409, version=before.version)
            settings = change.on(msgspec.structs.asdict(before))
            if settings.target != before.target:
                self._allow_target(settings.target)
            after, secret = await self._store(connection, name, settings)
            await write_audit(connection, caller, "task_types.change", _subject(name), before=before, after=after)
        return StoredTaskType(after, created=False, secret=secret)

    def _check(self, name: str, settings: TaskTypeRequest) -> None:
        _columns(name, settings)
        parse_target(settings.target)
        self._allow_target(settings.target)

    async def _store(
        self, connection: Connection, name: str, settings: TaskTypeRequest
    ) -> tuple[TaskTypeView, str | None]:
        """Write a type; return it, and its first secret where its target is signed from now on."""
        target = parse_target(settings.target)
        await connection.execute(_SQL["put"], *_columns(name, settings))
        after = await self._view(connection, name)
        if not isinstance(target, WebTarget) or after.signing_secrets:
            return after, None
        secret = await self._add_secret(connection, name)
        return await self._view(connection, name), secret

    async def pause(self, name: str, *, caller: Caller) -> TaskTypeView:
        """Stop starting a type's jobs; running ones continue. Pausing twice changes nothing.

        Raises:
            Rejected: ``task_type_not_found`` (404). Permanent.
        """
        return await self._change("pause", name, caller)

    async def enable(self, name: str, *, caller: Caller) -> TaskTypeView:
        """Start a type's jobs again, after a pause or after its endpoint answered 410.

        Raises:
            Rejected: ``task_type_not_found`` (404). Permanent.
        """
        return await self._change("enable", name, caller)

    async def rotate_secret(self, name: str, *, caller: Caller, overlap: timedelta = OVERLAP_DEFAULT) -> SecretView:
        """Make a new signing secret; the old ones stay in use beside it for ``overlap``.

        Raises:
            Rejected: ``task_type_not_found`` (404), ``nothing_to_sign``, ``invalid_overlap``. Permanent.
        """
        check_overlap(overlap)
        async with self._pool.acquire() as connection, connection.transaction():
            before = await self._locked(connection, name)
            if not isinstance(parse_target(before.target), WebTarget):
                raise Rejected("nothing_to_sign", f"{name}: only http, https, ws and wss targets are signed")
            await connection.execute(_SQL["retire_secrets"], name, overlap)
            await connection.execute(_SQL["drop_retired"], name)
            secret = await self._add_secret(connection, name)
            after = await self._view(connection, name)
            shown = {"signing_secrets": after.signing_secrets, "overlap": format_duration(overlap)}
            await write_audit(
                connection,
                caller,
                "task_types.rotate_secret",
                _subject(name),
                before={"signing_secrets": before.signing_secrets},
                after=shown,
            )
        return SecretView(name, secret, format_duration(overlap))

    async def delete(self, name: str, *, caller: Caller) -> None:
        """Delete a type and its secrets; its jobs wait like those of any unknown type.

        Raises:
            Rejected: ``task_type_not_found`` (404). Permanent.
        """
        async with self._pool.acquire() as connection, connection.transaction():
            before = await self._locked(connection, name)
            await connection.execute(_SQL["delete"], name)
            await connection.execute(_SQL["delete_rate"], name)
            await write_audit(connection, caller, "task_types.delete", _subject(name), before=before)

    async def _change(self, action: str, name: str, caller: Caller) -> TaskTypeView:
        async with self._pool.acquire() as connection, connection.transaction():
            before = await self._locked(connection, name)
            await connection.execute(_SQL[action], name)
            after = await self._view(connection, name)
            await write_audit(connection, caller, f"task_types.{action}", _subject(name), before=before, after=after)
        return after

    async def _add_secret(self, connection: Connection, name: str) -> str:
        secret = secret_of(random_bytes(SECRET_BYTES))
        await connection.execute(_SQL["add_secret"], name, secret)
        return secret

    async def _locked(self, connection: Connection, name: str) -> TaskTypeView:
        await connection.execute(_SQL["lock"], name)
        return await self._view(connection, name)

    async def _find(self, connection: Connection, name: str) -> TaskTypeView | None:
        await connection.execute(_SQL["lock"], name)
        row = await connection.fetchrow(_SQL["list"], name)
        return None if row is None else task_type_view(row)

    async def _view(self, connection: Connection, name: str) -> TaskTypeView:
        row = await connection.fetchrow(_SQL["list"], name)
        if row is None:
            raise Rejected("task_type_not_found", f"there is no task type {name[:50]!r}", status=404)
        return task_type_view(row)


def _subject(name: str) -> str:
    return f"task_type:{name}"


def _columns(name: str, settings: TaskTypeRequest) -> tuple[Any, ...]:
    if not _NAME.fullmatch(name):
        raise Rejected("invalid_task_type", "task type: 1 to 50 letters, digits, '_', '.', ':' or '-'", field="name")
    base_ms = _ms(settings.retry_base, "retry_base", timedelta(), _DAY)
    cap_ms = _ms(settings.retry_cap, "retry_cap", timedelta(), 7 * _DAY)
    if base_ms > cap_ms:
        message = f"retry_base: {settings.retry_base} is above retry_cap, {settings.retry_cap}"
        raise Rejected("invalid_retry", message, field="retry_base")
    return (
        name,
        settings.target,
        _ms(settings.timeout, "timeout", timedelta(milliseconds=1), _DAY),
        settings.max_attempts,
        base_ms,
        settings.retry_factor,
        cap_ms,
        settings.final_statuses,
        settings.concurrency,
        settings.rate_per_s,
        settings.keep_history,
    )


def _ms(text: str, field: str, least: timedelta, most: timedelta) -> int:
    duration = parse_duration(text, field=field)
    if not least <= duration <= most:
        code = "invalid_timeout" if field == "timeout" else "invalid_retry"
        raise Rejected(code, f"{field}: {format_duration(least)} to {format_duration(most)}", field=field)
    return round(duration / timedelta(milliseconds=1))
