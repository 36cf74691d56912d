"""Task types as rows: reading them, and registering what a program brings."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from tickwright.capabilities.jobs.model import TaskType
from tickwright.domain.retries import RetryPolicy
from tickwright.domain.time_texts import RATE_PER_S_MIN
from tickwright.store.pool import Connection, Pool
from tickwright.store.queries import load

_TYPES = load("tickwright.capabilities.jobs.sql", "types.sql")


async def load_types(connection: Connection) -> list[TaskType]:
    """Return every task type with the secrets that still sign."""
    return [type_of(row) for row in await connection.fetch(_TYPES["list_types"])]


def type_of(row: Mapping[str, Any]) -> TaskType:
    """Return a row of ``task_types`` as a value."""
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
    """Return the rate of a row, which SQL or an earlier release may have written below the bound."""
    return None if rate_per_s is None else max(rate_per_s, RATE_PER_S_MIN)


async def register_handler(connection: Connection, kind: TaskType) -> None:
    """Make a handler's type known, unless an operator has set it up differently."""
    await connection.execute(
        _TYPES["register_handler"], kind.name, kind.target, _ms(kind.timeout), kind.max_attempts,
        _ms(kind.retry.base), kind.retry.factor, _ms(kind.retry.cap), kind.concurrency, kind.rate_per_s,
        kind.keep_history,
    )  # fmt: skip


async def mark_gone(pool: Pool, name: str) -> None:
    """Let a type wait: its endpoint answered 410."""
    await pool.execute(_TYPES["mark_gone"], name)


def _ms(duration: timedelta) -> int:
    return round(duration.total_seconds() * 1000)
