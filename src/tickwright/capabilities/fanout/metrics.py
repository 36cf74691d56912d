"""What the two halves of fan-out count, for the metrics of their process."""

from collections.abc import Sequence

from tickwright.capabilities.fanout.consumer.consumer import FanoutConsumer
from tickwright.capabilities.fanout.scheduler.scheduler import FanoutScheduler
from tickwright.observe.metrics import Sample, Source
from tickwright.ports.ids import monotonic


def scheduler_source(scheduler: FanoutScheduler) -> Source:
    """Return what reads a scheduler."""

    def read() -> Sequence[Sample]:
        samples = [
            Sample("tickwright_fanout_messages_total", count, (outcome,))
            for outcome, count in sorted(scheduler.counts.items())
        ]
        for name, module in scheduler.lists.modules.items():
            held_back = float(scheduler.held_back(module))
            samples.append(Sample("tickwright_fanout_listed_entities", len(module.entities), (name,)))
            samples.append(Sample("tickwright_fanout_module_held_back", held_back, (name,)))
        if scheduler.clock.known:
            samples.append(Sample("tickwright_fanout_lists_age_seconds", monotonic() - scheduler.lists.received_s))
        return samples

    return read


def consumer_source(consumer: FanoutConsumer) -> Source:
    """Return what reads a consumer."""

    def read() -> Sequence[Sample]:
        samples = [
            Sample("tickwright_fanout_tasks_total", count, (outcome,))
            for outcome, count in sorted(consumer.counts.items())
        ]
        slow = consumer.slow
        return [
            *samples,
            Sample("tickwright_fanout_running_tasks", consumer.running),
            Sample("tickwright_fanout_slow_entities", len(slow.known)),
            Sample("tickwright_fanout_slow_running_tasks", slow.running),
        ]

    return read
