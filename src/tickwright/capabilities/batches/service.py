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

    Args:
        audiences: That this process can read.
        allow: Refuses a destination that could never be sent to.

    Attributes:
        campaigns: Definitions: create, edit, check, try.
        campaign_batches: Queries, control and deletion of campaigns.
        programs: The same of batches that programs register.
        executions: Of every kind.
    """

    def __init__(self, pool: Pool, audiences: Audiences, allow: Allow) -> None:
        cursors = Cursors(pool)
        self.campaign_batches = Batches(pool, cursors, CAMPAIGN)
        self.campaigns = Campaigns(pool, self.campaign_batches, audiences, allow)
        self.programs = Batches(pool, cursors, PROGRAM)
        self.executions = Executions(pool, cursors)

    @property
    def campaign_rows(self) -> Batches:
        """The former name of ``campaign_batches``."""
        return self.campaign_batches

    @property
    def running_campaigns(self) -> Batches:
        """The former name of the control of ``campaign_batches``."""
        return self.campaign_batches

    @property
    def running_programs(self) -> Batches:
        """The former name of the control of ``programs``."""
        return self.programs
