"""The task types as a process that schedules knows them: read once, and refreshed in the background."""

import asyncio

import msgspec
import structlog

from tickwright.capabilities.jobs.model import TaskType
from tickwright.capabilities.jobs.requests import J, NewJob
from tickwright.capabilities.jobs.task_types import load_types
from tickwright.capabilities.jobs.unique import digest_of_arguments
from tickwright.domain.errors import Rejected
from tickwright.ports.ids import monotonic
from tickwright.store.bounds import for_all_callers
from tickwright.store.pool import Pool

_log = structlog.get_logger("tickwright.jobs")
TYPES_FRESH_S = 1.0


class TypeCatalog:
    """The task types. After a second, a known one is refreshed in the background; an unknown one is read at once."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._types: dict[str, TaskType] = {}
        self._read_s = float("-inf")
        self._reading: asyncio.Task[None] | None = None

    def fresh(self, name: str) -> TaskType | None:
        """Return the type if it is known and was read within the last second."""
        return self._types.get(name) if monotonic() - self._read_s <= TYPES_FRESH_S else None

    def known(self, name: str) -> TaskType | None:
        """Return the type if it is known, also an old one, which is then read again in the background."""
        kind = self.fresh(name)
        if kind is None and (kind := self._types.get(name)) is not None:
            self._refresh_later()
        return kind

    def makes_unique(self, job: NewJob) -> bool:
        """Return whether a job is unique, by its own rule or by that of its known type."""
        if job.unique is not None:
            return bool(job.unique)
        kind = self.known(job.task_type)
        return kind is not None and kind.unique is not None

    async def get(self, name: str) -> TaskType:
        """Return the type.

        Raises:
            Rejected: ``unknown_task_type``. Permanent until the type is registered.
        """
        kind = self.known(name)
        if kind is None:
            await self._read()
            kind = self._types.get(name)
        if kind is None:
            known = ", ".join(sorted(self._types)[:20]) or "none yet"
            raise Rejected(
                "unknown_task_type", f"task type {name!r} is not registered; known: {known}", field="task_type"
            )
        return kind

    def _refresh_later(self) -> None:
        if self._reading is None or self._reading.done():
            with for_all_callers():
                self._reading = asyncio.ensure_future(self._read())
            self._reading.add_done_callback(_log_failed_refresh)

    async def renew(self) -> None:
        """Read the types again: one of them is encrypted by now."""
        await self._read()

    async def _read(self) -> None:
        async with self._pool.acquire() as connection:
            self._types = {kind.name: kind for kind in await load_types(connection)}
        self._read_s = monotonic()


def _log_failed_refresh(reading: "asyncio.Task[None]") -> None:
    """Log why the types are old. They are used nevertheless, and the next call reads them again."""
    if not reading.cancelled() and (error := reading.exception()) is not None:
        _log.warning("enqueue.types_not_read", error=repr(error)[:200])


def with_uniqueness(job: J, kind: TaskType) -> J:
    """Return ``job`` with the rule that holds for it, its own or its type's, and the digest of its arguments.

    The payload has to be plain here: of two cipher texts of equal arguments, none is equal.
    """
    rule = kind.unique if job.unique is None else job.unique
    if not rule:
        return job
    digest = digest_of_arguments(job.task_type, job.payload, rule.by).hex()
    uniqueness = msgspec.json.encode({**rule.stored(), "digest": digest}).decode()
    return msgspec.structs.replace(job, uniqueness=uniqueness)
