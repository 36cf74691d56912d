"""Authentication: API keys and session tokens, looked up in batches and cached for less than a second.

A program sends its key in ``Authorization``. A browser sends a session's token in a cookie, which counts only without
that header; :mod:`tickwright.api.cookies` has the additional checks for changes. Keys and tokens are looked up alike.

A key is looked up by its SHA-256, so timing reveals nothing about its characters. One lookup runs at a time, for all
waiting requests. So a flood of guessed keys costs the database one small query after the other, not a connection each.
"""

import hmac
import re
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import structlog

from tickwright.api.context import ApiLimits
from tickwright.api.cookies import IDLE, SAFE_METHODS, check_change, csrf_token, session_tokens
from tickwright.capabilities.operations.keys import PREFIX_CHARS, key_hash
from tickwright.domain.dbclock import DbClock
from tickwright.domain.errors import Rejected, Unavailable
from tickwright.engine.call_batcher import CallBatcher
from tickwright.ports.caller import CALLER, Caller, Role
from tickwright.ports.ids import monotonic
from tickwright.store.bounds import TookTooLong, for_all_callers, within
from tickwright.store.pool import Pool
from tickwright.store.queries import load

_SQL = load("tickwright.api.sql", "access.sql")
_SESSIONS = load("tickwright.api.sql", "sessions.sql")
_BEARER = re.compile(rb"[Bb][Ee][Aa][Rr][Ee][Rr] +(tw_[A-Za-z0-9_-]{43})")
KNOWN_MAX = 10_000
CSRF = "tickwright.csrf"
COOKIE_SHOWN = "tickwright.cookie_shown"
LOOKUP_MAX = 1_000
LOOKUP_S = 3.0
_log = structlog.get_logger("tickwright.api")


class RateBound:
    """A rate limit of one process (GCRA): a burst, then one event per gap.

    Args:
        burst_s: The gaps of the events that may come at once beside the first one.
    """

    __slots__ = ("_burst_s", "_free_at_s", "_gap_s")

    def __init__(self, gap_s: float, burst_s: float) -> None:
        self._gap_s, self._burst_s = gap_s, burst_s
        self._free_at_s = 0.0

    def count(self, now_s: float) -> float:
        """Count one event and return 0; or return in how many seconds one is allowed, and count none."""
        due_s = max(now_s, self._free_at_s)
        if due_s - now_s > self._burst_s:
            return due_s - now_s - self._burst_s
        self._free_at_s = due_s + self._gap_s
        return 0.0


@dataclass(slots=True)
class _CachedKey:
    """A valid key or token: its caller, the end of its cache time, and the rate of its key with all its sessions."""

    caller: Caller
    until_s: float
    rate: RateBound


class Authenticator:
    """Finds callers; one per process."""

    def __init__(self, pool: Pool, limits: ApiLimits) -> None:
        self._pool = pool
        self._age_s = limits.key_age_max.total_seconds()
        self._gap_s, self._burst_s = 1 / limits.requests_per_s, limits.burst / limits.requests_per_s
        self._cache: dict[bytes, _CachedKey] = {}
        self._rates: dict[int, RateBound] = {}
        self._lookups = CallBatcher(self._find, items_max=LOOKUP_MAX)
        self._forgotten = 0
        self.clock = DbClock()

    def now(self) -> datetime | None:
        """Return a time that the database's clock has reached, once a key was looked up."""
        return datetime.fromtimestamp(self.clock.now(monotonic()), UTC) if self.clock.known else None

    async def caller(self, headers: "list[tuple[bytes, bytes]]") -> Caller:
        """Return the sender of a request with ``headers``.

        Raises:
            Rejected: ``unauthenticated`` (401); ``rate_limited`` (429) with ``Retry-After``.
            Unavailable: The database does not answer. Retry.
        """
        given = [value for name, value in headers if name == b"authorization"]
        bearer = _BEARER.fullmatch(given[0]) if len(given) == 1 else None
        if bearer is None:
            raise unauthenticated("send Authorization: Bearer tw_…")
        return await self.caller_of_key(bearer[1].decode())

    async def caller_of_key(self, key: str) -> Caller:
        """Return the caller of ``key``, which may be a session's token. Errors as :meth:`caller`."""
        digest = key_hash(key)
        cached = self._cache.get(digest)
        if cached is None or monotonic() > cached.until_s:
            cached = await self._lookups(digest)
            if cached is None:
                _log.warning("api.unknown_key", prefix=key[:PREFIX_CHARS])
                raise unauthenticated("this key or session is unknown, expired or revoked")
        if wait_s := cached.rate.count(monotonic()):  # read the clock again after the lookup
            raise Rejected("rate_limited", "this key sends too many requests", status=429, retry_after_s=wait_s)
        return cached.caller

    def forget(self) -> None:
        """Clear the cache, because a session or key of this process has just ended.

        Lookups in progress may have read an older state, so their results are used once and not cached.
        """
        self._forgotten += 1
        self._cache.clear()

    async def _find(self, wanted: Sequence[bytes]) -> list[_CachedKey | None]:
        digests = list(dict.fromkeys(wanted))
        asked_s, forgotten = monotonic(), self._forgotten
        try:
            with for_all_callers(), within(LOOKUP_S):
                rows = await self._pool.fetch(_SQL["find"], digests)
        except TookTooLong as error:  # one small query: the database is slow
            raise Unavailable("database_unavailable", "the database does not answer; try again") from error
        self.clock.sample(rows[0]["now_s"], monotonic())
        found: dict[bytes, _CachedKey] = {}
        until_s = asked_s + self._age_s if forgotten == self._forgotten else asked_s
        good = {row["hash"]: row for row in rows if row["hash"] is not None}
        for digest in digests:
            row = good.get(digest)
            if row is None:
                self._cache.pop(digest, None)
            elif hmac.compare_digest(digest, row["hash"]):
                found[digest] = self._remember(digest, row, until_s)
        if stale := [row["session_id"] for row in good.values() if row["stale"]]:
            await self._touch(stale)
        return [found.get(digest) for digest in wanted]

    async def _touch(self, sessions: list[int]) -> None:
        try:
            with for_all_callers(), within(LOOKUP_S):
                await self._pool.execute(_SESSIONS["touch"], sessions, IDLE)
        except Exception as error:  # noqa: BLE001  the session stays valid; the next request tries again
            _log.info("api.session_not_touched", error=repr(error)[:200])

    def _remember(self, digest: bytes, row: Mapping[str, Any], until_s: float) -> _CachedKey:
        role, scopes = Role[row["role"].upper()], frozenset(row["scopes"])
        caller = Caller(row["name"], role, row["id"], row["session_id"], scopes)
        cached = self._cache.get(digest)
        if cached is None:
            if len(self._cache) >= KNOWN_MAX:
                self._cache.clear()
                self._rates.clear()
            rate = self._rates.setdefault(row["id"], RateBound(self._gap_s, self._burst_s))
            cached = self._cache[digest] = _CachedKey(caller, until_s, rate)
        cached.caller, cached.until_s = caller, until_s
        return cached


async def caller_of(auth: Authenticator, scope: MutableMapping[str, Any]) -> Caller:
    """Return the sender of a request; code that runs the application in its own process may set it itself.

    No server accepts the ``CALLER`` entry of a scope from a network, so a client cannot set it.
    """
    caller: Caller | None = scope.get(CALLER)
    if caller is not None:
        return caller
    headers = scope["headers"]
    shown = [] if any(name == b"authorization" for name, _ in headers) else session_tokens(headers)
    if not shown:
        return await auth.caller(headers)
    scope[COOKIE_SHOWN] = True
    token = shown[0]
    if token is None or len(shown) > 1:
        raise unauthenticated("the session's cookie is no token, or there are two of it; sign in again")
    if scope["method"] not in SAFE_METHODS:
        check_change(headers, token)
    caller = await auth.caller_of_key(token)
    scope[CSRF] = csrf_token(token)
    return caller


def unauthenticated(message: str) -> Rejected:
    """Return the refusal of an unknown caller."""
    return Rejected("unauthenticated", message, status=401)
