"""The producer behind the ``kafka:`` destinations, and our own small bridge from its thread to the event loop.

The library delivers its answers while somebody polls. One thread polls; what it heard in one poll goes to the event
loop in one call, because waking the loop once per message would cost more than the message.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Event, Thread
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import Message as Delivered

from tickwright.brokers.kafka.terms import KafkaTerms, log
from tickwright.outbound import Pause
from tickwright.ports.broker import Accepted, Message, Outcome, Refused, Unknown

ASK_TIMEOUT_S = 5.0
CLOSE_TIMEOUT_S = 2.0
POLL_S = 0.1
WAITING_MAX = 10_000
WAITING_KBYTES_MAX = 65_536
TOPICS_MAX = 4096
BYTES_MAX = 16 * 1024 * 1024

T = TypeVar("T")
Answer = tuple["asyncio.Future[Outcome]", Outcome]
_ACCEPTED = Accepted()
_CERTAIN = {
    KafkaError.MSG_SIZE_TOO_LARGE: "message_too_large",
    KafkaError.RECORD_LIST_TOO_LARGE: "message_too_large",
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


class Engine:
    """One producer with the thread that polls it.

    Attributes:
        up: Whether some broker was there when we last heard.
        broken: The library said that this producer can do nothing more.
    """

    def __init__(self, terms: KafkaTerms) -> None:
        self.up, self.broken = False, False
        self._loop = asyncio.get_running_loop()
        self._answers: list[Answer] = []
        self._stopping = Event()
        config = terms.producer(
            request_timeout_ms=10_000,
            message_timeout_ms=30_000,
            message_max_bytes=BYTES_MAX,
            queue_buffering_max_messages=WAITING_MAX,
            queue_buffering_max_kbytes=WAITING_KBYTES_MAX,
            topic_metadata_propagation_max_ms=2000,
        )
        self._producer: Producer | None = Producer({**config, "error_cb": self._heard}, logger=log)
        self._thread = Thread(target=self._poll, name="tickwright-kafka-poll", daemon=True)
        self._thread.start()

    def ask(self, topic: str) -> KafkaError | None:
        """Ask a broker whether ``topic`` is there; blocks."""
        found = self._alive().list_topics(topic, timeout=ASK_TIMEOUT_S).topics[topic]
        error: KafkaError | None = found.error
        return error

    def reach(self, timeout_s: float) -> bool:
        """Whether some broker answers within the time; blocks."""
        return bool(self._alive().cluster_id(timeout_s))

    def send(self, topic: str, message: Message) -> "asyncio.Future[Outcome]":
        """Hand one message over; raises what the library raises when it takes none."""
        answer: asyncio.Future[Outcome] = self._loop.create_future()

        def delivered(error: KafkaError | None, _: Delivered) -> None:
            self._answers.append((answer, judge(error)))

        headers = [("event_id", message.id), ("content-type", message.content_type), *message.headers.items()]
        raw: list[tuple[str, str | bytes | None]] = [(name, value.encode()) for name, value in headers]
        self._alive().produce(topic, message.body, message.key, headers=raw, on_delivery=delivered)
        return answer

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
        while not self._stopping.is_set():
            producer.poll(POLL_S)
            self._pass_on()
        self._producer = None
        producer.purge()
        producer.flush(1.0)
        self._pass_on()

    def _pass_on(self) -> None:
        answers, self._answers = self._answers, []
        if answers:
            with suppress(RuntimeError):  # the loop is closed, and nobody waits any more
                self._loop.call_soon_threadsafe(_resolve, answers)


def _resolve(answers: list[Answer]) -> None:
    for future, outcome in answers:
        if not future.done():
            future.set_result(outcome)


def unavailable(wait: Any = None) -> Refused:
    """Return the outcome while no broker is there."""
    return Refused("broker_unavailable", "No Kafka broker answers; nothing was sent.", retry_after=wait)


class KafkaLink:
    """Owns the engine: made when needed, replaced when it is broken, asked before it is trusted with a message."""

    def __init__(self, terms: KafkaTerms) -> None:
        self._terms = terms
        self._engine: Engine | None = None
        self._topics: set[str] = set()
        self._asking: dict[str, asyncio.Task[Refused | None]] = {}
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="tickwright-kafka-ask")
        self._closing: set[asyncio.Task[None]] = set()
        self._pause = Pause()

    async def admit(self, topic: str) -> Refused | None:
        """Return why nothing can be sent to ``topic`` now; a deadline may interrupt the wait, not the asking."""
        if self._engine is not None and self._engine.up and not self._engine.broken and topic in self._topics:
            return None
        asking = self._asking.get(topic)
        if asking is None:
            wait = self._pause.remaining()
            if wait is not None:
                return unavailable(wait)
            asking = self._asking[topic] = asyncio.get_running_loop().create_task(self._ask(topic))
        return await asyncio.shield(asking)

    def send(self, topic: str, message: Message) -> "asyncio.Future[Outcome]":
        """Hand a message over that ``admit`` let pass."""
        return self._living().send(topic, message)

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
        engine, self._engine = self._engine, None
        if engine is not None:
            await engine.aclose()
        if self._closing:
            await asyncio.wait(self._closing, timeout=CLOSE_TIMEOUT_S)
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _living(self) -> Engine:
        engine = self._engine
        if engine is not None and engine.broken:
            closing = asyncio.get_running_loop().create_task(engine.aclose())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
            engine = None
        if engine is None:
            engine = self._engine = Engine(self._terms)
        return engine

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
