"""Keeps repeated warnings from flooding the log.

While the database is unavailable, every loop warns at each try, and every request fails in the same way. The first line
has what an operator needs. After that, one line in ten seconds counts the repetitions. Events for a single thing, such
as a lost lease, are always logged.
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
"""Events that loops log at every failed try, handlers at every attempt, and requests as often as they are sent."""

_LIBRARIES = ("asyncpg", "uvicorn")
_WHICH = ("lease", "channel", "kind", "code", "shard", "caller", "task_type")


class Repeats:
    """Decides which lines are logged, and how many each represents: one line of a kind in ``EVERY_S`` seconds."""

    def __init__(self, *, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._logged: dict[Hashable, tuple[float, int]] = {}

    def times(self, key: Hashable) -> int:
        """Return how many lines the next one of ``key`` represents; 0: do not log it."""
        now = self._clock()
        logged_s, held_back = self._logged.get(key, (float("-inf"), 0))
        if now - logged_s < EVERY_S:
            self._logged[key] = logged_s, held_back + 1
            return 0
        if len(self._logged) >= KEYS_MAX:
            self._logged.clear()
        self._logged[key] = now, 0
        return held_back + 1

    def __call__(self, _logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """Processor of structlog: drop what was just logged, and count what was dropped."""
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

    The driver's warnings have a stack trace at every failed connection. The server's come with every request that is
    not HTTP, so a client without a key could fill the disk.
    """

    def __init__(self, repeats: Repeats) -> None:
        super().__init__()
        self._repeats = repeats

    def filter(self, record: logging.LogRecord) -> bool:
        """Log each kind of warning once in a while, with the error in the line."""
        if not record.name.startswith(_LIBRARIES) or record.levelno > logging.WARNING:
            return True
        times = self._repeats.times((record.name, record.msg))
        if times and record.exc_info and record.exc_info[1] is not None:
            record.msg, record.args = f"{record.getMessage()}: {record.exc_info[1]!r}", ()
            record.exc_info = None
        return times > 0
