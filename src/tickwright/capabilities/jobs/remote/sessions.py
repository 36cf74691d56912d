"""The sessions of remote workers: one row each, which its client renews through any api process.

::

    register ──▶ open ──heartbeat──▶ open ──close, what it holds is released──▶ gone
                   └──lease expires, another session declares it lost──▶ lost: every call answers ``session_lost``

The row is all there is: no api process remembers a worker, so each call may reach another one. A client proves by a
secret that a session is its own. It cannot renew a lost session; it registers again under a new token, and its late
calls under the old one find no job. Any process declares lost sessions lost and reclaims their jobs, those of Python
processes and of clients alike (:mod:`tickwright.engine.session`).
"""

import hashlib
import hmac
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec
import structlog

from tickwright.capabilities.jobs.model import TaskType
from tickwright.capabilities.jobs.remote.messages import (
    PROTOCOL,
    SESSION_HEADER,
    RemoteRegistered,
    RemoteRegistration,
    RemoteType,
)
from tickwright.domain.errors import Contended, Rejected
from tickwright.domain.time_texts import format_duration, parse_duration
from tickwright.engine.call_batcher import CallBatcher
from tickwright.ports.caller import Caller
from tickwright.ports.ids import random_token
from tickwright.store.bounds import for_all_callers, within
from tickwright.store.pool import Pool
from tickwright.store.queries import load

SQL = load("tickwright.capabilities.jobs.sql", "remote.sql")
LEASE_MIN = timedelta(seconds=2)
LEASE_MAX = timedelta(minutes=10)
SESSIONS_MAX = 5000
"""Remote workers that are alive at once, of all pools."""
CALL_S = 10.0
"""The limit of a statement that serves several calls."""
HEARTBEATS_PER_LEASE = 3
_PREFIX = "tws_"
_SECRET_BYTES = 24
_HEADER = SESSION_HEADER.lower().encode()
_TOKEN_CHARS_MAX = 100

_log = structlog.get_logger("tickwright.remote")


@dataclass(frozen=True, slots=True)
class RemoteSession:
    """A remote worker that is not lost, as its row shows it.

    Attributes:
        calls: The kinds and names of the calls that it makes for consumers.
        drains: An operator asked it to stop.
        claims_from: Claims with lower numbers are refused.
    """

    id: int
    pool: str
    types: tuple[str, ...]
    calls: tuple[tuple[str, str], ...]
    drains: bool
    claims_from: int


class RemoteSessions:
    """Registers remote workers, finds them by their secrets, and extends their leases."""

    def __init__(self, pool: Pool, *, lease: timedelta) -> None:
        self._pool, self._lease = pool, lease
        self._find = CallBatcher(self._read, items_max=1000)
        self._renew = CallBatcher(self._extend, items_max=1000)

    async def register(
        self, asked: RemoteRegistration, types: Callable[[str], TaskType | None], *, caller: Caller
    ) -> RemoteRegistered:
        """Open a session.

        Raises:
            Rejected: ``unsupported_protocol``, ``invalid_duration``, ``invalid_lease``. Permanent.
            Contended: ``too_many_sessions`` (429). Retry.
        """
        if asked.protocol != PROTOCOL:
            text = f"this release speaks version {PROTOCOL} of the worker protocol, not {asked.protocol}"
            raise Rejected("unsupported_protocol", text, field="protocol", supported=[PROTOCOL])
        lease = self._lease if asked.lease is None else parse_duration(asked.lease, field="lease")
        if not LEASE_MIN <= lease <= LEASE_MAX:
            text = f"lease: {format_duration(LEASE_MIN)} to {format_duration(LEASE_MAX)}"
            raise Rejected("invalid_lease", text, field="lease")
        names = list(dict.fromkeys(asked.types))
        if not (names or asked.calls):
            raise Rejected("invalid_value", "name a type, partner, module or batch that the worker has", field="types")
        if not caller.may_work(asked.pool, [*names, *(name for _, name in asked.calls)]):
            text = f"the key may work {', '.join(sorted(caller.scopes))}, and not all of this registration"
            raise Rejected("forbidden", text, status=403)
        remote = {"pool": asked.pool, "types": names, "calls": asked.calls, "client": asked.client, "key": caller.name}
        facts = {"remote": remote}
        secret = random_token(_SECRET_BYTES)
        client = asked.client or "remote"
        values = asked.name, client, lease, json.dumps(facts), _hash_of(secret), SESSIONS_MAX, bool(asked.calls)
        session = await self._pool.fetchval(SQL["register"], *values)
        if session is None:
            text = f"{SESSIONS_MAX} remote workers are alive, which is the limit; close sessions that are not used"
            raise Contended("too_many_sessions", text, status=429)
        _log.info("remote.registered", session=session, name=asked.name, pool=asked.pool, client=asked.client)
        lease_ms = lease // timedelta(milliseconds=1)
        states = [RemoteType(name, _state_of(types(name), asked.pool)) for name in names]
        token = f"{_PREFIX}{session}_{secret}"
        return RemoteRegistered(token, session, PROTOCOL, lease_ms, lease_ms // HEARTBEATS_PER_LEASE, states)

    async def of(self, headers: Sequence[tuple[bytes, bytes]]) -> RemoteSession:
        """Return the session whose secret the headers have.

        Raises:
            Rejected: ``session_missing`` (400): there is no such header; ``session_lost`` (409): the lease has expired,
                or the session was closed: drop every job and register again; ``session_forbidden`` (403): the secret
                is not that of the session. Permanent.
        """
        session, secret = _token_of(headers)
        row = await self._row_of(session)
        if not hmac.compare_digest(row["remote_secret"], _hash_of(secret)):
            raise Rejected("session_forbidden", "the secret is not that of this session", status=403)
        return _session_of(row)

    async def again(self, session: RemoteSession) -> RemoteSession:
        """Return a session as its row shows it now.

        Raises:
            Contended: ``session_lost`` (409). Permanent.
        """
        return _session_of(await self._row_of(session.id))

    async def _row_of(self, session: int) -> Any:
        row = await self._find(session)
        if row is None or row["lost"]:
            raise session_lost()
        return row

    async def renew(self, session: RemoteSession) -> tuple[timedelta, bool]:
        """Extend the lease; return its length, and whether the worker is to stop.

        Raises:
            Contended: ``session_lost`` (409), as :meth:`of`. Permanent.
        """
        row = await self._renew(session.id)
        if row is None:
            raise session_lost()
        return row["remote_lease"], row["drains"]

    async def _read(self, ids: Sequence[int]) -> Sequence[Any]:
        return await self._by_id("sessions", ids)

    async def _extend(self, ids: Sequence[int]) -> Sequence[Any]:
        return await self._by_id("renew", ids)

    async def _by_id(self, query: str, ids: Sequence[int]) -> Sequence[Any]:
        with for_all_callers(), within(CALL_S):
            rows: Mapping[int, Any] = {row["id"]: row for row in await self._pool.fetch(SQL[query], list(ids))}
        return [rows.get(session) for session in ids]


def _session_of(row: Any) -> RemoteSession:
    calls = tuple(map(tuple, msgspec.json.decode(row["calls"])))
    return RemoteSession(row["id"], row["pool"], tuple(row["types"]), calls, row["drains"], row["claims_from"])


def session_lost() -> Contended:
    """Return the error of a call under a session that is lost or closed."""
    text = (
        "this session's lease has expired, or it was closed: other workers have its jobs; drop them and register again"
    )
    return Contended("session_lost", text, status=409)


def _token_of(headers: Sequence[tuple[bytes, bytes]]) -> tuple[int, str]:
    value = next((value for name, value in headers if name == _HEADER), None)
    if value is None:
        text = f"send the session of the registration in the header {SESSION_HEADER}"
        raise Rejected("session_missing", text, status=400)
    session, _, secret = value.decode("latin-1").removeprefix(_PREFIX).partition("_")
    if not (session.isascii() and session.isdigit() and secret) or len(value) > _TOKEN_CHARS_MAX:
        raise Rejected("session_missing", f"the header {SESSION_HEADER} has no session of a registration", status=400)
    return min(int(session), 2**63 - 1), secret


def _hash_of(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def _state_of(kind: TaskType | None, pool: str) -> Any:
    if kind is None:
        return "unknown"
    if kind.target != f"remote:{pool}":
        return "other_target"
    return "waits" if kind.waits else "ready"
