"""Windows cut time the same way in every process."""

from hypothesis import given
from hypothesis import strategies as st

from tickwright.capabilities.fanout.windows import window_at

LENGTHS = st.integers(1, 86_400)
INSTANTS = st.floats(0, 4e9)


@given(INSTANTS, LENGTHS)
def test_every_instant_lies_in_its_window(now_s: float, length_s: int) -> None:
    """The start belongs to a window, the end to the next one, and starts are whole multiples of the length."""
    window = window_at(now_s, length_s)
    assert window.start_s <= now_s < window.end_s
    assert window.start_s % length_s == 0
    assert window_at(window.start_s, length_s) == window
    assert window_at(window.end_s, length_s).start_s == window.end_s
