"""Task types: their schema in the TOML file and in ``@app.job``, their rows, and what a process knows of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import asyncpg
import msgspec
from msgspec import UNSET

from tickwright.capabilities.jobs.admin.views import SecretView, StoredTaskType, TaskTypeView, task_type_view
from tickwright.capabilities.jobs.model import TaskType
from tickwright.capabilities.jobs.requests import (
    GROUP_LIMIT_MAX,
    TIMEOUT_MAX,
    TYPE_NAME,
    GroupOrder,
    TaskTypeChange,
    TaskTypeRequest,
)
from tickwright.capabilities.jobs.unique import Unique, UniqueRequest, read_unique, unique_of
from tickwright.capabilities.jobs.worker.pools import NAME_RULE, check_needs, check_queue
from tickwright.domain.envelopes import Purpose
from tickwright.domain.errors import Rejected
from tickwright.domain.field_readers import Reader, bad, flag, one_of, read_fields, whole
from tickwright.domain.retries import RetryPolicy
from tickwright.domain.signatures import OVERLAP_DEFAULT, SECRET_BYTES, check_overlap, secret_of
from tickwright.domain.targets import WebTarget, parse_target
from tickwright.domain.time_texts import RATE_PER_S_MIN, format_duration, parse_duration, parse_rate
from tickwright.engine.payload_keys import NO_KEYS, PayloadKeys
from tickwright.ports.caller import Caller
from tickwright.ports.ids import random_bytes
from tickwright.store.audit import AuditedRows
from tickwright.store.pool import Connection, Pool
from tickwright.store.queries import load

RETRY_BASE_MAX = timedelta(days=1)
RETRY_CAP_MAX = timedelta(days=7)
GROUP_ORDERS = ("stop", "skip", "continue")
DELIVER_NEEDS = "only of a type that is encrypted; add encrypted = true"


def read_task_type(name: str, table: Any, problems: list[str], *, where: str) -> TaskType:
    """Return the type that a table or a set of keyword arguments describes; add every mistake to ``problems``."""
    if not TYPE_NAME.fullmatch(name):
        problems.append(f"{where}: a name has {NAME_RULE}")
    if not isinstance(table, dict):
        problems.append(f"{where}: write a table, [task_types.NAME]")
        return TaskType(name, "")
    if "target" not in table:
        problems.append(f"{where}.target: missing; such as https://… or python:{name}")
    values = read_fields(table, _READERS, problems, where=where)
    if "rate" in values:
        values["rate_per_s"] = values.pop("rate")
    if "group_rate" in values:
        values["group_rate_per_s"] = values.pop("group_rate")
    kind = TaskType(name, values.pop("target", ""), **values)
    if (problem := _group_problem(kind.group_limit, kind.group_order)) is not None:
        problems.append(f"{where}.{problem}")
    if kind.deliver is not None and not kind.encrypted:
        problems.append(f"{where}.deliver: {DELIVER_NEEDS}")
    return kind


def read_duration(value: Any) -> timedelta:
    """Return a duration from ``"30s"`` or a ``timedelta``; refuse a bare number, which has no unit."""
    if isinstance(value, timedelta):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise bad('write a duration with its unit, such as "30s"')
    if not isinstance(value, str):
        raise bad(f'{value} has no unit; write "{value}s" for seconds')
    return parse_duration(value)


def _read_rate(value: Any) -> float:
    count, unit_s = parse_rate(value)
    return count / unit_s


def read_retry(value: Any) -> RetryPolicy:
    """Return a policy from ``{ base = "1s", factor = 2, cap = "1h" }``, each part optional."""
    policy = value if isinstance(value, RetryPolicy) else _policy_of(value)
    if policy.base > policy.cap:
        raise bad(f"base, {format_duration(policy.base)}, is above cap, {format_duration(policy.cap)}")
    return policy


def _policy_of(value: Any) -> RetryPolicy:
    if not isinstance(value, Mapping):
        raise bad('write { base = "1s", factor = 2, cap = "1h" }')
    strange = sorted(set(value) - {"base", "factor", "cap"})
    if strange:
        raise bad(f"unknown part {strange[0]!r}; allowed: base, factor, cap")
    default = RetryPolicy()
    return RetryPolicy(
        _within("base", read_duration(value.get("base", default.base)), timedelta(), RETRY_BASE_MAX),
        _number("factor", value.get("factor", default.factor), 1, 10),
        _within("cap", read_duration(value.get("cap", default.cap)), timedelta(), RETRY_CAP_MAX),
    )


def _within(what: str, value: timedelta, low: timedelta, high: timedelta) -> timedelta:
    if not low <= value <= high:
        raise bad(f"{what} is between {low} and {high}")
    return value


def _number(what: str, value: Any, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise bad(f"{what} is a number from {low} to {high}")
    return float(value)


def _read_timeout(value: Any) -> timedelta:
    return _within("a timeout", read_duration(value), timedelta(milliseconds=1), TIMEOUT_MAX)


def _read_target(value: Any) -> str:
    if not isinstance(value, str):
        raise bad("write a destination, such as https://… or python:NAME")
    parse_target(value)
    return value


def _read_statuses(value: Any) -> frozenset[int]:
    if not isinstance(value, list | tuple | set | frozenset) or not all(
        isinstance(status, int) and 300 <= status <= 599 for status in value
    ):
        raise bad("write a list of HTTP statuses from 300 to 599, such as [401, 403]")
    return frozenset(value)


def _read_order(value: Any) -> str:
    if value not in GROUP_ORDERS:
        raise bad('write "stop", "skip" or "continue": what follows a failed job of a group')
    return str(value)


def _group_problem(limit: int | None, order: str | None) -> str | None:
    if order is not None and limit is not None and limit > 1:
        return "group_limit: 1 or none where group_order is set, because its jobs run one after another"
    return None


_READERS: Mapping[str, Reader] = {
    "target": _read_target,
    "timeout": _read_timeout,
    "max_attempts": whole(1, 1000),
    "retry": read_retry,
    "final_statuses": _read_statuses,
    "concurrency": whole(1, 100_000),
    "rate": _read_rate,
    "keep_history": flag,
    "queue": check_queue,
    "needs": check_needs,
    "group_limit": whole(1, GROUP_LIMIT_MAX),
    "group_rate": _read_rate,
    "group_order": _read_order,
    "unique": read_unique,
    "encrypted": flag,
    "deliver": one_of("plain", "cipher"),
}


def read_declared(tables: Mapping[str, Any]) -> list[TaskType]:
    """Return the task types of the TOML file, which has passed the checks."""
    return [read_task_type(name, table, [], where=name) for name, table in tables.items()]


def as_declared(kind: TaskType | None, present: TaskType | None = None) -> TaskType | None:
    """Return ``kind`` without the fields that a file cannot set, so that an unchanged file changes nothing.

    A type that is encrypted at present stays so, and keeps ``deliver`` where the file does not say that it is.
    """
    if kind is None:
        return None
    if present is not None and present.encrypted and not kind.encrypted:
        kind = replace(kind, encrypted=True, deliver=present.deliver)
    factor = round(kind.retry.factor, 4)  # the table stores a float of four bytes
    retry = replace(kind.retry, factor=factor)
    return replace(
        kind, retry=retry, has_groups=False, paused=False, gone=False, queue_paused=False, secrets=(), version=1
    )


def request_of(kind: TaskType) -> TaskTypeRequest:
    """Return ``kind`` as the request that creates it."""
    return TaskTypeRequest(
        target=kind.target,
        timeout=format_duration(kind.timeout),
        max_attempts=kind.max_attempts,
        retry_base=format_duration(kind.retry.base),
        retry_factor=kind.retry.factor,
        retry_cap=format_duration(kind.retry.cap),
        final_statuses=sorted(kind.final_statuses),
        concurrency=kind.concurrency,
        rate_per_s=kind.rate_per_s,
        keep_history=kind.keep_history,
        queue=kind.queue,
        needs=sorted(kind.needs),
        group_limit=kind.group_limit,
        group_rate_per_s=kind.group_rate_per_s,
        group_order=cast(GroupOrder | None, kind.group_order),
        unique=None if kind.unique is None else kind.unique.shown(),
        encrypted=kind.encrypted or UNSET,
        deliver=kind.deliver,
    )


_SQL = load("tickwright.capabilities.jobs.sql", "task_types.sql")


async def load_types(connection: Connection) -> list[TaskType]:
    """Return every task type with the secrets that are still in use."""
    return [type_of(row) for row in await connection.fetch(_SQL["list_types"])]


def type_of(row: Mapping[str, Any]) -> TaskType:
    """Return a row of ``task_types`` as a :class:`TaskType`."""
    return TaskType(
        name=row["name"],
        target=row["target"],
        timeout=_from_ms(row["timeout_ms"]),
        max_attempts=row["max_attempts"],
        retry=RetryPolicy(_from_ms(row["retry_base_ms"]), row["retry_factor"], _from_ms(row["retry_cap_ms"])),
        final_statuses=frozenset(row["final_statuses"]),
        concurrency=row["concurrency"],
        # SQL or an earlier release may have written a rate below the bound
        rate_per_s=None if row["rate_per_s"] is None else max(row["rate_per_s"], RATE_PER_S_MIN),
        keep_history=row["keep_history"],
        queue=row["queue"],
        needs=frozenset(row["needs"]),
        group_limit=row["group_limit"],
        group_rate_per_s=row["group_rate_per_s"],
        group_order=row["group_order"],
        has_groups=row["has_groups"],
        paused=row["paused_at"] is not None,
        gone=row["gone_at"] is not None,
        queue_paused=row["queue_paused_at"] is not None,
        secrets=tuple(row["secrets"]),
        version=row["version"],
        unique=unique_of(row["uniqueness"]),
        encrypted=row["encrypted"],
        deliver=row["deliver"],
    )


async def register_handler(connection: Connection, kind: TaskType) -> None:
    """Register a handler's type, unless an operator has set it up differently; an encrypted one becomes encrypted."""
    await connection.execute(
        _SQL["register_handler"], kind.name, kind.target, _whole_ms(kind.timeout), kind.max_attempts,
        _whole_ms(kind.retry.base), kind.retry.factor, _whole_ms(kind.retry.cap), kind.concurrency, kind.rate_per_s,
        kind.keep_history, kind.queue, sorted(kind.needs), kind.group_limit, kind.group_rate_per_s, kind.group_order,
        _stored_rule(kind.unique), kind.encrypted, kind.deliver,
    )  # fmt: skip


async def seal_schedules(connection: Connection, name: str, keys: PayloadKeys) -> None:
    """Seal the payloads of the schedules of a type that has become encrypted.

    Raises:
        Unavailable: ``payload_keys_missing``: there are some, and this process has no keys. Retry with keys.
    """
    for row in await connection.fetch(_SQL["plain_schedules"], name):
        sealed = keys.seal(row["payload"], Purpose.PAYLOAD, name)
        await connection.execute(_SQL["seal_schedule"], row["name"], sealed)


async def mark_gone(pool: Pool, name: str) -> None:
    """Mark a type as gone, because its endpoint answered 410: its jobs wait."""
    await pool.execute(_SQL["mark_gone"], name)


def _whole_ms(duration: timedelta) -> int:
    return round(duration.total_seconds() * 1000)


def _from_ms(duration_ms: int) -> timedelta:
    return timedelta(milliseconds=duration_ms)


class TaskTypes(AuditedRows[TaskTypeView]):
    """The rows of ``tickwright.task_types`` and their secrets, for operators.

    A paused type starts no jobs; running ones continue. ``enable`` starts them again, also after its endpoint answered
    410.

    Raises:
        Rejected: ``task_type_not_found`` (404) from every method with a name, except ``put``. Permanent.
    """

    def __init__(self, pool: Pool, allow_target: Callable[[str], None], keys: PayloadKeys = NO_KEYS) -> None:
        super().__init__(pool, "task_type", task_type_view, lock=_SQL["lock"], read=_SQL["list"], switches=_SQL)
        self._allow_target, self._keys = allow_target, keys

    async def put(self, name: str, settings: TaskTypeRequest, *, caller: Caller) -> StoredTaskType:
        """Create or replace a type. A type whose target is signed gets its first secret here.

        Raises:
            Rejected: ``invalid_task_type``, ``invalid_target``, ``invalid_duration``, ``invalid_timeout``,
                ``invalid_retry``, ``invalid_queue``, ``invalid_needs``, ``invalid_unique``, or what the broker refuses
                about the target (``ssrf_blocked``); ``encryption_stays`` (409): an encrypted type cannot become a plain
                one. Permanent.
            Unavailable: ``payload_keys_missing``: schedules of a type that becomes encrypted have plain payloads, and
                this process has no keys. Retry with keys.
        """
        columns = _checked_columns(name, settings)
        parse_target(settings.target)
        self._allow_target(settings.target)
        async with self.changing("put", name, caller, creates=True) as change:
            secret = await self._store(change.connection, name, columns)
        return StoredTaskType(change.after, change.before is None, secret)

    async def change(self, name: str, change: TaskTypeChange, *, caller: Caller) -> StoredTaskType:
        """Change only the given fields of a type, so that two operators do not undo each other's edits.

        Raises:
            Rejected: ``version_conflict`` (409) with the present ``version``: read it again; and what :meth:`put`
                refuses. Permanent.
        """
        async with self.changing("change", name, caller) as changing:
            before = changing.before
            if change.version is not UNSET and change.version != before.version:
                message = f"{name} was changed since version {change.version}; it has version {before.version} now"
                raise Rejected("version_conflict", message, status=409, version=before.version)
            settings = change.on(msgspec.structs.asdict(before))
            if settings.target != before.target:
                self._allow_target(settings.target)
            secret = await self._store(changing.connection, name, _checked_columns(name, settings))
        return StoredTaskType(changing.after, created=False, secret=secret)

    async def _store(self, connection: Connection, name: str, columns: Sequence[Any]) -> str | None:
        """Write a type; return its first secret where its target is signed from now on."""
        try:
            await connection.execute(_SQL["put"], *columns)
        except asyncpg.CheckViolationError as error:
            raise _refused(name, error) from error
        written = await self.get(name, connection)
        if written.encrypted:
            await seal_schedules(connection, name, self._keys)
        if not isinstance(parse_target(written.target), WebTarget) or written.signing_secrets:
            return None
        return await self._add_secret(connection, name)

    async def rotate_secret(self, name: str, *, caller: Caller, overlap: timedelta = OVERLAP_DEFAULT) -> SecretView:
        """Make a new signing secret; the old ones stay in use beside it for ``overlap``.

        Raises:
            Rejected: ``nothing_to_sign``, ``invalid_overlap``. Permanent.
        """
        check_overlap(overlap)
        async with self.changing("rotate_secret", name, caller) as change:
            if not isinstance(parse_target(change.before.target), WebTarget):
                raise Rejected("nothing_to_sign", f"{name}: only http, https, ws and wss targets are signed")
            await change.connection.execute(_SQL["retire_secrets"], name, overlap)
            await change.connection.execute(_SQL["drop_retired"], name)
            secret = await self._add_secret(change.connection, name)
            secrets = (await self.get(name, change.connection)).signing_secrets
            former = {"signing_secrets": change.before.signing_secrets}
            change.audited = former, {"signing_secrets": secrets, "overlap": format_duration(overlap)}
        return SecretView(name, secret, format_duration(overlap))

    async def delete(self, name: str, *, caller: Caller) -> None:
        """Delete a type and its secrets; its jobs wait like those of any unknown type."""
        async with self.changing("delete", name, caller) as change:
            await change.connection.execute(_SQL["delete"], name)
            await change.connection.execute(_SQL["delete_rate"], name)

    async def _add_secret(self, connection: Connection, name: str) -> str:
        secret = secret_of(random_bytes(SECRET_BYTES))
        await connection.execute(_SQL["add_secret"], name, secret)
        return secret


def _refused(name: str, error: asyncpg.CheckViolationError) -> Exception:
    """Return the error for a rule of the table."""
    rule: object = error.constraint_name
    if rule == "task_types_deliver":
        return Rejected("invalid_task_type", f"deliver: {DELIVER_NEEDS}", field="deliver")
    if rule == "task_types_encrypted":
        text = f"{name} stays encrypted, because its jobs may have envelopes; use another type for plain payloads"
        return Rejected("encryption_stays", text, status=409, field="encrypted")
    other: Exception = error
    return other


def _checked_columns(name: str, settings: TaskTypeRequest) -> tuple[Any, ...]:
    if not TYPE_NAME.fullmatch(name):
        raise Rejected("invalid_task_type", f"task type: {NAME_RULE}", field="name")
    base_ms = _ms(settings.retry_base, "retry_base", timedelta(), RETRY_BASE_MAX)
    cap_ms = _ms(settings.retry_cap, "retry_cap", timedelta(), RETRY_CAP_MAX)
    if base_ms > cap_ms:
        message = f"retry_base: {settings.retry_base} is above retry_cap, {settings.retry_cap}"
        raise Rejected("invalid_retry", message, field="retry_base")
    if (problem := _group_problem(settings.group_limit, settings.group_order)) is not None:
        raise Rejected("invalid_group_limit", problem, field="group_limit")
    timeout_ms = _ms(settings.timeout, "timeout", timedelta(milliseconds=1), TIMEOUT_MAX)
    return (
        name,
        settings.target,
        timeout_ms,
        settings.max_attempts,
        base_ms,
        settings.retry_factor,
        cap_ms,
        settings.final_statuses,
        settings.concurrency,
        settings.rate_per_s,
        settings.keep_history,
        check_queue(settings.queue),
        sorted(check_needs(settings.needs)),
        settings.group_limit,
        settings.group_rate_per_s,
        settings.group_order,
        _stored_rule(_rule_of(settings.unique)),
        None if settings.encrypted is UNSET else settings.encrypted,
        settings.deliver,
    )


def _rule_of(request: UniqueRequest | None) -> Unique | None:
    return None if request is None else Unique(**msgspec.structs.asdict(request))


def _stored_rule(rule: Unique | None) -> str | None:
    return None if rule is None else msgspec.json.encode(rule.stored()).decode()


def _ms(text: str, field: str, least: timedelta, most: timedelta) -> int:
    duration = parse_duration(text, field=field)
    if not least <= duration <= most:
        code = "invalid_timeout" if field == "timeout" else "invalid_retry"
        raise Rejected(code, f"{field}: {format_duration(least)} to {format_duration(most)}", field=field)
    return _whole_ms(duration)
