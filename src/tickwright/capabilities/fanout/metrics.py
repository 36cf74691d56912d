"""The metrics of fan-out."""

from tickwright.observe.metrics import MetricSpec

METRICS: tuple[MetricSpec, ...] = (
    MetricSpec("tickwright_fanout_messages_total", "counter", ("outcome",), "Messages of fan-out, by outcome."),
    MetricSpec(
        "tickwright_fanout_listed_entities", "gauge", ("module",), "Entities that this scheduler publishes polls for."
    ),
    MetricSpec(
        "tickwright_fanout_module_held_back", "gauge", ("module",), "1 while it is paused or its gate is closed."
    ),
    MetricSpec("tickwright_fanout_lists_age_seconds", "gauge", (), "Since the lists were read."),
    MetricSpec(
        "tickwright_fanout_tasks_total", "counter", ("outcome",), "Tasks of fan-out that this consumer received."
    ),
    MetricSpec("tickwright_fanout_running_tasks", "gauge", (), "Tasks that this consumer holds now."),
    MetricSpec("tickwright_fanout_slow_entities", "gauge", (), "Entities, per module, that are slow in this consumer."),
    MetricSpec("tickwright_fanout_slow_running_tasks", "gauge", (), "Tasks of slow entities that this consumer runs."),
    MetricSpec(
        "tickwright_fanout_parked_tasks", "gauge", (), "Tasks that wait here, because RabbitMQ accepts no message."
    ),
    MetricSpec("tickwright_fanout_queued_tasks", "gauge", (), "Tasks in the queue that no consumer holds."),
)
