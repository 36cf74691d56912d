-- name: shown
-- The columns of an account c, and of its lag l, that a caller sees.
c.account_id, c.polling_interval_minutes, c.placed_interval_minutes, c.max_age_days, c.polls_per_slice_max,
       c.freshness_objective, c.paused_at, c.created_at, c.updated_at, l.lag AS lag_ratio, l.stale_since

-- name: list_accounts
-- A page of accounts with ids above $1. $3 is a text that an id contains, in any case. With $3 the page reads at most $4
-- accounts; last_id is the last one read, if accounts are left. Index: polling_schedule_config_pkey, account_lags_pkey.
SELECT found.*, searched.last_id
  FROM (SELECT CASE WHEN $3::text IS NOT NULL THEN
                 (SELECT account_id FROM tickwright.polling_schedule_config WHERE account_id > $1 ORDER BY account_id OFFSET $4 - 1 LIMIT 1)
               END AS last_id) AS searched
  LEFT JOIN LATERAL (
    SELECT {shown}
      FROM (SELECT * FROM tickwright.polling_schedule_config WHERE account_id > $1 ORDER BY account_id LIMIT $4) AS c
      LEFT JOIN tickwright.judged_accounts l ON l.account_no = c.account_no
     WHERE $3::text IS NULL OR position(lower($3) IN lower(c.account_id)) > 0
     ORDER BY c.account_id LIMIT $2) AS found ON true
 ORDER BY found.account_id;

-- name: list_lagging
-- A page of accounts, the worst lag first, those without a lag last: below the lag $1 (-1 for none), above the id $2. It reads the
-- first $5 accounts by id; $4 is a text that an id contains. Small: a row per account. Index: polling_schedule_config_pkey.
WITH searched AS MATERIALIZED (
  SELECT {shown}, coalesce(l.lag, -1) AS rank
    FROM (SELECT * FROM tickwright.polling_schedule_config ORDER BY account_id LIMIT $5) AS c
    LEFT JOIN tickwright.judged_accounts l ON l.account_no = c.account_no
   WHERE $4::text IS NULL OR position(lower($4) IN lower(c.account_id)) > 0
)
SELECT * FROM searched WHERE rank < $1::float8 OR (rank = $1 AND account_id > $2) ORDER BY rank DESC, account_id LIMIT $3;

-- name: get_account
-- One account. Index: polling_schedule_config_pkey, account_lags_pkey.
SELECT c.account_no, clock_timestamp() AS now, {shown}
  FROM tickwright.polling_schedule_config c LEFT JOIN tickwright.judged_accounts l ON l.account_no = c.account_no
 WHERE c.account_id = $1;

-- name: count_trackers
-- How many trackers an account has: counted up to $2, estimated from PostgreSQL's statistics above that.
-- Index: trackers_account.
SELECT few.n AS counted,
       (SELECT greatest(0, c.reltuples) * coalesce(s.most_common_freqs[array_position(s.most_common_vals::text::integer[], $1)], 0)
          FROM pg_class c LEFT JOIN pg_stats s ON s.schemaname = 'tickwright' AND s.tablename = 'trackers' AND s.attname = 'account_no'
         WHERE c.oid = 'tickwright.trackers'::regclass) AS estimated
  FROM (SELECT count(*) AS n FROM (SELECT FROM tickwright.trackers WHERE account_no = $1 LIMIT $2) AS first) AS few;

-- name: lock_account
-- Serialize changes of one account. Index: polling_schedule_config_pkey.
SELECT account_id FROM tickwright.polling_schedule_config WHERE account_id = $1 FOR UPDATE;

-- name: put_account
-- Create an account or replace its settings; the corrector moves its trackers. Index: polling_schedule_config_pkey.
INSERT INTO tickwright.polling_schedule_config AS c
       (account_id, polling_interval_minutes, max_age_days, polls_per_slice_max, freshness_objective) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (account_id) DO UPDATE
   SET polling_interval_minutes = excluded.polling_interval_minutes, max_age_days = excluded.max_age_days,
       polls_per_slice_max = excluded.polls_per_slice_max, freshness_objective = excluded.freshness_objective,
       updated_at = clock_timestamp()
 WHERE (c.polling_interval_minutes, c.max_age_days, c.polls_per_slice_max, c.freshness_objective) IS DISTINCT FROM
       (excluded.polling_interval_minutes, excluded.max_age_days, excluded.polls_per_slice_max, excluded.freshness_objective);

-- name: pause_account
-- Stop selecting its trackers until it is enabled. Index: polling_schedule_config_pkey.
UPDATE tickwright.polling_schedule_config
   SET paused_at = coalesce(paused_at, clock_timestamp()), updated_at = clock_timestamp() WHERE account_id = $1;

-- name: enable_account
-- Select its trackers again, each at its own next slot. Index: polling_schedule_config_pkey.
UPDATE tickwright.polling_schedule_config SET paused_at = NULL, updated_at = clock_timestamp() WHERE account_id = $1;

-- name: placed_trackers
-- The placed trackers of the account $1 per partner, of its first $2. Index: trackers_account, partners_partner_no_key.
SELECT p.name AS partner, count(*)::float8 AS trackers
  FROM (SELECT t.partner_no FROM tickwright.trackers t WHERE t.account_no = $1 AND t.place IS NOT NULL LIMIT $2) AS t
  JOIN tickwright.partners p ON p.partner_no = t.partner_no GROUP BY p.name ORDER BY p.name;

-- name: sampled_trackers
-- The same as placed_trackers for a large account, estimated from $2 random pages of the table. No index: it reads these pages.
SELECT p.name AS partner, t.trackers * (SELECT greatest(1, c.relpages / $2::float8) FROM pg_class c WHERE c.oid = 'tickwright.trackers'::regclass) AS trackers
  FROM (SELECT s.partner_no, count(*) AS trackers
          FROM tickwright.trackers s TABLESAMPLE SYSTEM (
                 (SELECT least(100, 100 * $2::float8 / greatest(1, c.relpages)) FROM pg_class c WHERE c.oid = 'tickwright.trackers'::regclass))
         WHERE s.account_no = $1 AND s.place IS NOT NULL GROUP BY s.partner_no) AS t
  JOIN tickwright.partners p ON p.partner_no = t.partner_no ORDER BY p.name;

-- name: coming_polls
-- Polls per partner in the next twelve whole slices of five minutes, as the last selection of each slot counted them.
-- Small: a row per slot that is due in that hour. Index: poll_slices_pkey.
WITH span AS MATERIALIZED (
  SELECT date_bin('5 minutes', clock_timestamp(), 'epoch') + interval '5 minutes' AS from_at
), scheduled_poll AS (
  SELECT s.slot_id, s.prev_due_at, due.at
    FROM span CROSS JOIN tickwright.poll_slots s
   CROSS JOIN LATERAL generate_series(s.next_due_at, span.from_at + interval '59 minutes', make_interval(mins => s.interval_minutes)) AS due (at)
   WHERE s.next_due_at < span.from_at + interval '1 hour' AND due.at >= span.from_at
)
SELECT p.name AS partner, date_bin('5 minutes', scheduled_poll.at, 'epoch') AS slice_at,
       sum(greatest(0, (SELECT coalesce(sum(load), 0) FROM unnest(l.loads) AS load) - l.skipped))::bigint AS polls
  FROM scheduled_poll
  JOIN tickwright.poll_slices l ON l.due_at = scheduled_poll.prev_due_at AND l.slot_id = scheduled_poll.slot_id AND NOT l.coalesced
  JOIN tickwright.partners p ON p.partner_no = l.partner_no
 GROUP BY 1, 2;

-- name: account_names
-- Names of accounts by their numbers. Index: polling_schedule_config_account_no_key.
SELECT account_no, account_id FROM tickwright.polling_schedule_config WHERE account_no = ANY ($1::integer[]);
