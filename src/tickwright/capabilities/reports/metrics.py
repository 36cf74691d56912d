"""The metrics of reports."""

from tickwright.observe.metrics import MetricSpec

METRICS: tuple[MetricSpec, ...] = (
    MetricSpec("tickwright_report_parts_total", "counter", ("outcome",), "Parts of reports that ended here."),
    MetricSpec("tickwright_report_running_parts", "gauge", (), "Parts of reports that run here now."),
    MetricSpec("tickwright_report_stuck_calls", "gauge", (), "Calls of listeners here that were stopped and go on."),
    MetricSpec("tickwright_report_steps_total", "counter", ("outcome",), "Steps of reports that were taken here."),
    MetricSpec("tickwright_report_running_steps", "gauge", (), "Steps of reports that run here now."),
)
