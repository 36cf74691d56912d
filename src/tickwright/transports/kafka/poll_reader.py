"""The thread that reads the polls' topic: a member of the consumer group that the processing of polls never blocks.

Every call of the library blocks, and the group expels a member that does not poll. So one thread only polls. It appends
records to the assignment's queue, and the event loop takes them. A full assignment is paused, so that the thread
continues to poll and stays in the group. The thread commits the offsets that the loop marks as safe.
"""

from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from threading import Event, Thread
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, TopicDescription

from tickwright.ports.ids import monotonic
from tickwright.ports.polls import PollRecord
from tickwright.transports.kafka.config import KafkaConfig, log

POLL_S = 0.1
BATCH_MAX = 1000
COMMIT_S = 0.5
HELD_MAX = 10_000
SPAN_MAX = 5_000_000
SESSION_MS = 10_000
HEARTBEAT_MS = 1000
POLL_GAP_MAX_MS = 60_000
WARN_EVERY_S = 30.0
CLOSE_WITHIN_S = 10.0
LIST_AGAIN_S = 5.0
ID_EVERY_S = 10.0
ANSWER_WITHIN_S = 2.0
REPLACE_WITHIN_S = 10.0

ReadPoll = Callable[[bytes], PollRecord]


@dataclass(slots=True)
class ReaderCounts:
    """Counts of the reader threads of a process.

    Attributes:
        unreadable: Records that could not be decoded, and were skipped.
        rebalances: How often the group assigned or revoked partitions.
    """

    records: int = 0
    unreadable: int = 0
    rebalances: int = 0


class Assignment:
    """A partition from its assignment by the group until it is revoked. Each field has one writer.

    Attributes:
        records: Read and not yet processed; ``None`` for an unreadable one. The thread adds, the loop takes.
        begin: The group's committed offset; ``None`` until it is known. Written by the thread.
        read: How many records were added. Written by the thread.
        read_to: The offset after the last of them. Written by the thread.
        passed_on: How many of them no longer wait here: finished or handed out. Written by the loop.
        safe: Offset at which the next reader can start. Written by the loop.
        span: Number of offsets from ``safe`` on, including finished ones. Written by the loop.
    """

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.records: deque[tuple[int, PollRecord | None]] = deque()
        self.begin: int | None = None
        self.read = self.read_to = self.passed_on = self.span = 0
        self.safe: int | None = None
        self.committed: int | None = None
        self.paused = False


class PollReader:
    """Reads until closed. When its thread has ended, the owner makes another reader.

    The thread replaces the mapping ``assignments`` as a whole and never changes it in place.
    """

    def __init__(
        self, settings: KafkaConfig, topic: str, read: ReadPoll, counts: ReaderCounts, *, session_ms: int = SESSION_MS
    ) -> None:
        self._topic, self._read, self._counts = topic, read, counts
        self._watch: TopicWatch | None = None
        self._watch_config = settings.client()
        self._recreated = False
        self._replace_by_s = 0.0
        self._config = settings.client(
            group_id=settings.topic("poll-consumer"),
            isolation_level="read_committed",
            enable_auto_commit=False,
            enable_auto_offset_store=False,
            auto_offset_reset="earliest",
            partition_assignment_strategy="cooperative-sticky",
            session_timeout_ms=session_ms,
            heartbeat_interval_ms=HEARTBEAT_MS,
            max_poll_interval_ms=POLL_GAP_MAX_MS,
            topic_metadata_refresh_interval_ms=10_000,
            queued_max_messages_kbytes=16_384,
        )
        self._config["on_commit"] = self._committed
        self._config.setdefault("socket.timeout.ms", 10_000)
        self.assignments: dict[int, Assignment] = {}
        self._stopping = Event()
        self._commit_s = self._warned_s = self._listed_s = monotonic() - WARN_EVERY_S
        self._thread = Thread(target=self._run, name="tickwright-kafka-polls", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether its thread runs."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Commit safe offsets and leave the group; blocks for at most ten seconds."""
        self._stopping.set()
        self._thread.join(CLOSE_WITHIN_S)

    def _run(self) -> None:
        consumer = None
        try:
            consumer = Consumer(self._config, logger=log)
            self._watch = TopicWatch(self._watch_config, self._topic)
            self._watch.is_recreated(wait=True)  # get the id before the consumer reads
            consumer.subscribe([self._topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost)
            while not self._stopping.is_set():
                self._poll(consumer)
                self._fetch_begin(consumer)
                self._make_room(consumer)
                if self._must_be_replaced(consumer):
                    break
                if monotonic() - self._commit_s >= COMMIT_S:
                    self._commit(consumer, list(self.assignments.values()), wait=False)
        except KafkaException as error:
            log.error("polls.reader_ended: %s: %s", self._topic, error)
        finally:
            if consumer is not None:
                with suppress(KafkaException, RuntimeError):
                    consumer.close()  # calls ``_revoked``
            self._watch = None  # closes its client, which can block
            self._drop(list(self.assignments))

    def _poll(self, consumer: Consumer) -> None:
        """Read available records one by one, so that records after a change of assignments belong to the new one."""
        message = consumer.poll(POLL_S)
        for _ in range(BATCH_MAX):
            if message is None:
                return
            self._take(message)
            message = consumer.poll(0)
        if message is not None:
            self._take(message)

    def _take(self, message: Message) -> None:
        error = message.error()
        if error is not None:
            if error.fatal():
                raise KafkaException(error)
            self._warn("polls.read_failed: %s: %s", self._topic, error.str())
            return
        assignment = self.assignments.get(message.partition() or 0)
        if assignment is not None:
            offset = message.offset() or 0
            if offset < assignment.read_to:
                where, text = f"{self._topic}/{message.partition()}", "the topic was recreated or truncated"
                log.warning("polls.offset_decreased: %s: from %d to %d: %s", where, assignment.read_to, offset, text)
            self._counts.records += 1
            assignment.read += 1
            assignment.read_to = offset + 1
            assignment.records.append((offset, self._understand(message)))

    def _understand(self, message: Message) -> PollRecord | None:
        """Decode the poll. Never call ``headers()``: the library crashes on a name that is not UTF-8."""
        try:
            return self._read(message.value() or b"")
        except Exception as error:  # noqa: BLE001  # it is read again after every restart: none may end the thread
            self._counts.unreadable += 1
            where = f"{self._topic}/{message.partition()}/{message.offset()}"
            self._warn("poll.unreadable: %s: %s (%d so far)", where, error, self._counts.unreadable)
            return None

    def _warn(self, text: str, *facts: object) -> None:
        """Log at most once in 30 s: an error of one record often affects thousands."""
        if monotonic() - self._warned_s >= WARN_EVERY_S:
            self._warned_s = monotonic()
            log.warning(text, *facts)

    def _fetch_begin(self, consumer: Consumer) -> None:
        """Read the group's offsets, because an idle partition has no record that shows its progress."""
        new = [assignment for assignment in self.assignments.values() if assignment.begin is None]
        if not new or monotonic() - self._listed_s < LIST_AGAIN_S:
            return
        try:
            partitions = [TopicPartition(self._topic, assignment.partition) for assignment in new]
            found = {
                committed.partition: committed.offset
                for committed in consumer.committed(partitions, timeout=ANSWER_WITHIN_S)
            }
        except KafkaException as error:
            self._listed_s = monotonic()
            self._warn("the group's offsets in %s are unknown: %s", self._topic, error)
            return
        for assignment in new:
            assignment.begin = max(0, found[assignment.partition])  # below zero: no offset is committed

    def _make_room(self, consumer: Consumer) -> None:
        for assignment in self.assignments.values():
            held, partition = assignment.read - assignment.passed_on, TopicPartition(self._topic, assignment.partition)
            if not assignment.paused and (held >= HELD_MAX or assignment.span >= SPAN_MAX):
                consumer.pause([partition])
                assignment.paused = True
            elif assignment.paused and held * 2 <= HELD_MAX and assignment.span < SPAN_MAX:
                consumer.resume([partition])
                assignment.paused = False

    def _must_be_replaced(self, consumer: Consumer) -> bool:
        """Whether a new reader must take over, because the topic was recreated and its offsets are reset."""
        if not self._note_recreated():
            return False
        self._commit(consumer, list(self.assignments.values()), wait=True)
        begun = all(assignment.committed == 0 for assignment in self.assignments.values())
        return begun or monotonic() > self._replace_by_s  # a partition missing in the new topic accepts no offset

    def _note_recreated(self, *, wait: bool = False) -> bool:
        if not self._recreated and self._watch is not None and self._watch.is_recreated(wait=wait):
            self._recreated, self._replace_by_s = True, monotonic() + REPLACE_WITHIN_S
            log.warning("polls.topic_recreated: %s has another id and is read from its start", self._topic)
        return self._recreated

    def _commit(self, consumer: Consumer, assignments: list[Assignment], *, wait: bool) -> None:
        self._commit_s = monotonic()
        ends = {
            assignment: 0 if self._recreated else assignment.safe for assignment in assignments
        }  # offsets of a deleted topic are void
        new = {assignment: end for assignment, end in ends.items() if end is not None and end != assignment.committed}
        partitions = [TopicPartition(self._topic, assignment.partition, safe) for assignment, safe in new.items()]
        if not partitions:
            return
        try:
            consumer.commit(offsets=partitions, asynchronous=not wait)  # type: ignore[call-overload]
        except KafkaException as error:  # uncommitted records are read again; the ledger recognizes them
            self._warn("offsets of %s are not committed: %s", self._topic, error)
            return
        for assignment, safe in new.items():
            assignment.committed = safe

    def _committed(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        for partition in partitions:
            if (error is not None or partition.error is not None) and partition.partition in self.assignments:
                self.assignments[partition.partition].committed = None  # commit it again

    # Callbacks of the group, called in the thread.

    def _assigned(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._counts.rebalances += 1
        self.assignments = {
            **self.assignments,
            **{partition.partition: Assignment(partition.partition) for partition in partitions},
        }

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._counts.rebalances += 1
        self._note_recreated(wait=True)
        ours = [
            self.assignments[partition.partition] for partition in partitions if partition.partition in self.assignments
        ]
        self._commit(consumer, ours, wait=True)
        self._drop([partition.partition for partition in partitions])

    def _lost(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._counts.rebalances += 1
        self._drop([partition.partition for partition in partitions])

    def _drop(self, partitions: list[int]) -> None:
        self.assignments = {n: assignment for n, assignment in self.assignments.items() if n not in partitions}


class TopicWatch:
    """Detects by its id that a topic was recreated; checks every ten seconds, from one thread.

    The client library follows a topic by name and ignores a leader with a lower epoch than one it knows. A recreated
    topic has another id and starts with the lowest epoch, so a client that knew the former topic can query the former
    leader forever without an error. A new client reads the new topic.

    Args:
        topic: Full name. A missing topic is watched once it exists.
    """

    def __init__(self, config: Mapping[str, Any], topic: str) -> None:
        self._admin = AdminClient(dict(config), logger=log)
        self._topic = topic
        self._id: str | None = None
        self._description: Future[TopicDescription] | None = None
        self._describe_at_s = 0.0
        self._recreated = False

    def is_recreated(self, *, wait: bool = False) -> bool:
        """Whether the topic was recreated since the first answer; with ``wait`` blocks for at most two seconds."""
        if self._recreated:
            return True
        self._admin.poll(0)  # flushes the library's log
        if self._description is None and (wait or monotonic() >= self._describe_at_s):
            self._describe_at_s = monotonic() + ID_EVERY_S
            description = self._admin.describe_topics(TopicCollection([self._topic]), request_timeout=ANSWER_WITHIN_S)
            self._description = description[self._topic]
        if self._description is not None and (wait or self._description.done()):
            self._read_answer(self._description)
            self._description = None
        return self._recreated

    def _read_answer(self, description: Future[TopicDescription]) -> None:
        try:
            found = str(description.result(ANSWER_WITHIN_S + 1).topic_id)
        except (KafkaException, TimeoutError):  # no answer, or the topic does not exist
            return
        self._recreated = self._id is not None and found != self._id
        self._id = found
