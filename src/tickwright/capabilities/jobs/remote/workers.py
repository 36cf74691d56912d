"""The calls of the worker protocol, each for the session that its headers name."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import msgspec

from tickwright.capabilities.jobs.remote.claims import RemoteClaimer
from tickwright.capabilities.jobs.remote.messages import (
    RemoteAttemptList,
    RemoteBegun,
    RemoteCallList,
    RemoteCallView,
    RemoteClaim,
    RemoteClose,
    RemoteClosed,
    RemoteFail,
    RemoteHeartbeat,
    RemoteJobs,
    RemoteProgress,
    RemoteRecorded,
    RemoteRegistered,
    RemoteRegistration,
    RemoteRenewal,
    RemoteReported,
    RemoteResults,
    RemoteStop,
)
from tickwright.capabilities.jobs.remote.sessions import SQL, RemoteSession, RemoteSessions
from tickwright.capabilities.jobs.worker.claims import ClaimStore
from tickwright.domain.strict_json import decode
from tickwright.engine.payload_keys import NO_KEYS, PayloadKeys
from tickwright.engine.remote.calls import SQL as CALLS_SQL
from tickwright.engine.wakeup.connection import DirectConnection
from tickwright.ports.caller import Caller
from tickwright.ports.service import NO_PROBE, Probe
from tickwright.store.pool import Pool

TIMEOUT_GRACE = timedelta(seconds=2)
"""How much longer than its timeout an attempt may run before the server ends it; its client ends it first."""

LISTED_MAX = 1000
Headers = Sequence[tuple[bytes, bytes]]


class RemoteCall(NamedTuple):
    """A call of the protocol: how its body is read, what it does, and what it answers."""

    body: Any
    answer: Any
    call: "Callable[[RemoteWorkers, RemoteSession, Any], Awaitable[Any]]"


class RemoteWorkers:
    """The worker protocol of one api process."""

    def __init__(
        self,
        pool: Pool,
        *,
        lease: timedelta,
        keys: PayloadKeys = NO_KEYS,
        direct: DirectConnection | None = None,
        probe: Probe = NO_PROBE,
    ) -> None:
        self._pool = pool
        self.sessions = RemoteSessions(pool, lease=lease)
        self.claims = RemoteClaimer(pool, ClaimStore(pool), self.sessions, keys=keys, direct=direct, probe=probe)
        self.results = self.claims.results

    async def register(self, body: bytes, caller: Caller) -> RemoteRegistered:
        """Open a session; see ``RemoteSessions.register`` for the errors."""
        asked = decode(body, _registration)
        await self.claims.read_types()
        return await self.sessions.register(asked, self.claims.kind, caller=caller)

    async def answer(self, name: str, body: bytes, headers: Headers) -> Any:
        """Answer the call ``name`` of ``CALLS`` with an instance of its ``answer``.

        Raises:
            Rejected: ``session_missing``, ``session_forbidden``, and those of the call. Permanent.
            Contended: ``session_lost``: drop every job, and register again.
        """
        asked = decode(body, _DECODERS[name])
        session = await self.sessions.of(headers)
        return await CALLS[name].call(self, session, asked)

    async def calls(self) -> RemoteCallList:
        """Return the calls of consumers that wait or run."""
        rows = await self._pool.fetch(CALLS_SQL["list_calls"], LISTED_MAX)
        progress = [None if row["progress"] is None else msgspec.Raw(row["progress"].encode()) for row in rows]
        return RemoteCallList(
            [RemoteCallView(**{**row, "progress": value}) for row, value in zip(rows, progress, strict=True)]
        )

    async def claim(self, session: RemoteSession, body: RemoteClaim) -> RemoteJobs:
        """Return due jobs, and polls, tasks and chunks that wait; see ``RemoteClaimer.claim``."""
        return await self.claims.claim(session, body)

    async def begin(self, session: RemoteSession, body: RemoteAttemptList) -> RemoteBegun:
        """Write that last attempts begin."""
        return await self.results.begin(session, body.jobs)

    async def heartbeat(self, session: RemoteSession, body: RemoteHeartbeat) -> RemoteRenewal:
        """Extend the lease; end attempts that run too long; return those that must stop."""
        lease, drains = await self.sessions.renew(session)
        held = [one for one in body.held if one.kind == "job"]
        ids, fences = [one.id for one in held], [one.fence for one in held]
        owners = [session.id] * len(ids)
        rows = await self._pool.fetch(SQL["check_held"], owners, ids, fences, TIMEOUT_GRACE) if ids else []
        stops = [RemoteStop(row["id"], row["fence"], row["reason"]) for row in rows]
        if late := [one for one in stops if one.reason == "timeout"]:
            text = "stopped by the server: it ran longer than its timeout"
            results = [RemoteFail(id=one.id, fence=one.fence, message=text, code="timeout") for one in late]
            done = await self.results.record(session, results)
            stops = [one for one in stops if one.reason != "timeout" or one.id not in done.locked]
        calls = {(one.id, one.fence): one.kind for one in body.held if one.kind != "job"}
        lost = await self.claims.calls.lost(session.id, list(calls))
        stops += [RemoteStop(*attempt, "lost", calls[attempt]) for attempt in lost]
        return RemoteRenewal(lease // timedelta(milliseconds=1), drains, stops)

    async def progress(self, session: RemoteSession, body: RemoteProgress) -> RemoteReported:
        """Write the progress of running attempts."""
        return await self.results.report_progress(session, body.jobs)

    async def record(self, session: RemoteSession, body: RemoteResults) -> RemoteRecorded:
        """Write how attempts ended."""
        return await self.results.record(session, body.results)

    async def close(self, session: RemoteSession, _body: RemoteClose) -> RemoteClosed:
        """End the session; what it still holds is released."""
        return RemoteClosed(await self.claims.close(session))


CALLS = {
    "claim": RemoteCall(RemoteClaim, RemoteJobs, RemoteWorkers.claim),
    "begin": RemoteCall(RemoteAttemptList, RemoteBegun, RemoteWorkers.begin),
    "heartbeat": RemoteCall(RemoteHeartbeat, RemoteRenewal, RemoteWorkers.heartbeat),
    "progress": RemoteCall(RemoteProgress, RemoteReported, RemoteWorkers.progress),
    "results": RemoteCall(RemoteResults, RemoteRecorded, RemoteWorkers.record),
    "close": RemoteCall(RemoteClose, RemoteClosed, RemoteWorkers.close),
}
"""The calls of a registered worker, by the last part of their paths."""
_DECODERS = {name: msgspec.json.Decoder(call.body) for name, call in CALLS.items()}
_registration = msgspec.json.Decoder(RemoteRegistration)
