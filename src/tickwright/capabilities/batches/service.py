"""Campaigns, batches of programs and their executions in one object: one per process and pool."""

from tickwright.capabilities.batches.audience.audience import Audiences
from tickwright.capabilities.batches.definitions.batches import Batches
from tickwright.capabilities.batches.definitions.campaigns import Campaigns
from tickwright.capabilities.batches.definitions.schema import CAMPAIGN, PROGRAM, Allow
from tickwright.capabilities.batches.executions.executions import Executions
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
