"""What a process reports of its loops and its database: one rule for the probes and the API."""

import pytest

from tickwright.ports.ids import monotonic
from tickwright.process.health import readiness
from tickwright.process.supervisor import ServiceState
from tickwright.store.pool import NO_ROOM, DiskFull


def state(name: str, age_s: float | None = 0.1) -> ServiceState:
    """A running loop whose last tick is so long ago."""
    return ServiceState(name, running=True, tick_age_s=age_s, tick_within_s=5, restarts=0, last_error="")


@pytest.mark.parametrize(
    ("database", "checks"),
    [
        (True, {"jobs": "ok", "relay": "not ready", "health": "ok", "database": "ok"}),
        (
            False,
            {
                "jobs": "waits for the database",
                "relay": "not ready",
                "health": "ok",
                "database": "no answer within a second",
            },
        ),
    ],
)
def test_a_loop_without_its_database_is_not_reported_ok(database: bool, checks: dict[str, str]) -> None:
    """However recent its tick is: without the database only the server of the probes works."""
    said = readiness([state("jobs"), state("relay", None), state("health")], database=database)
    assert (said.ready, said.checks) == (False, checks)


def test_everything_well_is_ready() -> None:
    """The database answers and every loop has ticked."""
    assert readiness([state("jobs"), state("health")], database=True).ready
    assert not readiness([state("jobs"), state("health")], database=False).ready


def test_a_full_disk_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """The database answers and refuses writes: the probes are not ready, the API still reads; both name the remedy."""
    monkeypatch.setattr(DiskFull, "seen_s", monotonic())
    said = readiness([state("jobs"), state("health")], database=True)
    assert (said.ready, said.checks) == (False, {"jobs": "ok", "health": "ok", "database": NO_ROOM})
    api = readiness([state("jobs"), state("health")], database=True, needs_room=False)
    assert (api.ready, api.checks) == (True, said.checks)
