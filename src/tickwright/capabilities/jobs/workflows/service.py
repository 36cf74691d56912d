"""Workflows for programs, the API and the command line: add, read, cancel, retry."""

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, NamedTuple

import asyncpg

from tickwright.capabilities.jobs.enqueue import HELD_FOR
from tickwright.capabilities.jobs.type_catalog import TypeCatalog
from tickwright.capabilities.jobs.workflows.definition import WorkflowDefinition, definition_json, refusal, sealed
from tickwright.capabilities.jobs.workflows.views import NodeResult, WorkflowAction, WorkflowView
from tickwright.domain.envelopes import Purpose
from tickwright.domain.errors import Rejected
from tickwright.domain.strict_json import decode_stored
from tickwright.engine.payload_keys import NO_KEYS, PayloadKeys
from tickwright.ports.caller import Caller
from tickwright.ports.views import view
from tickwright.store.audit import write_audit
from tickwright.store.paging import LIMIT_DEFAULT, checked_limit
from tickwright.store.pool import Connection, Pool
from tickwright.store.queries import load

SQL = load("tickwright.capabilities.jobs.workflows.sql", "workflows.sql")
RESULTS_AT_ONCE = 500


class AddedWorkflow(NamedTuple):
    """A workflow; not ``created`` where its key was known."""

    id: int
    created: bool


class Workflows:
    """The workflows of an installation; one per process and pool.

    Raises:
        Rejected: ``workflow_not_found`` (404) from every method with an id. Permanent.
    """

    def __init__(self, pool: Pool, types: TypeCatalog, keys: Callable[[], PayloadKeys] = lambda: NO_KEYS) -> None:
        self._pool, self._types, self._keys = pool, types, keys

    async def add(self, definition: WorkflowDefinition, *, connection: Any = None) -> int:
        """Add a workflow and return its id; that of the existing one where its key is known.

        Its first jobs can run as soon as it is committed. All of it is added, or nothing.

        Args:
            definition: Checked by the database.
            connection: In the caller's transaction; a connection of the pool by default.

        Raises:
            Rejected: ``unknown_task_type``; ``workflow_unknown_name``, ``workflow_order`` (also for a cycle) and
                others that begin with ``workflow_``. Permanent.
            Unavailable: ``payload_keys_missing``: a type is encrypted. Retry in a process that has the keys.
            Contended: ``key_reused``: the key belongs to another workflow; do not retry with it. ``key_in_flight``.
        """
        if encrypted := {name for name in definition.task_types if (await self._types.get(name)).encrypted}:
            definition = sealed(definition, encrypted, self._keys())
        bound = HELD_FOR if connection is None and definition.key is not None else None
        try:
            rows = await (connection or self._pool).fetch(SQL["add"], definition_json(definition), bound)
        except Exception as error:  # of the caller's driver, too
            if (known := refusal(error)) is None:
                raise
            raise known from error
        return int(rows[0][0])

    async def add_once(self, definition: WorkflowDefinition) -> AddedWorkflow:
        """Add a workflow, and say whether it is new; errors as :meth:`add`."""
        async with self._pool.acquire() as connection, connection.transaction():
            if definition.key is not None:
                await connection.execute(SQL["bound_key"], HELD_FOR)
            workflow_id = await self.add(definition, connection=connection)
            return AddedWorkflow(workflow_id, await connection.fetchval(SQL["is_new"], workflow_id))

    async def node_ids(self, workflow_id: int, *, connection: Any = None) -> Sequence[Any]:
        """Return the id and the name of each node, inner workflows first, each in the order of its definition."""
        return await (connection or self._pool).fetch(SQL["ids"], workflow_id)  # type: ignore[no-any-return]

    async def get(self, workflow_id: int) -> WorkflowView:
        """Return a workflow."""
        return await self._get(self._pool, workflow_id)

    async def results_page(self, job_id: int, *, after: int = 0, limit: int = LIMIT_DEFAULT) -> list[NodeResult]:
        """Return results of the jobs that a job waited for, by their ids, behind ``after``; sealed ones as such."""
        return await self._results(job_id, after, checked_limit(limit), NO_KEYS)

    async def _results(self, job_id: int, after: int, limit: int, keys: PayloadKeys) -> list[NodeResult]:
        def decoded(text: str | None, node_id: int) -> Any:
            if text is None:
                return None
            return decode_stored(keys.open(text, Purpose.RESULT, str(node_id)) if keys else text)

        rows = await self._pool.fetch(SQL["results"], job_id, after, limit)
        return [NodeResult(id=row[0], name=row[1], status=row[2], result=decoded(row[3], row[0])) for row in rows]

    async def results_of(self, job_id: int) -> AsyncIterator[NodeResult]:
        """Yield the results of all jobs that a job waited for, by their ids; however many, they are read in pages."""
        after, keys = 0, self._keys()
        while page := await self._results(job_id, after, RESULTS_AT_ONCE, keys):
            for one in page:
                yield one
            after = page[-1].id

    async def cancel(self, workflow_id: int, *, caller: Caller, from_job: int | None = None) -> WorkflowAction:
        """Cancel a workflow and those inside of it; or ``from_job`` and all that come after it.

        Jobs that wait or are pending end at once. Workers are asked to stop the running ones; the workflow ends when
        those have ended.

        Raises:
            Rejected: ``workflow_ended`` (409); ``workflow_unknown_job`` (404). Permanent.
        """
        return await self._act("cancel", "cancelled", workflow_id, caller, from_job)

    async def retry(self, workflow_id: int, *, caller: Caller, from_job: int | None = None) -> WorkflowAction:
        """Run again what did not complete: of a workflow and those inside of it; or ``from_job`` and all after it.

        Jobs keep their ids and get all their attempts; completed ones stay as they are. A deadline that is over no
        longer counts.

        Raises:
            Rejected: ``workflow_nothing_to_retry`` (409); ``workflow_unknown_job`` (404); ``workflow_history_gone``: a
                day of history with a job of it is dropped. Permanent.
        """
        return await self._act("retry", "retried", workflow_id, caller, from_job)

    async def _act(
        self, action: str, outcome: str, workflow_id: int, caller: Caller, from_job: int | None
    ) -> WorkflowAction:
        async with self._pool.acquire() as connection, connection.transaction():
            before = await self._get(connection, workflow_id)
            if action == "cancel" and before.ended_at is not None:
                text = f"workflow {workflow_id} has ended: it is {before.state}"
                raise Rejected("workflow_ended", text, status=409, state=before.state)
            if from_job is not None:
                node = await connection.fetchrow(SQL["of_job"], from_job)
                if node is None or node["root_id"] != before.root_id:
                    text = f"job {from_job} is not of workflow {workflow_id}"
                    raise Rejected("workflow_unknown_job", text, status=404, field="job")
            try:
                jobs = await connection.fetchval(SQL[action], workflow_id, from_job)
            except asyncpg.CheckViolationError as error:
                raise refusal(error) or error from error
            if action == "retry" and not jobs:
                text = f"workflow {workflow_id} has no job that failed, was cancelled or skipped there"
                raise Rejected("workflow_nothing_to_retry", text, status=409)
            after = {"jobs": jobs, "job": from_job}
            subject = f"workflow:{workflow_id}"
            await write_audit(
                connection, caller, f"workflows.{action}", subject, before={"state": before.state}, after=after
            )
        return WorkflowAction(id=workflow_id, state=(await self.get(workflow_id)).state, outcome=outcome, jobs=jobs)

    @staticmethod
    async def _get(connection: Connection | Pool, workflow_id: int) -> WorkflowView:
        row = await connection.fetchrow(SQL["get"], workflow_id)
        if row is None:
            text = f"there is no workflow {workflow_id}, or it ended longer than seven days ago"
            raise Rejected("workflow_not_found", text, status=404)
        return view(WorkflowView, row)
