"""What a process reports of its loops while the database is unavailable."""

import pytest

from tickwright.process.supervisor import ServiceState
from tickwright.process.watching import readiness


def state(name: str, age_s: float | None = 0.1) -> ServiceState:
    """A running loop whose last tick is so long ago."""
    return ServiceState(name, running=True, tick_age_s=age_s, tick_within_s=5, restarts=0, last_error="")


@pytest.mark.parametrize(
    ("database", "checks"),
    [
        (True, {"jobs": "ok", "relay": "not ready", "health": "ok", "database": "ok"}),
        (
            False,
            {"jobs": "waits for the database", "relay": "not ready", "health": "ok", "database": "no answer"},
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
