"""Kafka topics as destinations: idempotent publishes acknowledged by every replica, one outcome per message.

The delivery report decides. *Accepted* means that all in-sync replicas have the record. While no broker is reachable or
the topic is missing, messages are refused at once and fill no queue. Delivery is at least once: a retry can publish the
same message again, under the same ``event_id``. Polls use ``transactions.py`` instead.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar

from confluent_kafka import KafkaException

from tickwright.domain.errors import Rejected
from tickwright.domain.targets import KafkaTarget, parse_target
from tickwright.outbound import ConnectPause
from tickwright.ports.broker import Accepted, Message, Outcome, Refused, Unknown
from tickwright.ports.ids import monotonic
from tickwright.transports.kafka.config import KafkaConfig, log
from tickwright.transports.kafka.producer import (
    BYTES_MAX,
    CLOSE_TIMEOUT_S,
    TOO_LARGE,
    WAITING_KBYTES_MAX,
    WAITING_MAX,
    PolledProducer,
    QueueShares,
    Report,
    StalledPartitions,
    outcome_of_report,
    size_of,
)

TEXT_BYTES_MAX = 255
KEY_BYTES_MAX = 1024 * 4
READY_WITHIN_S = 1.0
TOPICS_MAX = 4096

T = TypeVar("T")

_CLOSED = Refused("broker_closed", "This broker was closed; nothing was sent.")
_NOT_SENT = Refused("broker_busy", "The producer's queue had no room in time; nothing was sent.")
_LATE = Unknown("timeout", "No acknowledgement within the timeout; it may have been taken.")


def unavailable(wait: timedelta | None = None) -> Refused:
    """Return the outcome while no broker is reachable."""
    return Refused("broker_unavailable", "No Kafka broker answers; nothing was sent.", retry_after=wait)


class KafkaBroker:
    """Publishes to topics.

    Raises:
        Rejected: ``kafka_unsafe_option``. Permanent.

    Invariants:
        KFK-3: at most 10,000 messages and 64 MiB wait for an acknowledgement at one time.
        KFK-7: a stalled topic never fills the queue; messages without room wait within their timeout.
        KFK-4: a publish ends within ``message.timeout``, whatever Kafka does.
    """

    schemes = frozenset({"kafka"})

    def __init__(self, settings: KafkaConfig) -> None:
        settings.check_options()
        self._settings = settings
        self._producers: dict[bool, PolledProducer] = {}
        self._retired: list[PolledProducer] = []
        self._topics: set[str] = set()
        self._checks: dict[str, asyncio.Task[Refused | None]] = {}
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="tickwright-kafka-check")
        self._closing: set[asyncio.Task[None]] = set()
        self._pause = ConnectPause()
        self._shares = QueueShares(WAITING_MAX, WAITING_KBYTES_MAX * 1024)
        self._stalled = StalledPartitions()
        self._closed = False

    def check(self, destination: str) -> None:
        """Raise ``Rejected`` unless ``destination`` is ``kafka:TOPIC``."""
        _topic(destination)

    async def publish(self, message: Message) -> Outcome:
        """Publish one message and return its outcome."""
        if self._closed:
            return _CLOSED
        try:
            topic = _topic(message.destination)
            _check(message)
        except Rejected as error:
            return Refused(error.code, error.message, final=True)
        outcome = await self._within_timeout(message, topic)
        if isinstance(outcome, Refused):
            self._topics.discard(topic)  # check it again before its next message
        return outcome

    async def publish_many(self, messages: Sequence[Message]) -> list[Outcome]:
        """Publish several at once. Outcomes are in order, and so are the records of one key."""
        return list(await asyncio.gather(*map(self.publish, messages)))

    async def ready(self) -> bool:
        """Whether a broker answers within a second."""
        if self._closed:
            return False
        producer = self._usable()
        if not producer.up:
            with suppress(TimeoutError, KafkaException):
                async with asyncio.timeout(READY_WITHIN_S):
                    producer.up = await self._in_thread(lambda: producer.reach(READY_WITHIN_S))
        return producer.up

    async def aclose(self) -> None:
        """Close the producers within a few seconds. Repeated calls are harmless."""
        self._closed = True
        for task in list(self._checks.values()):
            task.cancel()
        producers = [*self._retired, *self._producers.values()]
        self._retired, self._producers = [], {}
        await asyncio.gather(*(producer.aclose() for producer in producers))
        if self._closing:
            await asyncio.wait(self._closing, timeout=CLOSE_TIMEOUT_S)
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _within_timeout(self, message: Message, topic: str) -> Outcome:
        late: Outcome = _NOT_SENT
        try:
            async with asyncio.timeout(message.timeout.total_seconds()):
                refused = await self._admit(topic)
                if refused is not None:
                    return refused
                for alone in (False, True):
                    await self._shares.take(topic, size_of(message))
                    if self._closed:
                        self._release(message, topic)
                        return _CLOSED
                    answer, late = self._send(topic, message, alone=alone), _LATE
                    outcome = await answer
                    if not (isinstance(outcome, Refused) and outcome.code == TOO_LARGE):
                        break  # if its batch was too large, send it alone
                    late = outcome
                return outcome
        except TimeoutError:
            if late is _LATE:
                self._shares.note(topic, late=True)
            return late
        except BufferError:  # our count is an upper bound: the library has not emptied its queue yet
            return _NOT_SENT
        except KafkaException as error:
            return outcome_of_report(error.args[0])

    async def _admit(self, topic: str) -> Refused | None:
        """Return why nothing can be sent to ``topic`` now. A deadline interrupts the wait, not the check."""
        producer = self._producers.get(False)
        if producer is not None and producer.up and not producer.broken and topic in self._topics:
            return None
        check = self._checks.get(topic)
        if check is None:
            wait = self._pause.remaining()
            if wait is not None:
                return unavailable(wait)
            check = self._checks[topic] = asyncio.get_running_loop().create_task(self._check_topic(topic))
        return await asyncio.shield(check)

    def _release(self, message: Message, topic: str) -> None:
        """Free the room of a message that is not sent."""
        self._shares.release(topic, size_of(message))
        self._shares.grant()

    def _send(self, topic: str, message: Message, *, alone: bool) -> "asyncio.Future[Outcome]":
        """Queue a message for which there is room."""
        try:
            return self._usable(alone=alone).send(topic, message)
        except BaseException:
            self._release(message, topic)
            raise

    def _usable(self, *, alone: bool = False) -> PolledProducer:
        producer = self._producers.get(alone)
        if producer is not None and producer.broken:
            self._start(producer.aclose())
            producer = None
        if producer is None:
            producer = self._producers[alone] = PolledProducer(self._settings, self._reported, alone=alone)
        return producer

    def _reported(self, producer: PolledProducer, reports: list[Report]) -> None:
        now_s = monotonic()
        for sent, outcome, partition in reports:
            self._shares.release(sent.topic, sent.size_bytes)
            if isinstance(outcome, Accepted):
                self._shares.note(sent.topic, late=False)
                self._stalled.accepted(sent.topic, partition, now_s)
            elif outcome.code == "timeout":
                self._shares.note(sent.topic, late=True)
                if producer in self._producers.values() and self._stalled.should_renew(
                    sent.topic, partition, sent.sent_s, now_s
                ):
                    self._start(self._renew(producer, sent.topic, partition))
        self._shares.grant()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _renew(self, producer: PolledProducer, topic: str, partition: int) -> None:
        """Replace a producer that sends a partition's messages to a broker that does not accept them.

        A recreated topic can start with a lower leader epoch, and the library keeps the old leader until it is
        restarted. While the partition has no leader, another producer changes nothing.
        """
        try:
            has_leader = await self._in_thread(lambda: producer.has_leader(topic, partition))
        except KafkaException:
            return
        if not has_leader or producer not in self._producers.values() or producer.broken:
            return
        log.warning("kafka.producer_replaced: nothing was accepted in %s/%d, which has a leader", topic, partition)
        self._producers = {alone: other for alone, other in self._producers.items() if other is not producer}
        self._shares.hold(but=topic)
        self._retired = [*(other for other in self._retired if other.alive), producer]
        producer.retire()

    async def _check_topic(self, topic: str) -> Refused | None:
        producer = self._usable()
        try:
            error = await self._in_thread(lambda: producer.check_topic(topic))
        except KafkaException:
            self._pause.failed()
            return unavailable()
        finally:
            self._checks.pop(topic, None)
        self._pause.succeeded()
        producer.up = True
        outcome = outcome_of_report(error)
        if isinstance(outcome, Accepted):
            if len(self._topics) >= TOPICS_MAX:
                self._topics.clear()
            self._topics.add(topic)
            return None
        return outcome if isinstance(outcome, Refused) else unavailable()

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def _topic(destination: str) -> str:
    target = parse_target(destination)
    if not isinstance(target, KafkaTarget):
        raise Rejected("invalid_target", "This broker sends to kafka:TOPIC.")
    return target.topic


def _check(message: Message) -> None:
    if not 1 <= len(message.id.encode("utf-8", "replace")) <= TEXT_BYTES_MAX or len(message.body) > BYTES_MAX // 2:
        text = f"A message has an id of 1 to {TEXT_BYTES_MAX} bytes and at most {BYTES_MAX // 2} bytes of body."
        raise Rejected("invalid_message", text)
    if message.key is not None and len(message.key.encode("utf-8", "replace")) > KEY_BYTES_MAX:
        raise Rejected("invalid_message", f"A key has at most {KEY_BYTES_MAX} bytes.")
    if len(message.body) + sum(map(len, (*message.headers, *message.headers.values()))) > BYTES_MAX // 2:
        raise Rejected("too_large", f"Body and headers have at most {BYTES_MAX // 2} bytes together.")
    for name, value in message.headers.items():
        if not name or len(name.encode("utf-8", "replace")) > TEXT_BYTES_MAX or not value.isprintable():
            raise Rejected("invalid_header", f"The header {name[:80]!r} cannot be sent.")
