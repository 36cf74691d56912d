"""Hearing of reports over the fanout exchange: a queue per listener of this process, each message a call to look.

A message says which report; whether its part is still to be brought, the ledger says. So it is acknowledged as soon as
the ledger was asked, and a message that is lost, comes twice or late costs nothing but a question. What cannot be read
goes to the dead letters.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Protocol

import structlog

from tickwright.capabilities.reports.parts.fetch import Bringers
from tickwright.capabilities.reports.parts.listeners import ReportListener
from tickwright.capabilities.reports.parts.store import SQL
from tickwright.capabilities.reports.requests.messages import FutureVersionError, read_call
from tickwright.domain.errors import Rejected, TickwrightError
from tickwright.engine.claimed_work import AWAY_S
from tickwright.ports.fanout import Delivery, TaskSource
from tickwright.ports.ids import monotonic
from tickwright.ports.service import Service
from tickwright.store.pool import UNAVAILABLE, Pool

QUEUES_EVERY_S = 10.0
LATER = timedelta(seconds=10)
DELAYS_MAX = 30

_log = structlog.get_logger("tickwright.reports")


class CallQueue(TaskSource, Service, Protocol):
    """The queue of one listener."""


class ReportCalls:
    """A :class:`tickwright.ports.service.Service`.

    Args:
        open_queue: Makes the queue of a listener; it is run and stopped here.
        declare: Makes the exchanges, and the queues of these listeners, which somebody else reads.
    """

    name = "report-calls"

    def __init__(
        self,
        pool: Pool,
        listener: ReportListener,
        bringers: Bringers,
        *,
        open_queue: Callable[[str], CallQueue],
        declare: Callable[[Sequence[str]], Awaitable[None]],
    ) -> None:
        self._pool, self._listener, self._bringers = pool, listener, bringers
        self._open_queue, self._declare = open_queue, declare
        self._declared: set[str] | None = None
        self.counts: Counter[str] = Counter()
        self._queues: dict[str, CallQueue] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()
        self._over = asyncio.Event()
        self._over.set()
        self._ticked_s: float | None = None

    # ------------------------------------------------------------------ service

    async def run(self) -> None:
        """Hear calls until stopped; a listener that somebody sets up is heard within ten seconds."""
        self._over.clear()
        try:
            while not self._stopping.is_set():
                wait_s = await self._look()
                self._ticked_s = monotonic()
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._stopping.wait()
        finally:
            await self._close()
            self._over.set()

    async def quiesce(self) -> None:
        """Hear nothing more; calls that nobody looked at go back."""
        self._stopping.set()
        await self._over.wait()

    async def stop(self) -> None:
        """As ``quiesce``: there is nothing to cancel."""
        await self.quiesce()

    def last_tick_age_s(self) -> float | None:
        """Seconds since it looked whose calls there are to hear."""
        return None if self._ticked_s is None else monotonic() - self._ticked_s

    @property
    def heard(self) -> list[str]:
        """Whose calls are heard here."""
        return sorted(self._queues)

    async def _close(self) -> None:
        for queue in self._queues.values():
            await queue.quiesce()
        for queue in self._queues.values():
            await queue.stop()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._queues.clear()

    # ------------------------------------------------------------------ queues

    async def _look(self) -> float:
        """Open the queues of listeners that are new; return after how many seconds to look again."""
        names = {name.partition(":")[2] for name in self._bringers.names() if name.startswith("function:")}
        sources = [name.partition(":")[2] for name in self._bringers.names() if name.startswith("source:")]
        try:
            if sources:
                names |= {row["listener"] for row in await self._pool.fetch(SQL["queries_on"], sources)}
            services = {row["listener"] for row in await self._pool.fetch(SQL["services"])}
        except UNAVAILABLE as error:
            _log.warning("reports.listeners_not_read", error=repr(error))
            return AWAY_S
        await self._declare_new(services)  # first: a call that finds the exchange finds their queues
        for name in sorted(names - self._queues.keys()):
            self._begin(name)
        return QUEUES_EVERY_S

    async def _declare_new(self, services: set[str]) -> None:
        """Make the queues of services that are new; a broker that does not answer now is asked again."""
        if self._declared is not None and services <= self._declared:
            return
        try:
            await self._declare(sorted(services))
        except TickwrightError as error:
            _log.warning("reports.queues_not_declared", code=error.code, reason=error.message)
        else:
            self._declared = services

    def _begin(self, name: str) -> None:
        queue = self._queues[name] = self._open_queue(name)
        for work in (self._serve(name, queue), self._take(name, queue)):
            task = asyncio.create_task(work)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve(self, name: str, queue: CallQueue) -> None:
        """Keep a queue's connection; one that cannot be as it should costs only the messages of its listener."""
        while not self._stopping.is_set():
            try:
                await queue.run()
            except TickwrightError as error:
                _log.error("reports.queue_unusable", listener=name, code=error.code, reason=error.message)
                with suppress(TimeoutError):
                    async with asyncio.timeout(QUEUES_EVERY_S):
                        await self._stopping.wait()

    # ------------------------------------------------------------------ calls

    async def _take(self, name: str, queue: CallQueue) -> None:
        while True:
            delivery = await queue.take()
            try:
                self.counts[await self._answer(name, queue, delivery)] += 1
            except Exception as error:  # noqa: BLE001  one message must not end the others
                _log.exception("reports.call_unexpected", listener=name, error=repr(error))
                await queue.delay(delivery, LATER)

    async def _answer(self, name: str, queue: CallQueue, delivery: Delivery) -> str:
        try:
            call = read_call(delivery.body)
        except FutureVersionError as error:
            if delivery.delays < DELAYS_MAX:
                await queue.delay(delivery, LATER)
                return "delayed"
            await queue.bury(delivery, "unknown_version", str(error))
            return "buried"
        except Rejected as error:
            await queue.bury(delivery, error.code, error.message)
            return "buried"
        try:
            await self._listener.hear(call.report_id, name)
        except UNAVAILABLE as error:
            _log.warning("reports.call_not_answered", report=call.report_id, error=repr(error))
            await queue.delay(delivery, LATER)
            return "delayed"
        await queue.ack(delivery)
        return "heard"
