-- name: lock_limited
-- Serialize the workers that share the concurrency of these types. Index: task_types_pkey.
SELECT name FROM tickwright.task_types WHERE name = ANY ($1::text[]) ORDER BY name FOR UPDATE;

-- name: share_out
-- Settle how much of each type's concurrency this worker may use: its even share, never more than the others leave. What it runs beyond
-- that stays granted until it ends and is not filled again, so that a lowered limit and a new worker get their due. Of a type that it does
-- not claim ($4 is false) it has no share, only what it runs, and then no row; the others divide the rest. short: the others leave less
-- than its share. The sum of all grants stays within the limit. A lost session settles nothing and gets no row; this one is not declared
-- lost before the commit. Grants of lost sessions, which workers of an earlier release write, do not count. Index: type_grants_pkey.
WITH session AS MATERIALIZED (
  SELECT id FROM tickwright.workers WHERE id = $1 AND lost_at IS NULL FOR KEY SHARE
), wish AS (
  SELECT u.name, t.concurrency, u.in_use, u.shares
    FROM session CROSS JOIN unnest($2::text[], $3::integer[], $4::boolean[]) AS u (name, in_use, shares)
    LEFT JOIN tickwright.task_types t USING (name)
   WHERE t.concurrency IS NOT NULL OR NOT u.shares
), shared AS (
  SELECT w.name, w.in_use, w.shares, w.concurrency,
         coalesce(sum(g.granted), 0) AS others,
         1 + count(*) FILTER (WHERE g.shares) AS sharers,
         count(*) FILTER (WHERE g.shares AND g.worker < $1) AS rank
    FROM wish w
    LEFT JOIN (tickwright.type_grants g JOIN tickwright.workers live ON live.id = g.worker AND live.lost_at IS NULL)
           ON g.task_type = w.name AND g.worker <> $1
   GROUP BY w.name, w.in_use, w.shares, w.concurrency
), due AS (
  SELECT name, in_use, shares, concurrency - others AS room,
         CASE WHEN shares THEN concurrency / sharers + CASE WHEN rank < concurrency % sharers THEN 1 ELSE 0 END ELSE 0 END AS share
    FROM shared
), settled AS (
  SELECT name, in_use, shares, greatest(0, least(share, room))::integer AS granted, shares AND share > room AS short
    FROM due
), gone AS (
  DELETE FROM tickwright.type_grants g USING settled s
   WHERE g.task_type = s.name AND g.worker = $1 AND NOT s.shares AND s.in_use = 0
), written AS (
  INSERT INTO tickwright.type_grants AS g (task_type, worker, granted, shares)
  SELECT name, $1, greatest(in_use, granted), shares FROM settled WHERE shares OR in_use > 0
  ON CONFLICT (task_type, worker) DO UPDATE SET granted = excluded.granted, shares = excluded.shares
   WHERE (g.granted, g.shares) <> (excluded.granted, excluded.shares)
)
SELECT name, granted, short FROM settled;

-- name: notify_workers
-- Make every worker settle its grants after the commit: one began or ceased to share. No table.
SELECT pg_notify('tickwright_types', '');

-- name: lock_rate
-- The first free start of a rate-limited type, locked, and the clock, in seconds since 1970. Index: type_rates_pkey.
SELECT date_part('epoch', next_free_at) AS next_free_s, date_part('epoch', clock_timestamp()) AS now_s
  FROM tickwright.type_rates WHERE task_type = $1 FOR UPDATE;

-- name: create_rate
-- First use of a rate limit. Index: type_rates_pkey.
INSERT INTO tickwright.type_rates (task_type, next_free_at) VALUES ($1, clock_timestamp()) ON CONFLICT DO NOTHING;

-- name: take_starts
-- Take the starts up to the given instant. Index: type_rates_pkey.
UPDATE tickwright.type_rates SET next_free_at = to_timestamp($2::float8) WHERE task_type = $1;
