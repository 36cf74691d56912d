"""One destination: its live link, the making of a new one, and the pause after a failure."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

from tickwright.outbound import Pause
from tickwright.ports.broker import Outcome, Refused, Unknown
from tickwright.ports.ids import monotonic
from tickwright.transports.websocket.link import PENDING_MAX, Link

LINK_AGE_MAX_S = 600.0

_LATE = Refused("connect_timeout", "No connection to the gateway within the timeout; nothing was sent.")
_BUSY = Refused("gateway_busy", f"{PENDING_MAX} pushes wait for this gateway already; nothing was sent.")
_SILENT = Unknown("timeout", "No acknowledgement within the timeout; it may have been taken.")


class Channel:
    """Keeps at most one young link per destination.

    A link that could not be made, was lost without one acknowledgement or was cut for its floods starts a pause
    that doubles from 0.1 to 10 seconds; pushes during the pause are refused at once, so a gateway
    that is down costs no connection storm and holds nobody up.
    """

    def __init__(self, connect: Callable[[], Awaitable[Link | Refused]]) -> None:
        self._connect = connect
        self._link: Link | None = None
        self._making: asyncio.Task[Link | Refused] | None = None
        self._pause = Pause()
        self.users = 0

    @property
    def idle(self) -> bool:
        """Whether nobody pushes here now."""
        return self.users == 0

    async def push(self, message_id: str, frame: str, timeout: timedelta) -> Outcome:
        """Send one frame within ``timeout``; see the README for the outcomes."""
        late: Outcome = _LATE
        self.users += 1
        try:
            async with asyncio.timeout(timeout.total_seconds()):
                link = await self._young_link()
                if isinstance(link, Refused):
                    return link
                if link.pending >= PENDING_MAX:
                    return _BUSY
                late = _SILENT
                return await link.push(message_id, frame)
        except TimeoutError:
            return late
        finally:
            self.users -= 1

    async def aclose(self) -> None:
        """Close the link. Twice is harmless."""
        if self._making is not None:
            self._making.cancel()
            await asyncio.wait({self._making})
        if self._link is not None:
            await self._link.aclose()

    async def _young_link(self) -> Link | Refused:
        link = self._link
        if link is not None and link.alive:
            if monotonic() - link.born_at_s < LINK_AGE_MAX_S:
                return link
            link.retire()
            self._link = None
        elif link is not None:
            self._lost(link)
        if self._making is None:
            wait = self._pause.remaining()
            if wait is not None:
                reason = "The gateway was unreachable a moment ago; nothing was sent."
                return Refused("gateway_unavailable", reason, retry_after=wait)
            self._making = asyncio.get_running_loop().create_task(self._make())
        return await asyncio.shield(self._making)

    async def _make(self) -> Link | Refused:
        try:
            made = await self._connect()
            if isinstance(made, Refused):
                self._pause.failed()
            else:
                self._link = made
            return made
        finally:
            self._making = None

    def _lost(self, link: Link) -> None:
        self._link = None
        if link.acknowledged and not link.cut:
            self._pause.succeeded()
        else:
            self._pause.failed()
