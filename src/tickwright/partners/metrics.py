"""The metrics of calls to partners."""

from tickwright.observe.metrics import MetricSpec

METRICS: tuple[MetricSpec, ...] = (
    MetricSpec("tickwright_partner_calls_total", "counter", ("partner", "outcome"), "Calls that ended here."),
    MetricSpec("tickwright_partner_running_calls", "gauge", ("partner",), "Calls that run now, in this process."),
    MetricSpec(
        "tickwright_partner_closed",
        "gauge",
        ("partner",),
        "1 while paused, in quiet hours, throttled or the breaker is open.",
    ),
)
