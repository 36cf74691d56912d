-- name: find
-- The shared snapshot of the format $1, in how many seconds the next one is due, whether it is overdue by more than the grace time $2, and which
-- callers are valid; one row, also without a snapshot. Index: overview_snapshots_pkey.
SELECT s.content, date_part('epoch', s.due_at - clock_timestamp()) AS due_in_s,
       coalesce(s.due_at < clock_timestamp() - $2::interval, true) AS is_overdue,
       {valid_callers}
  FROM (VALUES (1)) AS one LEFT JOIN tickwright.overview_snapshots s ON s.format = $1;

-- name: take_over
-- Take the reading over, if the snapshot is overdue by the grace time $2; return the fence. Formats that no process has read for a day are deleted. Index:
-- overview_snapshots_pkey (small: a row per format).
WITH old AS (
  DELETE FROM tickwright.overview_snapshots WHERE due_at < clock_timestamp() - interval '1 day' AND format <> $1
)
INSERT INTO tickwright.overview_snapshots AS s (format, due_at) VALUES ($1, clock_timestamp() + $2::interval)
ON CONFLICT (format) DO UPDATE SET fence = s.fence + 1, due_at = excluded.due_at WHERE s.due_at < clock_timestamp() - $2::interval
RETURNING fence;

-- name: share
-- Share a snapshot, with the seconds $4 until the next one. Fenced: returns nothing after another process has taken over. Index: overview_snapshots_pkey.
UPDATE tickwright.overview_snapshots SET content = $3, due_at = clock_timestamp() + make_interval(secs => $4)
 WHERE format = $1 AND fence = $2
RETURNING fence;
