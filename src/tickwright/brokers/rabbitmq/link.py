"""The connection to RabbitMQ: made when needed, remade after a pause, never awaited without a bound."""

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import aio_pika
from aio_pika.abc import AbstractConnection
from aio_pika.exceptions import AMQPError
from yarl import URL

from tickwright.brokers.rabbitmq.route import Route
from tickwright.outbound import Pause
from tickwright.ports.broker import Refused

CONNECT_TIMEOUT_S = 5.0
CHANNEL_TIMEOUT_S = 5.0
CLOSE_TIMEOUT_S = 2.0
HEARTBEAT_S = 15
ROUTES_MAX = 128

FAILURES = (AMQPError, RuntimeError, OSError)  # a closed connection or channel is a RuntimeError in aiormq
T = TypeVar("T")


def unavailable(wait: timedelta | None = None) -> Refused:
    """Return the outcome while there is no connection."""
    reason = "There is no connection to RabbitMQ; nothing was sent."
    return Refused("broker_unavailable", reason, retry_after=wait)


@contextmanager
def lost_is_a_failure() -> Iterator[None]:
    """Make what the library ends the calls of a lost connection with one of ``FAILURES``.

    That is a cancellation nobody asked for, or a bare ``Exception`` where it has no reason to tell.
    """
    try:
        yield
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise ConnectionError("The connection to RabbitMQ was lost.") from None
    except Exception as error:
        if type(error) is Exception:
            raise ConnectionError("The connection to RabbitMQ was lost.") from error
        raise


class RabbitLink:
    """Owns one connection and one channel per exchange.

    aio-pika's robust connection is not used: it repairs itself at its own pace and lets a publish
    wait or fail meanwhile, whereas a relay wants to hear *refused, nothing was sent* at once.
    """

    def __init__(self, url: str) -> None:
        address = URL(url)
        self._url = address if "heartbeat" in address.query else address.update_query(heartbeat=HEARTBEAT_S)
        self._connection: AbstractConnection | None = None
        self._connecting: asyncio.Task[AbstractConnection | Refused] | None = None
        self._routes: dict[str, Route] = {}
        self._opening: dict[str, asyncio.Task[Route | Refused]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._pause = Pause()

    async def route(self, exchange: str) -> Route | Refused:
        """Return an open route; the caller's deadline may interrupt the wait, not the making."""
        route = self._routes.get(exchange)
        if route is not None and route.alive and self._alive(self._connection):
            return route
        opening = self._opening.get(exchange)
        if opening is None:
            opening = self._opening[exchange] = _start(self._open(exchange))
        return await asyncio.shield(opening)

    async def connection(self) -> AbstractConnection | Refused:
        """Return the live connection, or the refusal while RabbitMQ is away."""
        if self._connection is not None and self._alive(self._connection):
            return self._connection
        if self._connecting is None:
            wait = self._pause.remaining()
            if wait is not None:
                return unavailable(wait)
            self._connecting = _start(self._connect())
        return await asyncio.shield(self._connecting)

    async def blocked(self) -> bool:
        """Whether RabbitMQ said that it takes nothing now (memory or disk alarm)."""
        transport = None if self._connection is None else self._connection.transport
        if transport is None:
            return False
        try:
            async with asyncio.timeout(0):
                await transport.connection.ready()
        except TimeoutError:
            return True
        return False

    async def aclose(self) -> None:
        """Close the connection within two seconds. Twice is harmless."""
        making = {*self._opening.values()} | ({self._connecting} if self._connecting else set())
        for task in making:
            task.cancel()
        if making or self._closing:
            await asyncio.wait({*making, *self._closing}, timeout=CLOSE_TIMEOUT_S)
        connection, self._connection = self._connection, None
        self._routes.clear()
        if connection is not None:
            await _close(connection)

    @staticmethod
    def _alive(connection: AbstractConnection | None) -> bool:
        """Ask the layer below as well: aio-pika's own flag stays up when the socket breaks."""
        if connection is None or connection.is_closed or connection.transport is None:
            return False
        return not connection.transport.connection.is_closed

    async def _connect(self) -> AbstractConnection | Refused:
        try:
            if self._connection is not None:
                old, self._connection = self._connection, None
                self._later(_close(old))
            with lost_is_a_failure():
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    self._connection = await aio_pika.connect(
                        self._url, client_properties={"connection_name": "tickwright-publish"}
                    )
        except FAILURES:
            self._pause.failed()
            return unavailable()
        finally:
            self._connecting = None
        self._pause.succeeded()
        return self._connection

    async def _open(self, exchange: str) -> Route | Refused:
        try:
            connection = await self.connection()
            if isinstance(connection, Refused):
                return connection
            with lost_is_a_failure():
                async with asyncio.timeout(CHANNEL_TIMEOUT_S):
                    route = await Route.open(connection, exchange)
        except FAILURES:
            return unavailable()
        finally:
            del self._opening[exchange]
        if isinstance(route, Route):
            self._routes.pop(exchange, None)
            self._make_room()
            self._routes[exchange] = route
        return route

    def _make_room(self) -> None:
        while len(self._routes) >= ROUTES_MAX:
            idle = next((name for name, route in self._routes.items() if route.idle), None)
            if idle is None:
                return
            self._later(_close(self._routes.pop(idle)))

    def _later(self, closing: Coroutine[Any, Any, None]) -> None:
        task = _start(closing)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


def _start(work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
    return asyncio.get_running_loop().create_task(work)


async def _close(thing: AbstractConnection | Route) -> None:
    try:
        with lost_is_a_failure():
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await (thing.aclose() if isinstance(thing, Route) else thing.close())
    except FAILURES:
        pass
