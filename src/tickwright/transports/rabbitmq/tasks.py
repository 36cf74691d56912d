"""A task queue on RabbitMQ: messages are handed out while there are slots, then acked, delayed or dead-lettered.

::

    queue ──deliver──▶ ready ──take──▶ taken ──ack──▶ gone
                         ▲               ├──delay──▶ copy in a delay queue, confirmed, then ack
                         └──its time──parked (no copy could be made: RabbitMQ accepts none now)
                                         ├──dead───▶ copy among the dead letters, confirmed, then ack
                                         └──release▶ queue, at once

RabbitMQ counts every delivery that ends without an ack, including a release, and dead-letters a message after eleven of
them. If no copy can delay a message, a release would use these up within a second. So the message is parked here,
unacknowledged, and handed out again after the delay. When the connection is lost, RabbitMQ redelivers all.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import structlog
from aiormq.abc import DeliveredMessage

from tickwright.domain.errors import Rejected
from tickwright.engine.service import LoopService
from tickwright.engine.tasks import is_set_within
from tickwright.observe.metrics import Sample
from tickwright.outbound import ConnectPause
from tickwright.ports.broker import Accepted, Refused, Unknown
from tickwright.ports.ids import monotonic
from tickwright.ports.service import NO_PROBE, Probe
from tickwright.ports.task_queue import Delivery
from tickwright.transports.rabbitmq.connection import (
    CHANNEL_TIMEOUT_S,
    FAILURES,
    Subscription,
    UnackedMessage,
    close_quietly,
    delivery_of,
    losses_as_failures,
)
from tickwright.transports.rabbitmq.dead_letters import RabbitDeadLetters
from tickwright.transports.rabbitmq.forwarding import (
    OUR_HEADERS,
    Copy,
    Forwarder,
    copy_of,
    dead_letter_headers,
    delay_headers,
)
from tickwright.transports.rabbitmq.topology import (
    REDELIVERIES_MAX,
    TASK_KEY,
    QueueTopology,
    declare,
    fanout_names,
    prepare,
    report_exchanges,
    report_names,
)

SLOTS_MAX = 10_000
CHECK_EVERY_S = 0.5
COUNT_EVERY_S = 15.0
PARKED_MAX_S = 60.0
STEADY_S = 5.0
UNACKED_AGE_MAX = timedelta(minutes=15)


class RabbitTaskQueue(LoopService):
    """Implements :class:`tickwright.ports.task_queue.TaskQueue`. It is a service itself.

    Args:
        slots: Unsettled messages at one time, 1 to 10,000: the prefetch.
        unacked_age_max: A parked message is released after this time; well below RabbitMQ's limit of half an hour.

    Attributes:
        queued: Ready messages and dead letters, as RabbitMQ counted them within the last 15 seconds.

    Invariants:
        RMQ-7: a message is acknowledged when nothing is left to do, or its copy is confirmed and was not returned.
        RMQ-8: at most ``slots`` messages are unacknowledged.
        RMQ-9: a delivery is settled at most once, and never after its connection was lost.
    """

    def __init__(
        self,
        url: str,
        names: QueueTopology,
        *,
        slots: int,
        unacked_age_max: timedelta = UNACKED_AGE_MAX,
        probe: Probe = NO_PROBE,
    ) -> None:
        if not 1 <= slots <= SLOTS_MAX:
            raise Rejected("invalid_slots", f"A consumer has 1 to {SLOTS_MAX} slots.")
        super().__init__()
        self.name, self._capability = names.service, names.capability
        self._log = structlog.get_logger(f"tickwright.{names.capability}")
        self._url, self._names, self._slots, self._probe = url, names, slots, probe
        self._held_max_s = unacked_age_max.total_seconds()
        self._forwarder = Forwarder(url, names)
        self._subscription: Subscription | None = None
        self._ready: asyncio.Queue[Delivery] = asyncio.Queue()
        self._parked: dict[Delivery, asyncio.TimerHandle] = {}
        self._pause = ConnectPause()
        self._quiescing = False
        self._count_again_s = 0.0
        self.queued: list[int] | None = None

    @property
    def connected(self) -> bool:
        """Whether messages can arrive."""
        return self._subscription is not None and self._subscription.is_alive() and self._subscription.tag is not None

    @property
    def waiting(self) -> int:
        """Number of messages that have arrived and are not taken."""
        return self._ready.qsize()

    def samples(self) -> Sequence[Sample]:
        """Return the gauges for the metrics of this process."""
        gauges = self._names.gauges
        if gauges is None:
            return []
        own = [Sample(gauges.parked, len(self._parked))]
        if self.queued is None:
            return own
        waiting, dead = self.queued
        return [*own, Sample(gauges.waiting, waiting), Sample("tickwright_dead_letters", dead, (gauges.dead_kind,))]

    async def _work(self) -> None:
        """Consume until stopped; reconnect after a pause of 0.1 to 10 seconds.

        The pause grows with each connection that fails or is lost within five seconds.

        Raises:
            Rejected: ``queue_differs``, ``queue_forbidden``. Permanent until an operator acts.
        """
        try:
            while not self.stopping.is_set():
                self.tick()
                self._reset_pause()
                if (
                    not self._quiescing
                    and not (self._subscription and self._subscription.is_alive())
                    and self._pause.remaining() is None
                ):
                    await self._subscribe()
                await self._count()
                await self._wait()
        finally:
            await self._unsubscribe()

    async def quiesce(self) -> None:
        """Stop consuming, and release the messages that no caller has taken."""
        self._quiescing = True
        subscription = self._subscription
        if subscription is not None and subscription.is_alive() and subscription.tag is not None:
            tag, subscription.tag = subscription.tag, None
            await subscription.send(lambda channel: channel.basic_cancel(tag))
        waiting = [self._ready.get_nowait() for _ in range(self._ready.qsize())]
        for delivery in [*waiting, *self._parked]:
            await self.release(delivery)

    async def stop(self) -> None:
        """Close the connections; RabbitMQ redelivers unacknowledged messages."""
        self._quiescing = True
        self.request_stop()
        await self._unsubscribe()
        await self._forwarder.aclose()

    async def _count(self) -> None:
        """Read the queue sizes. A missing queue closes the channel; the next one declares it again."""
        subscription = self._subscription
        if subscription is None or not subscription.is_alive():
            self.queued = None
        elif self._ticked_s is not None and self._ticked_s >= self._count_again_s:
            self._count_again_s = self._ticked_s + COUNT_EVERY_S
            self.queued = await subscription.counts(self._names.queue, self._names.dead)

    async def _wait(self) -> None:
        subscription = self._subscription
        over = subscription.over if subscription is not None and subscription.is_alive() else self.stopping
        await is_set_within(over, CHECK_EVERY_S)

    def _reset_pause(self) -> None:
        """Reset the pause once a connection has lasted. A connection that is lost at once lengthens it."""
        subscription = self._subscription
        if subscription is not None and subscription.is_alive() and monotonic() - subscription.begun_s >= STEADY_S:
            self._pause.succeeded()

    async def _subscribe(self) -> None:
        await self._unsubscribe()
        try:
            self._subscription = subscription = await Subscription.open(self._url, "tickwright-consume")
            await declare(subscription.channel, self._names)
            await self._consume(subscription)
        except FAILURES as error:
            self._pause.failed()
            self._log.warning(f"{self._capability}.rabbitmq_unavailable", error=type(error).__name__)
            await self._unsubscribe()
            return
        self._pause.failed()  # until the connection has lasted
        self._log.info(f"{self._capability}.consuming", queue=self._names.queue, slots=self._slots)

    async def _consume(self, subscription: Subscription) -> None:
        async def arrived(message: DeliveredMessage) -> None:
            await self._arrived(subscription, message)

        subscription.channel.closing.add_done_callback(lambda _: subscription.over.set())
        subscription.channel.on_consumer_cancel_callbacks.add(
            lambda _: subscription.over.set()
        )  # the queue was deleted
        with losses_as_failures():
            async with asyncio.timeout(CHANNEL_TIMEOUT_S):
                await subscription.channel.basic_qos(prefetch_count=self._slots)
                answer = await subscription.channel.basic_consume(self._names.queue, arrived)
        subscription.tag = answer.consumer_tag
        if self.stopping.is_set() or self._quiescing:
            subscription.over.set()

    async def _unsubscribe(self) -> None:
        subscription, self._subscription = self._subscription, None
        for timer in self._parked.values():
            timer.cancel()
        self._parked.clear()
        if subscription is not None:
            subscription.over.set()
            await close_quietly(subscription.connection)

    async def take(self) -> Delivery:
        """Wait for the next message, even while RabbitMQ is unavailable. A cancelled call takes none."""
        while True:
            delivery = await self._ready.get()
            if delivery.handle.can_settle():
                return delivery

    async def _arrived(self, subscription: Subscription, message: DeliveredMessage) -> None:
        delivery = delivery_of(subscription, message)
        if self._quiescing:
            await self.release(delivery)
        else:
            self._ready.put_nowait(delivery)

    async def ack(self, delivery: Delivery) -> bool:
        """Acknowledge it."""
        message: UnackedMessage = delivery.handle
        return message.can_settle() and await message.ack()

    async def delay(self, delivery: Delivery, by: timedelta) -> bool:
        """Put a copy into a delay queue, or park the message here if that fails. Takes at most ten seconds.

        RabbitMQ counts a copy's deliveries from zero. A header continues the count, so that the limit is reached.
        """
        message: UnackedMessage = delivery.handle
        again, more = delay_headers(delivery)
        if not message.can_settle():
            return False
        if again >= REDELIVERIES_MAX:
            return await self.dead_letter(delivery, "delivery_limit", f"redelivered {again} times and never settled")
        copy = copy_of(delivery.body, message.properties, more, without=OUR_HEADERS)
        if await self._forwarded(message, copy, "", self._names.delay(by)):
            return await message.ack()
        if message.can_settle():
            await self._park(replace(delivery, delays=delivery.delays + 1), by)
        return message.subscription.is_alive()

    async def dead_letter(self, delivery: Delivery, reason: str, text: str) -> bool:
        """Put a copy among the dead letters. If that fails, RabbitMQ dead-letters the message, without the reason."""
        message: UnackedMessage = delivery.handle
        if not message.can_settle():
            return False
        why = dead_letter_headers(reason, text, delays=delivery.delays)
        copy = copy_of(delivery.body, message.properties, why, without=OUR_HEADERS)
        if await self._forwarded(message, copy, self._names.dead, self._names.key):
            return await message.ack()
        if not message.can_settle():
            return False
        self._log.warning(
            f"{self._capability}.dead_lettered_without_reason", message_id=delivery.message_id, reason=reason, text=text
        )
        return await message.reject()

    async def release(self, delivery: Delivery) -> None:
        """Return it to the queue at once. RabbitMQ counts this as a delivery."""
        message: UnackedMessage = delivery.handle
        self._unpark(delivery)
        if message.can_settle():
            await message.requeue()

    async def _forwarded(self, message: UnackedMessage, copy: Copy, exchange: str, routing_key: str) -> bool:
        """Store a copy; return whether it is durable. Meanwhile the original counts as settled."""
        message.settled = True
        outcome: Accepted | Refused | Unknown | None = None
        try:
            outcome = await self._forwarder.forward(copy, exchange, routing_key)
            await self._probe.reached(f"{self._capability}.forwarded_not_acked", message_id=copy.message_id)
        finally:
            message.settled = isinstance(outcome, Accepted)
        if isinstance(outcome, Accepted):
            return True
        self._log.warning(
            f"{self._capability}.not_forwarded", message_id=copy.message_id, to=routing_key, why=outcome.code
        )
        return False

    async def _park(self, delivery: Delivery, by: timedelta) -> None:
        """Hand it out again later, or release it if it has been unacknowledged for too long."""
        message: UnackedMessage = delivery.handle
        if self._quiescing or monotonic() - message.since_s > self._held_max_s:
            await self.release(delivery)
            return
        wait_s = min(max(by.total_seconds(), 1.0), PARKED_MAX_S)
        self._parked[delivery] = asyncio.get_running_loop().call_later(wait_s, self._hand_out_again, delivery)

    def _hand_out_again(self, delivery: Delivery) -> None:
        self._unpark(delivery)
        self._ready.put_nowait(delivery)

    def _unpark(self, delivery: Delivery) -> None:
        timer = self._parked.pop(delivery, None)
        if timer is not None:
            timer.cancel()


# The queues of capabilities in RabbitMQ, as the ports that capabilities use.


class RabbitTaskTransport:
    """A :class:`tickwright.ports.transports.TaskTransport`."""

    def __init__(self, url: str, prefix: str) -> None:
        self._url, self._names = url, fanout_names(prefix)
        self.destination = f"amqp:{self._names.exchange}/{TASK_KEY}"

    async def prepare(self) -> None:
        """Declare the exchange and the queues if they are missing."""
        await prepare(self._url, self._names)

    def queue(self, slots: int) -> RabbitTaskQueue:
        """Return the queue for one consumer."""
        return RabbitTaskQueue(self._url, self._names, slots=slots)

    def dead_letters(self) -> RabbitDeadLetters:
        """Return the queue's dead letters."""
        return RabbitDeadLetters(self._url, self._names)


class RabbitReportTransport:
    """A :class:`tickwright.ports.transports.ReportTransport`; a listener holds ``slots`` announcements at one time."""

    def __init__(self, url: str, prefix: str, *, slots: int) -> None:
        self._url, self._prefix, self._slots = url, prefix, slots
        self._names = report_exchanges(prefix)
        self.everyone, self.exchange = f"amqp:{self._names.broadcast}/", self._names.exchange

    async def prepare(self, listeners: Sequence[str]) -> None:
        """Declare the exchanges and the queues of these listeners."""
        await prepare(self._url, self._names, *(report_names(self._prefix, name) for name in listeners))

    def queue(self, listener: str) -> RabbitTaskQueue:
        """Return the queue of one listener."""
        return RabbitTaskQueue(self._url, report_names(self._prefix, listener), slots=self._slots)

    def dead_letters(self) -> RabbitDeadLetters:
        """Return the dead letters of announcements."""
        return RabbitDeadLetters(self._url, self._names)
