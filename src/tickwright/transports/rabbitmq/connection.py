"""The connection to RabbitMQ: made when needed, remade after a pause, never awaited without a bound."""

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, TypeVar

import aio_pika
import structlog
from aio_pika.abc import AbstractConnection
from aio_pika.exceptions import AMQPError
from aiormq.connection import TCPTransportFactory, TLSTransportFactory, TransportFactory
from yarl import URL

from tickwright.outbound import Pause
from tickwright.ports.broker import Refused
from tickwright.transports.rabbitmq.channel import Route, Watcher

CONNECT_TIMEOUT_S = 5.0
CHANNEL_TIMEOUT_S = 5.0
CLOSE_TIMEOUT_S = 2.0
HEARTBEAT_S = 15
DRAIN_S_MAX = 30.0
ROUTES_MAX = 128

FAILURES = (AMQPError, RuntimeError, OSError)  # a closed connection or channel is a RuntimeError in aiormq
T = TypeVar("T")
_log = structlog.get_logger("tickwright.rabbitmq")


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


class _Sockets(TransportFactory):
    """Makes the socket of one connection and keeps it, so that it can be cut off."""

    def __init__(self, inner: TransportFactory) -> None:
        self._inner = inner
        self._writer: asyncio.StreamWriter | None = None

    async def create(self, url: URL, **options: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Make it."""
        reader, self._writer = await self._inner.create(url, **options)
        return reader, self._writer

    def abort(self) -> None:
        """Drop it, with whatever was not sent yet. Twice is harmless."""
        if self._writer is not None:
            self._writer.transport.abort()


class _Connection(aio_pika.Connection):
    """One that can be cut off: RabbitMQ answers no farewell on a connection that it does not read."""

    def __init__(self, url: URL, *arguments: Any, **options: Any) -> None:
        super().__init__(url, *arguments, **options)
        self.sockets = _Sockets(TLSTransportFactory() if url.scheme == "amqps" else TCPTransportFactory())
        self.kwargs["transport_factory"] = self.sockets


class RabbitLink:
    """Owns one connection in use, and one channel per route.

    aio-pika's robust connection is not used: it repairs itself at its own pace and lets a publish
    wait or fail meanwhile, whereas a relay wants to hear *refused, nothing was sent* at once.

    Args:
        url: Of RabbitMQ.
        watcher: Of every route.
        name: What RabbitMQ calls the connection.
        routes_max: Idle routes make room for others beyond it.
        full: The answer where none is idle; ``None`` opens another route all the same.
    """

    def __init__(
        self,
        url: str,
        watcher: Watcher,
        *,
        name: str = "tickwright-publish",
        routes_max: int = ROUTES_MAX,
        full: Refused | None = None,
    ) -> None:
        address = URL(url)
        self._url = address if "heartbeat" in address.query else address.update_query(heartbeat=HEARTBEAT_S)
        self._watcher, self._name, self._routes_max, self._full = watcher, name, routes_max, full
        self._connection: _Connection | None = None
        self._connecting: asyncio.Task[_Connection | Refused] | None = None
        self._routes: dict[tuple[str, str | None], Route] = {}
        self._opening: dict[tuple[str, str | None], asyncio.Task[Route | Refused]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._pause = Pause()

    async def route(self, exchange: str, key: str | None = None) -> Route | Refused:
        """Return an open route; the caller's deadline may interrupt the wait, not the making.

        Args:
            exchange: Where it leads.
            key: A channel of its own for this routing key.
        """
        route = self._routes.get((exchange, key))
        if route is not None and route.alive and self._alive(self._connection):
            return route
        opening = self._opening.get((exchange, key))
        if opening is None:
            opening = self._opening[exchange, key] = _start(self._open(exchange, key))
        return await asyncio.shield(opening)

    def has(self, route: Route) -> bool:
        """Whether messages to that exchange go over this route now."""
        return any(one is route for one in self._routes.values())

    def drop(self, exchange: str, key: str | None = None) -> None:
        """Close a route; the next one has a new channel."""
        route = self._routes.pop((exchange, key), None)
        if route is not None:
            self.later(_close(route))

    def retire(self) -> None:
        """Use another connection from now on. This one ends once its callers have their answers, or gave up."""
        connection, self._connection = self._connection, None
        routes = [*self._routes.values()]
        self._routes.clear()
        for route in routes:
            route.retire()
        if connection is not None:
            _log.warning("rabbitmq.connection_retired", connection=self._name)
            self.later(_drain(connection, routes))

    async def connection(self) -> _Connection | Refused:
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
        under_way: set[asyncio.Task[Any]] = {*self._opening.values(), *self._closing}
        if self._connecting is not None:
            under_way.add(self._connecting)
        for task in under_way:
            task.cancel()
        if under_way:
            await asyncio.wait(under_way, timeout=CLOSE_TIMEOUT_S)
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

    async def _connect(self) -> _Connection | Refused:
        try:
            if self._connection is not None:
                old, self._connection = self._connection, None
                self.later(_close(old))
            with lost_is_a_failure():
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    self._connection = await aio_pika.connect(
                        self._url, client_properties={"connection_name": self._name}, connection_class=_Connection
                    )
        except FAILURES:
            self._pause.failed()
            return unavailable()
        finally:
            self._connecting = None
        self._pause.succeeded()
        return self._connection

    async def _open(self, exchange: str, key: str | None) -> Route | Refused:
        try:
            while True:
                connection = await self.connection()
                if isinstance(connection, Refused):
                    return connection
                if not self._make_room() and self._full is not None:
                    return self._full
                try:
                    with lost_is_a_failure():
                        async with asyncio.timeout(CHANNEL_TIMEOUT_S):
                            route = await Route.open(connection, exchange, self._watcher)
                except FAILURES as error:
                    if connection is not self._connection:
                        continue  # it was retired meanwhile
                    if isinstance(error, TimeoutError):
                        self.retire()
                    return unavailable()
                if isinstance(route, Refused) or connection is self._connection:
                    break
        finally:
            del self._opening[exchange, key]
        if isinstance(route, Route):
            self._routes[exchange, key] = route
        return route

    def _make_room(self) -> bool:
        while len(self._routes) >= self._routes_max:
            idle = next((name for name, route in self._routes.items() if route.idle), None)
            if idle is None:
                return False
            self.later(_close(self._routes.pop(idle)))
        return True

    def later(self, closing: Coroutine[Any, Any, None]) -> None:
        """Do it beside everything else; the end waits for it a little."""
        task = _start(closing)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


def _start(work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
    return asyncio.get_running_loop().create_task(work)


async def _drain(connection: _Connection, routes: Sequence[Route]) -> None:
    """Wait for what callers wait for, then close."""
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S_MAX):
                while waited := [answer for route in routes for answer in route.flying]:
                    await asyncio.wait(waited)
        await _close(connection)
    finally:
        connection.sockets.abort()


async def _close(thing: _Connection | Route) -> None:
    try:
        with lost_is_a_failure():
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await (thing.aclose() if isinstance(thing, Route) else thing.close())
    except FAILURES:
        pass
    finally:
        if isinstance(thing, _Connection):
            thing.sockets.abort()
