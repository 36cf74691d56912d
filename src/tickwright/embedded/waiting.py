"""Bounded waiting for things that do not call back: locks, sockets and processes of others."""

import time
from collections.abc import Callable
from datetime import timedelta

from tickwright.ports.ids import monotonic

_PAUSE_S = 0.02


def wait_until(condition: Callable[[], bool], within: timedelta) -> bool:
    """Ask ``condition`` every 20 ms until it holds; return whether it did within the time.

    It is asked at least once, and once more after the time is over.
    """
    deadline = monotonic() + within.total_seconds()
    while not condition():
        if monotonic() > deadline:
            return False
        time.sleep(_PAUSE_S)
    return True
