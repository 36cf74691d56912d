"""The sweep of workflows: deadlines, and what was locked when it was to move.

Everything else happens in the transaction that ends a job. That one waits for no row of a waiting job that another
session has locked, because the other one may wait for it; it notes the job, and a sweep settles it.
"""

from tickwright.capabilities.jobs.workflows.service import SQL
from tickwright.ports.session import HeldLease

AT_ONCE = 100
EVERY_S = 10.0
"""The longest pause: how late a deadline is noticed, and a released row that was locked."""
AGAIN_S = 2.0


class WorkflowSweep:
    """The rounds of the lease ``workflows``."""

    def __init__(self) -> None:
        self.swept = 0

    async def round(self, lease: HeldLease) -> float:
        """Sweep once; return in how many seconds to call it again."""
        async with lease.transaction() as connection:
            if connection is None:
                return EVERY_S
            row = await connection.fetchrow(SQL["sweep"], AT_ONCE)
        self.swept += row["swept"]
        if row["swept"] >= AT_ONCE:
            return 0.0
        next_s = EVERY_S if row["deadline_in_s"] is None else row["deadline_in_s"]
        return min(AGAIN_S if row["cancels"] or row["swept"] else EVERY_S, max(next_s, 0.0))
