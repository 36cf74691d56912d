"""The checker releases the actions of executions, a chunk at a time. Also here: the message at an execution's end.

Whether the actions of a chunk were released is a state of the chunk, changed in the transaction that writes their
messages into the outbox: a crash loses none and doubles none. The relay delivers them. An action that is a Python
function is a one-shot job, which is its own outbox row: retries, limits and history are those of jobs.
"""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import asyncpg
import structlog

from tickwright.domain.errors import Rejected
from tickwright.engine.outbox.table import put_message
from tickwright.observe.logs import without_secrets
from tickwright.observe.metrics import Sample, Source
from tickwright.ports.batches import Run
from tickwright.ports.service import NO_PROBE, Probe
from tickwright.ports.session import HeldLease
from tickwright.store.pool import REFUSED, Connection
from tickwright.store.queries import filled, load

if TYPE_CHECKING:  # every process reclaims chunks and so loads this module
    from tickwright.capabilities.batches.executions.producer import BatchSource

SQL = filled(filled(load("tickwright.capabilities.batches.sql", "release.sql"), "action"), "header_id")
WAITING_MAX = 200_000
"""Messages to one destination; while more of them wait, no actions are added to them."""
CHUNKS_PER_ROUND = 20
FULL_S = 5.0
IDLE_S = 10.0
SET_ASIDE_S = 300.0
ERROR_CHARS_MAX = 2000
TOO_LARGE = "its action was not released: larger than 1 MiB, or than 2 MiB as PostgreSQL writes it out"

_log = structlog.get_logger("tickwright.batches")


class Checker:
    """The round of a loop under the lease ``campaign-checker``.

    Invariants:
        BCK-1: an action leaves once, and never before its execution is finished unless its definition says ``chunk``.
        BCK-2: nothing of a stopped, disabled or failed execution leaves.
        BCK-3: an action that PostgreSQL refuses delays no other one of its chunk, and no other execution.
        BCK-4: a destination to which too many messages wait delays no actions but its own.
    """

    def __init__(self, *, probe: Probe = NO_PROBE) -> None:
        self._probe = probe
        self.counts: Counter[str] = Counter()

    async def round(self, lease: HeldLease) -> float:
        """Release some chunks; return the seconds until the next round, 0 where more chunks wait."""
        for _ in range(CHUNKS_PER_ROUND):
            chunk: Any = None
            try:
                async with lease.transaction() as connection:
                    if connection is None:
                        return 0.0
                    chunk = await connection.fetchrow(SQL["next_chunk"])
                    if chunk is None:
                        wait_s = await connection.fetchval(SQL["next_release_in"])
                        return IDLE_S if wait_s is None else max(wait_s, 0.0)
                    if await is_full(connection, chunk["target"]):
                        await connection.execute(SQL["wait_for_room"], chunk["target"], FULL_S)
                        continue
                    released = await self._release(connection, chunk)
            except REFUSED as error:
                if chunk is None:
                    raise
                await self._set_aside(lease, chunk, error)
                continue
            self.counts["chunks"] += 1
            self.counts["actions"] += released
            await self._probe.reached("batches.released", execution=chunk["id"], number=chunk["number"])
        return 0.0

    async def _release(self, connection: Connection, chunk: Any) -> int:
        """Write the messages or jobs of a chunk's actions, and mark it; return how many actions left."""
        released: int = chunk["actions"]
        if chunk["target"] is not None and released:
            try:
                async with connection.transaction():  # a savepoint
                    released = await _put(connection, chunk, only_fitting=False)
            except asyncpg.CheckViolationError:
                released = await _put(connection, chunk, only_fitting=True)
                await connection.execute(SQL["note_refused"], chunk["id"], chunk["number"], TOO_LARGE)
                left = chunk["actions"] - released
                _log.warning("batches.actions_too_large", execution=chunk["id"], chunk=chunk["number"], actions=left)
        await connection.fetchval(SQL["note_released"], chunk["id"], chunk["number"], released)
        await self._probe.reached("batches.releasing", execution=chunk["id"], number=chunk["number"])
        return released

    async def _set_aside(self, lease: HeldLease, chunk: Any, error: Exception) -> None:
        why = without_secrets(str(error))[:ERROR_CHARS_MAX]
        _log.warning("batches.release_refused", execution=chunk["id"], chunk=chunk["number"], reason=why)
        self.counts["set_aside"] += 1
        async with lease.transaction() as connection:
            if connection is not None:
                await connection.execute(SQL["set_aside"], chunk["id"], SET_ASIDE_S, why)


async def _put(connection: Connection, chunk: Any, *, only_fitting: bool) -> int:
    job = job_of(chunk["target"])
    name, to = ("put_messages", chunk["target"]) if job is None else ("put_jobs", job)
    tag: str = await connection.execute(SQL[name], chunk["id"], chunk["number"], to, only_fitting)
    return int(tag.rpartition(" ")[2])


async def report_end(connection: Connection, run: Run) -> None:
    """Send the summary of an execution to ``on_finished`` of its definition, in the transaction that ends it."""
    destination = run.definition.get("on_finished")
    if not destination:
        return
    summary: str = await connection.fetchval(SQL["summary"], run.execution_id)
    if (job := job_of(destination)) is not None:
        await connection.execute(SQL["put_job"], job, summary)
    else:
        await put_message(connection, destination, summary, key=f"execution:{run.execution_id}")


async def report_failure(connection: Connection, run: Run) -> None:
    """Do the same for an execution that failed; it has failed also where PostgreSQL refuses the message."""
    try:
        async with connection.transaction():  # a savepoint
            await report_end(connection, run)
    except REFUSED as error:
        _log.warning("batches.end_message_refused", execution=run.execution_id, reason=without_secrets(str(error)))


async def is_full(connection: Connection, destination: str | None) -> bool:
    """Whether so many messages to a destination wait that no actions are added to them; jobs are never too many."""
    if destination is None or job_of(destination) is not None:
        return False
    return bool(await connection.fetchval(SQL["is_full"], destination, WAITING_MAX))


async def refuse_too_large(connection: Connection, execution_id: int, client_ids: Sequence[str]) -> None:
    """Refuse written actions of these clients that no message can carry.

    Raises:
        Rejected: ``invalid_action``. Permanent.
    """
    found = await connection.fetchval(SQL["too_large"], execution_id, client_ids) if client_ids else None
    if found is not None:
        text = "larger than 1 MiB as PostgreSQL keeps it, or than 2 MiB as it writes it"
        raise Rejected("invalid_action", f"payload of client {found[:200]}: {text}", field="payload")


def job_of(destination: str) -> str | None:
    """Return the task type of a Python destination; ``None`` for destinations of the relay."""
    scheme, _, name = destination.partition(":")
    return name if scheme == "python" else None


def scheduler_source(producer: "BatchSource", checker: Checker) -> Source:
    """Return the metrics of the two loops of the scheduler role."""

    def read() -> Sequence[Sample]:
        return [
            Sample("tickwright_batch_executions_total", producer.counts["executions"]),
            Sample("tickwright_batch_released_actions_total", checker.counts["actions"]),
        ]

    return read
