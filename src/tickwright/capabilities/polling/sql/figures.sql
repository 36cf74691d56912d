-- name: standing
-- What all processes know together of the partner $1, and the clock. Index: partners_pkey, partner_states_pkey.
SELECT p.partner_no, p.name, p.settings::text AS settings, p.paused_at, clock_timestamp() AS now, coalesce(s.breaker, 'closed') AS breaker,
       s.open_until, coalesce(s.opened_times, 0) AS opened_times, s.changed_at, s.failing_since, s.blocked_until, s.window_at,
       coalesce(s.window_ok, 0) AS window_ok, coalesce(s.window_failed, 0) AS window_failed, s.last_error, s.last_error_at
  FROM tickwright.partners p LEFT JOIN tickwright.partner_states s ON s.partner_no = p.partner_no
 WHERE p.name = $1;

-- name: shares
-- How much of a partner's concurrency each session that lives may use. Index: partner_shares_pkey, workers_pkey.
SELECT w.id AS worker, w.name, h.granted FROM tickwright.partner_shares h JOIN tickwright.workers w ON w.id = h.worker AND w.lost_at IS NULL
 WHERE h.partner_no = $1 ORDER BY h.granted DESC, w.id LIMIT 100;

-- name: waiting
-- Polls of a partner inside PostgreSQL that wait for a consumer, and those that consumers have in hand; $2 rows of each are looked at.
-- Index: poll_queue_waiting, poll_queue_taken.
SELECT waits.polls, waits.lines >= $2 AS capped, waits.oldest_at, hand.polls AS in_hand
  FROM (SELECT coalesce(sum(cardinality(q.ids)), 0)::bigint AS polls, count(*) AS lines, min(q.due_at) AS oldest_at
          FROM (SELECT due_at, ids FROM tickwright.poll_queue WHERE partner_no = $1 AND owner IS NULL ORDER BY due_at, seq LIMIT $2) AS q) AS waits
 CROSS JOIN (SELECT coalesce(sum(cardinality(q.ids)), 0)::bigint AS polls
               FROM (SELECT t.ids FROM tickwright.workers w JOIN tickwright.poll_queue t ON t.owner = w.id
                      WHERE w.lost_at IS NULL AND t.partner_no = $1 LIMIT $2) AS q) AS hand;

-- name: counted
-- What the processes that live have counted of calls to the partner $1 since they began. Small: a row per process.
SELECT w.name, coalesce((c.said ->> 'answered')::numeric, 0)::bigint AS answered, coalesce((c.said ->> 'throttled')::numeric, 0)::bigint AS throttled,
       coalesce((c.said ->> 'failed')::numeric, 0)::bigint AS failed
  FROM tickwright.workers w CROSS JOIN LATERAL (SELECT w.facts -> 'counters' -> 'partners' -> $1 AS said) AS c
 WHERE w.lost_at IS NULL AND w.lease_until > clock_timestamp() AND c.said IS NOT NULL ORDER BY w.id LIMIT 1000;
