"""The producer behind the ``kafka:`` destinations, and our own small bridge from its thread to the event loop.

The library delivers its answers while somebody polls. One thread polls; what it heard in one poll goes to the event
loop in one call, because waking the loop once per message would cost more than the message.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from threading import Event, Thread
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import Message as Delivered

from tickwright.domain.retries import RetryPolicy
from tickwright.outbound import Pause
from tickwright.ports.broker import Accepted, Message, Outcome, Refused, Unknown
from tickwright.ports.ids import monotonic
from tickwright.transports.kafka.config import KafkaConfig, log

# Shares of the producer's queue. A topic may use as much as is free: one alone gets half of the queue, and two get a
# third each. A topic whose messages time out gets a sixteenth of what is free: a hundred such topics leave a seventh of
# the queue to the others. While a quarter of the queue is free, it may always have one message of any size, so that it
# can recover. Messages without room wait behind earlier ones of their topic, so that records of one key stay in order.

LATE_PARTS = 16


@dataclass(slots=True)
class _Use:
    messages: int = 0
    size_bytes: int = 0


_NONE = _Use()


class Shares:
    """Counts what of each topic is in the queue, from before it is handed over until its delivery report.

    Args:
        messages_max: Of all topics together.
        bytes_max: Of all topics together.

    Invariants:
        KFK-3: at most ``messages_max`` messages and ``bytes_max`` bytes have room at one time.
        KFK-7: a topic that takes nothing never fills the queue.
    """

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        self._free = _Use(messages_max, bytes_max)
        self._kept = _Use(messages_max // 4, bytes_max // 4)
        self._used: dict[str, _Use] = {}
        self._late: set[str] = set()
        self._held: set[str] = set()
        self._waiting: dict[str, dict[asyncio.Future[None], int]] = {}
        self._granting: asyncio.Handle | None = None

    async def take(self, topic: str, size_bytes: int) -> None:
        """Take room for a message, as soon as there is some; ``give_back`` ends it."""
        if topic not in self._waiting and self._fits(topic, size_bytes):
            self._add(topic, size_bytes)
            return
        line = self._waiting.setdefault(topic, {})
        turn = asyncio.get_running_loop().create_future()
        line[turn] = size_bytes
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self.give_back(topic, size_bytes)
            self._grant_soon()  # where it had no room, or takes none, a smaller one behind it may have some
            raise
        finally:
            del line[turn]
            if not line:
                del self._waiting[topic]

    def give_back(self, topic: str, size_bytes: int) -> None:
        """Free the room of a message; ``grant`` gives it to others."""
        use = self._used[topic]
        use.messages -= 1
        use.size_bytes -= size_bytes
        self._free.messages += 1
        self._free.size_bytes += size_bytes
        if not use.messages:
            del self._used[topic]
            self._held.discard(topic)

    def hold(self, *, but: str) -> None:
        """Let each topic but one wait until none of its messages is in the queue: those sent now overtake them."""
        self._held = {*self._held, *self._used} - {but}

    def note(self, topic: str, *, late: bool) -> None:
        """Note whether the last message of a topic timed out, or was accepted."""
        if late:
            self._late.add(topic)
        else:
            self._late.discard(topic)

    def grant(self) -> None:
        """Let those go on for whom there is room now."""
        self._granting = None
        for topic, line in self._waiting.items():
            for turn, size_bytes in line.items():
                if turn.done():
                    continue
                if not self._fits(topic, size_bytes):
                    break
                self._add(topic, size_bytes)
                turn.set_result(None)

    def _grant_soon(self) -> None:
        """Grant once for all that stop waiting in the same moment."""
        if self._granting is None:
            self._granting = asyncio.get_running_loop().call_soon(self.grant)

    def _add(self, topic: str, size_bytes: int) -> None:
        use = self._used.setdefault(topic, _Use())
        use.messages += 1
        use.size_bytes += size_bytes
        self._free.messages -= 1
        self._free.size_bytes -= size_bytes

    def _fits(self, topic: str, size_bytes: int) -> bool:
        if topic in self._held:
            return False
        use = self._used.get(topic, _NONE)
        if topic not in self._late:
            return self._has(use.messages + 1, use.size_bytes + size_bytes)
        if self._has((use.messages + 1) * LATE_PARTS, (use.size_bytes + size_bytes) * LATE_PARTS):
            return True
        return use is _NONE and self._has(1 + self._kept.messages, size_bytes + self._kept.size_bytes)

    def _has(self, messages: int, size_bytes: int) -> bool:
        return messages <= self._free.messages and size_bytes <= self._free.size_bytes


ASK_TIMEOUT_S = 5.0
MESSAGE_TIMEOUT_MS = 30_000
RENEW = RetryPolicy(base=timedelta(seconds=30), cap=timedelta(seconds=600))
CLOSE_TIMEOUT_S = 2.0
POLL_S = 0.1
WAITING_MAX = 10_000
WAITING_KBYTES_MAX = 65_536
TOPICS_MAX = 4096
PARTITIONS_MAX = 65_536
ENVELOPE_BYTES = 512
BYTES_MAX = 16 * 1024 * 1024

T = TypeVar("T")
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
"""Errors after which nothing can have been taken; after every other one nobody can tell."""


def judge(error: KafkaError | None) -> Outcome:
    """Return what a delivery report means for the message."""
    if error is None:
        return _ACCEPTED
    reason = f"Kafka: {error.str()}"[:1000]
    if error.code() in _CERTAIN:
        return Refused(_CERTAIN[error.code()], reason)
    return Unknown("timeout" if "TIMED_OUT" in error.name() else "connection_lost", reason)


@dataclass(slots=True, eq=False)
class Sent:
    """A message in the queue of a producer, until its delivery report."""

    topic: str
    size_bytes: int
    sent_s: float
    answer: "asyncio.Future[Outcome]"


Report = tuple[Sent, Outcome, int]
"""What became of a message, and its partition: -1 for one that was given none."""


class Engine:
    """One producer with the thread that polls it.

    Args:
        reported: Called in the event loop, once for each message that was sent.
        alone: Each message goes in a batch of its own: a broker refuses one that is too large as a whole.

    Attributes:
        up: Whether some broker was there when we last heard.
        alive: Its thread has not ended.
        broken: The library said that this producer can do nothing more.
    """

    def __init__(
        self, settings: KafkaConfig, reported: Callable[["Engine", list[Report]], None], *, alone: bool
    ) -> None:
        self.up, self.broken = False, False
        self._loop = asyncio.get_running_loop()
        self._reported = reported
        self._open: set[Sent] = set()
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
        self._producer: Producer | None = Producer({**config, "error_cb": self._heard}, logger=log)
        self._thread = Thread(target=self._poll, name="tickwright-kafka-poll", daemon=True)
        self._thread.start()

    def ask(self, topic: str) -> KafkaError | None:
        """Ask a broker whether ``topic`` is there; blocks."""
        found = self._alive().list_topics(topic, timeout=ASK_TIMEOUT_S).topics[topic]
        error: KafkaError | None = found.error
        return error

    def led(self, topic: str, partition: int) -> bool:
        """Whether a broker says that the partition, or each one of the topic for -1, has a leader; blocks."""
        found = self._alive().list_topics(topic, timeout=ASK_TIMEOUT_S)
        partitions = found.topics[topic].partitions
        asked = [partitions[partition]] if partition in partitions else partitions.values()
        return bool(partitions) and all(one.leader in found.brokers for one in asked)

    def reach(self, timeout_s: float) -> bool:
        """Whether some broker answers within the time; blocks."""
        return bool(self._alive().cluster_id(timeout_s))

    def send(self, topic: str, message: Message) -> "asyncio.Future[Outcome]":
        """Hand one message over; raises what the library raises when it takes none."""
        answer: asyncio.Future[Outcome] = self._loop.create_future()
        sent = Sent(topic, size_of(message), monotonic(), answer)

        def delivered(error: KafkaError | None, record: Delivered) -> None:
            partition = record.partition()
            self._reports.append((sent, judge(error), -1 if partition is None else partition))

        headers = [("event_id", message.id), ("content-type", message.content_type), *message.headers.items()]
        raw: list[tuple[str, str | bytes | None]] = [(name, value.encode()) for name, value in headers]
        self._alive().produce(topic, message.body, message.key, headers=raw, on_delivery=delivered)
        self._open.add(sent)
        return answer

    @property
    def alive(self) -> bool:
        """Whether its thread has not ended."""
        return self._thread.is_alive()

    def retire(self) -> None:
        """End as soon as everything that was sent is answered."""
        self._retire_by_s = monotonic() + MESSAGE_TIMEOUT_MS / 1000 + CLOSE_TIMEOUT_S

    async def aclose(self) -> None:
        """End the thread and the producer; what waits is answered as it is."""
        self._stopping.set()
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join, CLOSE_TIMEOUT_S)

    def _alive(self) -> Producer:
        if self._producer is None:
            raise KafkaException(KafkaError(KafkaError._DESTROY))  # noqa: SLF001
        return self._producer

    def _heard(self, error: KafkaError) -> None:
        if error.fatal():
            self.broken = True
        if error.code() == KafkaError._ALL_BROKERS_DOWN:  # noqa: SLF001
            self.up = False

    def _poll(self) -> None:
        producer = self._alive()
        while not self._stopping.is_set() and not self._is_done(producer):
            producer.poll(POLL_S)
            self._pass_on()
        self._producer = None
        producer.purge()
        producer.flush(1.0)
        self._pass_on()
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._end)

    def _is_done(self, producer: Producer) -> bool:
        return self._retire_by_s is not None and (not len(producer) or monotonic() > self._retire_by_s)

    def _pass_on(self) -> None:
        reports, self._reports = self._reports, []
        if reports:
            with suppress(RuntimeError):  # the loop is closed, and nobody waits any more
                self._loop.call_soon_threadsafe(self._resolve, reports)

    def _resolve(self, reports: list[Report]) -> None:
        for sent, outcome, _ in reports:
            self._open.discard(sent)
            if not sent.answer.done():
                sent.answer.set_result(outcome)
        self._reported(self, reports)

    def _end(self) -> None:
        """Answer what the library has not: its room is free again."""
        self._resolve([(sent, _CUT_OFF, -1) for sent in self._open])


def size_of(message: Message) -> int:
    """Return how many bytes a message takes in the queue, at most."""
    headers = sum(len(name) + len(value) for name, value in message.headers.items()) * 4
    return len(message.body) + len(message.key or "") * 4 + headers + ENVELOPE_BYTES


def unavailable(wait: Any = None) -> Refused:
    """Return the outcome while no broker is there."""
    return Refused("broker_unavailable", "No Kafka broker answers; nothing was sent.", retry_after=wait)


class Silences:
    """Which partitions have accepted nothing for so long that another producer may do better.

    One try is free; the next ones for the same partition are 30 s to ten minutes apart.
    """

    def __init__(self) -> None:
        self._accepted_s: dict[tuple[str, int], float] = {}
        self._tries: dict[tuple[str, int], tuple[int, float]] = {}

    def accepted(self, topic: str, partition: int, now_s: float) -> None:
        """Note that a partition has accepted a message."""
        if len(self._accepted_s) >= PARTITIONS_MAX:
            self._accepted_s.clear()
        self._accepted_s[topic, partition] = now_s
        if self._tries:
            self._tries.pop((topic, partition), None)

    def is_long(self, topic: str, partition: int, sent_s: float, now_s: float) -> bool:
        """Whether to try now, where a message that was sent at ``sent_s`` has waited its whole time."""
        place = topic, partition
        tries, not_before_s = self._tries.get(place, (0, 0.0))
        if self._accepted_s.get(place, 0.0) > sent_s or now_s < not_before_s:
            return False
        if len(self._tries) >= PARTITIONS_MAX:
            self._tries.clear()
        self._tries[place] = tries + 1, now_s + RENEW.ceiling_s(tries + 1)
        return True


class KafkaLink:
    """Owns the engine: made when needed, replaced when it is broken, asked before it is trusted with a message."""

    def __init__(self, settings: KafkaConfig) -> None:
        self._settings = settings
        self._engines: dict[bool, Engine] = {}
        self._topics: set[str] = set()
        self._asking: dict[str, asyncio.Task[Refused | None]] = {}
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="tickwright-kafka-ask")
        self._closing: set[asyncio.Task[None]] = set()
        self._pause = Pause()
        self._shares = Shares(WAITING_MAX, WAITING_KBYTES_MAX * 1024)
        self._silences = Silences()
        self._retired: list[Engine] = []

    async def admit(self, topic: str) -> Refused | None:
        """Return why nothing can be sent to ``topic`` now; a deadline may interrupt the wait, not the asking."""
        engine = self._engines.get(False)
        if engine is not None and engine.up and not engine.broken and topic in self._topics:
            return None
        asking = self._asking.get(topic)
        if asking is None:
            wait = self._pause.remaining()
            if wait is not None:
                return unavailable(wait)
            asking = self._asking[topic] = asyncio.get_running_loop().create_task(self._ask(topic))
        return await asyncio.shield(asking)

    async def make_room(self, message: Message, topic: str) -> None:
        """Wait until the topic's share of the queue has room for a message; it has to be sent then, or let go."""
        await self._shares.take(topic, size_of(message))

    def let_go(self, message: Message, topic: str) -> None:
        """Free the room of a message that is not sent."""
        self._shares.give_back(topic, size_of(message))
        self._shares.grant()

    def send(self, topic: str, message: Message, *, alone: bool = False) -> "asyncio.Future[Outcome]":
        """Hand a message over that ``admit`` let pass, and that has room."""
        try:
            return self._living(alone=alone).send(topic, message)
        except BaseException:
            self.let_go(message, topic)
            raise

    def timed_out(self, topic: str) -> None:
        """Leave a topic the share of those whose messages time out, until it takes one."""
        self._shares.note(topic, late=True)

    def forget(self, topic: str) -> None:
        """Ask again before the next message: the topic was refused."""
        self._topics.discard(topic)

    async def reachable(self, timeout_s: float) -> bool:
        """Whether some broker answers within the time."""
        engine = self._living()
        if engine.up:
            return True
        try:
            engine.up = await self._in_thread(lambda: engine.reach(timeout_s))
        except KafkaException:
            return False
        return engine.up

    async def aclose(self) -> None:
        """Close the producer within a few seconds. Twice is harmless."""
        for task in list(self._asking.values()):
            task.cancel()
        engines = [*self._retired, *self._engines.values()]
        self._retired, self._engines = [], {}
        await asyncio.gather(*(one.aclose() for one in engines))
        if self._closing:
            await asyncio.wait(self._closing, timeout=CLOSE_TIMEOUT_S)
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _living(self, *, alone: bool = False) -> Engine:
        engine = self._engines.get(alone)
        if engine is not None and engine.broken:
            closing = asyncio.get_running_loop().create_task(engine.aclose())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
            engine = None
        if engine is None:
            engine = self._engines[alone] = Engine(self._settings, self._reported, alone=alone)
        return engine

    def _reported(self, engine: Engine, reports: list[Report]) -> None:
        now_s = monotonic()
        for sent, outcome, partition in reports:
            self._shares.give_back(sent.topic, sent.size_bytes)
            if isinstance(outcome, Accepted):
                self._shares.note(sent.topic, late=False)
                self._silences.accepted(sent.topic, partition, now_s)
            elif outcome.code == "timeout":
                self._shares.note(sent.topic, late=True)
                if engine in self._engines.values() and self._silences.is_long(
                    sent.topic, partition, sent.sent_s, now_s
                ):
                    self._renew_soon(engine, sent.topic, partition)
        self._shares.grant()

    def _renew_soon(self, engine: Engine, topic: str, partition: int) -> None:
        task = asyncio.get_running_loop().create_task(self._renew(engine, topic, partition))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _renew(self, engine: Engine, topic: str, partition: int) -> None:
        """Let another producer take over from one that sends a partition's messages where they are not taken.

        A topic that is made again may begin with a lower leader epoch than it had, and the library believes the old
        leader then until it is started again. Where the partition has no leader another producer would change nothing.
        """
        try:
            led = await self._in_thread(lambda: engine.led(topic, partition))
        except KafkaException:
            return
        if not led or engine not in self._engines.values() or engine.broken:
            return
        log.warning("kafka.producer_replaced: nothing was accepted in %s/%d, which has a leader", topic, partition)
        self._engines = {alone: one for alone, one in self._engines.items() if one is not engine}
        self._shares.hold(but=topic)
        self._retired = [*(one for one in self._retired if one.alive), engine]
        engine.retire()

    async def _ask(self, topic: str) -> Refused | None:
        engine = self._living()
        try:
            error = await self._in_thread(lambda: engine.ask(topic))
        except KafkaException:
            self._pause.failed()
            return unavailable()
        finally:
            self._asking.pop(topic, None)
        self._pause.succeeded()
        engine.up = True
        outcome = judge(error)
        if isinstance(outcome, Accepted):
            if len(self._topics) >= TOPICS_MAX:
                self._topics.clear()
            self._topics.add(topic)
            return None
        return outcome if isinstance(outcome, Refused) else unavailable()

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)
