"""Tickwright: everything that must happen later, or again and again, done exactly as promised.

The names below are the public Python API. Each is loaded when it is first used, so that importing the
package costs nothing to a program that only declares handlers.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tickwright.app import Tickwright
    from tickwright.app.jobs import ChunkFunction, JobCall, JobFunction, JobHandle, JobOptions
    from tickwright.app.resources import Tracked
    from tickwright.capabilities.batches.executions.work import BatchChunk, BatchRun, Member
    from tickwright.capabilities.fanout.handlers import EntityTask
    from tickwright.capabilities.jobs.enqueue import Scheduled
    from tickwright.capabilities.jobs.model import Completed, Fail, Job, Retry, Snooze
    from tickwright.capabilities.jobs.requests import NewJob
    from tickwright.capabilities.jobs.unique import Unique
    from tickwright.capabilities.jobs.worker.chunks import ChunkItem, JobChunk
    from tickwright.capabilities.polling.consumer.courier import Answer, Poll, ScanEvent
    from tickwright.capabilities.reports.handlers import ReportRequest, Row
    from tickwright.domain.errors import (
        Contended,
        InvariantBroken,
        JobCancelled,
        JobFailed,
        Rejected,
        TickwrightError,
        Unavailable,
    )
    from tickwright.domain.retries import RetryPolicy
    from tickwright.partners.outcomes import Throttled
    from tickwright.plugin.lifespan import resource

__version__ = "0.1.0"

_HOMES = {
    "Answer": "tickwright.capabilities.polling.consumer.courier",
    "BatchChunk": "tickwright.capabilities.batches.executions.work",
    "BatchRun": "tickwright.capabilities.batches.executions.work",
    "ChunkFunction": "tickwright.app.jobs",
    "ChunkItem": "tickwright.capabilities.jobs.worker.chunks",
    "Completed": "tickwright.capabilities.jobs.model",
    "Contended": "tickwright.domain.errors",
    "EntityTask": "tickwright.capabilities.fanout.handlers",
    "Fail": "tickwright.capabilities.jobs.model",
    "InvariantBroken": "tickwright.domain.errors",
    "Job": "tickwright.capabilities.jobs.model",
    "JobCall": "tickwright.app.jobs",
    "JobCancelled": "tickwright.domain.errors",
    "JobChunk": "tickwright.capabilities.jobs.worker.chunks",
    "JobFailed": "tickwright.domain.errors",
    "JobFunction": "tickwright.app.jobs",
    "JobHandle": "tickwright.app.jobs",
    "JobOptions": "tickwright.app.jobs",
    "Member": "tickwright.capabilities.batches.executions.work",
    "NewJob": "tickwright.capabilities.jobs.requests",
    "Poll": "tickwright.capabilities.polling.consumer.courier",
    "Rejected": "tickwright.domain.errors",
    "ReportRequest": "tickwright.capabilities.reports.handlers",
    "Retry": "tickwright.capabilities.jobs.model",
    "RetryPolicy": "tickwright.domain.retries",
    "Row": "tickwright.capabilities.reports.handlers",
    "ScanEvent": "tickwright.capabilities.polling.consumer.courier",
    "Scheduled": "tickwright.capabilities.jobs.enqueue",
    "Snooze": "tickwright.capabilities.jobs.model",
    "Throttled": "tickwright.partners.outcomes",
    "Tickwright": "tickwright.app",
    "TickwrightError": "tickwright.domain.errors",
    "Tracked": "tickwright.app.resources",
    "Unavailable": "tickwright.domain.errors",
    "Unique": "tickwright.capabilities.jobs.unique",
    "resource": "tickwright.plugin.lifespan",
}

__all__ = [
    "Answer",
    "BatchChunk",
    "BatchRun",
    "ChunkFunction",
    "ChunkItem",
    "Completed",
    "Contended",
    "EntityTask",
    "Fail",
    "InvariantBroken",
    "Job",
    "JobCall",
    "JobCancelled",
    "JobChunk",
    "JobFailed",
    "JobFunction",
    "JobHandle",
    "JobOptions",
    "Member",
    "NewJob",
    "Poll",
    "Rejected",
    "ReportRequest",
    "Retry",
    "RetryPolicy",
    "Row",
    "ScanEvent",
    "Scheduled",
    "Snooze",
    "Throttled",
    "Tickwright",
    "TickwrightError",
    "Tracked",
    "Unavailable",
    "Unique",
    "__version__",
    "resource",
]


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used."""
    if name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
