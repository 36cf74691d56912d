"""Testing programs that use Tickwright: single handlers without a database, whole programs on a database that resets.

::

    from tickwright.testing import assert_scheduled, perform

    async def test_the_text_names_the_invoice():
        assert await perform(remind, invoice_id=42) == "reminded of 42"

    async def test_paying_late_schedules_a_reminder(tickwright_app):
        async with tickwright_app(shop.app) as app:
            await shop.order(app, invoice_id=42)
            await assert_scheduled(app, shop.remind.options(delay="3d"), invoice_id=42)
            await app.drain(until="4d")

The fixtures are those of the pytest plugin, which the package registers; see ``docs/testing.md``. Each name is loaded
when it is first used: a project that has the package installed pays for it when a test asks for it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tickwright.app.draining import Drained
    from tickwright.capabilities.jobs.worker.drain import DrainedJob
    from tickwright.testing.assertions import (
        ScheduledJob,
        assert_scheduled,
        assert_scheduled_sync,
        refute_scheduled,
        refute_scheduled_sync,
        scheduled,
        scheduled_sync,
    )
    from tickwright.testing.attempts import Performance, perform, perform_chunk, perform_sync, performing
    from tickwright.testing.clock import travel, travel_sync
    from tickwright.testing.databases import ScratchDatabase, ScratchServer, open_scratch_server
    from tickwright.testing.opening import AppUnderTest, OpenApp
    from tickwright.testing.values import make_poll, make_request, make_task

_HOMES = {
    "AppUnderTest": "tickwright.testing.opening",
    "Drained": "tickwright.app.draining",
    "DrainedJob": "tickwright.capabilities.jobs.worker.drain",
    "OpenApp": "tickwright.testing.opening",
    "Performance": "tickwright.testing.attempts",
    "ScheduledJob": "tickwright.testing.assertions",
    "ScratchDatabase": "tickwright.testing.databases",
    "ScratchServer": "tickwright.testing.databases",
    "assert_scheduled": "tickwright.testing.assertions",
    "assert_scheduled_sync": "tickwright.testing.assertions",
    "make_poll": "tickwright.testing.values",
    "make_request": "tickwright.testing.values",
    "make_task": "tickwright.testing.values",
    "open_scratch_server": "tickwright.testing.databases",
    "perform": "tickwright.testing.attempts",
    "perform_chunk": "tickwright.testing.attempts",
    "perform_sync": "tickwright.testing.attempts",
    "performing": "tickwright.testing.attempts",
    "refute_scheduled": "tickwright.testing.assertions",
    "refute_scheduled_sync": "tickwright.testing.assertions",
    "scheduled": "tickwright.testing.assertions",
    "scheduled_sync": "tickwright.testing.assertions",
    "travel": "tickwright.testing.clock",
    "travel_sync": "tickwright.testing.clock",
}

__all__ = [
    "AppUnderTest",
    "Drained",
    "DrainedJob",
    "OpenApp",
    "Performance",
    "ScheduledJob",
    "ScratchDatabase",
    "ScratchServer",
    "assert_scheduled",
    "assert_scheduled_sync",
    "make_poll",
    "make_request",
    "make_task",
    "open_scratch_server",
    "perform",
    "perform_chunk",
    "perform_sync",
    "performing",
    "refute_scheduled",
    "refute_scheduled_sync",
    "scheduled",
    "scheduled_sync",
    "travel",
    "travel_sync",
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
