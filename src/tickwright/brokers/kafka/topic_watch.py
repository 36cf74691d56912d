"""Whether a topic is still the one that it was: one that is deleted and made again has another id.

The client library follows a topic by its name, and believes no leader whose epoch is lower than one that it has seen. A
topic that is made again begins with the lowest one, so that a client which knew it before may ask the former leader
without end and without an error. A new client reads it.
"""

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, TopicDescription

from tickwright.brokers.kafka.terms import log
from tickwright.ports.ids import monotonic

ASK_EVERY_S = 10.0
ANSWER_WITHIN_S = 2.0


class TopicWatch:
    """Asks for a topic's id every ten seconds, from one thread.

    Args:
        config: Of a client.
        topic: Full name. One that is missing is watched from the moment that it is there.
    """

    def __init__(self, config: Mapping[str, Any], topic: str) -> None:
        self._admin = AdminClient(dict(config), logger=log)
        self._topic = topic
        self._id: str | None = None
        self._asked: Future[TopicDescription] | None = None
        self._ask_at_s = 0.0
        self._gone = False

    def is_another(self, *, wait: bool = False) -> bool:
        """Whether the topic was made again since the first answer; blocks for two seconds at most, where it may."""
        if self._gone:
            return True
        self._admin.poll(0)  # so that what the library logged comes out
        if self._asked is None and (wait or monotonic() >= self._ask_at_s):
            self._ask_at_s = monotonic() + ASK_EVERY_S
            asked = self._admin.describe_topics(TopicCollection([self._topic]), request_timeout=ANSWER_WITHIN_S)
            self._asked = asked[self._topic]
        if self._asked is not None and (wait or self._asked.done()):
            self._hear(self._asked)
            self._asked = None
        return self._gone

    def _hear(self, asked: Future[TopicDescription]) -> None:
        try:
            found = str(asked.result(ANSWER_WITHIN_S + 1).topic_id)
        except (KafkaException, TimeoutError):  # no answer, or no such topic at the moment
            return
        self._gone = self._id is not None and found != self._id
        self._id = found
