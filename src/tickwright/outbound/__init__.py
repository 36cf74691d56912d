"""Connections to hosts that users name: guarded addresses, bounded answers, named failures.

Callbacks, WebSocket pushes and every other connection to a user's host go through this package, so that there is one
guard. It depends on ``ports`` and ``domain`` only.
"""

from tickwright.outbound.connector import BoundedHead, ConnectPause, GuardedBroker, GuardedSessions, check_address
from tickwright.outbound.messages import (
    BLOCKED_CODE,
    EXCERPT_CHARS_MAX,
    blocked,
    check_headers,
    check_message,
    excerpt,
    outcome_of,
)
from tickwright.outbound.resolver import BlockedError, SystemResolver

__all__ = [
    "BLOCKED_CODE",
    "EXCERPT_CHARS_MAX",
    "BlockedError",
    "BoundedHead",
    "ConnectPause",
    "GuardedBroker",
    "GuardedSessions",
    "SystemResolver",
    "blocked",
    "check_address",
    "check_headers",
    "check_message",
    "excerpt",
    "outcome_of",
]
