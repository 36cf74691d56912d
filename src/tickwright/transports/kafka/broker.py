"""Kafka topics as destinations: idempotent publishes acknowledged by every replica, one outcome per message.

The delivery report decides. *Accepted* means that all in-sync replicas have the record. While no broker is reachable or
the topic is missing, messages are refused at once and fill no queue. Delivery is at least once: a retry can publish the
same message again, under the same ``event_id``. Polls use ``transactions.py`` instead.
"""

import asyncio
from collections.abc import Sequence

from confluent_kafka import KafkaException

from tickwright.domain.errors import Rejected
from tickwright.domain.targets import KafkaTarget, parse_target
from tickwright.ports.broker import Message, Outcome, Refused, Unknown
from tickwright.transports.kafka.config import KafkaConfig
from tickwright.transports.kafka.producer import BYTES_MAX, TOO_LARGE, KafkaProducers, outcome_of_report

TEXT_BYTES_MAX = 255
KEY_BYTES_MAX = 1024 * 4
READY_WITHIN_S = 1.0

_CLOSED = Refused("broker_closed", "This broker was closed; nothing was sent.")
_NOT_SENT = Refused("broker_busy", "The producer's queue had no room in time; nothing was sent.")
_LATE = Unknown("timeout", "No acknowledgement within the timeout; it may have been taken.")


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
        self._producers = KafkaProducers(settings)
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
            self._producers.forget(topic)
        return outcome

    async def publish_many(self, messages: Sequence[Message]) -> list[Outcome]:
        """Publish several at once. Outcomes are in order, and so are the records of one key."""
        return list(await asyncio.gather(*map(self.publish, messages)))

    async def ready(self) -> bool:
        """Whether a broker answers within a second."""
        if self._closed:
            return False
        try:
            async with asyncio.timeout(READY_WITHIN_S):
                return await self._producers.reachable(READY_WITHIN_S)
        except TimeoutError:
            return False

    async def aclose(self) -> None:
        """Close the producers within a few seconds. Repeated calls are harmless."""
        closed, self._closed = self._closed, True
        if not closed:
            await self._producers.aclose()

    async def _within_timeout(self, message: Message, topic: str) -> Outcome:
        late: Outcome = _NOT_SENT
        try:
            async with asyncio.timeout(message.timeout.total_seconds()):
                refused = await self._producers.admit(topic)
                if refused is not None:
                    return refused
                for alone in (False, True):
                    await self._producers.make_room(message, topic)
                    if self._closed:
                        self._producers.release(message, topic)
                        return _CLOSED
                    answer, late = self._producers.send(topic, message, alone=alone), _LATE
                    outcome = await answer
                    if not (isinstance(outcome, Refused) and outcome.code == TOO_LARGE):
                        break  # if its batch was too large, send it alone
                    late = outcome
                return outcome
        except TimeoutError:
            if late is _LATE:
                self._producers.timed_out(topic)
            return late
        except BufferError:  # our count is an upper bound: the library has not emptied its queue yet
            return _NOT_SENT
        except KafkaException as error:
            return outcome_of_report(error.args[0])


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
