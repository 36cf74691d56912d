-- name: list_modules
-- All modules, or the module $1. Small: a row per module. Index: modules_pkey.
SELECT name, interval_seconds, timeout_ms, is_gated, target, set_by, paused_at, created_at, updated_at
  FROM tickwright.modules WHERE $1::text IS NULL OR name = $1 ORDER BY name LIMIT 10000;

-- name: lock_module
-- Serialize changes of one module. Index: modules_pkey.
SELECT name FROM tickwright.modules WHERE name = $1 FOR UPDATE;

-- name: put_module
-- Create a module or change its given settings, for $5. A program ($6) replaces only defaults and settings that a program declared. Equal
-- settings change nothing. $9 is remote:POOL, or empty for the program's function. Index: modules_pkey.
INSERT INTO tickwright.modules AS m (name, interval_seconds, timeout_ms, is_gated, set_by, target)
VALUES ($1, coalesce($2::integer, $7::integer), coalesce($3::integer, $8::integer), coalesce($4::boolean, false), $5, nullif($9::text, ''))
ON CONFLICT (name) DO UPDATE
   SET interval_seconds = coalesce($2, m.interval_seconds), timeout_ms = coalesce($3, m.timeout_ms),
       is_gated = coalesce($4, m.is_gated), set_by = $5, updated_at = clock_timestamp(), target = nullif(coalesce($9, m.target), '')
 WHERE (NOT $6::boolean OR m.set_by IN ('default', 'app'))
   AND (m.interval_seconds, m.timeout_ms, m.is_gated, m.set_by, m.target) IS DISTINCT FROM
       (coalesce($2, m.interval_seconds), coalesce($3, m.timeout_ms), coalesce($4, m.is_gated), $5, nullif(coalesce($9, m.target), ''))
RETURNING xmax = 0 AS created;

-- name: pause_module
-- Stop polling entities for it until it is enabled. Index: modules_pkey.
UPDATE tickwright.modules SET paused_at = clock_timestamp(), updated_at = clock_timestamp() WHERE name = $1 AND paused_at IS NULL;

-- name: enable_module
-- Poll entities for it again, from the current window on. Index: modules_pkey.
UPDATE tickwright.modules SET paused_at = NULL, updated_at = clock_timestamp() WHERE name = $1 AND paused_at IS NOT NULL;

-- name: module_counts
-- How many entities are polled for a module, and how many of them are stale, as the firing alert has counted.
-- Index: entities_polled, index only; alerts_firing.
SELECT coalesce((SELECT sum(l.entities) FROM tickwright.listed_modules l WHERE l.name = $1), 0)::bigint AS entities,
       coalesce((SELECT (a.facts -> 'count')::bigint FROM tickwright.alerts a
                  WHERE a.rule = 'fanout_stale' AND a.subject = $1 AND a.state = 'firing'), 0) AS entities_stale;

-- name: module_windows
-- Counts of the current window and of the three before it, the newest first. Index: modules_pkey, fanout_windows_pkey.
SELECT at.window_at, coalesce(w.succeeded, 0) AS succeeded, coalesce(w.failed, 0) AS failed,
       coalesce(w.superseded, 0) AS superseded, coalesce(w.expired, 0) AS expired
  FROM tickwright.modules m
 CROSS JOIN generate_series(0, 3) AS back
 CROSS JOIN LATERAL (
   SELECT to_timestamp((floor(date_part('epoch', now()) / m.interval_seconds) - back) * m.interval_seconds) AS window_at) AS at
  LEFT JOIN tickwright.fanout_windows w ON w.window_at = at.window_at AND w.task_type = m.name
 WHERE m.name = $1 ORDER BY at.window_at DESC;
