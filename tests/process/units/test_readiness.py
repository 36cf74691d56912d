"""What a process says of its loops while the database is away."""

import pytest

from tickwright.process.supervisor import ServiceState
from tickwright.process.watching import readiness


def state(name: str, age_s: float | None = 0.1) -> ServiceState:
    """A loop that runs, and came round so long ago."""
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
def test_a_loop_that_cannot_work_is_not_called_ok(database: bool, checks: dict[str, str]) -> None:
    """However often it comes round: without the database only the server of the probes does its work."""
    said = readiness([state("jobs"), state("relay", None), state("health")], database=database)
    assert (said.ready, said.checks) == (False, checks)


def test_everything_well_is_ready() -> None:
    """The database answers and every loop came round."""
    assert readiness([state("jobs"), state("health")], database=True).ready
    assert not readiness([state("jobs"), state("health")], database=False).ready
