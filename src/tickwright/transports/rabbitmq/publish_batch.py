"""Messages of one call for one exchange with one deadline: sent as fast as confirms make room.

Many leave in one write, as many as there is room for when room is made; so the broker confirms many at once, and
neither side does for each message what it can do for hundreds.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Sequence

from tickwright.ports.broker import Outcome, Refused, Unknown
from tickwright.transports.rabbitmq.channel import NO_CONFIRM, Letter
from tickwright.transports.rabbitmq.connection import RabbitLink
from tickwright.transports.rabbitmq.late_confirms import BLOCKED, SilentDestinations

_NOT_SENT = Refused("broker_busy", "RabbitMQ could not be handed the message in time; nothing was sent.")
_LATE = Unknown("timeout", "No confirm within the timeout; it may have been taken.")


class Lot:
    """Sends letters once.

    Args:
        link: The connection.
        silent: Destinations whose messages do not go over it.
        window: One place for each message that waits for a confirm and is not late, of every sender.
        exchange: Of all letters.
        letters: At least one.
    """

    def __init__(
        self,
        link: RabbitLink,
        silent: SilentDestinations,
        window: asyncio.Semaphore,
        exchange: str,
        letters: Sequence[Letter],
    ) -> None:
        self._link, self._silent = link, silent
        self._aside: defaultdict[str, deque[Letter]] = defaultdict(deque)
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
        return [
            letter.refused or unsent if letter.answer is None else letter.outcome() or unconfirmed
            for letter in self._letters
        ]

    async def _send_all(self) -> Refused | None:
        """Send until nothing is left, or return why the rest cannot be sent. Silent destinations are the last."""
        while self._left:
            self._set_aside()
            while self._left:
                refused = await self._send_some()
                if refused is not None:
                    return refused
            aside, self._aside = self._aside, defaultdict(deque)
            await asyncio.gather(*(self._silent.send(self._exchange, *one) for one in aside.items()))
            self._left.extend(letter for letters in aside.values() for letter in letters)
        return None

    def _set_aside(self) -> None:
        if not self._silent:
            return
        left, self._left = self._left, deque()
        for letter in left:
            silent = self._silent.has(self._exchange, letter.routing_key)
            (self._aside[letter.routing_key] if silent else self._left).append(letter)

    async def _send_some(self) -> Refused | None:
        places, some = await self._places(), list[Letter]()
        try:
            route = await self._link.route(self._exchange)
            if isinstance(route, Refused):
                return route
            if await self._link.blocked():
                return BLOCKED
            self._set_aside()  # some fell silent meanwhile
            some = route.next_of(self._left, places)
            await route.send(some, self._window.release)
        finally:
            sent = sum(letter.answer is not None for letter in some)
            for _ in range(sent):
                self._left.popleft()
            for _ in range(places - sent):  # the others are given back when the answer is there
                self._window.release()
        if self._left and not some:
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

    async def _answers(self) -> None:
        waiting = {letter.answer for letter in self._letters if letter.answer is not None and not letter.answer.done()}
        if waiting:
            await asyncio.wait(waiting)
