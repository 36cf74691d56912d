"""What becomes of a task whose call did not succeed."""

from datetime import timedelta

from tickwright.capabilities.fanout.consumer.consumer import Ack, RetryLater, retry_after_throttle
from tickwright.partners.outcomes import Throttled, returned


def test_a_throttled_task_comes_back_later_than_the_silence_ends() -> None:
    """The partner's other tasks come first, and more of them the more often it was put off."""
    asked = timedelta(seconds=60)
    waits = [retry_after_throttle(asked, delays, 0.0, 3600) for delays in (0, 4, 5, 19, 20)]
    assert waits == [RetryLater("throttled", asked + timedelta(seconds=more)) for more in (1, 1, 10, 10, 60)]


def test_a_throttled_task_has_the_last_chance_of_its_window() -> None:
    """It is given up only where the silence itself ends behind its window."""
    assert retry_after_throttle(timedelta(seconds=60), 20, 0.0, 100) == RetryLater("throttled", timedelta(seconds=60))
    assert retry_after_throttle(timedelta(seconds=100), 20, 0.0, 100) == Ack("given_up")


def test_a_silence_of_no_time_is_a_second() -> None:
    """The breaker does not count what was throttled, so nothing else would slow the calls down."""
    for wait in (timedelta(), timedelta(seconds=-5), timedelta(milliseconds=1)):
        assert returned(Throttled(wait), str) == Throttled(timedelta(seconds=1))
