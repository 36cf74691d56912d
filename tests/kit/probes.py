"""Probes for tests: wait until a named point was reached, hold it there, or kill the process at it."""

import asyncio
import os
import signal
from collections import Counter
from typing import Any


class Stops:
    """A probe that counts visits, and that holds them at a closed point until it is opened."""

    def __init__(self) -> None:
        self.reached_times: Counter[str] = Counter()
        self.facts: dict[str, dict[str, Any]] = {}
        self._gates: dict[str, asyncio.Event] = {}

    def close(self, name: str) -> None:
        """Hold later visits of ``name``."""
        self._gates[name] = asyncio.Event()

    def open(self, name: str) -> None:
        """Let held visits of ``name`` continue."""
        self._gates.pop(name).set()

    async def reached(self, name: str, /, **facts: object) -> None:
        """Count, and wait while the point is closed."""
        self.reached_times[name] += 1
        self.facts[name] = dict(facts)
        if (gate := self._gates.get(name)) is not None:
            await gate.wait()


class KillAt:
    """A probe that kills its own process, as ``kill -9`` does, at the ``times``-th visit of ``name``."""

    def __init__(self, name: str, times: int = 1) -> None:
        self._name, self._left = name, times

    async def reached(self, name: str, /, **_facts: object) -> None:
        """Kill the process if this is the point."""
        if name == self._name:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
