-- name: list_partners
-- All partners, or the partner $1, each with its shared state. Small: a row per partner.
SELECT p.name, p.settings::text AS settings, p.paused_at, p.created_at, p.updated_at, coalesce(s.breaker, 'closed') AS breaker,
       s.open_until, s.blocked_until, s.failing_since, s.last_error, s.last_error_at,
       CASE WHEN EXISTS (SELECT FROM tickwright.workers w
                          WHERE w.lost_at IS NULL AND w.lease_until > clock_timestamp() AND w.facts -> 'partners' ? p.name)
            THEN CASE WHEN p.settings ? 'target' THEN 'remote' ELSE 'function' END
            WHEN jsonb_typeof(p.settings -> 'http') = 'object' THEN 'http' END AS called_by
  FROM tickwright.partners p LEFT JOIN tickwright.partner_states s ON s.partner_no = p.partner_no
 WHERE $1::text IS NULL OR p.name = $1 ORDER BY p.name LIMIT 10000;

-- name: lock_partner
-- Serialize changes of one partner. Its name never changes, so an entity that is being added, whose foreign key locks this row, does
-- not block it. Index: partners_pkey.
SELECT name FROM tickwright.partners WHERE name = $1 FOR NO KEY UPDATE;

-- name: put_partner
-- Create a partner or replace its settings. Index: partners_pkey.
INSERT INTO tickwright.partners (name, settings) VALUES ($1, $2::jsonb)
ON CONFLICT (name) DO UPDATE SET settings = excluded.settings, updated_at = clock_timestamp();

-- name: pause_partner
-- Stop calling it and selecting its trackers until it is enabled. Index: partners_pkey.
UPDATE tickwright.partners
   SET paused_at = coalesce(paused_at, clock_timestamp()), updated_at = clock_timestamp() WHERE name = $1;

-- name: enable_partner
-- Call it again. Index: partners_pkey.
UPDATE tickwright.partners SET paused_at = NULL, updated_at = clock_timestamp() WHERE name = $1;

-- name: reset_partner
-- Reset its shared state: close the breaker and end the silence that it asked for. Index: partner_states_pkey.
UPDATE tickwright.partner_states s
   SET breaker = 'closed', open_until = NULL, opened_times = 0, trial_owner = NULL, trial_until = NULL, blocked_until = NULL,
       window_at = clock_timestamp(), window_ok = 0, window_failed = 0, failing_since = NULL, changed_at = clock_timestamp()
  FROM tickwright.partners p WHERE p.name = $1 AND s.partner_no = p.partner_no;

-- name: contract_state
-- The shared state of the partner $1, and the clock. Index: partners_pkey, partner_states_pkey.
SELECT p.partner_no, p.name, p.settings::text AS settings, p.paused_at, clock_timestamp() AS now, coalesce(s.breaker, 'closed') AS breaker,
       s.open_until, coalesce(s.opened_times, 0) AS opened_times, s.changed_at, s.failing_since, s.blocked_until, s.window_at,
       coalesce(s.window_ok, 0) AS window_ok, coalesce(s.window_failed, 0) AS window_failed, s.last_error, s.last_error_at
  FROM tickwright.partners p LEFT JOIN tickwright.partner_states s ON s.partner_no = p.partner_no
 WHERE p.name = $1;

-- name: shares
-- How much of a partner's concurrency each live session may use. Index: partner_shares_pkey, workers_pkey.
SELECT w.id AS worker, w.name, h.granted FROM tickwright.partner_shares h JOIN tickwright.workers w ON w.id = h.worker AND w.lost_at IS NULL
 WHERE h.partner_no = $1 ORDER BY h.granted DESC, w.id LIMIT 100;

-- name: waiting_polls
-- Polls of a partner in the queue that wait for a consumer, and those that consumers hold; reads at most $2 rows of each.
-- Index: poll_queue_waiting, poll_queue_taken.
SELECT waits.polls, waits.lines >= $2 AS capped, waits.oldest_at, hand.polls AS in_hand
  FROM (SELECT coalesce(sum(cardinality(q.ids)), 0)::bigint AS polls, count(*) AS lines, min(q.due_at) AS oldest_at
          FROM (SELECT due_at, ids FROM tickwright.poll_queue WHERE partner_no = $1 AND owner IS NULL ORDER BY due_at, seq LIMIT $2) AS q) AS waits
 CROSS JOIN (SELECT coalesce(sum(cardinality(q.ids)), 0)::bigint AS polls
               FROM (SELECT t.ids FROM tickwright.workers w JOIN tickwright.poll_queue t ON t.owner = w.id
                      WHERE w.lost_at IS NULL AND t.partner_no = $1 LIMIT $2) AS q) AS hand;

-- name: counted_calls
-- Calls to the partner $1 that each live process has counted since it started. Small: a row per process.
SELECT w.name, coalesce((c.said ->> 'answered')::numeric, 0)::bigint AS answered, coalesce((c.said ->> 'throttled')::numeric, 0)::bigint AS throttled,
       coalesce((c.said ->> 'failed')::numeric, 0)::bigint AS failed
  FROM tickwright.workers w CROSS JOIN LATERAL (SELECT w.facts -> 'counters' -> 'partners' -> $1 AS said) AS c
 WHERE w.lost_at IS NULL AND w.lease_until > clock_timestamp() AND c.said IS NOT NULL ORDER BY w.id LIMIT 1000;
