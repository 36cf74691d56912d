-- name: shown
-- What a caller sees of an account c, and of its lag l.
c.account_id, c.polling_interval_minutes, c.placed_interval_minutes, c.max_age_days, c.polls_per_slice_max,
       c.freshness_objective, c.paused_at, c.created_at, c.updated_at, l.lag AS lag_ratio, l.stale_since

-- name: list_accounts
-- A page of accounts behind the id $1; $3 is a text that their ids hold, in any case. With one it looks at $4 of them at most: last_id is
-- where it stopped, if it did. Index: polling_schedule_config_pkey, account_lags_pkey.
SELECT found.*, looked.last_id
  FROM (SELECT CASE WHEN $3::text IS NOT NULL THEN
                 (SELECT account_id FROM tickwright.polling_schedule_config WHERE account_id > $1 ORDER BY account_id OFFSET $4 - 1 LIMIT 1)
               END AS last_id) AS looked
  LEFT JOIN LATERAL (
    SELECT {shown}
      FROM (SELECT * FROM tickwright.polling_schedule_config WHERE account_id > $1 ORDER BY account_id LIMIT $4) AS c
      LEFT JOIN tickwright.judged_accounts l ON l.account_no = c.account_no
     WHERE $3::text IS NULL OR position(lower($3) IN lower(c.account_id)) > 0
     ORDER BY c.account_id LIMIT $2) AS found ON true
 ORDER BY found.account_id;

-- name: list_lagging
-- A page of accounts, the worst lag first and those without one last, behind the lag $1 (-1 for none) and the id $2; it looks at the first $5 by
-- their ids; $4 is a text that they hold. Small: a row per account. Index: polling_schedule_config_pkey.
WITH looked AS MATERIALIZED (
  SELECT {shown}, coalesce(l.lag, -1) AS rank
    FROM (SELECT * FROM tickwright.polling_schedule_config ORDER BY account_id LIMIT $5) AS c
    LEFT JOIN tickwright.judged_accounts l ON l.account_no = c.account_no
   WHERE $4::text IS NULL OR position(lower($4) IN lower(c.account_id)) > 0
)
SELECT * FROM looked WHERE rank < $1::float8 OR (rank = $1 AND account_id > $2) ORDER BY rank DESC, account_id LIMIT $3;

-- name: get_account
-- One account. Index: polling_schedule_config_pkey, account_lags_pkey.
SELECT c.account_no, clock_timestamp() AS now, {shown}
  FROM tickwright.polling_schedule_config c LEFT JOIN tickwright.judged_accounts l ON l.account_no = c.account_no
 WHERE c.account_id = $1;

-- name: count_trackers
-- How many trackers an account has: counted up to $2, beyond that what PostgreSQL's statistics say.
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
-- Create an account or set it whole; the corrector moves its trackers. Index: polling_schedule_config_pkey.
INSERT INTO tickwright.polling_schedule_config AS c
       (account_id, polling_interval_minutes, max_age_days, polls_per_slice_max, freshness_objective) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (account_id) DO UPDATE
   SET polling_interval_minutes = excluded.polling_interval_minutes, max_age_days = excluded.max_age_days,
       polls_per_slice_max = excluded.polls_per_slice_max, freshness_objective = excluded.freshness_objective,
       updated_at = clock_timestamp()
 WHERE (c.polling_interval_minutes, c.max_age_days, c.polls_per_slice_max, c.freshness_objective) IS DISTINCT FROM
       (excluded.polling_interval_minutes, excluded.max_age_days, excluded.polls_per_slice_max, excluded.freshness_objective);

-- name: pause_account
-- Its trackers are not selected until it is enabled. Index: polling_schedule_config_pkey.
UPDATE tickwright.polling_schedule_config
   SET paused_at = coalesce(paused_at, clock_timestamp()), updated_at = clock_timestamp() WHERE account_id = $1;

-- name: enable_account
-- Its trackers are selected again, each at its own next turn. Index: polling_schedule_config_pkey.
UPDATE tickwright.polling_schedule_config SET paused_at = NULL, updated_at = clock_timestamp() WHERE account_id = $1;

-- name: list_partners
-- All partners, or one, and what all processes know together of each. Small: a row per partner.
SELECT p.name, p.settings::text AS settings, p.paused_at, p.created_at, p.updated_at, coalesce(s.breaker, 'closed') AS breaker,
       s.open_until, s.blocked_until, s.failing_since, s.last_error, s.last_error_at,
       CASE WHEN EXISTS (SELECT FROM tickwright.workers w
                          WHERE w.lost_at IS NULL AND w.lease_until > clock_timestamp() AND w.facts -> 'partners' ? p.name) THEN 'function'
            WHEN jsonb_typeof(p.settings -> 'http') = 'object' THEN 'http' END AS called_by
  FROM tickwright.partners p LEFT JOIN tickwright.partner_states s ON s.partner_no = p.partner_no
 WHERE $1::text IS NULL OR p.name = $1 ORDER BY p.name LIMIT 10000;

-- name: lock_partner
-- Serialize changes of one partner. Its name never changes, so an entity that is being added, whose foreign key locks this row, is not
-- waited for. Index: partners_pkey.
SELECT name FROM tickwright.partners WHERE name = $1 FOR NO KEY UPDATE;

-- name: put_partner
-- Create a partner or replace its settings. Index: partners_pkey.
INSERT INTO tickwright.partners (name, settings) VALUES ($1, $2::jsonb)
ON CONFLICT (name) DO UPDATE SET settings = excluded.settings, updated_at = clock_timestamp();

-- name: pause_partner
-- Nobody calls it, and its trackers are not selected, until it is enabled. Index: partners_pkey.
UPDATE tickwright.partners
   SET paused_at = coalesce(paused_at, clock_timestamp()), updated_at = clock_timestamp() WHERE name = $1;

-- name: enable_partner
-- It is called again. Index: partners_pkey.
UPDATE tickwright.partners SET paused_at = NULL, updated_at = clock_timestamp() WHERE name = $1;

-- name: reset_partner
-- Forget what calls to it ended as: the breaker is closed, and a wish for silence is over. Index: partner_states_pkey.
UPDATE tickwright.partner_states s
   SET breaker = 'closed', open_until = NULL, opened_times = 0, trial_owner = NULL, trial_until = NULL, blocked_until = NULL,
       window_at = clock_timestamp(), window_ok = 0, window_failed = 0, failing_since = NULL, changed_at = clock_timestamp()
  FROM tickwright.partners p WHERE p.name = $1 AND s.partner_no = p.partner_no;
