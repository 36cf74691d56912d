-- name: delete_claims
-- Delete at most $2 claims of windows that cannot be published any more: they began longer ago than the longest window and $1. A row that
-- is being written stays for the next round. Index: fanout_claims_pkey, then by row.
DELETE FROM tickwright.fanout_claims
 WHERE ctid = ANY (ARRAY (
   SELECT o.ctid FROM tickwright.fanout_claims o
    WHERE o.window_at < clock_timestamp() - $1::interval
                        - make_interval(secs => (SELECT coalesce(max(m.interval_seconds), 86400) FROM tickwright.modules m))
    ORDER BY o.window_at, o.task_type, o.entity_code LIMIT $2 FOR UPDATE SKIP LOCKED));

-- name: delete_windows
-- Delete at most $2 counts of windows that began longer than $1 ago. Index: fanout_windows_pkey, then by row.
DELETE FROM tickwright.fanout_windows
 WHERE ctid = ANY (ARRAY (
   SELECT o.ctid FROM tickwright.fanout_windows o
    WHERE o.window_at < clock_timestamp() - $1::interval ORDER BY o.window_at, o.task_type LIMIT $2 FOR UPDATE SKIP LOCKED));

-- name: delete_cursors
-- Read $2 cursors after the entity $3 and the task type $4. Delete those of deleted entities that have no owner and were not written for
-- $1. Returns the last key that was read, NULL at the end, and how many were deleted.
-- Index: fanout_cursors_pkey, then by row; entities_pkey.
WITH scanned AS MATERIALIZED (
  SELECT c.ctid, c.entity_code, c.task_type FROM tickwright.fanout_cursors c
   WHERE (c.entity_code, c.task_type) > ($3::text, $4::text) ORDER BY c.entity_code, c.task_type LIMIT $2
), idle AS MATERIALIZED (
  SELECT c.ctid FROM tickwright.fanout_cursors c
   WHERE c.ctid = ANY (ARRAY (SELECT ctid FROM scanned))
     AND c.owner IS NULL AND greatest(c.last_window_at, c.last_success_at, c.last_error_at) < clock_timestamp() - $1::interval
     AND (SELECT e.code FROM tickwright.entities e WHERE e.code = c.entity_code) IS NULL
     FOR UPDATE OF c SKIP LOCKED
), gone AS (
  DELETE FROM tickwright.fanout_cursors WHERE ctid = ANY (ARRAY (SELECT ctid FROM idle)) RETURNING 1
)
SELECT last.entity_code, last.task_type, (SELECT count(*) FROM gone) AS gone
  FROM (SELECT 1) AS one LEFT JOIN LATERAL
       (SELECT l.entity_code, l.task_type FROM scanned l ORDER BY l.entity_code DESC, l.task_type DESC OFFSET 0 LIMIT 1) AS last
    ON (SELECT count(*) FROM scanned) = $2;
