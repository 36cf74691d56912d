"""Upkeep of reports in the scheduler role, which has no object store of its own: it is opened for each round."""

import structlog

from tickwright.capabilities.reports.retention import Upkeep, UpkeepTerms
from tickwright.domain.errors import TickwrightError
from tickwright.ports.lease import HeldLease
from tickwright.process.objects import open_objects
from tickwright.process.settings import Settings

_log = structlog.get_logger("tickwright.reports")


class ReportUpkeep:
    """One round after the other; a store that is away or refuses costs the round, and is asked again in the next."""

    def __init__(self, settings: Settings, terms: UpkeepTerms | None = None) -> None:
        self._settings, self._terms = settings, terms or UpkeepTerms()

    async def round(self, lease: HeldLease) -> float:
        """Do everything once; return in how many seconds to come again."""
        try:
            async with open_objects(self._settings) as objects:
                return await Upkeep(objects, self._terms).round(lease)
        except TickwrightError as error:
            _log.warning("reports.upkeep_not_done", code=error.code, reason=error.message)
            return self._terms.every.total_seconds()
