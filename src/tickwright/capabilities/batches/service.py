"""Campaigns, batches of programs and their executions in one object: one per process and pool."""

from collections.abc import Mapping
from typing import Any

import msgspec

from tickwright.capabilities.batches.audience.audience import Audiences
from tickwright.capabilities.batches.definitions.batches import Batches
from tickwright.capabilities.batches.definitions.campaigns import Campaigns
from tickwright.capabilities.batches.definitions.schema import CAMPAIGN, PROGRAM, Allow, read_program
from tickwright.capabilities.batches.executions.executions import Executions
from tickwright.capabilities.batches.executions.states import BatchAction, BatchType
from tickwright.capabilities.batches.views import StoredBatch
from tickwright.domain.errors import Rejected
from tickwright.ports.caller import Caller
from tickwright.store.paging import Cursors
from tickwright.store.pool import Pool


class CampaignsService:
    """The operations of REST API, command line and app object.

    Attributes:
        campaigns: Definitions: create, edit, check, try.
        campaign_batches: Queries, control and deletion of campaigns.
        programs: The same of batches that programs register.
        executions: Of every kind.
    """

    def __init__(self, pool: Pool, audiences: Audiences, allow: Allow) -> None:
        cursors = Cursors(pool)
        # ``campaign_rows``, ``running_campaigns`` and ``running_programs`` are former names of the same objects.
        self.campaign_batches = self.campaign_rows = self.running_campaigns = Batches(pool, cursors, CAMPAIGN)
        self.campaigns = Campaigns(pool, self.campaign_batches, audiences, allow)
        self.programs = self.running_programs = Batches(pool, cursors, PROGRAM)
        self.executions = Executions(pool, cursors)
        self._allow = allow

    async def put_remote(
        self, name: str, fields: Mapping[str, Any], *, caller: Caller, activate: bool = False
    ) -> StoredBatch:
        """Create a batch for remote workers, or replace its definition; ``target`` is required.

        Args:
            name: 1 to 100 letters, digits, ``_ . -``.
            fields: Those of ``@app.batch`` without a plan, ``target`` and ``timeout``; ``version`` is the one edited.
            caller: For the audit trail.
            activate: A new one with a time to run at is scheduled.

        Raises:
            Rejected: ``invalid_batch``, or the code that all mistakes share, with every mistake; ``target_missing``;
                what :meth:`Batches.put` raises. Permanent.
            Contended: ``version_conflict``. Retry after reading it again.
        """
        given = {field: value for field, value in fields.items() if field != "version"}
        if given.get("target") is None:
            text = "write remote:POOL: the batches of a program are defined by the program, with @app.batch"
            raise Rejected("target_missing", text, field="target")
        draft, expected = read_program(given, self._allow), fields.get("version")
        if expected is not None and type(expected) is not int:
            raise Rejected("invalid_value", "version: a whole number", field="version")
        stored = await self.programs.put(name, draft, caller=caller, expected=expected)
        if activate and stored.created and draft.settings.type == BatchType.AUTOMATIC:
            await self.programs.act(BatchAction.ACTIVATE, name, caller=caller)
            stored = msgspec.structs.replace(stored, batch=await self.programs.get(name))
        return stored
