-- name: load
-- The steps of attempts that the session $1 holds, by job and fence; a job that it does not hold is missing. Index: scheduled_tasks_pkey.
SELECT t.id, CAST(t.steps AS text) AS steps
  FROM unnest($2::bigint[], $3::bigint[]) AS u (id, fence) JOIN ONLY tickwright.scheduled_tasks t ON t.id = u.id
 WHERE t.id = ANY ($2::bigint[]) AND t.owner = $1 AND t.fence = u.fence;

-- name: keep
-- Keep the results of steps. Fenced by owner and job fence, and idempotent. Returns the held jobs, and whether the steps are kept: those of a row
-- that another session has locked are not, because a wait for it would delay the others. Index: scheduled_tasks_pkey.
WITH asked AS MATERIALIZED (
  SELECT u.id, u.fence, jsonb_object_agg(u.name, jsonb_build_object('result', u.result, 'at', clock_timestamp(), 'attempt', u.attempt)) AS steps
    FROM unnest($2::bigint[], $3::bigint[], $4::text[], $5::jsonb[], $6::integer[]) AS u (id, fence, name, result, attempt) GROUP BY u.id, u.fence
), free AS MATERIALIZED (
  SELECT t.id FROM ONLY tickwright.scheduled_tasks t WHERE t.id = ANY ($2::bigint[]) AND t.owner = $1 FOR NO KEY UPDATE SKIP LOCKED
), kept AS (
  UPDATE ONLY tickwright.scheduled_tasks t SET steps = coalesce(t.steps, '{}') || u.steps, updated_at = clock_timestamp()
    FROM asked u WHERE t.id = u.id AND t.id = ANY (ARRAY (SELECT id FROM free)) AND t.owner = $1 AND t.fence = u.fence
  RETURNING t.id, t.fence
)
SELECT id, fence, true AS is_kept FROM kept
UNION ALL
SELECT t.id, t.fence, false FROM asked u JOIN ONLY tickwright.scheduled_tasks t ON t.id = u.id AND t.owner = $1 AND t.fence = u.fence
 WHERE t.id = ANY ($2::bigint[]) AND NOT EXISTS (SELECT FROM free f WHERE f.id = t.id);

-- name: find_in
-- The step $4 of an attempt that the session $1 holds, in the transaction of a handler; no row where the session does not hold it. Index:
-- scheduled_tasks_pkey.
SELECT CAST(t.steps -> $4::text -> 'result' AS text) AS result, octet_length(CAST(t.steps AS text)) AS bytes,
       (SELECT count(*) FROM jsonb_object_keys(t.steps)) AS count
  FROM ONLY tickwright.scheduled_tasks t WHERE t.id = $2::bigint AND t.owner = $1::bigint AND t.fence = $3::bigint;

-- name: keep_in
-- Keep the result of a step in the transaction of a handler, which locks the job's row until its end. Fenced by owner and job fence. Index:
-- scheduled_tasks_pkey.
UPDATE ONLY tickwright.scheduled_tasks t
   SET steps = coalesce(t.steps, '{}') || jsonb_build_object($4::text, jsonb_build_object('result', CAST($5::text AS jsonb), 'at', clock_timestamp(), 'attempt', t.attempts)),
       updated_at = clock_timestamp()
 WHERE t.id = $2::bigint AND t.owner = $1::bigint AND t.fence = $3::bigint
RETURNING t.id;
