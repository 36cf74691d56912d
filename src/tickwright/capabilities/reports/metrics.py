"""The metrics of reports."""

from tickwright.observe.metrics import MetricSpec

METRICS: tuple[MetricSpec, ...] = (
    MetricSpec("tickwright_report_parts_total", "counter", ("outcome",), "Parts of reports that ended here."),
    MetricSpec("tickwright_report_running_parts", "gauge", (), "Parts of reports that run here now."),
    MetricSpec("tickwright_report_stuck_calls", "gauge", (), "Stopped calls of listeners that still run here."),
    MetricSpec("tickwright_report_steps_total", "counter", ("outcome",), "Steps of reports that were claimed here."),
    MetricSpec("tickwright_report_running_steps", "gauge", (), "Steps of reports that run here now."),
)
