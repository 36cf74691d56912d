"""The producers of the ``kafka:`` destinations, and a bridge from their threads to the event loop.

The library delivers reports only while it is polled. One thread per producer polls, and passes all reports of a poll to
the event loop in one call: a wake-up per message would cost more than the message.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from threading import Event, Thread

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import Message as Delivered

from tickwright.domain.retries import RetryPolicy
from tickwright.ports.broker import Accepted, Message, Outcome, Refused, Unknown
from tickwright.ports.ids import monotonic
from tickwright.transports.kafka.config import KafkaConfig, log

# Shares of the producer's queue. A topic can use as much as is free: one topic alone gets half of the queue, two get a
# third each. A topic whose messages time out gets a sixteenth of what is free, so a hundred such topics leave a seventh
# of the queue to the others. While a quarter of the queue is free, such a topic can always have one message of any
# size, so that it can recover. Messages without room wait behind earlier ones of their topic, so that records of one
# key stay in order.

LATE_PARTS = 16


@dataclass(slots=True)
class _Use:
    messages: int = 0
    size_bytes: int = 0


_NONE = _Use()


class QueueShares:
    """Counts the messages of each topic in the queue, from before they are sent until their delivery reports.

    Invariants:
        KFK-3: at most ``messages_max`` messages and ``bytes_max`` bytes have room at one time.
        KFK-7: a stalled topic never fills the queue.
    """

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        self._free = _Use(messages_max, bytes_max)
        self._kept = _Use(messages_max // 4, bytes_max // 4)
        self._used: dict[str, _Use] = {}
        self._late: set[str] = set()
        self._on_hold: set[str] = set()
        self._waiting: dict[str, dict[asyncio.Future[None], int]] = {}
        self._granting: asyncio.Handle | None = None

    async def take(self, topic: str, size_bytes: int) -> None:
        """Wait for room for a message and take it; ``release`` frees it."""
        if topic not in self._waiting and self._fits(topic, size_bytes):
            self._add(topic, size_bytes)
            return
        waiters = self._waiting.setdefault(topic, {})
        waiter = asyncio.get_running_loop().create_future()
        waiters[waiter] = size_bytes
        try:
            await waiter
        except asyncio.CancelledError:
            if not waiter.cancelled():
                self.release(topic, size_bytes)
            self._grant_soon()  # a smaller message behind it can fit now
            raise
        finally:
            del waiters[waiter]
            if not waiters:
                del self._waiting[topic]

    def release(self, topic: str, size_bytes: int) -> None:
        """Free the room of a message; ``grant`` passes it on."""
        use = self._used[topic]
        use.messages -= 1
        use.size_bytes -= size_bytes
        self._free.messages += 1
        self._free.size_bytes += size_bytes
        if not use.messages:
            del self._used[topic]
            self._on_hold.discard(topic)

    def hold(self, *, but: str) -> None:
        """Make all other topics wait until their queued messages are reported, so that later ones do not overtake."""
        self._on_hold = {*self._on_hold, *self._used} - {but}

    def note(self, topic: str, *, late: bool) -> None:
        """Record whether the last message of a topic timed out or was accepted."""
        if late:
            self._late.add(topic)
        else:
            self._late.discard(topic)

    def grant(self) -> None:
        """Wake the waiting calls that fit now."""
        self._granting = None
        for topic, waiters in self._waiting.items():
            for waiter, size_bytes in waiters.items():
                if waiter.done():
                    continue
                if not self._fits(topic, size_bytes):
                    break
                self._add(topic, size_bytes)
                waiter.set_result(None)

    def _grant_soon(self) -> None:
        """Grant once for all calls that stop waiting in one turn of the event loop."""
        if self._granting is None:
            self._granting = asyncio.get_running_loop().call_soon(self.grant)

    def _add(self, topic: str, size_bytes: int) -> None:
        use = self._used.setdefault(topic, _Use())
        use.messages += 1
        use.size_bytes += size_bytes
        self._free.messages -= 1
        self._free.size_bytes -= size_bytes

    def _fits(self, topic: str, size_bytes: int) -> bool:
        if topic in self._on_hold:
            return False
        use = self._used.get(topic, _NONE)
        if topic not in self._late:
            return self._has(use.messages + 1, use.size_bytes + size_bytes)
        if self._has((use.messages + 1) * LATE_PARTS, (use.size_bytes + size_bytes) * LATE_PARTS):
            return True
        return use is _NONE and self._has(1 + self._kept.messages, size_bytes + self._kept.size_bytes)

    def _has(self, messages: int, size_bytes: int) -> bool:
        return messages <= self._free.messages and size_bytes <= self._free.size_bytes


METADATA_TIMEOUT_S = 5.0
MESSAGE_TIMEOUT_MS = 30_000
RENEW = RetryPolicy(base=timedelta(seconds=30), cap=timedelta(seconds=600))
CLOSE_TIMEOUT_S = 2.0
POLL_S = 0.1
WAITING_MAX = 10_000
WAITING_KBYTES_MAX = 65_536
PARTITIONS_MAX = 65_536
ENVELOPE_BYTES = 512
BYTES_MAX = 16 * 1024 * 1024

TOO_LARGE = "message_too_large"
_ACCEPTED = Accepted()
_CUT_OFF = Unknown("connection_lost", "Kafka: the producer was closed before its answer.")
_CERTAIN = {
    KafkaError.MSG_SIZE_TOO_LARGE: TOO_LARGE,
    KafkaError.RECORD_LIST_TOO_LARGE: TOO_LARGE,
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "topic_forbidden",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "topic_forbidden",
    KafkaError.UNKNOWN_TOPIC_OR_PART: "topic_missing",
    KafkaError._UNKNOWN_TOPIC: "topic_missing",  # noqa: SLF001
    KafkaError._UNKNOWN_PARTITION: "topic_missing",  # noqa: SLF001
    KafkaError.INVALID_RECORD: "record_refused",
    KafkaError.POLICY_VIOLATION: "record_refused",
    KafkaError._PURGE_QUEUE: "broker_closed",  # noqa: SLF001
}
"""Errors after which Kafka cannot have stored the message. After any other error it can have."""


def outcome_of_report(error: KafkaError | None) -> Outcome:
    """Return the outcome of a delivery report."""
    if error is None:
        return _ACCEPTED
    reason = f"Kafka: {error.str()}"[:1000]
    if error.code() in _CERTAIN:
        return Refused(_CERTAIN[error.code()], reason)
    return Unknown("timeout" if "TIMED_OUT" in error.name() else "connection_lost", reason)


@dataclass(slots=True, eq=False)
class InFlight:
    """A message in a producer's queue, until its delivery report."""

    topic: str
    size_bytes: int
    sent_s: float
    answer: "asyncio.Future[Outcome]"


Report = tuple[InFlight, Outcome, int]
"""A message, its outcome, and its partition; -1 for none."""


class PolledProducer:
    """One producer and the thread that polls it.

    Args:
        reported: Called in the event loop with the reports of one poll; once per sent message.
        alone: Send each message in a batch of its own, because brokers refuse a too large batch as a whole.

    Attributes:
        up: Whether a broker was reachable at the last event.
        broken: The library reported a fatal error.
    """

    def __init__(
        self, settings: KafkaConfig, reported: Callable[["PolledProducer", list[Report]], None], *, alone: bool
    ) -> None:
        self.up, self.broken = False, False
        self._loop = asyncio.get_running_loop()
        self._reported = reported
        self._open: set[InFlight] = set()
        self._reports: list[Report] = []
        self._stopping = Event()
        self._retire_by_s: float | None = None
        config = settings.producer(
            request_timeout_ms=10_000,
            message_timeout_ms=MESSAGE_TIMEOUT_MS,
            message_max_bytes=BYTES_MAX,
            queue_buffering_max_messages=WAITING_MAX,
            queue_buffering_max_kbytes=WAITING_KBYTES_MAX,
            topic_metadata_propagation_max_ms=2000,
            **({"batch_num_messages": 1} if alone else {}),
        )
        self._producer: Producer | None = Producer({**config, "error_cb": self._on_error}, logger=log)
        self._thread = Thread(target=self._poll, name="tickwright-kafka-poll", daemon=True)
        self._thread.start()

    def check_topic(self, topic: str) -> KafkaError | None:
        """Return the broker's error for ``topic``, such as that it is missing; blocks."""
        error: KafkaError | None = self._handle().list_topics(topic, timeout=METADATA_TIMEOUT_S).topics[topic].error
        return error

    def has_leader(self, topic: str, partition: int) -> bool:
        """Whether the partition has a leader, or for -1 each partition of the topic; blocks."""
        found = self._handle().list_topics(topic, timeout=METADATA_TIMEOUT_S)
        partitions = found.topics[topic].partitions
        relevant = [partitions[partition]] if partition in partitions else partitions.values()
        return bool(partitions) and all(found_partition.leader in found.brokers for found_partition in relevant)

    def reach(self, timeout_s: float) -> bool:
        """Whether a broker answers within ``timeout_s``; blocks."""
        return bool(self._handle().cluster_id(timeout_s))

    def send(self, topic: str, message: Message) -> "asyncio.Future[Outcome]":
        """Queue one message; raises what the library raises."""
        answer: asyncio.Future[Outcome] = self._loop.create_future()
        sent = InFlight(topic, size_of(message), monotonic(), answer)

        def delivered(error: KafkaError | None, record: Delivered) -> None:
            partition = record.partition()
            self._reports.append((sent, outcome_of_report(error), -1 if partition is None else partition))

        headers = [("event_id", message.id), ("content-type", message.content_type), *message.headers.items()]
        raw: list[tuple[str, str | bytes | None]] = [(name, value.encode()) for name, value in headers]
        self._handle().produce(topic, message.body, message.key, headers=raw, on_delivery=delivered)
        self._open.add(sent)
        return answer

    @property
    def alive(self) -> bool:
        """Whether its thread runs."""
        return self._thread.is_alive()

    def retire(self) -> None:
        """End after every sent message is reported."""
        self._retire_by_s = monotonic() + MESSAGE_TIMEOUT_MS / 1000 + CLOSE_TIMEOUT_S

    async def aclose(self) -> None:
        """End the thread and the producer; unreported messages get ``Unknown``."""
        self._stopping.set()
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join, CLOSE_TIMEOUT_S)

    def _handle(self) -> Producer:
        if self._producer is None:
            raise KafkaException(KafkaError(KafkaError._DESTROY))  # noqa: SLF001
        return self._producer

    def _on_error(self, error: KafkaError) -> None:
        if error.fatal():
            self.broken = True
        if error.code() == KafkaError._ALL_BROKERS_DOWN:  # noqa: SLF001
            self.up = False

    def _poll(self) -> None:
        producer = self._handle()
        while not self._stopping.is_set():
            if self._retire_by_s is not None and (not len(producer) or monotonic() > self._retire_by_s):
                break
            producer.poll(POLL_S)
            self._pass_on()
        self._producer = None
        producer.purge()
        producer.flush(1.0)
        self._pass_on()
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._end)

    def _pass_on(self) -> None:
        reports, self._reports = self._reports, []
        if reports:
            with suppress(RuntimeError):  # the loop is closed: no caller waits
                self._loop.call_soon_threadsafe(self._resolve, reports)

    def _resolve(self, reports: list[Report]) -> None:
        for sent, outcome, _ in reports:
            self._open.discard(sent)
            if not sent.answer.done():
                sent.answer.set_result(outcome)
        self._reported(self, reports)

    def _end(self) -> None:
        """Report the messages that the library has not reported, so that their room is free again."""
        self._resolve([(sent, _CUT_OFF, -1) for sent in self._open])


def size_of(message: Message) -> int:
    """Return an upper bound of the bytes that a message takes in the queue."""
    headers = sum(len(name) + len(value) for name, value in message.headers.items()) * 4
    return len(message.body) + len(message.key or "") * 4 + headers + ENVELOPE_BYTES


class StalledPartitions:
    """Decides when another producer is tried for a stalled partition: at once, then after 30 s to ten minutes."""

    def __init__(self) -> None:
        self._accepted_s: dict[tuple[str, int], float] = {}
        self._tries: dict[tuple[str, int], tuple[int, float]] = {}

    def accepted(self, topic: str, partition: int, now_s: float) -> None:
        """Record that a partition accepted a message."""
        if len(self._accepted_s) >= PARTITIONS_MAX:
            self._accepted_s.clear()
        self._accepted_s[topic, partition] = now_s
        if self._tries:
            self._tries.pop((topic, partition), None)

    def should_renew(self, topic: str, partition: int, sent_s: float, now_s: float) -> bool:
        """Whether to try another producer after a message sent at ``sent_s`` timed out."""
        key = topic, partition
        tries, not_before_s = self._tries.get(key, (0, 0.0))
        if self._accepted_s.get(key, 0.0) > sent_s or now_s < not_before_s:
            return False
        if len(self._tries) >= PARTITIONS_MAX:
            self._tries.clear()
        self._tries[key] = tries + 1, now_s + RENEW.ceiling_s(tries + 1)
        return True
