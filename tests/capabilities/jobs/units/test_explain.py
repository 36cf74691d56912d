"""What an operator reads about a job that a worker holds."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tickwright.capabilities.jobs.admin.views import _held

NOW = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("holder", "owner", "beginning"),
    [("host:1", 7, "worker host:1 lost"), (None, 7, "session 7 lost"), (None, None, "its worker lost")],
)
def test_a_holder_without_a_name_or_session_is_described(holder: str | None, owner: int | None, beginning: str) -> None:
    """A session's row may be gone, and an owner may never have been written."""
    facts: dict[str, Any] = {
        "cancel_requested_at": None, "worker_name": holder, "owner": owner, "now": NOW, "worker_lost_at": None,
        "worker_lease_until": NOW - timedelta(seconds=1),
    }  # fmt: skip
    [reason] = _held(facts)
    assert reason.code == "lease_expired"
    assert reason.text.startswith(beginning)
