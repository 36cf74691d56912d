"""Resolve names, and check every address before a connection to one of them.

A name is resolved once per connection (answers are cached for a few seconds), and the connector gets exactly the
checked addresses. No code resolves the name a second time, so an answer that changes between check and connection (DNS
rebinding) has no effect.
"""

import asyncio
import socket
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from ipaddress import ip_address
from typing import NamedTuple, TypeAlias

from aiohttp.abc import AbstractResolver, ResolveResult

from tickwright.domain.addresses import AllowList, refusal_of_all
from tickwright.domain.retries import RetryPolicy
from tickwright.ports.ids import monotonic

# Look-ups of names in threads. Slow names must not delay healthy ones.
#
# ``getaddrinfo`` cannot be cancelled: a silent DNS server occupies a thread for 5 to 40 seconds, and a few such names
# fill a pool that all names share. So the last look-up of a name decides its class, and each class has slots of its
# own:
#
# ========  ===================================================  =====
# class     names                                                slots
# ========  ===================================================  =====
# known     the last look-up ended in time                           8
# new       never looked up, or forgotten                            8
# slow      the last look-up took a second or has not ended          8
# ========  ===================================================  =====
#
# A look-up that takes longer than a second frees its slot and continues as *overdue*; there are at most 40 of those.
# The look-up of a slow name keeps its slot. A name is slow for 15 seconds, and twice as long each time that it is slow
# again, up to 16 minutes. Then it counts as new, so that a short DNS outage does not leave healthy names in the slow
# class.
#
# Concurrent look-ups of one name are one look-up. A look-up that waits for a slot is dropped when no caller waits for
# it.

SLOW_AFTER_S = 1.0
CLASS_SLOTS = 8
OVERDUE_MAX = 40
NAMES_KEPT_MAX = 10_000
_SLOW_FOR = RetryPolicy(base=timedelta(seconds=15), cap=timedelta(seconds=960))

Found: TypeAlias = list[tuple[socket.AddressFamily, socket.SocketKind, int, str, tuple[object, ...]]]
Key: TypeAlias = tuple[str, socket.AddressFamily]


class _Seen(NamedTuple):
    """How many look-ups of a name in a row were slow, and until when that counts."""

    slow: int = 0
    until_s: float = 0.0


class _Lookup:
    """One look-up and the callers that wait for it."""

    def __init__(self) -> None:
        self.waiting = 0
        self.has_slot = False
        self.task: asyncio.Task[Found]


class Lookups:
    """Distribute threads among names; for one event loop.

    Args:
        look_up: Blocks until it returns the addresses, or raises ``OSError``.

    Invariants:
        DNS-1: names that have not answered take no slot of names that answer in time for more than a second each.
        DNS-2: at most one look-up of a name and family runs at a time.
    """

    def __init__(self, look_up: Callable[[str, socket.AddressFamily], Found]) -> None:
        self._look_up = look_up
        self._classes = {name: asyncio.Semaphore(CLASS_SLOTS) for name in ("known", "new", "slow")}
        self._overdue = asyncio.Semaphore(OVERDUE_MAX)
        self._threads = ThreadPoolExecutor(
            len(self._classes) * CLASS_SLOTS + OVERDUE_MAX, thread_name_prefix="tickwright-dns"
        )
        self._seen: OrderedDict[Key, _Seen] = OrderedDict()
        self._running: dict[Key, _Lookup] = {}

    async def find(self, host: str, family: socket.AddressFamily) -> Found:
        """Return the result of ``look_up`` for ``host``; raises what it raises."""
        key = (host, family)
        lookup = self._running.get(key)
        if lookup is None:
            lookup = self._running[key] = _Lookup()
            lookup.task = asyncio.create_task(self._run(key, lookup))
            lookup.task.add_done_callback(lambda task: self._ended(key, task))
        lookup.waiting += 1
        try:
            return await asyncio.shield(lookup.task)
        finally:
            lookup.waiting -= 1
            if not lookup.waiting and not lookup.has_slot:
                lookup.task.cancel()
                self._forget(key, lookup)

    def close(self) -> None:
        """Stop without waiting for running look-ups."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _run(self, key: Key, lookup: _Lookup) -> Found:
        kind = self._class_of(key)
        slots = self._classes[kind]
        await slots.acquire()
        lookup.has_slot = True
        try:
            running = asyncio.get_running_loop().run_in_executor(self._threads, self._look_up, *key)
            ended, _ = await asyncio.wait([running], timeout=SLOW_AFTER_S)
            self._remember(key, in_time=bool(ended))
            if not ended and kind != "slow" and not self._overdue.locked():
                await self._overdue.acquire()  # does not wait
                slots.release()
                slots = self._overdue
            return await running
        finally:
            slots.release()

    def _class_of(self, key: Key) -> str:
        seen = self._seen.get(key)
        if seen is None or (seen.slow and seen.until_s < monotonic()):
            return "new"
        return "slow" if seen.slow else "known"

    def _remember(self, key: Key, *, in_time: bool) -> None:
        slow = 0 if in_time else self._seen.get(key, _Seen()).slow + 1
        until_s = monotonic() + _SLOW_FOR.ceiling_s(slow) if slow else 0.0
        self._seen[key] = _Seen(slow, until_s)
        self._seen.move_to_end(key)
        if len(self._seen) > NAMES_KEPT_MAX:
            self._seen.popitem(last=False)

    def _ended(self, key: Key, task: "asyncio.Task[Found]") -> None:
        lookup = self._running.get(key)
        if lookup is not None and lookup.task is task:
            self._forget(key, lookup)
        if not task.cancelled():
            task.exception()  # marks the exception as retrieved, also if no caller waits

    def _forget(self, key: Key, lookup: _Lookup) -> None:
        if self._running.get(key) is lookup:
            del self._running[key]


RESOLVE_TIMEOUT_S = 10.0
ADDRESSES_MAX = 64


class BlockedError(OSError):
    """The address is not allowed. ``reason`` is a class such as ``private``, never an address."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"blocked address ({reason})")
        self.reason = reason


class ResolveTimeoutError(OSError):
    """The DNS did not answer in time."""


class SystemResolver(AbstractResolver):
    """``getaddrinfo`` in threads of its own, distributed so that slow names delay no others (:class:`Lookups`)."""

    def __init__(self) -> None:
        self._lookups = Lookups(_look_up)

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return the addresses of ``host``; raises ``socket.gaierror`` like the system."""
        found = await self._lookups.find(host, family)
        return [
            ResolveResult(
                hostname=host,
                host=str(address[0]),
                port=port,
                family=family_,
                proto=proto,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for family_, _, proto, _, address in found[:ADDRESSES_MAX]
        ]

    async def close(self) -> None:
        """Stop without waiting for running look-ups."""
        self._lookups.close()


def _look_up(host: str, family: socket.AddressFamily) -> Found:
    found = socket.getaddrinfo(host, 0, family=family, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    return [*found]


class GuardedResolver(AbstractResolver):
    """Query another resolver, and return its answer only if every address is allowed."""

    def __init__(self, inner: AbstractResolver, *, tls: bool, allow: AllowList) -> None:
        self._inner = inner
        self._tls = tls
        self._allow = allow

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return checked addresses.

        Raises:
            BlockedError: an address is not allowed. Permanent for this answer.
            ResolveTimeoutError: no answer within ten seconds. Retry.
        """
        try:
            async with asyncio.timeout(RESOLVE_TIMEOUT_S):
                found = await self._inner.resolve(host, port, family)
        except TimeoutError:
            raise ResolveTimeoutError("no answer from the DNS") from None
        addresses = [ip_address(result["host"].partition("%")[0]) for result in found]
        reason = refusal_of_all(addresses, port, tls=self._tls, allow=self._allow)
        if reason is not None:
            raise BlockedError(reason)
        return found

    async def close(self) -> None:
        """Leave the inner resolver open: several generations of connections share it."""
