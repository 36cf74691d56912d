"""Single cases of the pure clock, lease and retry values that the properties do not spell out."""

from datetime import timedelta

import pytest

from tickwright.domain.dbclock import SAMPLES, DbClock
from tickwright.domain.leases import LeaseTerms
from tickwright.domain.retries import RETRY_AFTER_MAX, WAIT_MAX, RetryPolicy, within_an_hour


def test_a_clock_without_a_sample_is_an_error() -> None:
    """There is no current time before the first answer of the database."""
    clock = DbClock()
    assert not clock.known
    with pytest.raises(ValueError, match="no sample"):
        clock.now(1.0)
    with pytest.raises(ValueError, match="no sample"):
        clock.monotonic_at(1.0)
    with pytest.raises(ValueError, match="no sample"):
        clock.about(1.0)


def test_the_first_sample_is_no_step() -> None:
    """No earlier sample differs from it."""
    clock = DbClock()
    assert not clock.sample(100.0, 1.0)
    assert clock.known
    assert clock.now(2.5) == 101.5


def test_a_good_sample_is_kept_for_fifteen_worse_ones() -> None:
    """The one with the shortest round trip of the last sixteen counts; then it is forgotten, because clocks drift."""
    clock = DbClock()
    clock.sample(100.0, 0.0)
    for number in range(1, SAMPLES):
        clock.sample(100.0 + number - 0.1, float(number))
    assert clock.now(20.0) == pytest.approx(120.0)
    clock.sample(100.0 + SAMPLES - 0.1, float(SAMPLES))
    assert clock.now(20.0) == pytest.approx(119.9)


def test_a_step_forward_is_followed_at_once_and_is_no_alarm() -> None:
    """Following a later clock starts no job early."""
    clock = DbClock()
    clock.sample(100.0, 0.0)
    assert not clock.sample(3700.0, 1.0)
    assert clock.now(1.0) == 3700.0


def test_the_default_lease_ends_a_second_before_its_deadline() -> None:
    """Eight seconds, of which the holder uses seven, renewed at a third."""
    terms = LeaseTerms()
    assert terms.holds(100.0, 106.9)
    assert not terms.holds(100.0, 107.0)
    assert terms.renew_every == timedelta(seconds=8) / 3


def test_the_default_policy_doubles_from_a_second_to_an_hour() -> None:
    """Ceilings of 1, 2, 4 … seconds, then an hour ; a requested wait outranks them, a receiver's up to an hour."""
    policy, near_one = RetryPolicy(), 1 - 2**-53
    assert [round(policy.delay(n, near_one).total_seconds()) for n in (1, 2, 3, 4, 13, 999)] == [1, 2, 4, 8, 3600, 3600]
    assert policy.delay(1, 0.5, timedelta(days=1)) == timedelta(days=1)
    assert policy.delay(1, 0.5, timedelta.max) == WAIT_MAX
    assert policy.delay(1, 0.5, within_an_hour(timedelta(days=1))) == RETRY_AFTER_MAX
    assert within_an_hour(None) is None
