"""The graph of a job's states, as data."""

from tickwright.capabilities.jobs.states import FINAL, TRANSITIONS, JobStatus


def test_the_graph_of_states_has_no_dead_end_but_the_final_ones() -> None:
    """Every state is reached from pending, every job can end, and only an operator's retry leaves a final state."""
    reached = {JobStatus.WAITING}
    while new := {after for before in reached for after in TRANSITIONS[before]} - reached:
        reached |= new
    assert reached == set(JobStatus) == set(TRANSITIONS)
    assert {state for state in JobStatus if state in TRANSITIONS[JobStatus.PROCESSING]} - {JobStatus.PENDING} == FINAL
    assert {state for state in FINAL if TRANSITIONS[state]} == {JobStatus.FAILED, JobStatus.CANCELLED}
