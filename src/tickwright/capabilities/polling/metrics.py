"""The metrics of polls, their relay and freshness."""

from tickwright.observe.metrics import MetricSpec

METRICS: tuple[MetricSpec, ...] = (
    MetricSpec("tickwright_polls_published_total", "counter", ("shard",), "Polls that this process published."),
    MetricSpec(
        "tickwright_poll_relay_superseded_total",
        "counter",
        ("shard",),
        "Polls dropped by the relay, because the next poll was due.",
    ),
    MetricSpec("tickwright_poll_batches_total", "counter", ("shard", "outcome"), "Batches of polls, by outcome."),
    MetricSpec("tickwright_poll_relay_stands", "gauge", ("shard",), "1 while the relay of polls is blocked."),
    MetricSpec("tickwright_poll_relay_opens_total", "counter", ("shard",), "Kafka producers that this relay opened."),
    MetricSpec("tickwright_polls_done_total", "counter", (), "Polls whose result this consumer wrote."),
    MetricSpec("tickwright_poll_news_total", "counter", (), "Trackers with an event among them."),
    MetricSpec("tickwright_polls_late_total", "counter", (), "Polls among them after a tenth of their interval."),
    MetricSpec(
        "tickwright_polls_superseded_total",
        "counter",
        (),
        "Polls dropped, because the next poll was due or the tracker had ended.",
    ),
    MetricSpec(
        "tickwright_poll_lost_answers_total",
        "counter",
        (),
        "Answers not written: the group was lost, or the answer was refused or its tracker locked too long.",
    ),
    MetricSpec("tickwright_poll_answer_backlog", "gauge", (), "Answers that are not written yet."),
    MetricSpec("tickwright_polls_held", "gauge", ("partner",), "Polls taken and not ended, in this consumer."),
    MetricSpec("tickwright_poll_records_total", "counter", (), "Records that this consumer read from Kafka."),
    MetricSpec(
        "tickwright_poll_records_over_total",
        "counter",
        (),
        "Polls from Kafka dropped without a call: the next poll was due.",
    ),
    MetricSpec("tickwright_poll_records_parked_total", "counter", (), "Polls from Kafka moved into the queue to wait."),
    MetricSpec("tickwright_poll_records_skipped_total", "counter", ("reason",), "Records from Kafka skipped."),
    MetricSpec("tickwright_poll_partitions_held", "gauge", (), "Partitions that this consumer reads."),
    MetricSpec(
        "tickwright_poll_rebalances_total", "counter", (), "Assignments and revocations of partitions by the group."
    ),
    MetricSpec(
        "tickwright_poll_lag_records", "gauge", ("topic", "partition"), "From the group's position to the last poll."
    ),
    MetricSpec(
        "tickwright_poll_oldest_seconds", "gauge", ("topic", "partition"), "How long the oldest unfinished poll waits."
    ),
    MetricSpec(
        "tickwright_polls_fresh_ratio", "gauge", (), "Share of the judged polls of the last hour that were fresh."
    ),
    MetricSpec("tickwright_accounts_judged", "gauge", (), "Accounts with trackers that are judged."),
    MetricSpec("tickwright_accounts_lagging", "gauge", (), "Accounts whose trackers become older than 1.1 intervals."),
    MetricSpec(
        "tickwright_account_lag_ratio", "gauge", ("account",), "Age at the next poll, in intervals; the worst 20."
    ),
)
