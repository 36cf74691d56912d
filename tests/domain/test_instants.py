"""How long something takes, in a sentence."""

from datetime import timedelta

import pytest

from tickwright.domain.time_texts import wait_text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0494, "50ms"), (0.9999, "1s"), (49.949, "50s"), (59.2, "1m"), (60.5, "1m1s"), (90_061, "1d1h1m2s")],
)
def test_a_wait_reads_in_seconds(seconds: float, text: str) -> None:
    """Rounded up; only less than a second is shown in milliseconds."""
    assert wait_text(timedelta(seconds=seconds)) == text
