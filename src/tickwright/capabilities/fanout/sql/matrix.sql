-- name: clock
-- The database's clock. No table.
SELECT clock_timestamp();

-- name: modules
-- All modules, or the module $1, and how many entities are polled for each. Indexes: modules_pkey; entities_polled, index only;
-- fanout_windows_pkey, read backwards.
WITH listed AS MATERIALIZED (
  SELECT name, sum(entities)::bigint AS entities FROM tickwright.listed_modules GROUP BY name
)
SELECT m.name, m.interval_seconds, m.paused_at, m.created_at, coalesce(l.entities, 0) AS entities,
       (SELECT w.window_at FROM tickwright.fanout_windows w WHERE w.task_type = m.name AND w.succeeded > 0
         ORDER BY w.window_at DESC LIMIT 1) AS last_success_window_at
  FROM tickwright.modules m LEFT JOIN listed l ON l.name = m.name
 WHERE $1::text IS NULL OR m.name = $1 ORDER BY m.name LIMIT 200;

-- name: windows
-- Consumers' counts of the windows since $1 of the modules $2. Index: fanout_windows_pkey.
SELECT task_type, window_at, succeeded, failed, superseded, expired FROM tickwright.fanout_windows
 WHERE window_at >= $1 AND task_type = ANY ($2::text[]) ORDER BY window_at DESC LIMIT $3;

-- name: published
-- For how many entities each window $2 of the module $1 at the same position was published, when marks are in PostgreSQL; counted up to
-- $3. Index: fanout_claims_pkey.
SELECT u.task_type, u.window_at, few.entities
  FROM unnest($1::text[], $2::timestamptz[]) AS u (task_type, window_at)
 CROSS JOIN LATERAL (
   SELECT count(*) AS entities FROM (SELECT FROM tickwright.fanout_claims c
     WHERE c.window_at = u.window_at AND c.task_type = u.task_type AND c.published_at IS NOT NULL LIMIT $3) AS f) AS few;

-- name: states
-- The last results of entities $1, each for the modules in its list $2 at the same position, in this order.
-- Index: fanout_cursors_pkey, modules_pkey.
SELECT u.n, n.name, m.name IS NOT NULL AS known, m.interval_seconds, m.paused_at,
       nullif(c.last_window_at, '-infinity') AS last_window_at, c.last_success_at,
       CASE WHEN c.owner IS NOT NULL THEN c.running_since END AS running_since,
       CASE WHEN c.owner IS NOT NULL THEN c.running_window_at END AS running_window_at,
       coalesce(c.failures, 0) AS failures, c.last_error, c.last_error_at, clock_timestamp() AS now
  FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS u (code, list, n)
 CROSS JOIN LATERAL (SELECT name, nth FROM unnest(string_to_array(u.list, ',')) WITH ORDINALITY AS k (name, nth) LIMIT 200) AS n
  LEFT JOIN tickwright.modules m ON m.name = n.name
  LEFT JOIN tickwright.fanout_cursors c ON c.entity_code = u.code AND c.task_type = n.name
 ORDER BY u.n, n.nth;
