"""What one process can work on: campaigns whose audience it can read, and the batches of its program."""

from collections.abc import Sequence

from tickwright.capabilities.batches.audience.audience import Audiences
from tickwright.capabilities.batches.executions.work import BatchRegistry, CampaignWork, ProgramWork
from tickwright.domain.errors import Rejected
from tickwright.ports.batches import BatchWork, Run
from tickwright.sources.named import Sources


class ProcessWorks:
    """What this process can do: campaigns whose audience it can read, and the batches of its program."""

    def __init__(self, sources: Sources, audiences: Audiences, programs: BatchRegistry) -> None:
        self._audiences, self._programs = audiences, programs
        self._campaigns = CampaignWork(audiences)
        own = [f"program:{batch.name}" for batch in programs.all()]
        self._served = [*(f"source:{name}" for name in sources.names()), "objects", *own]

    def served(self) -> Sequence[str]:
        """Return what it has."""
        return self._served

    def of(self, run: Run) -> BatchWork:
        """Return whoever knows the work of this execution.

        Raises:
            Rejected: ``unknown_batch``. Permanent for this process.
        """
        if run.kind == "campaign":
            return self._campaigns
        declared = self._programs.get(run.name)
        if declared is None:
            raise Rejected("unknown_batch", f"this program has no @app.batch({run.name!r})")
        return ProgramWork(declared, self._audiences)
