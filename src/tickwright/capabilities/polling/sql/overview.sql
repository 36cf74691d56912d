-- name: polls
-- Trackers, counted up to five times $1 and beyond that by the planner's statistics; unplaced ones; polls without an owner, and the oldest
-- of them; the polls that are released in each of the next sixty seconds. Indexes: trackers_pkey, tracker_intake_pkey, poll_queue_waiting
-- (a probe a partner for the oldest), scheduler_outbox_waiting: a range a shard.
WITH RECURSIVE shards AS (
  (SELECT shard FROM tickwright.scheduler_outbox WHERE batch_no IS NULL ORDER BY shard LIMIT 1)
  UNION ALL
  SELECT next.shard FROM shards s CROSS JOIN LATERAL (
    SELECT o.shard FROM tickwright.scheduler_outbox o WHERE o.batch_no IS NULL AND o.shard > s.shard ORDER BY o.shard LIMIT 1) AS next
), released AS (
  SELECT floor(date_part('epoch', o.release_at - date_trunc('second', now())))::integer AS second, sum(cardinality(o.ids))::bigint AS polls
    FROM (SELECT shard FROM shards LIMIT 1000) AS s CROSS JOIN LATERAL (
      SELECT w.release_at, w.ids FROM tickwright.scheduler_outbox w
       WHERE w.batch_no IS NULL AND w.shard = s.shard AND w.release_at >= date_trunc('second', now())
         AND w.release_at < date_trunc('second', now()) + interval '1 minute') AS o
   GROUP BY 1
)
SELECT (SELECT CASE WHEN count(*) < 5 * $1::integer THEN count(*)
                    ELSE greatest(count(*), (SELECT reltuples FROM pg_class WHERE oid = 'tickwright.trackers'::regclass)) END::bigint
          FROM (SELECT FROM tickwright.trackers LIMIT 5 * $1::integer) AS bounded) AS trackers,
       (SELECT count(*) FROM (SELECT FROM tickwright.tracker_intake LIMIT $1) AS bounded) AS unplaced,
       (SELECT least(coalesce(sum(cardinality(ids)), 0), $1)::bigint
          FROM (SELECT ids FROM tickwright.poll_queue WHERE owner IS NULL LIMIT $1) AS bounded) AS waiting,
       (SELECT coalesce(greatest(date_part('epoch', clock_timestamp() - min(head.due_at)), 0), 0)
          FROM tickwright.partners p CROSS JOIN LATERAL (
            SELECT q.due_at FROM tickwright.poll_queue q
             WHERE q.partner_no = p.partner_no AND q.owner IS NULL ORDER BY q.due_at, q.seq LIMIT 1) AS head) AS oldest_s,
       ARRAY (SELECT coalesce(released.polls, 0) FROM generate_series(0, 59) AS generated (second) LEFT JOIN released ON released.second = generated.second ORDER BY generated.second)
         AS ahead;

-- name: partners
-- What became of each partner's time slots of the last ten minutes, what it allows, and what decides whether it is called. Index:
-- poll_slices_pkey.
SELECT p.name, coalesce(sum(l.selected), 0)::bigint AS selected, coalesce(sum(l.polled), 0)::bigint AS polled,
       coalesce(sum(l.late), 0)::bigint AS late, coalesce(sum(l.superseded), 0)::bigint AS superseded,
       coalesce(round((sum(l.polled) / greatest(60, date_part('epoch', clock_timestamp() - min(l.due_at))))::numeric, 1), 0)::float8 AS polls_per_s,
       coalesce(p.settings ->> 'rate', 'any rate') AS allowed,
       clock_timestamp() AS now, p.paused_at, p.settings::text AS settings, s.breaker, s.open_until, s.blocked_until
  FROM tickwright.partners p
  LEFT JOIN tickwright.partner_states s ON s.partner_no = p.partner_no
  LEFT JOIN tickwright.poll_slices l
    ON l.partner_no = p.partner_no AND l.due_at BETWEEN clock_timestamp() - interval '10 minutes' AND clock_timestamp()
 GROUP BY p.name, p.settings, p.paused_at, s.breaker, s.open_until, s.blocked_until ORDER BY p.name LIMIT 20;

-- name: freshness
-- How fresh accounts are within their last intervals: the share of fresh polls, how many accounts are judged, how many lag, and the worst
-- $1. Small: a row per account.
WITH lag AS MATERIALIZED (SELECT account_id, interval_minutes, lag, polls, fresh, stale_since FROM tickwright.judged_accounts)
SELECT (SELECT (sum(fresh) / nullif(sum(polls), 0))::float8 FROM lag) AS share,
       (SELECT count(*) FROM lag) AS judged, (SELECT count(*) FROM lag WHERE stale_since IS NOT NULL) AS lagging,
       ARRAY (SELECT account_id FROM lag ORDER BY lag DESC, account_id LIMIT $1) AS accounts,
       ARRAY (SELECT lag FROM lag ORDER BY lag DESC, account_id LIMIT $1) AS ratios,
       ARRAY (SELECT interval_minutes FROM lag ORDER BY lag DESC, account_id LIMIT $1) AS intervals;

-- name: poll_lags
-- The lag of the consumers, per partition with polls within a week, and the age of the oldest unfinished poll. Small: a row per partition.
-- Index: poll_ends_pkey.
SELECT topic, partition, lag, coalesce(date_part('epoch', clock_timestamp() - unfinished_since), 0) AS oldest_s
  FROM tickwright.poll_lags WHERE published_at > clock_timestamp() - interval '7 days' ORDER BY topic, partition LIMIT 1000;
