"""The metrics of batches."""

from tickwright.observe.metrics import MetricSpec

METRICS: tuple[MetricSpec, ...] = (
    MetricSpec(
        "tickwright_batch_chunks_total", "counter", ("outcome",), "Plans and chunks of executions that ended here."
    ),
    MetricSpec("tickwright_batch_running_chunks", "gauge", (), "Plans and chunks that this consumer runs now."),
    MetricSpec("tickwright_batch_executions_total", "counter", (), "Executions that this producer created."),
    MetricSpec("tickwright_batch_released_actions_total", "counter", (), "Actions that this checker released."),
    MetricSpec("tickwright_executions_waiting", "gauge", (), "Due and not started, counted up to 10,000."),
    MetricSpec("tickwright_executions_oldest_waiting_seconds", "gauge", (), "How long the oldest of those waits."),
    MetricSpec("tickwright_executions_working", "gauge", (), "In progress, counted up to 10,000."),
    MetricSpec("tickwright_executions_unreleased_actions", "gauge", (), "Actions of executions that are not released."),
)
