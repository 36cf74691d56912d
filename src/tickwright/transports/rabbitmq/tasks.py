"""Messages from a queue of ours: handed out while there are slots, and put back, delayed or buried by copies.

::

    queue ──deliver──▶ ready ──take──▶ held ──ack──▶ gone
                         ▲               ├──delay──▶ copy in a delay queue, confirmed, then ack
                         └──its time──parked (no copy could be made: RabbitMQ takes nothing now)
                                         ├──bury───▶ copy among the dead letters, confirmed, then ack
                                         └──release▶ queue, at once

RabbitMQ counts every delivery that ended without an ack, also a release, and buries a message after eleven of them. So
what cannot be delayed by a copy is not released, which would spend them within a second: it is parked here,
unacknowledged, and handed out again when its time has come. With the connection all of them are void, and come again.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

import structlog
from aiormq.abc import DeliveredMessage

from tickwright.domain.errors import Rejected
from tickwright.observe.metrics import Sample
from tickwright.outbound import Pause
from tickwright.ports.broker import Accepted, Refused, Unknown
from tickwright.ports.ids import monotonic
from tickwright.ports.probe import NO_PROBE, Probe
from tickwright.ports.task_queue import Delivery
from tickwright.transports.rabbitmq.connection import CHANNEL_TIMEOUT_S, FAILURES, lost_is_a_failure
from tickwright.transports.rabbitmq.forwarding import (
    OUR_HEADERS,
    Copy,
    Forwarder,
    copy_of,
    counts_for_a_delay,
    words_for_the_dead,
)
from tickwright.transports.rabbitmq.raw_connection import Held, Life, delivery_of, hang_up
from tickwright.transports.rabbitmq.topology import REDELIVERIES_MAX, QueueNames, declare

SLOTS_MAX = 10_000
LOOK_S = 0.5
COUNT_EVERY_S = 15.0
PARKED_MAX_S = 60.0
STEADY_S = 5.0
HELD_MAX = timedelta(minutes=15)


class RabbitTaskQueue:
    """Implements :class:`tickwright.ports.task_queue.TaskQueue` on a queue of ours; a service itself.

    Args:
        names: What queue, delays and dead letters are called, and the words for them.
        slots: Messages in hand at a time, 1 to 10,000: the prefetch, so that none waits here while another is idle.
        held_max: A message that was parked for so long is given back; well below the half hour that RabbitMQ waits.

    Attributes:
        queued: Messages in the queue that nobody holds, and dead letters, by the broker's count of the last 15 seconds.

    Invariants:
        RMQ-7: a message is acknowledged when nothing is left to do, or its copy is confirmed and was not returned.
        RMQ-8: at most ``slots`` messages are away from the queue.
        RMQ-9: nothing is said twice about a delivery, and nothing about one of a lost connection.
    """

    def __init__(
        self, url: str, names: QueueNames, *, slots: int, held_max: timedelta = HELD_MAX, probe: Probe = NO_PROBE
    ) -> None:
        if not 1 <= slots <= SLOTS_MAX:
            raise Rejected("invalid_slots", f"A consumer has 1 to {SLOTS_MAX} slots.")
        self.name, self._word = names.service, names.capability
        self._log = structlog.get_logger(f"tickwright.{names.capability}")
        self._url, self._names, self._slots, self._probe = url, names, slots, probe
        self._held_max_s = held_max.total_seconds()
        self._forwarder = Forwarder(url, names)
        self._life: Life | None = None
        self._ready: asyncio.Queue[Delivery] = asyncio.Queue()
        self._parked: dict[Delivery, asyncio.TimerHandle] = {}
        self._pause = Pause()
        self._quiet = False
        self._stopping = asyncio.Event()
        self._ticked_s: float | None = None
        self._count_again_s = 0.0
        self.queued: list[int] | None = None

    @property
    def connected(self) -> bool:
        """Whether messages can come."""
        return self._life is not None and self._life.is_alive() and self._life.tag is not None

    @property
    def waiting(self) -> int:
        """How many messages are here that nobody has taken yet."""
        return self._ready.qsize()

    def samples(self) -> Sequence[Sample]:
        """Return what there is to see, for the metrics of its process."""
        gauges = self._names.gauges
        if gauges is None:
            return []
        own = [Sample(gauges.parked, len(self._parked))]
        if self.queued is None:
            return own
        waiting, dead = self.queued
        return [*own, Sample(gauges.waiting, waiting), Sample("tickwright_dead_letters", dead, (gauges.dead_kind,))]

    # ------------------------------------------------------------------ service

    async def run(self) -> None:
        """Consume until stopped; after a loss, again after a pause of 0.1 to 10 seconds.

        The pause grows with connections that could not be made and with those that were lost within five seconds.

        Raises:
            Rejected: ``queue_differs``, ``queue_forbidden``: somebody has to change something.
        """
        try:
            while not self._stopping.is_set():
                self._ticked_s = monotonic()
                self._forget_failures()
                if not self._quiet and not (self._life and self._life.is_alive()) and self._pause.remaining() is None:
                    await self._begin()
                await self._count()
                await self._look_again()
        finally:
            await self._end_life()

    async def quiesce(self) -> None:
        """Take nothing more from the queue, and give back what nobody has taken from here."""
        self._quiet = True
        life = self._life
        if life is not None and life.is_alive() and life.tag is not None:
            tag, life.tag = life.tag, None
            await life.say(lambda channel: channel.basic_cancel(tag))
        waiting = [self._ready.get_nowait() for _ in range(self._ready.qsize())]
        for delivery in [*waiting, *self._parked]:
            await self.release(delivery)

    async def stop(self) -> None:
        """Close the connections; RabbitMQ hands out again what was not acknowledged."""
        self._quiet = True
        self._stopping.set()
        await self._end_life()
        await self._forwarder.aclose()

    def last_tick_age_s(self) -> float | None:
        """Seconds since the connection was looked after."""
        return None if self._ticked_s is None else monotonic() - self._ticked_s

    async def _count(self) -> None:
        """Ask how many messages there are; a queue that is gone costs the channel, and is made with the next one."""
        life = self._life
        if life is None or not life.is_alive():
            self.queued = None
        elif self._ticked_s is not None and self._ticked_s >= self._count_again_s:
            self._count_again_s = self._ticked_s + COUNT_EVERY_S
            self.queued = await life.counts(self._names.queue, self._names.dead)

    async def _look_again(self) -> None:
        life = self._life
        over = life.over if life is not None and life.is_alive() else self._stopping
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_S):
                await over.wait()

    def _forget_failures(self) -> None:
        """End the pauses once a connection has lasted: one that is lost at once costs what it was made for."""
        life = self._life
        if life is not None and life.is_alive() and monotonic() - life.begun_s >= STEADY_S:
            self._pause.succeeded()

    async def _begin(self) -> None:
        await self._end_life()
        try:
            self._life = life = await Life.begin(self._url, "tickwright-consume")
            await declare(life.channel, self._names)
            await self._consume(life)
        except FAILURES as error:
            self._pause.failed()
            self._log.warning(f"{self._word}.rabbitmq_away", error=type(error).__name__)
            await self._end_life()
            return
        self._pause.failed()  # until it has lasted
        self._log.info(f"{self._word}.consuming", queue=self._names.queue, slots=self._slots)

    async def _consume(self, life: Life) -> None:
        async def arrived(message: DeliveredMessage) -> None:
            await self._arrived(life, message)

        life.channel.closing.add_done_callback(lambda _: life.over.set())
        life.channel.on_consumer_cancel_callbacks.add(lambda _: life.over.set())  # the queue was deleted
        with lost_is_a_failure():
            async with asyncio.timeout(CHANNEL_TIMEOUT_S):
                await life.channel.basic_qos(prefetch_count=self._slots)
                answer = await life.channel.basic_consume(self._names.queue, arrived)
        life.tag = answer.consumer_tag
        if self._stopping.is_set() or self._quiet:
            life.over.set()

    async def _end_life(self) -> None:
        life, self._life = self._life, None
        for timer in self._parked.values():
            timer.cancel()
        self._parked.clear()
        if life is not None:
            life.over.set()
            await hang_up(life.connection)

    # ------------------------------------------------------------------ out

    async def take(self) -> Delivery:
        """Wait for the next message, however long RabbitMQ is away. A cancelled call takes none."""
        while True:
            delivery = await self._ready.get()
            if delivery.handle.is_ours():
                return delivery

    async def _arrived(self, life: Life, message: DeliveredMessage) -> None:
        delivery = delivery_of(life, message)
        if self._quiet:
            await self.release(delivery)
        else:
            self._ready.put_nowait(delivery)

    # ------------------------------------------------------------------ and back

    async def ack(self, delivery: Delivery) -> bool:
        """Say that nothing is left to do."""
        held: Held = delivery.handle
        return held.is_ours() and await held.ack()

    async def delay(self, delivery: Delivery, by: timedelta) -> bool:
        """Put a copy into a delay queue; park the message here where that cannot be done now. Ten seconds at most.

        RabbitMQ counts a copy's deliveries from the start; they are counted on here, or the limit would never be met.
        """
        held: Held = delivery.handle
        again, more = counts_for_a_delay(delivery)
        if not held.is_ours():
            return False
        if again >= REDELIVERIES_MAX:
            return await self.dead_letter(delivery, "delivery_limit", f"came again {again} times without a word")
        copy = copy_of(delivery.body, held.properties, more, without=OUR_HEADERS)
        if await self._forwarded(held, copy, "", self._names.delay(by)):
            return await held.ack()
        if held.is_ours():
            await self._park(replace(delivery, delays=delivery.delays + 1), by)
        return held.life.is_alive()

    async def dead_letter(self, delivery: Delivery, reason: str, text: str) -> bool:
        """Put a copy among the dead letters; where that cannot be done, RabbitMQ moves the message, without words."""
        held: Held = delivery.handle
        if not held.is_ours():
            return False
        why = words_for_the_dead(reason, text, delays=delivery.delays)
        copy = copy_of(delivery.body, held.properties, why, without=OUR_HEADERS)
        if await self._forwarded(held, copy, self._names.dead, self._names.key):
            return await held.ack()
        if not held.is_ours():
            return False
        self._log.warning(
            f"{self._word}.buried_without_words", message_id=delivery.message_id, reason=reason, text=text
        )
        return await held.reject()

    async def release(self, delivery: Delivery) -> None:
        """Give it back at once. RabbitMQ counts this as a delivery."""
        held: Held = delivery.handle
        self._unpark(delivery)
        if held.is_ours():
            await held.give_back()

    async def _forwarded(self, held: Held, copy: Copy, exchange: str, routing_key: str) -> bool:
        """Whether the copy is kept durably. Nobody else says anything about the original meanwhile."""
        held.settled = True
        outcome: Accepted | Refused | Unknown | None = None
        try:
            outcome = await self._forwarder.forward(copy, exchange, routing_key)
            await self._probe.reached(f"{self._word}.forwarded_not_acked", message_id=copy.message_id)
        finally:
            held.settled = isinstance(outcome, Accepted)
        if isinstance(outcome, Accepted):
            return True
        self._log.warning(f"{self._word}.not_forwarded", message_id=copy.message_id, to=routing_key, why=outcome.code)
        return False

    async def _park(self, delivery: Delivery, by: timedelta) -> None:
        """Hand it out again later, for as long as RabbitMQ may wait for an acknowledgement."""
        held: Held = delivery.handle
        if self._quiet or monotonic() - held.since_s > self._held_max_s:
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
