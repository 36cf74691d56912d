-- name: lock_entities
-- Lock the counting of the entities' runs until the end of the transaction, in one order for all. It locks rows instead of advisory locks,
-- which any user of the database may take. Index: fanout_turns_pkey.
SELECT FROM tickwright.fanout_turns AS t
 WHERE t.turn = ANY (ARRAY (SELECT hashtext(u.entity_code) & 16383 FROM unnest($1::text[]) AS u (entity_code)))
 ORDER BY t.turn FOR NO KEY UPDATE;

-- name: begin
-- Claim runs for the session $1: run i is of entity $2[i] and task type $3[i], of the window from second $4[i] on; its entity may have
-- $5[i] runs at once; no entity and task type twice. Runs after lock_entities. $7 is the error of a timeout.
-- One row per run, in order: the fence of a claimed run, with the seconds since its last error if that is a timeout (0 without a success
-- since); else whether the window is done; else the run is busy, as is every run of a lost session or one that refuses claims of number $6.
-- A claim of a lost session counts as free. A fence starts at the clock, as in Redis, so that it rises when the two stores alternate. A
-- window more than a minute ahead was written by a wrong clock and blocks nothing. Index: fanout_cursors_pkey, workers_pkey.
WITH mine AS MATERIALIZED (
  SELECT id FROM tickwright.workers WHERE id = $1 AND lost_at IS NULL AND claims_from <= $6 FOR KEY SHARE
), running AS MATERIALIZED (
  SELECT c.entity_code, c.task_type
    FROM tickwright.fanout_cursors c JOIN tickwright.workers w ON w.id = c.owner AND w.lost_at IS NULL
   WHERE c.entity_code = ANY ($2::text[])
), requested AS MATERIALIZED (
  SELECT u.n, u.entity_code, u.task_type, to_timestamp(u.window_s) AS window_at, u.at_once, c.last_success_at,
         CASE WHEN c.last_error IS DISTINCT FROM $7 THEN NULL WHEN c.failures > 0 THEN 0
              ELSE date_part('epoch', clock_timestamp() - c.last_error_at) END AS since_timeout_s,
         coalesce(c.last_window_at >= to_timestamp(u.window_s) AND c.last_window_at <= clock_timestamp() + interval '1 minute',
                  false) AS done,
         EXISTS (SELECT FROM running r WHERE r.entity_code = u.entity_code AND r.task_type = u.task_type) AS busy,
         (SELECT count(*) FROM running r WHERE r.entity_code = u.entity_code) AS live
    FROM unnest($2::text[], $3::text[], $4::bigint[], $5::integer[])
         WITH ORDINALITY AS u (entity_code, task_type, window_s, at_once, n)
    LEFT JOIN tickwright.fanout_cursors c ON c.entity_code = u.entity_code AND c.task_type = u.task_type
), wanted AS (
  SELECT a.*, row_number() OVER (PARTITION BY a.entity_code ORDER BY a.n) AS place
    FROM requested a, mine WHERE NOT a.done AND NOT a.busy
), claimed AS (
  INSERT INTO tickwright.fanout_cursors AS c (entity_code, task_type, fence, owner, running_window_at, running_since)
  SELECT w.entity_code, w.task_type, (date_part('epoch', clock_timestamp()) * 1000000)::bigint, $1, w.window_at, clock_timestamp()
    FROM wanted w WHERE w.live + w.place <= w.at_once ORDER BY w.entity_code COLLATE "C", w.task_type
      ON CONFLICT (entity_code, task_type) DO UPDATE
         SET fence = greatest(c.fence + 1, excluded.fence), owner = excluded.owner, running_window_at = excluded.running_window_at,
             running_since = excluded.running_since
       WHERE (c.owner IS NULL OR NOT EXISTS (SELECT FROM tickwright.workers w WHERE w.id = c.owner AND w.lost_at IS NULL))
         AND (c.last_window_at < excluded.running_window_at OR c.last_window_at > clock_timestamp() + interval '1 minute')
  RETURNING c.entity_code, c.task_type, c.fence, c.running_since
)
SELECT c.fence, a.done, date_part('epoch', coalesce(c.running_since, clock_timestamp())) AS begun_s,
       CASE WHEN a.last_success_at <= clock_timestamp() + interval '1 minute' THEN date_part('epoch', a.last_success_at) END
         AS last_success_s, a.since_timeout_s
  FROM requested a LEFT JOIN claimed c USING (entity_code, task_type) ORDER BY a.n;

-- name: end
-- End runs of the session $1: run i is of entity $2[i], task type $3[i], fence $4[i], of the window from second $5[i] on, and began at
-- $6[i]. It failed with the reason $7[i], or was released ($8[i]), or succeeded; no entity and task type twice. Only the owner of a claim
-- writes, and a cursor never goes back. One row per run, in order: whether it was ours. It is true again when the run was ended under
-- this fence before and the answer was lost. Index: fanout_cursors_pkey, fanout_windows_pkey.
WITH ended AS MATERIALIZED (
  SELECT u.n, u.entity_code, u.task_type, u.fence, to_timestamp(u.window_s) AS window_at, to_timestamp(u.begun_s) AS begun_at, u.error,
         NOT u.released AND u.error IS NULL AS succeeded, NOT u.released AND u.error IS NOT NULL AS failed
    FROM unnest($2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::float8[], $7::text[], $8::boolean[])
         WITH ORDINALITY AS u (entity_code, task_type, fence, window_s, begun_s, error, released, n)
), held AS MATERIALIZED (
  SELECT e.n,
         e.succeeded AND (c.last_window_at < e.window_at OR c.last_window_at > clock_timestamp() + interval '1 minute') AS newer
    FROM ended e JOIN tickwright.fanout_cursors c USING (entity_code, task_type)
   WHERE c.fence = e.fence AND (c.owner = $1 OR c.owner IS NULL)
   ORDER BY c.entity_code, c.task_type FOR NO KEY UPDATE OF c
), written AS (
  UPDATE tickwright.fanout_cursors c
     SET owner = NULL, running_window_at = NULL, running_since = NULL,
         last_window_at = CASE WHEN h.newer THEN e.window_at ELSE c.last_window_at END,
         last_success_at = CASE WHEN NOT h.newer THEN c.last_success_at
                                WHEN c.last_success_at <= clock_timestamp() + interval '1 minute'
                                THEN greatest(c.last_success_at, e.begun_at) ELSE e.begun_at END,
         failures = CASE WHEN e.succeeded THEN 0 ELSE c.failures + e.failed::integer END,
         last_error = coalesce(e.error, c.last_error),
         last_error_at = CASE WHEN e.failed THEN clock_timestamp() ELSE c.last_error_at END
    FROM held h JOIN ended e USING (n)
   WHERE c.entity_code = e.entity_code AND c.task_type = e.task_type AND c.fence = e.fence AND c.owner = $1
  RETURNING e.task_type, e.window_at, h.newer, e.failed
), counted AS (
  INSERT INTO tickwright.fanout_windows AS f (task_type, window_at, succeeded, failed)
  SELECT w.task_type, w.window_at, count(*) FILTER (WHERE w.newer), count(*) FILTER (WHERE w.failed)
    FROM written w WHERE w.newer OR w.failed GROUP BY w.window_at, w.task_type ORDER BY w.window_at, w.task_type
      ON CONFLICT (window_at, task_type) DO UPDATE SET succeeded = f.succeeded + excluded.succeeded, failed = f.failed + excluded.failed
)
SELECT h.n IS NOT NULL AS ours FROM ended e LEFT JOIN held h USING (n) ORDER BY e.n;

-- name: renew
-- Which runs of the session $1 are still its own: run i is of entity $2[i], task type $3[i], fence $4[i]. Their lease is that of the
-- session, so nothing is written. One row per run, in order. Index: fanout_cursors_pkey.
SELECT c.fence IS NOT NULL AS ours
  FROM unnest($2::text[], $3::text[], $4::bigint[]) WITH ORDINALITY AS u (entity_code, task_type, fence, n)
  LEFT JOIN tickwright.fanout_cursors c
    ON c.entity_code = u.entity_code AND c.task_type = u.task_type AND c.fence = u.fence AND c.owner = $1
 ORDER BY u.n;

-- name: release_unknown
-- Release claims of the session $1 that its process does not know because the answer was lost, and end their fences. It knows the run of
-- entity $2[i] and task type $3[i] at the fence $4[i]. Runs after refuse_claims. Index: fanout_cursors_owner.
WITH unknown AS MATERIALIZED (
  SELECT c.entity_code, c.task_type FROM tickwright.fanout_cursors c
   WHERE c.owner = $1
     AND NOT EXISTS (SELECT FROM unnest($2::text[], $3::text[], $4::bigint[]) AS k (entity_code, task_type, fence)
                      WHERE k.entity_code = c.entity_code AND k.task_type = c.task_type AND k.fence = c.fence)
   ORDER BY c.entity_code, c.task_type FOR NO KEY UPDATE OF c
), back AS (
  UPDATE tickwright.fanout_cursors c
     SET owner = NULL, fence = c.fence + 1, running_window_at = NULL, running_since = NULL
    FROM unknown u WHERE c.entity_code = u.entity_code AND c.task_type = u.task_type AND c.owner = $1
  RETURNING 1
)
SELECT count(*) FROM back;

-- name: reclaim
-- Release the runs of lost sessions, and end their fences. Index: fanout_cursors_owner.
WITH lost AS MATERIALIZED (
  SELECT c.entity_code, c.task_type FROM tickwright.fanout_cursors c
   WHERE c.owner = ANY ($1::bigint[]) ORDER BY c.entity_code, c.task_type FOR NO KEY UPDATE OF c
)
UPDATE tickwright.fanout_cursors c
   SET owner = NULL, fence = c.fence + 1, running_window_at = NULL, running_since = NULL
  FROM lost l WHERE c.entity_code = l.entity_code AND c.task_type = l.task_type AND c.owner = ANY ($1::bigint[]);

-- name: carry_over
-- Write successes from a time without a database: of entity $1[i] and task type $2[i], the window from second $3[i] on, by a run that
-- began at $4[i]; no entity and task type twice. A cursor never goes back, so a repetition changes nothing; a running task keeps its
-- owner. Index: fanout_cursors_pkey, fanout_windows_pkey.
WITH written AS (
  INSERT INTO tickwright.fanout_cursors AS c (entity_code, task_type, last_window_at, last_success_at)
  SELECT u.entity_code, u.task_type, to_timestamp(u.window_s), to_timestamp(u.success_s)
    FROM unnest($1::text[], $2::text[], $3::bigint[], $4::float8[]) AS u (entity_code, task_type, window_s, success_s)
   ORDER BY u.entity_code COLLATE "C", u.task_type
      ON CONFLICT (entity_code, task_type) DO UPDATE
         SET last_window_at = excluded.last_window_at, failures = 0,
             last_success_at = CASE WHEN c.last_success_at <= clock_timestamp() + interval '1 minute'
                                    THEN greatest(c.last_success_at, excluded.last_success_at) ELSE excluded.last_success_at END
       WHERE c.last_window_at < excluded.last_window_at OR c.last_window_at > clock_timestamp() + interval '1 minute'
  RETURNING c.task_type, c.last_window_at AS window_at
)
INSERT INTO tickwright.fanout_windows AS f (task_type, window_at, succeeded)
SELECT w.task_type, w.window_at, count(*) FROM written w GROUP BY w.window_at, w.task_type ORDER BY w.window_at, w.task_type
    ON CONFLICT (window_at, task_type) DO UPDATE SET succeeded = f.succeeded + excluded.succeeded;

-- name: count_dropped
-- Count dropped messages of task type $1[i] and the window from second $2[i] on: $3[i] superseded and $4[i] expired; no window of a type
-- twice. Index: fanout_windows_pkey.
INSERT INTO tickwright.fanout_windows AS f (task_type, window_at, superseded, expired)
SELECT u.task_type, to_timestamp(u.window_s), u.superseded, u.expired
  FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[]) AS u (task_type, window_s, superseded, expired) ORDER BY 2, 1
    ON CONFLICT (window_at, task_type) DO UPDATE SET superseded = f.superseded + excluded.superseded, expired = f.expired + excluded.expired;

-- name: held
-- What the session $1 holds, at most $2 rows. Index: fanout_cursors_owner.
SELECT 'task' AS kind, NULL::bigint AS id, entity_code || '/' || task_type AS name, NULL::integer AS number, running_since AS since_at, fence,
       NULL::bigint AS count
  FROM tickwright.fanout_cursors WHERE owner = $1 LIMIT $2;

-- name: owned
-- Whether the session $1 owns a run. Index: fanout_cursors_owner.
SELECT EXISTS (SELECT FROM tickwright.fanout_cursors WHERE owner = $1);
