"""The metrics of sessions, leases, the outbox and the process."""

from tickwright.observe.metrics import MetricSpec

METRICS: tuple[MetricSpec, ...] = (
    MetricSpec("tickwright_session_token", "gauge", (), "Fencing token of this session; 0 without one."),
    MetricSpec("tickwright_session_held", "gauge", (), "1 while this session's lease may be relied on."),
    MetricSpec("tickwright_lease_held", "gauge", ("lease",), "1 while this process holds the lease."),
    MetricSpec("tickwright_lease_fence", "gauge", ("lease",), "Fence of a lease that this process holds."),
    MetricSpec("tickwright_lease_age_seconds", "gauge", ("lease",), "Since the last renewal of a held lease."),
    MetricSpec("tickwright_relay_messages_total", "counter", ("outcome",), "Outbox rows settled by this relay."),
    MetricSpec("tickwright_relay_lost_marks_total", "counter", (), "Outcomes dropped after a lost lease."),
    MetricSpec("tickwright_relay_busy_destinations", "gauge", (), "Destinations with a batch under way."),
    MetricSpec("tickwright_relay_failing_destinations", "gauge", (), "Destinations that wait after failures."),
    MetricSpec("tickwright_service_tick_age_seconds", "gauge", ("service",), "Since the loop came round."),
    MetricSpec("tickwright_service_restarts_total", "counter", ("service",), "Starts after a crash."),
    MetricSpec("tickwright_dead_letters", "gauge", ("kind",), "Dead letters, counted up to 10,000."),
    MetricSpec("tickwright_outbox_waiting", "gauge", (), "Outbox rows, counted up to 10,000."),
    MetricSpec("tickwright_outbox_oldest_seconds", "gauge", ("scheme",), "Age of the oldest outbox row."),
    MetricSpec("tickwright_alerts_firing", "gauge", ("rule", "severity"), "Alerts that fire now."),
    MetricSpec("tickwright_readings_ok", "gauge", (), "1 when the database's gauges of this page are fresh."),
    MetricSpec("tickwright_database_full", "gauge", (), "1 while the database says that its disk is full."),
)
