"""The end of an execution: who asked to hear of it does, through the outbox, in the transaction that ends it.

A Python function hears by a one-shot job, which is its own outbox row: retries, limits and history are those of jobs.
"""

from collections.abc import Sequence

import structlog

from tickwright.domain.errors import Rejected
from tickwright.engine.outbox.table import put_message
from tickwright.observe.logs import without_secrets
from tickwright.ports.batches import Run
from tickwright.store.pool import REFUSED, Connection
from tickwright.store.queries import filled, load

SQL = filled(filled(load("tickwright.capabilities.batches.sql", "release.sql"), "action"), "header_id")

_log = structlog.get_logger("tickwright.batches")
WAITING_MAX = 200_000
"""Messages to one destination; while more of them wait, no actions are added to them."""


async def tell_ended(connection: Connection, run: Run) -> None:
    """Send what came of an execution that finished or failed to its definition's ``on_finished``, if it has one."""
    destination = run.definition.get("on_finished")
    if not destination:
        return
    summary: str = await connection.fetchval(SQL["summary"], run.execution_id)
    if (job := job_of(destination)) is not None:
        await connection.execute(SQL["put_job"], job, summary)
    else:
        await put_message(connection, destination, summary, key=f"execution:{run.execution_id}")


async def tell_failed(connection: Connection, run: Run) -> None:
    """Do the same for one that failed; it has failed also where PostgreSQL refuses the message."""
    try:
        async with connection.transaction():  # a savepoint
            await tell_ended(connection, run)
    except REFUSED as error:
        _log.warning("batches.end_not_told", execution=run.execution_id, reason=without_secrets(str(error)))


async def is_full(connection: Connection, destination: str | None) -> bool:
    """Whether so many messages to a destination wait that no actions are added to them; jobs are never too many."""
    if destination is None or job_of(destination) is not None:
        return False
    return bool(await connection.fetchval(SQL["is_full"], destination, WAITING_MAX))


async def refuse_too_large(connection: Connection, execution_id: int, client_ids: Sequence[str]) -> None:
    """Look which of these actions, which are written, no message could carry.

    Raises:
        Rejected: ``invalid_action``. Permanent.
    """
    found = await connection.fetchval(SQL["too_large"], execution_id, client_ids) if client_ids else None
    if found is not None:
        text = (
            f"payload of client {found[:200]}: larger than 1 MiB as PostgreSQL keeps it, or than 2 MiB as it writes it"
        )
        raise Rejected("invalid_action", text, field="payload")


def job_of(destination: str) -> str | None:
    """Return the task type of a Python destination; ``None`` for what the relay carries."""
    scheme, _, name = destination.partition(":")
    return name if scheme == "python" else None
