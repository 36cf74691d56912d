"""Tickwright: everything that must happen later, or again and again, done exactly as promised.

The names below are the public Python API. Each is loaded when it is first used, so that importing the
package costs nothing to a program that only declares handlers.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tickwright.app import Tickwright
    from tickwright.capabilities.jobs.enqueue import NewJob, Scheduled
    from tickwright.capabilities.jobs.model import Completed, Fail, Job, Retry, Snooze
    from tickwright.domain.errors import Contended, InvariantBroken, Rejected, TickwrightError, Unavailable
    from tickwright.domain.retries import RetryPolicy

__version__ = "0.1.0"

_HOMES = {
    "Completed": "tickwright.capabilities.jobs.model",
    "Contended": "tickwright.domain.errors",
    "Fail": "tickwright.capabilities.jobs.model",
    "InvariantBroken": "tickwright.domain.errors",
    "Job": "tickwright.capabilities.jobs.model",
    "NewJob": "tickwright.capabilities.jobs.enqueue",
    "Rejected": "tickwright.domain.errors",
    "Retry": "tickwright.capabilities.jobs.model",
    "RetryPolicy": "tickwright.domain.retries",
    "Scheduled": "tickwright.capabilities.jobs.enqueue",
    "Snooze": "tickwright.capabilities.jobs.model",
    "Tickwright": "tickwright.app",
    "TickwrightError": "tickwright.domain.errors",
    "Unavailable": "tickwright.domain.errors",
}

__all__ = [
    "Completed",
    "Contended",
    "Fail",
    "InvariantBroken",
    "Job",
    "NewJob",
    "Rejected",
    "Retry",
    "RetryPolicy",
    "Scheduled",
    "Snooze",
    "Tickwright",
    "TickwrightError",
    "Unavailable",
    "__version__",
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
