"""Workflows for programs, the API and the command line: add, read, cancel, retry."""

from collections.abc import Sequence
from typing import Any

import asyncpg

from tickwright.capabilities.jobs.enqueue import HELD_FOR, TypeCatalog
from tickwright.capabilities.jobs.workflows.definition import WorkflowDefinition, definition_json, refusal
from tickwright.store.pool import Pool
from tickwright.store.queries import load

SQL = load("tickwright.capabilities.jobs.sql", "workflows.sql")


class Workflows:
    """The workflows of an installation; one per process and pool.

    Raises:
        Rejected: ``workflow_not_found`` (404) from every method with an id. Permanent.
    """

    def __init__(self, pool: Pool, types: TypeCatalog) -> None:
        self._pool, self._types = pool, types

    async def add(self, definition: WorkflowDefinition, *, connection: Any = None) -> int:
        """Add a workflow and return its id; that of the existing one where its key is known.

        Its first jobs can run as soon as it is committed. All of it is added, or nothing.

        Args:
            definition: Checked by the database.
            connection: In the caller's transaction; a connection of the pool by default.

        Raises:
            Rejected: ``unknown_task_type``; ``workflow_unknown_name``, ``workflow_order`` (also for a cycle) and
                others that begin with ``workflow_``. Permanent.
            Contended: ``key_reused``: the key belongs to another workflow; do not retry with it. ``key_in_flight``.
        """
        for name in definition.task_types:
            await self._types.get(name)
        bound = HELD_FOR if connection is None and definition.key is not None else None
        try:
            rows = await (connection or self._pool).fetch(SQL["add"], definition_json(definition), bound)
        except asyncpg.PostgresError as error:
            if (known := refusal(error)) is None:
                raise
            raise known from error
        return int(rows[0][0])

    async def node_ids(self, workflow_id: int, *, connection: Any = None) -> Sequence[Any]:
        """Return the id and the name of each node, inner workflows first, each in the order of its definition."""
        return await (connection or self._pool).fetch(SQL["ids"], workflow_id)  # type: ignore[no-any-return]
