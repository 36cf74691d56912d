"""RTY-1 and RTY-2 for every policy that a task type can have."""

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from tickwright.domain.retries import DELAY_MIN, WAIT_MAX, RetryPolicy

MS = timedelta(milliseconds=1)
POLICIES = st.builds(
    RetryPolicy,
    base=st.integers(0, 86_400_000).map(lambda n: n * MS),
    factor=st.floats(1, 10),
    cap=st.integers(0, 604_800_000).map(lambda n: n * MS),
)
UNITS = st.floats(0, 1, exclude_max=True)
ATTEMPTS = st.integers(1, 1000)
REQUESTED = st.none() | st.integers(0, 10**12).map(lambda n: n * MS)


@given(POLICIES, ATTEMPTS, UNITS, REQUESTED)
def test_a_wait_is_never_a_hot_loop_and_never_shorter_than_asked(
    policy: RetryPolicy, attempt: int, unit: float, requested: timedelta | None
) -> None:
    """RTY-1 and RTY-2: at least 100 ms, and at least what was asked for, up to ten years."""
    wait = policy.delay(attempt, unit, requested)
    assert wait >= DELAY_MIN
    assert wait >= min(requested or timedelta(), WAIT_MAX)


@given(POLICIES, ATTEMPTS, UNITS, REQUESTED)
def test_a_wait_is_never_longer_than_the_cap_or_the_requested_wait(
    policy: RetryPolicy, attempt: int, unit: float, requested: timedelta | None
) -> None:
    """Only a requested wait exceeds the cap, and it counts ten years at most."""
    wait = policy.delay(attempt, unit, requested)
    assert wait <= max(policy.cap, min(requested or timedelta(), WAIT_MAX), DELAY_MIN)


@given(POLICIES, st.integers(1, 999), UNITS)
def test_waits_do_not_shrink_from_attempt_to_attempt(policy: RetryPolicy, attempt: int, unit: float) -> None:
    """With the same chance a later attempt waits as long or longer."""
    assert policy.delay(attempt + 1, unit) >= policy.delay(attempt, unit)


@given(POLICIES, ATTEMPTS)
def test_full_jitter_reaches_from_the_least_wait_to_the_ceiling(policy: RetryPolicy, attempt: int) -> None:
    """Full jitter: chance zero waits the least, chance near one nearly the ceiling."""
    ceiling_s = min(policy.base.total_seconds() * policy.factor ** min(attempt - 1, 64), policy.cap.total_seconds())
    assert policy.delay(attempt, 0.0) == DELAY_MIN
    longest_s = policy.delay(attempt, 1 - 2**-53).total_seconds()
    assert abs(longest_s - max(ceiling_s, DELAY_MIN.total_seconds())) < 1e-5
