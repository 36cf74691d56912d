"""Keeps a warning that comes round and round from flooding the log.

While the database is away, every loop says so with each try and every request ends the same way. The first
line says what an operator needs; after that one line in ten seconds says how often it came again. Events that
stand for one thing each, such as a lost lease, are never held back.
"""

import logging
from collections.abc import Callable, Hashable, MutableMapping
from typing import Any

import structlog

from tickwright.ports.ids import monotonic

EVERY_S = 10.0
KEYS_MAX = 1_000
REPEATED = frozenset(
    {
        "alerts.round_failed",
        "api.client_gone",
        "api.forbidden",
        "api.unavailable",
        "api.unknown_key",
        "wakeup.listen_failed",
        "jobs.claim_failed",
        "jobs.handler_raised",
        "jobs.result_delayed",
        "jobs.result_invalid",
        "jobs.result_locked",
        "lease.not_taken",
        "lease.renewal_failed",
        "listener.refused",
        "metrics.database_unavailable",
        "poll_relay.blocked",
        "poll_relay.database_unavailable",
        "polls.tracker_locked",
        "relay.claim_failed",
        "relay.mark_delayed",
        "session.renewal_failed",
        "rounds.failed",
    }
)
"""What loops log with every try that fails, handlers with every attempt, and requests whenever a stranger likes."""

_LIBRARIES = ("asyncpg", "uvicorn")
_WHICH = ("lease", "channel", "kind", "code", "shard", "caller", "task_type")


class Repeats:
    """Decides which line is said, and for how many it stands.

    Args:
        every_s: At most one line of a kind in this time, in seconds.
        clock: Monotonic seconds.
    """

    def __init__(self, *, every_s: float = EVERY_S, clock: Callable[[], float] = monotonic) -> None:
        self._every_s, self._clock = every_s, clock
        self._said: dict[Hashable, tuple[float, int]] = {}

    def times(self, key: Hashable) -> int:
        """Return for how many lines one more of ``key`` stands; 0 is not said."""
        now = self._clock()
        said_s, held_back = self._said.get(key, (float("-inf"), 0))
        if now - said_s < self._every_s:
            self._said[key] = said_s, held_back + 1
            return 0
        if len(self._said) >= KEYS_MAX:
            self._said.clear()
        self._said[key] = now, 0
        return held_back + 1

    def __call__(self, _logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """Processor of structlog: drop what was said a moment ago, count what was dropped."""
        name = event.get("event")
        if name not in REPEATED:
            return event
        times = self.times((name, *(event.get(which) for which in _WHICH)))
        if not times:
            raise structlog.DropEvent
        if times > 1:
            event["times"] = times
        return event


class DriverRepeats(logging.Filter):
    """The same for warnings of libraries.

    The driver's bring a stack of its insides with every failed connection, the server's come with every request that
    is not HTTP, so that a client without a key could fill the disk of a log.
    """

    def __init__(self, repeats: Repeats) -> None:
        super().__init__()
        self._repeats = repeats

    def filter(self, record: logging.LogRecord) -> bool:
        """Say a kind of warning once in a while, with the error in the line."""
        if not record.name.startswith(_LIBRARIES) or record.levelno > logging.WARNING:
            return True
        times = self._repeats.times((record.name, record.msg))
        if times and record.exc_info and record.exc_info[1] is not None:
            record.msg, record.args = f"{record.getMessage()}: {record.exc_info[1]!r}", ()
            record.exc_info = None
        return times > 0
