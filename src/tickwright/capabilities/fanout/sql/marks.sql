-- name: claim
-- Claim marks under the token $4 for $5: window i is of entity $1[i] and task type $2[i], from second $3[i] on. One row per window, in
-- order: mine is true for a claim that this token now has, sealed for a window that is published, has run, or is running; neither, if
-- another token has claimed it. Rows are locked in the order of their key, in its collation, so that statements cannot deadlock.
-- Index: fanout_claims_pkey, fanout_cursors_pkey.
WITH place AS MATERIALIZED (
  SELECT u.n, u.entity_code, u.task_type, to_timestamp(u.window_s) AS window_at,
         CASE WHEN c.last_success_at <= clock_timestamp() + interval '1 minute' THEN date_part('epoch', c.last_success_at) END
           AS last_success_s,
         coalesce((c.last_window_at >= to_timestamp(u.window_s) AND c.last_window_at <= clock_timestamp() + interval '1 minute')
                  OR c.running_window_at = to_timestamp(u.window_s), false) AS ran
    FROM unnest($1::text[], $2::text[], $3::bigint[]) WITH ORDINALITY AS u (entity_code, task_type, window_s, n)
    LEFT JOIN tickwright.fanout_cursors c ON c.entity_code = u.entity_code AND c.task_type = u.task_type
), claimed AS (
  INSERT INTO tickwright.fanout_claims AS f (window_at, task_type, entity_code, token, claimed_until)
  SELECT DISTINCT p.window_at, p.task_type, p.entity_code COLLATE "C", $4::text, clock_timestamp() + $5::interval
    FROM place p WHERE NOT p.ran ORDER BY 1, 2, 3
      ON CONFLICT (window_at, task_type, entity_code) DO UPDATE SET token = excluded.token, claimed_until = excluded.claimed_until
         WHERE f.published_at IS NULL AND (f.token = excluded.token OR f.claimed_until <= clock_timestamp())
  RETURNING f.window_at, f.task_type, f.entity_code
)
SELECT mine.entity_code IS NOT NULL AS mine, p.ran OR f.published_at IS NOT NULL AS sealed, p.last_success_s
  FROM place p
  LEFT JOIN claimed mine ON mine.window_at = p.window_at AND mine.task_type = p.task_type AND mine.entity_code = p.entity_code
  LEFT JOIN tickwright.fanout_claims f ON f.window_at = p.window_at AND f.task_type = p.task_type AND f.entity_code = p.entity_code
 ORDER BY p.n;

-- name: seal
-- Mark windows as published under the token $4: window i is of entity $1[i] and task type $2[i], from second $3[i] on. Claims and marks
-- of other tokens stay theirs. Returns how many are ours. Index: fanout_claims_pkey.
WITH sealed AS (
  INSERT INTO tickwright.fanout_claims AS f (window_at, task_type, entity_code, token, claimed_until, published_at)
  SELECT DISTINCT to_timestamp(u.window_s), u.task_type, u.entity_code COLLATE "C", $4::text, clock_timestamp(), clock_timestamp()
    FROM unnest($1::text[], $2::text[], $3::bigint[]) AS u (entity_code, task_type, window_s) ORDER BY 1, 2, 3
      ON CONFLICT (window_at, task_type, entity_code) DO UPDATE
         SET token = excluded.token, published_at = coalesce(f.published_at, excluded.published_at)
       WHERE f.token = excluded.token OR (f.published_at IS NULL AND f.claimed_until <= clock_timestamp())
  RETURNING 1
)
SELECT count(*) FROM sealed;

-- name: release
-- Release windows that are claimed under the token $4 and not sealed: window i is of entity $1[i] and task type $2[i], from second $3[i]
-- on. Index: fanout_claims_pkey.
WITH mine AS MATERIALIZED (
  SELECT f.window_at, f.task_type, f.entity_code
    FROM unnest($1::text[], $2::text[], $3::bigint[]) AS u (entity_code, task_type, window_s)
    JOIN tickwright.fanout_claims f
      ON f.window_at = to_timestamp(u.window_s) AND f.task_type = u.task_type AND f.entity_code = u.entity_code
   WHERE f.token = $4 AND f.published_at IS NULL ORDER BY f.window_at, f.task_type, f.entity_code FOR UPDATE OF f
)
DELETE FROM tickwright.fanout_claims f USING mine m
 WHERE f.window_at = m.window_at AND f.task_type = m.task_type AND f.entity_code = m.entity_code
   AND f.token = $4 AND f.published_at IS NULL;
