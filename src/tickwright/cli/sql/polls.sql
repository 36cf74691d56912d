-- name: trackers
-- How many trackers there are: counted up to 50,000, beyond that by the planner's statistics; how many have no place yet,
-- up to 10,000. Indexes: trackers_pkey, tracker_intake_pkey.
SELECT greatest((SELECT count(*) FROM (SELECT FROM tickwright.trackers LIMIT 50000) AS some_of_them), reltuples)::bigint AS trackers,
       (SELECT count(*) FROM (SELECT FROM tickwright.tracker_intake LIMIT 10000) AS some_of_them) AS unplaced,
       (SELECT count(*) FROM tickwright.poll_slots) AS slots
  FROM pg_class WHERE oid = 'tickwright.trackers'::regclass;

-- name: ahead
-- What is released in each of the next sixty seconds. Index: scheduler_outbox_waiting; what waits is a minute's polls.
SELECT second, coalesce(sum(cardinality(o.ids)), 0)::bigint AS polls
  FROM generate_series(0, 59) AS second
  LEFT JOIN tickwright.scheduler_outbox o
    ON o.release_at >= date_trunc('second', clock_timestamp()) + second * interval '1 second'
   AND o.release_at < date_trunc('second', clock_timestamp()) + (second + 1) * interval '1 second'
 GROUP BY second ORDER BY second;

-- name: accounts
-- How fresh accounts are kept within their last intervals: how many are judged, how many of them lag, what share of the
-- polls was fresh, and the three of which a tracker got oldest. Small: a row per account.
WITH lag AS MATERIALIZED (SELECT account_id, interval_minutes, lag, polls, fresh, stale_since FROM tickwright.judged_accounts)
SELECT (SELECT count(*) FROM lag) AS judged, (SELECT count(*) FROM lag WHERE stale_since IS NOT NULL) AS lagging,
       (SELECT (sum(fresh) / nullif(sum(polls), 0))::float8 FROM lag) AS share,
       ARRAY (SELECT format('%s (%s min) %s %%', account_id, interval_minutes, round(100 * lag::numeric))
                FROM lag ORDER BY lag DESC, account_id LIMIT 3) AS worst;

-- name: partners
-- What the turns of the last ten minutes became, per partner, what it allows, and what keeps it from being called.
-- Index: poll_slices_pkey.
SELECT p.name, coalesce(sum(l.selected), 0)::bigint AS selected, coalesce(sum(l.polled), 0)::bigint AS polled,
       coalesce(sum(l.late), 0)::bigint AS late, coalesce(sum(l.superseded), 0)::bigint AS superseded,
       coalesce(round((sum(l.polled) / greatest(60, date_part('epoch', clock_timestamp() - min(l.due_at))))::numeric, 1), 0)::float8 AS polls_per_s,
       coalesce(p.settings ->> 'rate', 'any rate') AS allowed,
       CASE WHEN p.paused_at IS NOT NULL THEN 'paused'
            WHEN s.breaker = 'open' THEN 'breaker open'
            WHEN s.breaker = 'half_open' THEN 'one trial'
            WHEN s.blocked_until > clock_timestamp() THEN 'asked for silence'
            ELSE 'called' END AS state
  FROM tickwright.partners p
  LEFT JOIN tickwright.partner_states s ON s.partner_no = p.partner_no
  LEFT JOIN tickwright.poll_slices l
    ON l.partner_no = p.partner_no AND l.due_at BETWEEN clock_timestamp() - interval '10 minutes' AND clock_timestamp()
 GROUP BY p.name, p.settings, p.paused_at, s.breaker, s.blocked_until ORDER BY p.name LIMIT 20;
