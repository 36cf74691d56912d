"""The publishing connection to RabbitMQ: opened on demand, reopened after a pause; every wait is bounded."""

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
from tickwright.transports.rabbitmq.channel import ConfirmObserver, ExchangeChannel

CONNECT_TIMEOUT_S = 5.0
CHANNEL_TIMEOUT_S = 5.0
CLOSE_TIMEOUT_S = 2.0
HEARTBEAT_S = 15
DRAIN_S_MAX = 30.0
CHANNELS_MAX = 128

FAILURES = (AMQPError, RuntimeError, OSError)  # aiormq raises RuntimeError for a closed connection or channel
T = TypeVar("T")
_log = structlog.get_logger("tickwright.rabbitmq")


def unavailable(wait: timedelta | None = None) -> Refused:
    """Return the outcome while there is no connection."""
    reason = "There is no connection to RabbitMQ; nothing was sent."
    return Refused("broker_unavailable", reason, retry_after=wait)


@contextmanager
def losses_as_failures() -> Iterator[None]:
    """Raise one of ``FAILURES`` where the library cancels a call or raises ``Exception`` for a lost connection."""
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
    """Opens the socket of one connection and keeps it for ``abort``."""

    def __init__(self, inner: TransportFactory) -> None:
        self._inner = inner
        self._writer: asyncio.StreamWriter | None = None

    async def create(self, url: URL, **options: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open the socket."""
        reader, self._writer = await self._inner.create(url, **options)
        return reader, self._writer

    def abort(self) -> None:
        """Abort the socket, with all unsent data. Repeated calls are harmless."""
        if self._writer is not None:
            self._writer.transport.abort()


class _Connection(aio_pika.Connection):
    """A connection that can be aborted: RabbitMQ does not answer a close on a connection that it does not read."""

    def __init__(self, url: URL, *arguments: Any, **options: Any) -> None:
        super().__init__(url, *arguments, **options)
        self.sockets = _Sockets(TLSTransportFactory() if url.scheme == "amqps" else TCPTransportFactory())
        self.kwargs["transport_factory"] = self.sockets


class Publisher:
    """Owns one connection and one channel per exchange.

    It does not use aio-pika's robust connection: while that reconnects, a publish waits or fails, but a relay needs
    *refused, nothing was sent* at once.

    Args:
        watcher: Every channel notifies it.
        channels_max: Above this number, idle channels are closed.
        full: The answer if no channel is idle; ``None`` opens another one anyway.
    """

    def __init__(
        self,
        url: str,
        watcher: ConfirmObserver,
        *,
        name: str = "tickwright-publish",
        channels_max: int = CHANNELS_MAX,
        full: Refused | None = None,
    ) -> None:
        address = URL(url)
        self._url = address if "heartbeat" in address.query else address.update_query(heartbeat=HEARTBEAT_S)
        self._watcher, self._name, self._routes_max, self._full = watcher, name, channels_max, full
        self._connection: _Connection | None = None
        self._connecting: asyncio.Task[_Connection | Refused] | None = None
        self._channels: dict[tuple[str, str | None], ExchangeChannel] = {}
        self._opening: dict[tuple[str, str | None], asyncio.Task[ExchangeChannel | Refused]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._pause = Pause()

    async def channel(self, exchange: str, key: str | None = None) -> ExchangeChannel | Refused:
        """Return an open channel, or a separate one for ``key``. A deadline interrupts the wait, not the opening."""
        channel = self._channels.get((exchange, key))
        if channel is not None and channel.alive and self._alive(self._connection):
            return channel
        opening = self._opening.get((exchange, key))
        if opening is None:
            opening = self._opening[exchange, key] = _start(self._open(exchange, key))
        return await asyncio.shield(opening)

    def has(self, channel: ExchangeChannel) -> bool:
        """Whether this channel is in use."""
        return any(one is channel for one in self._channels.values())

    def drop(self, exchange: str, key: str | None = None) -> None:
        """Close a channel; the next call of ``channel`` opens a new one."""
        channel = self._channels.pop((exchange, key), None)
        if channel is not None:
            self.start(_close(channel))

    def retire(self) -> None:
        """Use another connection from now on. The old one closes after its callers have their answers or gave up."""
        connection, self._connection = self._connection, None
        channels = [*self._channels.values()]
        self._channels.clear()
        for channel in channels:
            channel.retire()
        if connection is not None:
            _log.warning("rabbitmq.connection_retired", connection=self._name)
            self.start(_drain(connection, channels))

    async def connection(self) -> _Connection | Refused:
        """Return the open connection, or a refusal while RabbitMQ is unavailable."""
        if self._connection is not None and self._alive(self._connection):
            return self._connection
        if self._connecting is None:
            wait = self._pause.remaining()
            if wait is not None:
                return unavailable(wait)
            self._connecting = _start(self._connect())
        return await asyncio.shield(self._connecting)

    async def blocked(self) -> bool:
        """Whether RabbitMQ accepts no messages now (memory or disk alarm)."""
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
        """Close the connection within two seconds. Repeated calls are harmless."""
        under_way: set[asyncio.Task[Any]] = {*self._opening.values(), *self._closing}
        if self._connecting is not None:
            under_way.add(self._connecting)
        for task in under_way:
            task.cancel()
        if under_way:
            await asyncio.wait(under_way, timeout=CLOSE_TIMEOUT_S)
        connection, self._connection = self._connection, None
        self._channels.clear()
        if connection is not None:
            await _close(connection)

    @staticmethod
    def _alive(connection: AbstractConnection | None) -> bool:
        """Check the layer below too: aio-pika's flag does not change when the socket breaks."""
        if connection is None or connection.is_closed or connection.transport is None:
            return False
        return not connection.transport.connection.is_closed

    async def _connect(self) -> _Connection | Refused:
        try:
            if self._connection is not None:
                old, self._connection = self._connection, None
                self.start(_close(old))
            with losses_as_failures():
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

    async def _open(self, exchange: str, key: str | None) -> ExchangeChannel | Refused:
        try:
            while True:
                connection = await self.connection()
                if isinstance(connection, Refused):
                    return connection
                if not self._make_room() and self._full is not None:
                    return self._full
                try:
                    with losses_as_failures():
                        async with asyncio.timeout(CHANNEL_TIMEOUT_S):
                            channel = await ExchangeChannel.open(connection, exchange, self._watcher)
                except FAILURES as error:
                    if connection is not self._connection:
                        continue  # it was retired during the call
                    if isinstance(error, TimeoutError):
                        self.retire()
                    return unavailable()
                if isinstance(channel, Refused) or connection is self._connection:
                    break
        finally:
            del self._opening[exchange, key]
        if isinstance(channel, ExchangeChannel):
            self._channels[exchange, key] = channel
        return channel

    def _make_room(self) -> bool:
        while len(self._channels) >= self._routes_max:
            idle = next((name for name, channel in self._channels.items() if channel.idle), None)
            if idle is None:
                return False
            self.start(_close(self._channels.pop(idle)))
        return True

    def start(self, closing: Coroutine[Any, Any, None]) -> None:
        """Run ``closing`` in the background; ``aclose`` waits for it, bounded."""
        task = _start(closing)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


def _start(work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
    return asyncio.get_running_loop().create_task(work)


async def _drain(connection: _Connection, channels: Sequence[ExchangeChannel]) -> None:
    """Wait for outstanding answers, then close."""
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S_MAX):
                while waited := [answer for channel in channels for answer in channel.in_flight]:
                    await asyncio.wait(waited)
        await _close(connection)
    finally:
        connection.sockets.abort()


async def _close(thing: _Connection | ExchangeChannel) -> None:
    try:
        with losses_as_failures():
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await (thing.aclose() if isinstance(thing, ExchangeChannel) else thing.close())
    except FAILURES:
        pass
    finally:
        if isinstance(thing, _Connection):
            thing.sockets.abort()
