"""Messages of one call for one exchange with one deadline: sent as fast as confirms make room.

Many leave in one write, as many as there is room for when room is made; so the broker confirms many at once, and
neither side does for each message what it can do for hundreds.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from itertools import islice

from tickwright.brokers.rabbitmq.link import RabbitLink
from tickwright.brokers.rabbitmq.route import NO_CONFIRM, Letter, Route
from tickwright.ports.broker import Outcome, Refused, Unknown

WRITE_BYTES_MAX = 256 * 1024

_BLOCKED = Refused("broker_blocked", "RabbitMQ takes nothing now (memory or disk alarm); nothing was sent.")
_NOT_SENT = Refused("broker_busy", "RabbitMQ could not be handed the message in time; nothing was sent.")
_LATE = Unknown("timeout", "No confirm within the timeout; it may have been taken.")


class Lot:
    """Sends letters once.

    Args:
        link: The connection.
        window: One place for each message that waits for a confirm, whoever sent it.
        exchange: Of all letters.
        letters: At least one.
    """

    def __init__(self, link: RabbitLink, window: asyncio.Semaphore, exchange: str, letters: Sequence[Letter]) -> None:
        self._link = link
        self._window = window
        self._exchange = exchange
        self._letters = letters
        self._left = deque(letters)

    async def send(self, deadline: float) -> list[Outcome]:
        """Return one outcome per letter, in order, at ``deadline`` of the loop's clock at the latest."""
        unsent, unconfirmed = _NOT_SENT, _LATE
        try:
            async with asyncio.timeout_at(deadline):
                unsent = await self._send_all() or _NOT_SENT
                await self._answers()
        except TimeoutError:
            pass
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            unconfirmed = NO_CONFIRM  # the library's own cancellation, not ours
        finally:
            for letter in self._letters:
                letter.give_up()
        return [unsent if letter.answer is None else letter.outcome() or unconfirmed for letter in self._letters]

    async def _send_all(self) -> Refused | None:
        """Send until nothing is left, or return why the rest cannot be sent."""
        while self._left:
            refused = await self._send_some()
            if refused is not None:
                return refused
        return None

    async def _send_some(self) -> Refused | None:
        places, some = await self._places(), list[Letter]()
        try:
            route = await self._link.route(self._exchange)
            if isinstance(route, Refused):
                return route
            if await self._link.blocked():
                return _BLOCKED
            some = self._next(route, places)
            await route.send(some, self._window.release)
        finally:
            sent = sum(letter.answer is not None for letter in some)
            for _ in range(sent):
                self._left.popleft()
            for _ in range(places - sent):  # the others are given back when the answer is there
                self._window.release()
        if not some:
            await route.alone(self._left[0].message.id)
        return None

    async def _places(self) -> int:
        """Wait for a place in the window, and take as many as are free and wanted."""
        await self._window.acquire()
        places = 1
        while places < len(self._left) and not self._window.locked():
            await self._window.acquire()
            places += 1
        return places

    def _next(self, route: Route, places: int) -> list[Letter]:
        """Return the next letters that can leave together: no two of one id, and none whose id is in flight."""
        some: list[Letter] = []
        ids: set[str] = set()
        write_bytes = 0
        for letter in islice(self._left, places):
            message_id = letter.message.id
            write_bytes += len(letter.header) + len(letter.message.body)
            if message_id in ids or route.has_in_flight(message_id) or (some and write_bytes > WRITE_BYTES_MAX):
                break
            some.append(letter)
            ids.add(message_id)
        return some

    async def _answers(self) -> None:
        waiting = {letter.answer for letter in self._letters if letter.answer is not None and not letter.answer.done()}
        if waiting:
            await asyncio.wait(waiting)
