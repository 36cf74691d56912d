"""The next step for a task whose call did not succeed."""

from datetime import timedelta

from tickwright.capabilities.fanout.consumer.consumer import Ack, RetryLater, retry_after_throttle
from tickwright.partners.outcomes import Throttled, returned


def test_a_throttled_task_comes_back_after_the_partners_block_ends() -> None:
    """The partner's other tasks come first, and more of them the more often it was delayed."""
    asked = timedelta(seconds=60)
    waits = [retry_after_throttle(asked, delays, 0.0, 3600) for delays in (0, 4, 5, 19, 20)]
    assert waits == [RetryLater("throttled", asked + timedelta(seconds=more)) for more in (1, 1, 10, 10, 60)]


def test_a_throttled_task_is_retried_up_to_the_end_of_its_window() -> None:
    """It is given up only where the block itself ends after its window."""
    assert retry_after_throttle(timedelta(seconds=60), 20, 0.0, 100) == RetryLater("throttled", timedelta(seconds=60))
    assert retry_after_throttle(timedelta(seconds=100), 20, 0.0, 100) == Ack("given_up")


def test_a_retry_after_of_zero_is_a_second() -> None:
    """The breaker does not count throttled calls, so nothing else would slow them down."""
    for wait in (timedelta(), timedelta(seconds=-5), timedelta(milliseconds=1)):
        assert returned(Throttled(wait), str) == Throttled(timedelta(seconds=1))
