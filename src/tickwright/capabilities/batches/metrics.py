"""What producer, consumer and checker count, for the metrics of their process."""

from collections.abc import Sequence

from tickwright.capabilities.batches.executions.checker import Checker
from tickwright.capabilities.batches.executions.consumer import BatchConsumer
from tickwright.capabilities.batches.executions.producer import Producer
from tickwright.observe.metrics import Sample, Source


def consumer_source(consumer: BatchConsumer) -> Source:
    """Return what reads a consumer."""

    def read() -> Sequence[Sample]:
        return [
            Sample("tickwright_batch_running_chunks", consumer.running),
            *(Sample("tickwright_batch_chunks_total", n, (name,)) for name, n in sorted(consumer.counts.items())),
        ]

    return read


def scheduler_source(producer: Producer, checker: Checker) -> Source:
    """Return what reads the two loops of the scheduler role."""

    def read() -> Sequence[Sample]:
        return [
            Sample("tickwright_batch_executions_total", producer.counts["executions"]),
            Sample("tickwright_batch_released_actions_total", checker.counts["actions"]),
        ]

    return read
