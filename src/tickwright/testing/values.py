"""The values that functions of partners, modules and listeners take, for tests that call these functions.

``@app.partner``, ``@app.module``, ``@app.listener`` and ``@app.batch`` return the function itself, so a test calls it:
with a value from here, and with its resources as arguments. No middleware runs then.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from tickwright.capabilities.fanout.handlers import EntityTask
from tickwright.capabilities.polling.consumer.courier import Poll
from tickwright.capabilities.reports.handlers import ReportRequest
from tickwright.ports.ids import local_unix_seconds

_WINDOW = timedelta(minutes=15)


def _now() -> datetime:
    return datetime.fromtimestamp(local_unix_seconds(), UTC)


def make_poll(
    external_id: str, *, partner: str = "partner", account_id: str = "account", due_at: datetime | None = None
) -> Poll:
    """Return a poll of a tracker, due now by default, for a function of ``@app.partner``."""
    due_at = due_at or _now()
    return Poll(f"poll_1_{int(due_at.timestamp())}", 1, external_id, account_id, partner, due_at, timedelta(seconds=10))


def make_task(
    entity_code: str,
    module: str,
    party: Mapping[str, Any] | None = None,
    *,
    last_executed_at: datetime | None = None,
    window_at: datetime | None = None,
    fence: int = 1,
    secrets: Mapping[str, str] | None = None,
) -> EntityTask:
    """Return the task of an entity in a window of 15 minutes, for a function of ``@app.module``.

    ``secrets`` has the values of ``${env:NAME}`` and ``${file:NAME}`` in its party, by these names.
    """
    window_at = window_at or _now()
    return EntityTask(
        f"task_{entity_code}_{module}", entity_code, module, party or {}, last_executed_at, window_at,
        window_at + _WINDOW, timedelta(seconds=60), 1, fence, lambda _where: (secrets or {}).get,
    )  # fmt: skip


def make_request(
    listener: str,
    conditions: Mapping[str, Any] | None = None,
    *,
    feed: Mapping[str, Any] | None = None,
    stage: int = 1,
    attempt: int = 1,
    source: Any = None,
) -> ReportRequest:
    """Return the request of a part of a report, for a function of ``@app.listener``; ``source`` answers ``rows``."""
    return ReportRequest(
        report_id=1, epoch=1, listener=listener, type="report", stage=stage, conditions=conditions or {},
        feed=feed or {}, requester="test", attempt=attempt, fence=attempt, deadline_at=_now() + _WINDOW,
        timeout=timedelta(minutes=5), source=source,
    )  # fmt: skip
