"""The caller's side of remote calls: hands a call over, waits for its end, withdraws it when nothing waits for it.

::

    call ──hand over──▶ waits ──claimed──▶ runs ──answer──▶ complete, fail, throttled, snooze
                          └─ no worker in time: unclaimed      └─ too long: timeout; its worker is lost: lost
                          └─ its row is gone, or the database does not answer: gone

The caller owns what the call is about, under a claim of its own, so a call may be lost or made twice without harm: only
the caller's claim decides what is written. Calls that are handed over together share a statement; one loop per process
takes the answers, woken by notifications.
"""

import asyncio
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, TypeAlias

import msgspec
import structlog

from tickwright.domain.errors import TickwrightError
from tickwright.domain.targets import RemoteTarget, parse_target
from tickwright.engine.call_batcher import CallBatcher
from tickwright.engine.service import LoopService
from tickwright.engine.wakeup.connection import DirectConnection
from tickwright.observe.metrics import Sample
from tickwright.ports.service import NO_PROBE, Probe
from tickwright.ports.session import Session
from tickwright.store.pool import UNAVAILABLE, Connection, Pool
from tickwright.store.queries import load

SQL = load("tickwright.engine.sql", "remote_calls.sql")
HOLDINGS = (SQL["held"],)
CALLS_CHANNEL, ENDS_CHANNEL = "tickwright_calls", "tickwright_call_ends"
WORKERS_CHANGED = "workers"
PATIENCE = timedelta(seconds=1)
"""How long a call waits for a worker: longer than workers that have room need to claim it."""
PAYLOAD_CHARS_MAX = 2 * 1024 * 1024
TOGETHER_MAX = 500
POLL_S, UNHEARD_POLL_S = 0.5, 0.05
UNAVAILABLE_S = 0.5
SOON = timedelta(seconds=1)

CallKind: TypeAlias = Literal["poll", "task", "chunk"]
Outcome: TypeAlias = Literal["complete", "fail", "throttled", "snooze", "unclaimed", "timeout", "lost", "gone"]
_log = structlog.get_logger("tickwright.remote")


@dataclass(frozen=True, slots=True)
class CallRequest:
    """A call for a remote worker.

    Attributes:
        name: Of the partner, module or batch; a worker is registered for it.
        payload: JSON, at most ``PAYLOAD_CHARS_MAX`` characters.
        timeout: From the claim to the answer, at least 1 ms.
        patience: How long it waits for a worker.
    """

    kind: CallKind
    pool: str
    name: str
    payload: str
    timeout: timedelta
    patience: timedelta = PATIENCE


class CallEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How a call ended.

    Attributes:
        result: What the worker returned, with ``complete``.
        code: Of the failure, with ``fail``.
        message: The same.
        final: Another attempt cannot help, with ``fail``.
        wait_s: With ``throttled`` and ``snooze``: when to call again; with ``fail``: the least wait, if any.
    """

    outcome: Outcome
    result: Any = None
    code: str = ""
    message: str = ""
    final: bool = False
    wait_s: float | None = None

    @property
    def wait(self) -> timedelta:
        """How long to wait before the next call; a second where nothing is said."""
        return SOON if self.wait_s is None else timedelta(seconds=self.wait_s)

    @property
    def postponed(self) -> "Postponed":
        """When to make a call again that did not end with an answer of its own."""
        return Postponed(self.wait, "snoozed" if self.outcome == "snooze" else "no_worker")


@dataclass(frozen=True, slots=True)
class Postponed:
    """A poll or a task was not made; it is made later, which is no failure. Only remote workers answer so.

    Attributes:
        by: How long to wait at least.
        why: As it is counted: ``snoozed``, or ``no_worker``.
    """

    by: timedelta
    why: str


GONE = CallEnd(outcome="gone")
_answer = msgspec.json.Decoder(dict[str, Any])


@dataclass(eq=False, slots=True)
class _Pending:
    ref: int
    token: int
    call: CallRequest
    end: "asyncio.Future[CallEnd]"
    is_handed_over: bool = False
    is_over: bool = False
    """Its row is gone."""


class RemoteCalls(LoopService):
    """The remote calls of one process; a :class:`tickwright.ports.service.Service`.

    It starts before the consumers that call, and ends after them.

    Invariants:
        RCL-1: a call ends once, with one answer, or without one.
        RCL-2: what a worker answers after its call was withdrawn, or after its caller's session was lost, changes
            nothing.
    """

    name = "remote-calls"

    def __init__(self, pool: Pool, session: Session, direct: DirectConnection, *, probe: Probe = NO_PROBE) -> None:
        super().__init__()
        self._pool, self._session, self._direct, self._probe = pool, session, direct, probe
        self._refs = itertools.count(1)
        self._pending: dict[int, _Pending] = {}
        self._withdrawn: dict[int, int] = {}
        self._hand_over = CallBatcher(self._insert, items_max=TOGETHER_MAX, for_all=True)
        self._served: frozenset[tuple[str, str, str]] = frozenset()
        self._workers_changed = True
        self.counts: Counter[tuple[str, str]] = Counter()
        direct.subscribe(ENDS_CHANNEL, self._notified)
        direct.on_change(self.wakeup.set)
        session.on_beat(self._read_served)
        session.on_lost(self._session_lost)

    def samples(self) -> Sequence[Sample]:
        """Return the figures for the metrics of its process."""
        ended = [Sample("tickwright_remote_calls_total", count, key) for key, count in sorted(self.counts.items())]
        return [Sample("tickwright_remote_pending_calls", len(self._pending)), *ended]

    def serves(self, kind: CallKind, target: str | None, name: str) -> bool:
        """Return whether a live remote worker of the pool of ``target``, ``remote:POOL``, makes these calls."""
        pool = pool_of(target)
        return pool is not None and (kind, pool, name) in self._served

    def served(self, kind: CallKind) -> Sequence[tuple[str, str]]:
        """Return pools and names for which there is a live remote worker."""
        return [(pool, name) for one, pool, name in self._served if one == kind]

    async def call(self, call: CallRequest) -> CallEnd:
        """Hand a call over, and return how it ended. A caller that is cancelled withdraws it."""
        end: asyncio.Future[CallEnd] = asyncio.get_running_loop().create_future()
        pending = _Pending(next(self._refs), self._session.token, call, end)
        self._pending[pending.ref] = pending
        try:
            if not await self._hand_over(pending):
                pending.is_over = True
                return GONE
            ended = await end
        except (*UNAVAILABLE, TickwrightError) as error:
            _log.warning("remote.not_handed_over", kind=call.kind, name=call.name, error=repr(error))
            ended = GONE
        finally:
            del self._pending[pending.ref]
            if not pending.is_over:
                self._withdrawn[pending.ref] = pending.token
                self.wakeup.set()
        self.counts[call.kind, ended.outcome] += 1
        return ended

    async def _insert(self, batch: Sequence[_Pending]) -> Sequence[bool | Exception]:
        added = set[int]()
        by_token: dict[int, list[_Pending]] = defaultdict(list)
        for one in batch:
            by_token[one.token].append(one)
        for token, calls in by_token.items():
            columns = [
                (one.ref, one.call.kind, one.call.pool, one.call.name, one.call.payload, _ms(one.call.timeout),
                 _ms(one.call.patience)) for one in calls
            ]  # fmt: skip
            rows = await self._pool.fetch(SQL["hand_over"], token, *map(list, zip(*columns, strict=True)))
            added.update(row["ref"] for row in rows)
        for one in batch:
            one.is_handed_over = one.ref in added
        return [one.is_handed_over for one in batch]

    # ------------------------------------------------------------------ service

    async def _work(self) -> None:
        while not self.stopping.is_set():
            self.wakeup.clear()
            try:
                await self._round()
            except UNAVAILABLE as error:
                _log.warning("remote.answers_not_read", error=repr(error))
                await self.rest(UNAVAILABLE_S)
            self.tick()
            poll_s = POLL_S if self._direct.works or not self._pending else UNHEARD_POLL_S
            await self.wait_for_work(poll_s)

    async def _round(self) -> None:
        if self._workers_changed:
            self._workers_changed = False
            (await self._read_served(self._pool))()
        await self._withdraw()
        by_token: dict[int, list[int]] = defaultdict(list)
        for pending in self._pending.values():
            if pending.is_handed_over:
                by_token[pending.token].append(pending.ref)
        for token, refs in by_token.items():
            rows = await self._pool.fetch(SQL["take_ended"], token, refs)
            await self._probe.reached("remote.answers_taken", count=len(rows))
            for row in rows:
                self._end(row["ref"], row["outcome"], row["answer"])

    def _end(self, ref: int, outcome: Outcome, answer: str | None) -> None:
        pending = self._pending.get(ref)
        if pending is None or pending.end.done():
            return
        pending.is_over = True
        pending.end.set_result(_end_of(outcome, answer))

    async def _withdraw(self) -> None:
        while self._withdrawn:
            token = next(iter(self._withdrawn.values()))
            refs = [ref for ref, of in self._withdrawn.items() if of == token]
            await self._pool.execute(SQL["withdraw"], token, refs)
            for ref in refs:
                del self._withdrawn[ref]

    async def _read_served(self, connection: Connection | Pool) -> Callable[[], None]:
        """Read what remote workers are registered for, also with the heartbeat."""
        served = frozenset(map(tuple, await connection.fetch(SQL["served"])))

        def adopt() -> None:
            self._served = served

        return adopt

    def _notified(self, payload: str) -> None:
        if payload == WORKERS_CHANGED:
            self._workers_changed = True
        elif payload != str(self._session.token):
            return
        self.wakeup.set()

    def _session_lost(self) -> None:
        """End every call: the session that declares this one lost deletes the rows."""
        for pending in self._pending.values():
            if not pending.end.done():
                pending.is_over = True
                pending.end.set_result(GONE)

    async def quiesce(self) -> None:
        """Do nothing: the consumers that call stop first."""

    async def stop(self) -> None:
        """End, and withdraw what is left."""
        await super().quiesce()
        await self._withdraw()


def pool_of(target: str | None) -> str | None:
    """Return the pool of ``remote:POOL``; ``None`` for anything else."""
    parsed = None if target is None else parse_target(target)
    return parsed.pool if isinstance(parsed, RemoteTarget) else None


def _end_of(outcome: Outcome, answer: str | None) -> CallEnd:
    if outcome == "complete":
        return CallEnd(outcome=outcome, result=None if answer is None else msgspec.json.decode(answer))
    return msgspec.convert({"outcome": outcome, **(_answer.decode(answer) if answer else {})}, CallEnd)


def _ms(duration: timedelta) -> int:
    return max(1, duration // timedelta(milliseconds=1))
