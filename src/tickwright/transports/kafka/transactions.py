"""The log behind the polls' relay: one Kafka transaction per batch, which also writes the batch's number.

::

    open:     topics ▶ init_transactions (fences the previous writer) ▶ read the position to its end
    publish:  begin ▶ records ▶ position record ▶ commit
              │ an error before the commit ─▶ abort ─▶ Aborted   the same producer continues
              │ fenced ──────────────────────────────▶ Fenced    stop, release the lease
              └ any other error ─────────────────────▶ Doubt     this producer is never used again

After a commit that timed out, the transaction may be committed or not. The library also calls some errors abortable
although the coordinator may have committed before. So after the commit request, no error proves anything, and no call
returns the result. But ``init_transactions`` under the same id waits until Kafka has ended the transaction, and the
position then shows the result. So a producer in doubt is discarded, and the log is opened again. Every call of the
library blocks, so each producer has a thread of its own, and ``wait_s`` bounds each call.
"""

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Event
from typing import Annotated, Any, TypeVar

import msgspec
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from msgspec import Meta

from tickwright.domain.errors import Rejected, Unavailable
from tickwright.ports.ids import monotonic
from tickwright.ports.polls import (
    NO_OFFSETS,
    POSITION_UNREADABLE,
    Aborted,
    Batch,
    Committed,
    Doubt,
    Fenced,
    Outcome,
    PartitionOffsets,
)
from tickwright.transports.kafka.config import SHARDS_MAX, TRANSACTION_TIMEOUT_MS, KafkaConfig, log, unavailable
from tickwright.transports.kafka.topics import POSITIONS, prepare_topics, translate

# The position of a relay is the last committed record of its shard's partition. These functions block.

BLOCKED = "kafka_position_blocked"
TAIL = 200
POLL_S = 0.25
_NO_LEADER_YET = frozenset(
    {
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
    }
)


class _Position(msgspec.Struct):
    """The value of a record; see docs/messages.md. A relay writes no number outside the bounds."""

    batch_no: Annotated[int, Meta(ge=0, le=2**53)]


_decode = msgspec.json.Decoder(_Position).decode


def read_position(settings: KafkaConfig, shard: int) -> int | None:
    """Return the number of the last committed batch; ``None`` if the topic is missing or has no record for the shard.

    Reads committed records to the end of the partition. The number is final only after the previous writer was fenced.
    Records behind an open transaction of another program cannot be read yet. Then the position is unknown, and no older
    one is returned.

    Raises:
        Rejected: ``kafka_not_allowed``, ``kafka_position_unreadable``. Permanent.
        Unavailable: ``kafka_unavailable``, ``kafka_position_blocked``. Retry.
    """
    config = settings.client(
        group_id=settings.transactional_id(shard),
        isolation_level="read_committed",
        enable_partition_eof=True,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    )
    consumer = Consumer(config, logger=log)
    partition = TopicPartition(settings.topic(POSITIONS), shard)
    try:
        if partition.topic not in consumer.list_topics(timeout=settings.wait_s).topics:
            return None
        low, high = _bounds(consumer, partition, settings.wait_s)  # of readable records
        end = _end(config, partition, settings.wait_s)
        start = max(low, high - TAIL)  # nearly always enough; an uncompacted partition can be long
        found = _last_from(consumer, partition, start, end, settings.wait_s)
        if found is not None or start == low:
            return found
        return _last_from(consumer, partition, OFFSET_BEGINNING, end, settings.wait_s)
    except KafkaException as error:
        raise translate(error) from error
    finally:
        consumer.close()


def _bounds(consumer: Consumer, partition: TopicPartition, wait_s: float) -> tuple[int, int]:
    """Return the first and the next offset. Waits for the leader of a new partition."""
    deadline = monotonic() + wait_s
    while True:
        try:
            return consumer.get_watermark_offsets(partition, timeout=wait_s)
        except KafkaException as error:
            if error.args[0].code() not in _NO_LEADER_YET or monotonic() > deadline:
                raise
        Event().wait(POLL_S)


def _end(config: dict[str, Any], partition: TopicPartition, wait_s: float) -> int:
    """Return the next offset, including open transactions."""
    consumer = Consumer({**config, "isolation.level": "read_uncommitted"}, logger=log)
    try:
        return _bounds(consumer, partition, wait_s)[1]
    finally:
        consumer.close()


def _last_from(consumer: Consumer, partition: TopicPartition, offset: int, end: int, wait_s: float) -> int | None:
    """Return the batch number in the last record from ``offset`` to ``end``.

    Kafka first reports the end of readable records, which is below ``end`` while a transaction is open.
    """
    consumer.assign([TopicPartition(partition.topic, partition.partition, offset)])
    last: Message | None = None
    readable: int | None = None
    deadline = monotonic() + wait_s
    while monotonic() < deadline:
        message = consumer.poll(POLL_S)
        if message is None:
            continue
        error = message.error()
        if error is None:
            last = message
        elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
            if (message.offset() or 0) < end:
                readable = message.offset()
                continue
            return None if last is None else _read(partition, last)
    if readable is None:
        raise unavailable("the relay's position could not be read in time")
    where = f"{partition.topic}/{partition.partition}"
    first = f"--topic {partition.topic} --partition {partition.partition} --start-offset {readable}"
    text = (
        f"a transaction of another program is open on {where} from offset {readable} on, so the last position (the log "
        f"ends at {end}) cannot be read: end it with kafka-transactions.sh abort {first}, and let only the relay write "
        "to that topic; the relay retries until then"
    )
    raise Unavailable(BLOCKED, text, topic=partition.topic, partition=partition.partition)


def _read(partition: TopicPartition, record: Message) -> int:
    try:
        found = _decode(record.value() or b"")
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        where = f"{partition.topic}/{partition.partition}/{record.offset()}"
        text = (
            f"the record {where} is no position, so another program wrote it: allow only the relay to write to that "
            f"topic, then run tickwright outbox reconcile to write the position again ({error!r:.100})"
        )
        raise Rejected(POSITION_UNREADABLE, text, topic=partition.topic, partition=partition.partition) from error
    return found.batch_no


QUEUE_MESSAGES_MAX = 100_000
REPORTED_PER_PARTITION = 16
"""Records per partition, at each end of a batch, with a report. A partition without one of them has few records."""

T = TypeVar("T")
_FENCED = frozenset({KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH})  # noqa: SLF001


class KafkaLog:
    """Writes the batches of one shard at a time; a :class:`tickwright.ports.polls.PositionedLog`.

    Args:
        settings: Where Kafka is. Checked by ``open``.
        topic: Full name of the topic that batches go to; created if missing.

    Invariants:
        KFK-1: a batch and its number are committed together, so the position shows which batches are committed.
        KFK-2: after a doubt the producer is never used again.
    """

    def __init__(self, settings: KafkaConfig, topic: str) -> None:
        self._settings, self._topic = settings, topic
        self._writer: _ShardWriter | None = None
        self._in_doubt: tuple[int, Committed] = (0, NO_OFFSETS)

    async def open(self, shard: int) -> int | None:
        """Fence the previous writer, and return the number of the last committed batch.

        Raises:
            Rejected: ``kafka_unsafe_option``, ``kafka_replication_unsafe``, ``kafka_position_topic_unsafe``,
                ``kafka_position_unreadable``, ``kafka_topic_compressed``, ``kafka_transaction_timeout``,
                ``kafka_not_allowed``. Permanent until an operator acts.
            Unavailable: ``kafka_unavailable``, ``kafka_position_blocked``. Retry.
        """
        self._discard()
        self._settings.check()
        if not 0 <= shard < SHARDS_MAX:
            raise Rejected("kafka_shards", f"a relay's shard is 0 to {SHARDS_MAX - 1}", shard=shard)
        writer = self._writer = _ShardWriter(self._settings, shard)
        return await writer.call(lambda: writer.open(self._topic))

    async def position(self, shard: int) -> int | None:
        """Return the current number of ``shard`` in the topic, without fencing.

        Raises:
            Rejected: ``kafka_unsafe_option``, ``kafka_not_allowed``, ``kafka_position_unreadable``. Permanent.
            Unavailable: ``kafka_unavailable``, ``kafka_position_blocked``. Retry.
        """
        self._settings.check_options()
        return await asyncio.to_thread(read_position, self._settings, shard)

    async def publish(self, batch: Batch) -> Outcome:
        """Write one batch and its number in one transaction."""
        writer = self._writer
        if writer is None:
            return Doubt("the log is not open")
        outcome = await writer.call(lambda: writer.write(batch))
        self._in_doubt = (batch.number, outcome.offsets if isinstance(outcome, Doubt) else NO_OFFSETS)
        if isinstance(outcome, Doubt | Fenced):
            self._discard()
        return outcome

    def committed(self, number: int) -> Committed:
        """Return the offsets of the batch in doubt. Under our lease, no other process can have sent it since."""
        return self._in_doubt[1] if self._in_doubt[0] == number else NO_OFFSETS

    async def close(self) -> None:
        """Discard the producer; a running call ends within its bound."""
        self._in_doubt = (0, NO_OFFSETS)
        self._discard()

    def _discard(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.discard()


class _ShardWriter:
    """One producer and its thread, from ``init_transactions`` to the first doubt."""

    def __init__(self, settings: KafkaConfig, shard: int) -> None:
        self._settings, self._shard = settings, shard
        self._producer: Producer | None = None
        self._topic, self._partitions = "", 0
        self._positions = settings.topic(POSITIONS)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tickwright-kafka")

    async def call(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def discard(self) -> None:
        self._thread.submit(self._destroy)  # after the running call
        self._thread.shutdown(wait=False)

    def _destroy(self) -> None:
        self._producer = None

    def open(self, topic: str) -> int | None:
        self._topic, self._partitions = topic, prepare_topics(self._settings, topic)
        producer = Producer(
            self._settings.producer(
                transactional_id=self._settings.transactional_id(self._shard),
                transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
                queue_buffering_max_messages=QUEUE_MESSAGES_MAX,
            ),
            logger=log,
        )
        self._producer = producer
        try:
            producer.init_transactions(self._settings.wait_s)
        except KafkaException as error:
            raise translate(error) from error
        return read_position(self._settings, self._shard)

    def write(self, batch: Batch) -> Outcome:
        producer = self._producer
        if producer is None:
            return Doubt("the producer was discarded")
        try:
            producer.begin_transaction()
            edges = self._produce(producer, batch)
        except (KafkaException, BufferError) as error:
            return self._abort(producer, error)
        return self._commit(producer, edges)

    def _commit(self, producer: Producer, edges: "_BatchEdges") -> Outcome:
        """Commit. After the commit request, no error proves that the transaction was not committed."""
        try:
            producer.commit_transaction(self._settings.wait_s)
        except KafkaException as error:
            return _fenced(error) or Doubt(_reason(error), Committed(edges.offsets(), self._partitions))
        finally:
            with suppress(KafkaException):  # it also raises a fatal error; the commit's answer counts
                producer.poll(0)  # flushes the library's log
        offsets = edges.offsets()
        if offsets and offsets[-1].partition >= self._partitions:
            self._partitions = self._count(producer) or self._partitions
        return Committed(offsets, self._partitions)

    def _count(self, producer: Producer) -> int:
        """Return the current number of partitions, because an operator can add some; 0 without an answer."""
        try:
            return len(producer.list_topics(self._topic, timeout=self._settings.wait_s).topics[self._topic].partitions)
        except KafkaException:
            return 0

    def _produce(self, producer: Producer, batch: Batch) -> "_BatchEdges":
        produce, topic, edges = producer.produce, batch.topic, _BatchEdges()
        of_batch = [("batch_no", b"%d" % batch.number), ("fence", b"%d" % batch.fence)]
        records = list(batch.records)
        reported = REPORTED_PER_PARTITION * self._partitions
        for idx, (key, value, of_record) in enumerate(records):
            headers = [*of_record, ("idx", b"%d" % idx), *of_batch]
            report = edges.note if not reported <= idx < len(records) - reported else None
            produce(topic, value, key, headers=headers, on_delivery=report)  # type: ignore[arg-type]  # stub: invariant
        position = json.dumps({"version": 1, "batch_no": batch.number, "fence": batch.fence})
        produce(self._positions, position, str(self._shard), self._shard)
        return edges

    def _abort(self, producer: Producer, cause: KafkaException | BufferError) -> Outcome:
        """Abort the transaction. The commit was not requested, so a successful abort is certain."""
        if isinstance(cause, KafkaException) and _fenced(cause):
            return Fenced()
        try:
            producer.abort_transaction(self._settings.wait_s)
        except KafkaException as error:
            return _fenced(error) or Doubt(f"{_reason(cause)}; and the abort: {_reason(error)}")
        return Aborted(_reason(cause))


class _BatchEdges:
    """First and last offset of a batch in each partition, from the reports on some of its records.

    A report costs as much as the record itself, so only the first and last records are reported.
    """

    def __init__(self) -> None:
        self._found: dict[int, tuple[int, int]] = {}

    def note(self, error: KafkaError | None, message: Message) -> None:
        """Record one delivery report."""
        partition, offset = message.partition(), message.offset()
        if error is None and partition is not None and offset is not None:
            first, last = self._found.get(partition, (offset, offset))
            self._found[partition] = (min(first, offset), max(last, offset))

    def offsets(self) -> list[PartitionOffsets]:
        """Return the known offsets, by partition."""
        return [PartitionOffsets(partition, *edges) for partition, edges in sorted(self._found.items())]


def _fenced(error: KafkaException) -> Fenced | None:
    return Fenced() if error.args[0].code() in _FENCED else None


def _reason(error: KafkaException | BufferError) -> str:
    if isinstance(error, BufferError):
        return repr(error)
    cause: KafkaError = error.args[0]
    return f"{cause.name()}: {cause.str()}"
