"""Names to addresses, with every address judged before one of them is connected to.

The name is resolved once per connection (answers are kept for a few seconds) and what was
judged is what the connector gets; nothing looks the name up a second time, so a DNS answer
that flips between look and leap (rebinding) has nothing to flip.
"""

import asyncio
import socket
from ipaddress import ip_address

from aiohttp.abc import AbstractResolver, ResolveResult

from tickwright.domain.addresses import AllowList, refusal_of_all
from tickwright.outbound.lookups import Found, Lookups

RESOLVE_TIMEOUT_S = 10.0
ADDRESSES_MAX = 64


class BlockedError(OSError):
    """The guard said no; ``reason`` is a class such as ``private``, never an address."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"blocked address ({reason})")
        self.reason = reason


class ResolveTimeoutError(OSError):
    """The DNS did not answer in time."""


class SystemResolver(AbstractResolver):
    """``getaddrinfo`` in threads of its own, shared so that slow names hold up no other one; see ``lookups``."""

    def __init__(self) -> None:
        self._lookups = Lookups(_look_up)

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return the addresses of ``host``; raises ``socket.gaierror`` like the system does."""
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
        """Let running look-ups end by themselves; nobody waits for them."""
        self._lookups.close()


def _look_up(host: str, family: socket.AddressFamily) -> Found:
    found = socket.getaddrinfo(host, 0, family=family, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    return [*found]


class GuardedResolver(AbstractResolver):
    """Asks another resolver and passes its answer on only when every address may be reached."""

    def __init__(self, inner: AbstractResolver, *, tls: bool, allow: AllowList) -> None:
        self._inner = inner
        self._tls = tls
        self._allow = allow

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return checked addresses.

        Raises:
            BlockedError: one of the addresses must not be reached. Permanent for this answer.
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
        """Leave the inner resolver open: it is shared by several generations of connections."""
