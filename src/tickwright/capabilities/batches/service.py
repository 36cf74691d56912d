"""What operators and programs do with campaigns and other batches, in one object: one per process and pool."""

from tickwright.capabilities.batches.audience.audience import Audiences
from tickwright.capabilities.batches.definitions.batches import Batches
from tickwright.capabilities.batches.definitions.campaign_schema import Allow
from tickwright.capabilities.batches.definitions.campaigns import Campaigns
from tickwright.capabilities.batches.definitions.control import Running
from tickwright.capabilities.batches.definitions.store import CAMPAIGN, PROGRAM
from tickwright.capabilities.batches.executions.executions import Executions
from tickwright.store.paging import Cursors
from tickwright.store.pool import Pool


class CampaignsService:
    """Everything that the API and the command line do with campaigns, programs' batches and executions.

    Args:
        audiences: That this process can read.
        allow: Refuses a destination that could never be sent to.

    Attributes:
        campaigns: Made, edited, checked, tried.
        campaign_rows: Looked at and forgotten.
        running_campaigns: Activated, deactivated, started, stopped.
        programs: What programs declare, looked at, and ``running_programs``.
        executions: Of all of them.
    """

    def __init__(self, pool: Pool, audiences: Audiences, allow: Allow) -> None:
        cursors = Cursors(pool)
        self.campaign_rows = Batches(pool, cursors, CAMPAIGN)
        self.campaigns = Campaigns(pool, self.campaign_rows, audiences, allow)
        self.running_campaigns = Running(pool, self.campaign_rows)
        self.programs = Batches(pool, cursors, PROGRAM)
        self.running_programs = Running(pool, self.programs)
        self.executions = Executions(pool, cursors)
